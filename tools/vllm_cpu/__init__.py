"""vLLM on CPU, for tests and for trying things out: an environment, a tiny model, a fleet of engines."""
