"""Parameters in shards along their first dimension, for those that no device holds whole: ``Runtime(shard_bytes=...)``.
"""
