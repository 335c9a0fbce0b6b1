"""Datasets in an object store: S3 and compatible stores, HTTP, and other protocols of fsspec."""
