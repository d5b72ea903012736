"""Capuchin (Peng et al., ASPLOS 2020): the paper's policy, its swap-only and recompute-only variants, and its listing.
"""

from minidl.policies.capuchin.policy import Capuchin, CapuchinListing, CapuchinRecompute, CapuchinSwap

__all__ = ["Capuchin", "CapuchinListing", "CapuchinRecompute", "CapuchinSwap"]
