"""Running `rmqtool dump` in this process, for tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from rmqtool.cli import main
from tests.support.stores import case
from tests.support.trees import unchanged

SMALL = "ok_540_small_propcrc"
Row = dict[str, Any]


class Result:
    """How one run ended: exit code, the bytes of stdout, the text of stderr."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """Runs a command that reads, and captures what it writes: rows as JSON lines, without another option.

    The store must be as it was afterwards.
    """

    NAME: ClassVar[str]

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, store: Path, *arguments: object) -> Result:
        with unchanged(store), mock.patch.dict(os.environ, RMQTOOL_FORMAT="jsonl"):
            code = main([self.NAME, str(store), "--tz", "UTC", *map(str, arguments)])
        captured = self._capture.readouterr()
        return Result(code, captured.out, captured.err.decode())


class Dump(Command):
    """Runs `rmqtool dump`."""

    NAME = "dump"


def facts_of(name: str) -> list[Row]:
    """The records of a real store, as the Java library tells them."""
    return [fact for fact in case(name).facts() if "physicalOffset" in fact]


def flip(path: Path, *offsets: int, bits: int = 1) -> None:
    """Flips bits of the bytes at these offsets of a file."""
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset] ^= bits
    path.write_bytes(data)
