"""Try changes on an unmodified program and keep those with a measured speed-up."""
