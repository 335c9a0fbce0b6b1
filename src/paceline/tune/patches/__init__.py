"""How does a recipe look in the program's own source? Sources and recipe in, patched sources and what stays out."""
