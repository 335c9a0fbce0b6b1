"""``python -m paceline`` is the same as ``paceline``."""

from paceline.cli import main

main()
