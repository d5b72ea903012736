"""The memory page: one step of a run as a picture in a single file, shown by a browser.

  recording   the facts of a step: addresses of tensors, copies, waits
  recorder    takes them from the engine while the step runs
  packing     a recording as text that fits into a page, and back
  page        the file itself: a template, the program that draws, the data; saved: pages read again
  exports     the same data for other programs

Nothing here decides anything or counts bytes itself: the page shows the arena's own list of blocks at the time when
each piece of work was issued.
"""
