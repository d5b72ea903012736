"""Frozen data that policies see and return: traces, costs, plans; and the Policy protocol."""
