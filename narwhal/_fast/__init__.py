"""Cython: the decode critical path, from the engine's socket to the client's."""
