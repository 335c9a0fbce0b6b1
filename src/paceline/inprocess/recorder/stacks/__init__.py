"""Stack samples: in which of the user's functions time is spent."""
