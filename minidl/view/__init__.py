"""The memory page: one step of a run, as a picture that a browser shows from one file.

    recording   the facts of a step: what lay where, who copied what, who waited
    recorder    takes them from the engine while the step runs
    packing     a recording as text that fits into a page, and back
    page        the file itself: a template, the program that draws, the data; saved: pages read again
    exports     the same for other programs

Nothing here decides, and nothing counts bytes by itself: what is shown is what the arena's own list of blocks said when
each piece of work was issued.
"""
