"""The engine's features that can be switched off, to measure what each is worth (Capuchin, section 6.2, Figure 8).

All are on unless somebody asks: a run with one of them off is for comparison. Knows no policy; whoever carries a
feature out looks at its own field.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Switches:
    """False turns a feature off.

    decoupled_swap  computation does not wait for copies. Off: a copy overlaps one call, and the next waits for it, as
                    in vDNN, which synchronises both at the end of each layer.
    collective      values that a replay makes on its way to its target, and that somebody wants later, stay. Off: they
                    are dropped again, and each has a replay of its own.
    feedback        a plan is corrected by what its iterations show. Off: the first plan is kept.
    measured_times  plans are made from measured durations. Off: a call is taken to last its FLOPs at the device's peak,
                    as for planners that know a network but have not run it.
    fused           operations that have a fused form use it (batch norm or convolution with ReLU). Off: as those
                    frameworks ran them whose speeds were published.
    """

    decoupled_swap: bool = True
    collective: bool = True
    feedback: bool = True
    measured_times: bool = True
    fused: bool = True


ALL_ON = Switches()
