"""Asks for --trust before running a model that a run folder names: it may be any function outside of minidl."""

from minidl.errors import UserError

OURS = "minidl.models"  # the package whose functions are networks and nothing else


def is_foreign(model: str) -> bool:
    """Return True if ``--model`` names a function outside of minidl."""
    module = model.partition(":")[0]
    return ":" in model and module != OURS and not module.startswith(f"{OURS}.")


def require_trust(folder: object, model: str, *, trusted: bool) -> None:
    """Raise UserError if a run folder's model is a function outside of minidl, unless ``trusted``."""
    if is_foreign(model) and not trusted:
        raise UserError(f"--resume {folder}: its model is {model}, code that is not minidl's: --trust runs it")
