"""The kernels: the code that computes each operation on each kind of device. It sees arrays or addresses, no tensors.
"""
