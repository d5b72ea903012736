"""The memory page: an HTML file with a picture of one training step's memory, which a browser shows.

  recording   the facts of a step: addresses of tensors, copies, waits
  recorder    collects them from the engine while the step runs
  packing     converts a recording to text for a page, and back
  page        writes the file: a template, the program that draws, the data; saved: reads a page again
  exports     the same data in the formats of other programs

Nothing here decides anything or counts bytes itself: the page shows the arena's own list of blocks at the moments when
work was issued to the device.
"""
