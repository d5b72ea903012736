"""Tensors in parts: batches cut into slices, and parameters cut into shards."""
