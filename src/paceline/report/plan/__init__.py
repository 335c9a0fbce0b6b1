"""The reports of `paceline plan`: a predicted layout, prices and memory, as HTML, JSON and terminal output."""
