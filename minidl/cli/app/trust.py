"""Asks for --trust before a run folder's code runs that may be any function or class outside of minidl."""

import argparse

from minidl.errors import UserError

OURS = "minidl.models"  # the package whose functions are networks and nothing else
ROLES = ("model", "logger", "policy", "placement")  # the flags, without dashes, whose value may name a user's code


def foreign(flags: object) -> dict[str, str]:
    """Return, of the flags of ROLES, those with a value like ``module:f`` outside of ``minidl.models``, by role."""
    named = {role: getattr(flags, role) or "" for role in ROLES}
    return {role: name for role, name in named.items() if ":" in name and not f"{name.partition(':')[0]}.".startswith(
        f"{OURS}.")}


def require_trust(folder: object, known: argparse.Namespace, given: argparse.Namespace | None = None, *,
                  trusted: bool) -> None:
    """Raise UserError if a run folder's flags name code outside of minidl, unless ``trusted``.
    known: all flags. given: those of the command line, which the user has named now; None: no flags."""
    for role, name in foreign(known).items():
        if not trusted and (given is None or getattr(given, role) != name):
            raise UserError(f"--resume {folder}: its {role} is {name}, code that is not minidl's: --trust runs it")
