"""May it come in, now? Retention, the queue for seats, readiness. Pure: time is an argument."""
