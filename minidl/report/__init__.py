"""Output for readers, from numbers, traces and plans. Nothing here decides anything or changes a run.

  meter, result, summary   a run: its progress bar, its numbers, its closing lines
  decisions, explain       a plan: each decision; how each went; layers: the layer that made the tensor
  compare                  two plans side by side
"""
