"""First-step capture: record what a program trains and what its first step does, for `paceline plan`."""
