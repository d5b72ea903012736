"""The engine's features that can be switched off, to measure the worth of each (Capuchin, section 6.2, Figure 8).

All are on by default; a run with one of them off is for comparison. Each part of the engine reads its own field.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Switches:
    """False turns a feature off.

    decoupled_swap  computation does not wait for copies. Off: the next call waits for a copy that ran beside a call, as
                    in vDNN, which synchronises both at the end of each layer.
    collective      intermediate values of a replay that the program still needs stay. Off: they are dropped again, and
                    each has a replay of its own.
    feedback        iterations correct the plan. Off: the first plan is kept.
    measured_times  plans are made from measured durations. Off: a call is taken to last its FLOPs at the device's peak,
                    as for planners that know a network but have not run it.
    fused           operations that have a fused form use it (batch norm or convolution with ReLU). Off: they run as in
                    the frameworks whose speeds were published.
    """

    decoupled_swap: bool = True
    collective: bool = True
    feedback: bool = True
    measured_times: bool = True
    fused: bool = True


ALL_ON = Switches()
