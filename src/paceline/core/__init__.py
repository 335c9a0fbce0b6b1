"""Definitions that every other package uses: errors, units, statistics, safety classes and the table of remedies."""
