"""The commands of ``minidl`` that need more than one part of it: what each is made of lies elsewhere.

    train, explain, models   the program of ``minidl.cli.app``, with the networks that ship with minidl
    view, traced             pages of recorded steps, of trainings and of traces
"""
