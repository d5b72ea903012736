"""Capuchin (Peng et al., ASPLOS 2020): the paper's policy maker, and its two halves alone."""

from minidl.policies.capuchin.policy import Capuchin, CapuchinRecompute, CapuchinSwap

__all__ = ["Capuchin", "CapuchinRecompute", "CapuchinSwap"]
