"""The report of `paceline plan`: predicted layout, price and memory, as HTML, JSON and terminal output."""
