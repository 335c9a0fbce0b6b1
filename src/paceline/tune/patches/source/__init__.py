"""Analyzes the source of a program: files, syntax trees, declarations of names, and origins of values."""
