"""What is fuzzed: a module each.

`check(data)` raises AssertionError if the extension and its oracle disagree on an input, `seeds()` are inputs
to begin with, and `change(data, random)` makes another of one. Where an input is cut into reads, the cuts
follow from its own bytes, so that it always does the same.
"""
