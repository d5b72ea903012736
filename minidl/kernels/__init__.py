"""The kernels: how each operation is computed on each kind of device. Knows numbers only."""
