"""Faster forms of kernels: several elements a thread, wide loads, tiles in shared memory. No GPU has timed them yet."""
