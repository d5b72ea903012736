"""Packing: gives addresses to rectangles (steps wide, bytes high) in a strip of memory so that no two overlap.

The field calls it dynamic storage allocation with known lifetimes.

strip        the problem as data, and an independent check of a solution
orders       heuristics: largest first, then other orders
valleys      the rectangles that fit into a half-filled strip, and the reasons why others do not
search       exact search over valleys
blocks       joins rectangles that look like parts of one larger rectangle before the search
solve        all of these, with limited work
routes       gives a rectangle without one address several, one after the other
residencies  addresses for an iteration's plan; planners call only its ``addresses``
"""

from minidl.planning.packing.residencies import NO_ADDRESS, SMALL, addresses

__all__ = ["NO_ADDRESS", "SMALL", "addresses"]
