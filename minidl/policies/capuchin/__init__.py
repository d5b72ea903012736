"""Capuchin (Peng et al., ASPLOS 2020): the paper's policy maker, and its two halves alone, and as printed."""

from minidl.policies.capuchin.policy import Capuchin, CapuchinListing, CapuchinRecompute, CapuchinSwap

__all__ = ["Capuchin", "CapuchinListing", "CapuchinRecompute", "CapuchinSwap"]
