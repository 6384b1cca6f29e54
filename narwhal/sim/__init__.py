"""Engines made of software, which answer as real ones do and fail on demand."""
