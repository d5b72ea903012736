"""Tensors in slices along their batch: no operation is too large. ``rules`` is what operations say of themselves,
``slicer`` what runs them, ``logical`` the record of a tensor in slices, ``seam`` what an executor knows of it."""
