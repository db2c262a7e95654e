"""Regular expressions of modules, compiled when they are first used: a command loads forty and uses a few.

To a type checker a pattern is one of `re`. It has the methods of `re.Pattern`. A pattern that is wrong raises
re.error at the first use; a test uses every pattern.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as pattern
else:

    class pattern:  # noqa: N801  used as the function `re.compile`
        """A regular expression; the arguments are those of `re.compile`."""

        def __init__(self, expression: str | bytes, flags: int = 0) -> None:
            self._arguments = expression, flags

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the compiled pattern, and keep it."""
            if name.startswith("__") or "_arguments" not in vars(self):
                raise AttributeError(name)
            found = getattr(re.compile(*self._arguments), name)
            setattr(self, name, found)
            return found


__all__ = ["pattern"]
