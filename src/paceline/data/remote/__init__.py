"""Data sets in a store: S3 and what speaks like it, HTTP, and whatever else fsspec knows."""
