# Compiled with the hot path; see docs/design.md.
