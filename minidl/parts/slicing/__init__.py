"""Runs operations slice by slice along the batch, so that the working set of a large operation fits the device.
``slicer`` runs the calls, ``queue`` holds calls until they run, ``logical`` has the record of a tensor in slices."""
