"""The laboratory: runs the trace of a program under any policy and budget, on a modelled machine, and makes one table.

``minidl lab`` lists the commands, and docs/lab.md explains them. Functions do the same: ``sources.load`` reads a trace,
``cell.run`` runs one cell of an experiment (a trace, machine, budget and policy), ``grid.run`` a whole table.
"""
