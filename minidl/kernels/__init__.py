"""Numerics only: how each operation is computed, on which kind of device. Knows no budget, policy or clock."""
