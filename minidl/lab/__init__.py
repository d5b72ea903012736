"""The laboratory: any program as a trace, under any policy and budget, on any machine; one table.

``minidl lab`` lists the commands, and docs/lab.md explains them. Functions do the same:
``sources.load`` reads a trace, ``cell.run`` runs one cell of an experiment, ``grid.run`` a whole table.
"""
