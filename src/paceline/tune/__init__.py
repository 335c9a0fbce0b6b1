"""Try the fixes on an unmodified program, keep what measurably helps, and prove it."""
