"""The analysis of profiler captures: time by class, idle time, collectives, the critical path, and what-if replays."""
