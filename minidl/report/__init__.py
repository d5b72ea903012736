"""Output for readers, from numbers, traces and plans. Nothing here decides anything or changes a run.

  meter, result, summary   a run: its progress bar, its numbers, its closing lines
  explain, layers          a plan: each decision, with the layer that made the tensor
  compare                  two plans side by side
"""
