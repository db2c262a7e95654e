"""Many keys at once, by the command and in process, beside a loop over the broker's library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rmqtool.index.index_file import open_index_files
from rmqtool.read.key_columns import ColumnLookup, lookup_columns
from rmqtool.read.store import Store
from rmqtool.storage.open_files import OpenFiles
from tests.benchmarks import limits, messages
from tests.benchmarks.harness import Call, Program, Row, rmqtool
from tests.benchmarks.java import java, only
from tests.benchmarks.machine import remove_store
from tests.benchmarks.rows_read import LIMITS, empty_command
from tests.benchmarks.scale import Bench

BODY_BYTES = 100
JAVA_ROUNDS = 4


def rows(bench: Bench) -> Iterator[Row]:
    """Every number of keys, of one message each, in random order."""
    store, total = bench.folder / "keys", bench.scale.keys_messages
    log_file_bytes = bench.scale.log_file_bytes
    messages.make_store(store, total, body_bytes=BODY_BYTES, log_file_bytes=log_file_bytes)
    (topic,) = messages.topic_names(1)
    chosen = np.random.default_rng(7).permutation(total).tolist()
    path = bench.folder / "keys.txt"
    for count in bench.scale.keys:
        keys = [messages.key(number) for number in chosen[:count]]
        path.write_text("".join(f"{key}\n" for key in keys), "ascii")

        def library(rounds: int, *, warm: bool, n: int = count) -> Program:
            return java(
                "LookupBench", store, log_file_bytes, topic, path, rounds, inside="seconds", warm=warm,
                right=lambda told: told["messages"] >= n,
            )  # fmt: skip

        warm = library(JAVA_ROUNDS, warm=True)
        plan = bench.folder / "places.json"
        plan.write_text(json.dumps(_plan(store, topic, keys)), "ascii")
        reads = Program(
            name="its reads alone", kind="limit", line=[*LIMITS, "places", plan],
            shown="the used part of the index, and 512 bytes at each message, by a loop in Python",
        )  # fmt: skip
        yield Row(
            name=f"lookup of {count:,} keys".replace(" 1 keys", " 1 key"), unit="keys", amount=count,
            goals={warm.name: 2}, note=_NOTE,
            contenders=only([
                rmqtool("lookup", store, "--keys-from", path, "--topic", topic, "--json",
                        name="rmqtool lookup",
                        shown="rmqtool lookup STORE --keys-from FILE --topic TOPIC --json",
                        answer=lambda text, n=count: text.count('"found_by"') == n),
                empty_command(store), reads, library(1, warm=False), warm,
            ]),
        )  # fmt: skip
        if count > 1:
            yield _places(bench, store, topic, keys, reads)
    with Store.open(store) as opened, ColumnLookup(opened) as columns:

        def found() -> None:
            assert columns(keys, topic).key.tolist() == list(range(len(keys)))

        def read() -> None:
            assert limits.places(str(plan)) == len(keys)

        yield Row(
            name=f"lookup of {len(keys):,} keys, files open", unit="keys", amount=len(keys), in_process=True,
            goals={warm.name: 3},
            contenders=only([
                Call(name="lookup_columns", kind="rmqtool", work=found),
                Call(name="its reads alone, in process", kind="limit", work=read,
                     shown="the same reads, in this process"),
                warm,
            ]),
        )  # fmt: skip
    for each in (path, bench.folder / "one.txt", bench.folder / "places.json"):
        each.unlink(missing_ok=True)
    remove_store(store)


def _places(bench: Bench, store: Path, topic: str, keys: list[str], reads: Program) -> Row:
    """Without what a message takes to be shown: the same command with one key is its start."""
    count, one, path = len(keys), bench.folder / "one.txt", bench.folder / "keys.txt"
    one.write_text(f"{keys[0]}\n", "ascii")
    options = ("--topic", topic, "--json", "--fields", "physical_offset")
    shown = f"rmqtool lookup STORE --keys-from FILE {' '.join(options[2:])}"
    start = rmqtool("lookup", store, "--keys-from", one, *options, name="with one key", shown=shown)
    return Row(
        name=f"lookup of {count:,} keys, their places", unit="keys", amount=count,
        cpu_goals={reads.name: 1 / 4},
        contenders=[
            rmqtool("lookup", store, "--keys-from", path, *options, name="rmqtool lookup", shown=shown,
                    answer=lambda text: text.count('"physical_offset"') == count),
            start, reads,
        ],
    )  # fmt: skip


def _plan(store: Path, topic: str, keys: list[str]) -> dict[str, Any]:
    """What a look-up has to read: bytes of index files, and where the records begin in their files."""
    with Store.open(store) as opened, OpenFiles() as files:
        views = open_index_files(opened.layout, files)
        index = [(str(view.path), view.shape.entry_offset(view.used)) for view in views]
        found = lookup_columns(opened, keys, topic).physical_offset
        found.sort()
        log = [
            (str(file.path), (part - file.file_from_offset).tolist())
            for file in opened.layout.commit_log
            for part in [found[(found >= file.file_from_offset) & (found < file.end)]]
        ]
    return {"index": index, "log": log}


_NOTE = "Java does not compare the keys of the records that its index names"
