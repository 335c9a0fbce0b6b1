"""What a trial asks of the program besides a recipe: step control, checksums, fixed random draws."""
