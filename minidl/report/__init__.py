"""Output for readers, made from numbers, traces and plans: nothing here decides, or changes a run.

    meter, result, summary   a run: its bar, its numbers, its closing lines
    explain, layers          a plan: each decision, by the layer that made the tensor
    compare                  two plans beside each other
"""
