"""The commands of ``minidl``. A command combines parts of the package and holds none of their logic.

    train, explain, models   the program of ``minidl.cli.app``, with the networks that ship with minidl
    view, traced             pages of recorded steps, of trainings and of traces
"""
