"""Writing of datasets of shards and tokens, their verification and description, and exports to other formats."""
