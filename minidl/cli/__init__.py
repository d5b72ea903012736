"""The commands of ``minidl``, such as ``minidl train``. A command reads flags and calls other parts of the package.

train, explain   training, as train.py does it: the code is in ``minidl.cli.app``
models           the names of the networks
view             HTML pages that show the memory of a recorded training step or, by ``traced``, of a trace

``minidl.__main__`` lists all commands.
"""
