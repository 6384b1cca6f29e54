"""What state is each engine in? Occupancy, availability, roles. Pure."""
