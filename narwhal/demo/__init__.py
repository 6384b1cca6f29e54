"""`narwhal demo`: the router on simulated engines in one process, for a first look and to try a client on."""
