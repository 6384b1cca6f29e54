"""`narwhal check`: is the fleet file right, and does each engine in it answer as the file says?"""
