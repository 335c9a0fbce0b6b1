"""Reading samples of shards: blocks of bytes, decoded images, crops, tokens, and the cache of decoded images."""
