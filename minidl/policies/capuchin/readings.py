"""How the paper is read where it can be read in more than one way: each reading is a switch of the policy maker.

What each is worth is in ``bench/results/capuchin.md``, and why the defaults are what they are in ``docs/paper.md``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readings:
    """The defaults are the readings nearest to the text that reproduce the paper's numbers.

    listing          Algorithm 1 as printed: each candidate once, by FT, in the cheaper way. Otherwise the text of
                     section 4.5: what can be hidden is swapped, then the cheapest swap competes with the best drop.
    landed           A swapped tensor's memory is free from SwapOutEnd to SwapInStart, as equation 1 has it, and a copy
                     out that memory has to wait for is overhead. Otherwise it counts as free from the next call to the
                     back-access, and only the copy in has overhead.
    after_call       A copy out starts when the call of the evicted-access has ended. Otherwise when it starts, which is
                     the access's time.
    queueing         Transfers wait for those before them on the link. Otherwise each has the link to itself, and its
                     overhead is what its FT lacks.
    triggers_first   The in-trigger is chosen before a swap's cost, out of the peak as it is then. Otherwise in-triggers
                     are placed after all decisions, out of the peak that the plan leaves.
    one_sum          mem_saving is one number, what passive mode evicted. Otherwise it is a profile: what is missing
                     during each call.
    per_byte         The best swap and the best recomputation are compared by seconds a byte, as MSPS is. Otherwise by
                     seconds.
    sources_stay     A swapped tensor counts as a source that is there. Otherwise only while the plan has it on the
                     device.
    overwritten      Line 31 of Algorithm 2 as printed: ext_time is set from the last choice alone. Otherwise it counts
                     every choice that starts from the tensor.
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
