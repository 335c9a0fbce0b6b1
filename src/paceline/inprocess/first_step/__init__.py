"""What a program trains, and what its first step does: noted for `paceline plan`."""
