"""Packing: rectangles of steps by bytes, known beforehand, get addresses in one strip (dynamic storage allocation).

  strip        the facts, and an independent check
  orders       heuristics: largest first, then other orders
  valleys      the rectangles that fit into a half-filled strip, and the reasons why others do not
  search       exact search over valleys
  blocks       joins rectangles that look like parts of one block before the search
  solve        all of these, with limited work
  routes       gives a rectangle without one address several, one after the other
  residencies  addresses for an iteration's plan; planners call only its ``addresses``
"""

from minidl.planning.packing.residencies import NO_ADDRESS, SMALL, addresses

__all__ = ["NO_ADDRESS", "SMALL", "addresses"]
