"""What the Java store answers to look-ups, what a store holds, and `rmqtool lookup` in this process."""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from functools import cache
from typing import Any, NamedTuple

from rmqtool.formats import batch, body, properties
from rmqtool.formats.message import INNER_BATCH
from rmqtool.read.store import Store
from tests.support.dumps import Command
from tests.support.stores import FIXTURES, case


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
    """One record that a store holds, by the walk over its log; `inside`: a message in it has the key."""

    physical_offset: int
    size: int
    topic: str
    inside: bool = False


def held_keys(store: Store) -> dict[str, list[Held]]:
    """The messages by each of their keys and their unique key; those inside of batches come last."""
    found: dict[str, list[Held]] = defaultdict(list)
    for each in store.messages(damage="skip"):
        record = each.message
        held = Held(each.physical_offset, record.total_size, record.topic)
        own = _names_of(record.properties_bytes)
        inside: dict[str, None] = {}
        if record.sys_flag & INNER_BATCH:
            for item in batch.decode_items(body.decompress(record.body, record.sys_flag)):
                inside |= _names_of(item.properties_bytes)
        for name in own:
            found[name].append(held)
        for name in inside.keys() - own.keys():
            found[name].append(held._replace(inside=True))
    return {name: sorted(each, key=lambda held: held.inside) for name, each in found.items()}


def _names_of(properties_bytes: bytes) -> dict[str, None]:
    decoded = properties.decode(properties_bytes)
    names = (decoded.get(properties.UNIQ_KEY, ""), *properties.keys_of(decoded))
    return dict.fromkeys(filter(None, names))


class Lookup(Command):
    """Runs `rmqtool lookup`."""

    NAME = "lookup"
