"""Definitions that every other package uses: errors, units, safety classes and the table of remedies."""
