"""The laboratory: any program as a trace, under any policy and budget, on any machine; one table.

``minidl lab`` lists the commands; docs/lab.md tells what they are for. What they do can be called, too:
``sources.load`` has a trace, ``cell.run`` runs one cell of an experiment, ``grid.run`` a whole table.
"""
