"""Edits a command line, a list of words: replaces former names of flags by present ones, and removes flags."""

from collections.abc import Sequence

from minidl.cli.command import note_new_name

# Former names of flags, which are accepted for one version.
FORMER = {"--run": "--run-dir", "--save": "--save-weights", "--keep": "--keep-checkpoints",
          "--static-times": "--no-measured-times"}


def renamed(words: Sequence[str], *, told: bool = False) -> list[str]:
    """Return a command line with the present names of its flags. told: print a line on stderr for each former name."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        now = FORMER.get(name, name)
        if told and now != name:
            note_new_name(name, now)
        found.append(now + equals + value)
    return found


def without(words: Sequence[str], *flags: str) -> list[str]:
    """Return a command line without some flags and their values. A word that begins with ``--`` is not a value."""
    kept: list[str] = []
    left_out = False
    for word in words:
        if left_out and not word.startswith("--"):
            left_out = False
            continue
        left_out = word in flags  # then its value is next, if it has one
        if not left_out and word.partition("=")[0] not in flags:
            kept.append(word)
    return kept
