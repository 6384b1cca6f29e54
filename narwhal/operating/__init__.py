"""`narwhal engines`, `drain` and `readmit`: an operator talks to a running router."""
