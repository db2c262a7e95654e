"""Errors as Spark shows them: it prints the message of an exception and knows nothing of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmqtool.errors import RmqtoolError


@contextmanager
def explain_errors() -> Iterator[None]:
    """Put where and what to do into the message of an error of rmqtool's that leaves the block."""
    try:
        yield
    except RmqtoolError as error:
        if error.path is not None and str(error.path) not in error.message:
            where = "" if error.physical_offset is None else f" at {error.physical_offset}"
            error.message = f"{error.message}: {error.path}{where}"
        if error.hint is not None and error.hint not in error.message:
            error.message = f"{error.message} ({error.hint})"
        raise
