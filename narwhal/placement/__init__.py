"""Which engine? Eligible, then priced, then picked. Pure functions over the fleet's table."""
