"""As if the library for lz4 were not installed."""

from __future__ import annotations

import sys

import pytest

from rmqtool.formats import body


def hide_lz4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither import it nor use what this thread has of it."""
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    monkeypatch.setattr(body, "_of_thread", type(body._of_thread)())
