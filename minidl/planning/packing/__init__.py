"""Packing: rectangles of steps by bytes, known beforehand, get addresses in one strip (dynamic storage allocation).

  strip        the facts, and an independent check
  orders       heuristics: largest first, then other orders
  valleys      what can lie in a half-filled strip, and why nothing else can
  search       exact search over that
  blocks       rectangles that look like parts of a whole are joined before they are searched for
  solve        all of it, with limited work
  routes       what finds no place for all of its time goes from one to the next
  residencies  what an iteration's plan needs

Only ``addresses`` of the last is asked for by those who plan.
"""

from minidl.planning.packing.residencies import NO_ADDRESS, SMALL, addresses

__all__ = ["NO_ADDRESS", "SMALL", "addresses"]
