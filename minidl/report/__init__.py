"""Texts, tables and JSON about a run, made from numbers, traces and plans. Nothing here changes a run.

meter, result, summary   a run: its progress bar, its numbers, its closing lines
decisions, explain       a plan: each decision, and what it cost; layers: the layer that made each tensor
compare                  two plans side by side
"""
