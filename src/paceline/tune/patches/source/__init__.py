"""What a patch knows of a program: files, syntax trees, declarations of names, and where values come from."""
