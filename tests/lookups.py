"""What the Java store answers to look-ups, what a store holds, and `rmqtool lookup` in this process."""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmqtool.cli import main
from rmqtool.formats import properties
from rmqtool.store import Store
from tests.dumps import Result
from tests.stores import FIXTURES, case
from tests.trees import unchanged


class Query(NamedTuple):
    """One queryMessage and its answer."""

    topic: str
    key: str
    max_num: int
    begin: int
    end: int
    offsets: list[int]
    last_update_timestamp: int
    last_update_offset: int


class TimeQuery(NamedTuple):
    """One getOffsetInQueueByTime and its answer; `upper` is None where it was not asked for."""

    topic: str
    queue_id: int
    timestamp: int
    offset: int
    upper: int | None


@cache
def _answers(version: str) -> dict[str, dict[str, list[list[Any]]]]:
    with lzma.open(FIXTURES / "lookup" / f"{version}.json.xz", "rt", encoding="utf-8") as file:
        answers: dict[str, dict[str, list[list[Any]]]] = json.load(file)
    return answers


def queries_of(name: str) -> list[Query]:
    """Java's answers by key about the case `name`."""
    this = case(name)
    return [Query(*row) for row in _answers(str(this.version))[str(this.state)]["queries"]]


def times_of(name: str) -> list[TimeQuery]:
    """Java's answers by time about the case `name`."""
    this = case(name)
    return [TimeQuery(*row) for row in _answers(str(this.version))[str(this.state)]["times"]]


class Held(NamedTuple):
    """One message that a store holds, by the walk over its log."""

    physical_offset: int
    size: int
    topic: str


def held_keys(store: Store) -> dict[str, list[Held]]:
    """The messages by each of their keys and their unique key."""
    found: dict[str, list[Held]] = defaultdict(list)
    for each in store.messages(damage="skip"):
        decoded = properties.decode(each.message.properties_bytes)
        names = [decoded.get(properties.UNIQ_KEY, ""), *properties.keys_of(decoded)]
        for name in dict.fromkeys(filter(None, names)):
            found[name].append(Held(each.physical_offset, each.message.total_size, each.message.topic))
    return found


class Lookup:
    """Runs `rmqtool lookup` and captures what it writes; the store must be as it was afterwards."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, store: Path, *arguments: object) -> Result:
        with unchanged(store):
            code = main(["lookup", str(store), "--tz", "UTC", *map(str, arguments)])
        captured = self._capture.readouterr()
        return Result(code, captured.out, captured.err.decode())
