"""Asks for --trust before a run folder's code runs that may be any function or class outside of minidl."""

import argparse

from minidl.errors import UserError

OURS = "minidl.models"  # the package whose functions are networks and nothing else
ROLES = ("model", "logger", "policy", "placement")  # the flags, without dashes, whose value may name a user's code


def is_foreign(name: str) -> bool:
    """Return True if the value of a flag of ROLES names a function or a class outside of minidl."""
    module = name.partition(":")[0]
    return ":" in name and module != OURS and not module.startswith(f"{OURS}.")


def require_trust(folder: object, known: argparse.Namespace, given: argparse.Namespace | None = None, *,
                  trusted: bool) -> None:
    """Raise UserError if a run folder's flags name code outside of minidl, unless ``trusted``.
    known: all flags. given: those of the command line, which the user has named now; None: no flags."""
    for role in ROLES:
        name = vars(known)[role] or ""
        if is_foreign(name) and not trusted and (given is None or vars(given)[role] != name):
            raise UserError(f"--resume {folder}: its {role} is {name}, code that is not minidl's: --trust runs it")
