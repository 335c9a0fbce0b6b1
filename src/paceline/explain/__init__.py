"""Pure functions from a run's record to what held it back: breakdown, findings, verdict."""
