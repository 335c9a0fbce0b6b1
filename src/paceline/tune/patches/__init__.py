"""Turns a recipe into edits of the program's source: patched files, and the settings that stay in the recipe."""
