"""What people look at. Made of numbers, traces and plans alone: nothing here decides, or changes a run.

    meter, result, summary   a run: its bar, its numbers, its closing lines
    explain, layers          a plan: each decision, by the layer that made the tensor
    compare                  two plans beside each other
    timeline                 a step as a picture
"""
