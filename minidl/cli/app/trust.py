"""Asks for --trust before running a run folder's model or logger, which may be any function outside of minidl."""

from minidl.errors import UserError

OURS = "minidl.models"  # the package whose functions are networks and nothing else


def is_foreign(name: str) -> bool:
    """Return True if the text of ``--model`` or ``--logger`` names a function outside of minidl."""
    module = name.partition(":")[0]
    return ":" in name and module != OURS and not module.startswith(f"{OURS}.")


def require_trust(folder: object, name: str, *, trusted: bool, role: str = "model") -> None:
    """Raise UserError if a run folder's model or logger is a function outside of minidl, unless ``trusted``."""
    if is_foreign(name) and not trusted:
        raise UserError(f"--resume {folder}: its {role} is {name}, code that is not minidl's: --trust runs it")
