"""Stack samples: the user's functions in which time is spent."""
