"""Training steps: from events in the program to step rows."""
