"""Talking to engines: connections, the two legs, dialects."""
