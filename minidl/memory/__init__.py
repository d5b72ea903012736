"""On-demand memory: where the bytes of tensors are, and how they leave and come back. No arrays and no kernels here."""
