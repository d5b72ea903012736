"""Blocks in the device's arena and extents of host memory. Knows sizes and offsets, no tensors."""
