"""How each kind of engine is spoken to: one file a dialect."""
