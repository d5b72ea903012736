"""Objects that a terminal shows in one line and a notebook as a small table."""

from collections.abc import Mapping
from html import escape


class Shown:
    """A base class: ``repr`` shows the object's ``facts`` in one line, and a notebook shows them in a table."""

    __slots__ = ()

    def facts(self) -> Mapping[str, str]:
        """Return the object's main facts, name -> value, in display order."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name} {value}' for name, value in self.facts().items())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>"
                       f"{escape(value)}</td></tr>" for name, value in self.facts().items())
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"
