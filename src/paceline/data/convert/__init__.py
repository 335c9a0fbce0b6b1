"""Writes data sets of shards and tokens. Verifies, describes and exports those that are written."""
