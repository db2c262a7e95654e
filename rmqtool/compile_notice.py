"""The sentence that a command shows on a terminal when it compiles its first kernel, which takes seconds.

`log.compiled` calls `announce`. Only a command line asks for the sentence: a library, or a worker of Spark,
compiles in silence.
"""

from __future__ import annotations

from collections.abc import Callable

_COMPILING = (
    "compiling kernels, once for this version of rmqtool: seconds on an idle machine, up to some minutes on a"
    " busy one"
)
_shows: list[Callable[[str], None]] = []


def show_by(show: Callable[[str], None]) -> None:
    """Show the sentence by `show`, which gets it when this process compiles for the first time."""
    _shows[:] = [show]


def announce() -> None:
    """Show the sentence if it was asked for; later calls do nothing."""
    while _shows:
        _shows.pop()(_COMPILING)
