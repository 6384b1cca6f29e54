"""What happened? Counters, metrics, the journal."""
