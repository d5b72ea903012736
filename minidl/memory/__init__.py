"""Where bytes live and when they move. Knows bytes, times and identities; no arrays, no kernels."""
