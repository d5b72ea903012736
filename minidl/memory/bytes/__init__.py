"""Allocators for bytes: blocks of the device's arena and ranges of host memory.
They know sizes and addresses, no tensors."""
