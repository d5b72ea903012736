"""Tensors that are stored in parts: batches cut into slices, and large parameters cut into shards."""
