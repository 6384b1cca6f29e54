"""How long will it take? Curves and what is learned from traffic. Pure."""
