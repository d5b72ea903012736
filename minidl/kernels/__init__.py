"""Numerics only: how each operation is computed, on which kind of device."""
