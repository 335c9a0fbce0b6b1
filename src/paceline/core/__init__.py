"""Definitions that every other package uses: safety classes and the table of remedies."""
