"""The diagnosis of a recorded run: breakdown of its time, findings, and verdict. All functions are pure."""
