"""Gives out blocks of the device's arena and ranges of host memory. Knows sizes and offsets, no tensors."""
