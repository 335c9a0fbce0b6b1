"""Captures, analyzed: time by class, idle time, collectives, the critical path, what-if."""
