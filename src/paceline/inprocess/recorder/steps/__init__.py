"""Training steps: convert events in the program into step rows."""
