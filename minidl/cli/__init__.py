"""The commands of ``minidl``, such as ``minidl train``. A command reads flags and calls other parts of the package.

train, explain, models   training, as train.py does it: the code is in ``minidl.cli.app``
view, traced             HTML pages that show the memory of a recorded training step, or of a trace
"""
