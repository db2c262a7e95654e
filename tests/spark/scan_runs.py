"""Runs of `rmqtool` commands in the shared session of the Spark tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main

Row = dict[str, Any]


class Result:
    """How one run ended."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.rows: list[Row] = [json.loads(line) for line in out.splitlines()]
        self.err = err.decode()


Run = Callable[..., Result]


def runner(capture: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command: its name, a store or several, options; times are of UTC where it knows zones."""

    def scan(command: str, stores: Path | list[Path], *arguments: str) -> Result:
        paths = stores if isinstance(stores, list) else [stores]
        capture.readouterr()
        zone = () if "--tz" in arguments or command == "rebuild" else ("--tz", "UTC")
        code = main([command, *map(str, paths), *arguments, *zone, "--format", "jsonl"])
        captured = capture.readouterr()
        return Result(code, captured.out, captured.err)

    return scan


def without_broker(rows: list[Row]) -> list[Row]:
    """Rows as `dump` has them: of one store, and without what it shows of system records only."""
    return [
        {name: value for name, value in row.items() if name not in ("broker_name", "system")} for row in rows
    ]
