"""Switches for the passages of the paper that can be read in several ways.

``bench/results/capuchin.md`` measures each reading; ``docs/paper.md`` gives the reasons for the defaults.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readings:
    """One reading of the paper per field. The defaults are the readings nearest to the text that reproduce its numbers.

    listing          True: Algorithm 1 as printed: each candidate once, by FT, in the cheaper way. False: the text of
                     section 4.5: swap what can be hidden, then compare the cheapest swap with the best drop.
    landed           True: a swapped tensor's memory is free from SwapOutEnd to SwapInStart, as in equation 1, and
                     waiting for a copy out is overhead. False: it is free from the next call to the back-access, and
                     only the copy in has overhead.
    after_call       True: a copy out starts when the call of the evicted-access has ended. False: when that call
                     starts, which is the access's time.
    queueing         True: transfers wait for earlier ones on the link. False: each has the link to itself, and its
                     overhead is -FT if FT is negative.
    triggers_first   True: the in-trigger is chosen before the swap's cost, outside the peak at that moment. False:
                     in-triggers are chosen after all decisions, outside the peak that the plan leaves.
    one_sum          True: mem_saving is one number, the bytes that passive mode evicts. False: it is a profile, the
                     bytes missing during each call.
    per_byte         True: the best swap and recomputation are compared by seconds per byte, like MSPS. False: by
                     seconds.
    sources_stay     True: a replay may always start from a swapped tensor. False: only while it is on the device.
    overwritten      True: line 31 of Algorithm 2 as printed: ext_time is set from the last choice only. False: it
                     counts every choice that starts from the tensor.
    """

    listing: bool = False
    landed: bool = True
    after_call: bool = True
    queueing: bool = True
    triggers_first: bool = False
    one_sum: bool = False
    per_byte: bool = True
    sources_stay: bool = False
    overwritten: bool = False


DEFAULT = Readings()
PRINTED = Readings(listing=True, landed=False, after_call=False, queueing=False, triggers_first=True, one_sum=True,
                   per_byte=False, sources_stay=True, overwritten=True)
