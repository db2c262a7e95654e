"""Many keys at once, by the command and in process, beside a loop over the broker's library."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmqtool.read.key_columns import ColumnLookup
from rmqtool.read.store import Store
from tests.benchmarks import messages
from tests.benchmarks.harness import Call, Program, Row, rmqtool
from tests.benchmarks.java import java, only
from tests.benchmarks.machine import remove_store
from tests.benchmarks.rows_read import empty_command
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
        yield Row(
            name=f"lookup of {count:,} keys".replace(" 1 keys", " 1 key"), unit="keys", amount=count,
            goals={warm.name: 2}, note=_NOTE,
            contenders=only([
                rmqtool("lookup", store, "--keys-from", path, "--topic", topic, "--json",
                        name="rmqtool lookup",
                        shown="rmqtool lookup STORE --keys-from FILE --topic TOPIC --json",
                        answer=lambda text, n=count: text.count('"found_by"') == n),
                empty_command(store), library(1, warm=False), warm,
            ]),
        )  # fmt: skip
    with Store.open(store) as opened, ColumnLookup(opened) as columns:

        def found() -> None:
            assert columns(keys, topic).key.tolist() == list(range(len(keys)))

        yield Row(
            name=f"lookup of {len(keys):,} keys, files open", unit="keys", amount=len(keys), in_process=True,
            goals={warm.name: 3},
            contenders=only([Call(name="lookup_columns", kind="rmqtool", work=found), warm]),
        )  # fmt: skip
    path.unlink()
    remove_store(store)


_NOTE = "Java does not compare the keys of the records that its index names"
