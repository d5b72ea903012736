"""The engine's features that can be switched off, to measure the worth of each (Capuchin, section 6.2, Figure 8).

All are on by default.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Switches:
    """One flag for each feature; False turns the feature off.

    decoupled_swap  computation does not wait for copies to end. Off: each call waits for the copies that ran beside the
                    call before it, as in vDNN, which synchronises both at the end of each layer.
    collective      intermediate values of a replay that the program still needs stay on the device. Off: they are
                    dropped again, and each is replayed anew when it is needed.
    feedback        the plan is corrected after each iteration. Off: the first plan is kept.
    measured_times  plans are made from measured durations. Off: a call's duration is estimated as its FLOPs divided by
                    the device's peak, as by planners that have not run the network.
    fused           operations that have a fused form use it (batch norm or convolution with ReLU). Off: the separate
                    operations run."""

    decoupled_swap: bool = True
    collective: bool = True
    feedback: bool = True
    measured_times: bool = True
    fused: bool = True


ALL_ON = Switches()
