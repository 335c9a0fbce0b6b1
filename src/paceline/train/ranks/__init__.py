"""Cooperation of the ranks of a run: process groups, random states, checks for equal values, and errors."""
