"""Stores that live: written, crashed, damaged, mended, expired, in any order.

Whatever came before, `recover` leaves a store that is sound, holds every record that was valid, leaves
nothing to a second run, and is taken by the writer, by `deliver`, `rebuild` and `expire`. RMQTOOL_SWEEP=1
takes more lives.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from rmqtool import NewMessage, Store
from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_REFUSED
from rmqtool.repair.recover import Outcome, undo_recover
from rmqtool.write.store_writer import StoreWriter
from tests.support.damage import damage_store, describe
from tests.support.recover_checks import (
    codes,
    log_bytes,
    must_have_kept,
    opener,
    records,
    recovered,
    write_sizes,
)
from tests.support.sweep import sample
from tests.support.trees import copy_tree, tree_rows

pytestmark = pytest.mark.sweep

SMALL: dict[str, Any] = {
    "commit_log_file_size": 1 << 16, "consume_queue_file_size": 1000, "batch_queue_file_size": 460,
    "index_slots": 50, "index_entries": 300,
}  # fmt: skip
PROFILES = ("4.9", "5.3", "5.4")
# What damage leaves that a broker and its consumers read, that no rule mends, or that is in the config.
STAYS = {"CL13", "CL15", "CL16", "CL17", "CF02", "CF07", "CF08", "CF09", "CF13", "CF15", "EP01"}
_LEFT = re.compile(r" stays as it is \(([A-Z0-9, ]+)\)")  # a queue whose records' numbers are damaged
STEPS = 8


@dataclass
class Life:
    """One store, and what has happened to it."""

    folder: Path
    random: Random
    profile: str
    said: list[str] = field(default_factory=list)
    backups: int = 0

    @property
    def root(self) -> Path:
        return self.folder / "store"

    @property
    def conf(self) -> Path:
        return self.folder / "broker.conf"

    def begin(self) -> None:
        write_sizes(self.conf, SMALL)
        options = SMALL | {"property_crc": self.profile != "4.9" and self.random.random() < 0.2}
        with StoreWriter.create(self.root, self.profile, auto_create_queues=3, **options) as writer:
            writer.put(self.message())

    def step(self) -> None:
        """One thing happens, and the store is as it should be."""
        often = (self.write, self.damage)
        happens: Callable[[], None] = self.random.choice(
            (*often, *often, self.crash, self.deliver, self.rebuild, self.expire)
        )
        self.said.append(happens.__name__)
        happens()
        recovery = self.recovered().recovery
        # A delayOffset.json that was lost while no message was delayed is missing from the first one on.
        assert {action.path for action in recovery.plan.actions} <= {"config/delayOffset.json"}
        said = {code for text in recovery.plan.summary["warnings"] for code in re.findall(_LEFT, text)}
        left = codes(self.root, self.conf) - STAYS
        assert left <= {code for codes_of_one in said for code in codes_of_one.split(", ")}

    # what happens

    def write(self) -> None:
        with self.writer() as writer:
            self.put_some(writer)

    def put_some(self, writer: StoreWriter) -> None:
        random = self.random
        for _ in range(random.randrange(1, 100)):
            writer.put(self.message())
        if random.random() < 0.3:
            group = [NewMessage("A", bytes(random.randrange(200)), queue_id=0, keys=["b"]) for _ in range(5)]
            writer.put_batch(group)
        if random.random() < 0.3:
            half = NewMessage("B", b"half", queue_id=0, keys=["h"], sys_flag=4)
            end = random.choice((8, 12))  # commit, rollback
            begun = writer.put(half).physical_offset
            writer.put(replace(half, sys_flag=end, prepared_transaction_offset=begun))
        if random.random() < 0.3:
            names = [f"T{random.randrange(9)}" for _ in range(random.randrange(1, 300))]
            writer.put_table(pa.table({"topic": names, "body": [name.encode() * 40 for name in names]}))

    def crash(self) -> None:
        """What a process that is killed now would leave."""
        with self.writer() as writer:
            self.put_some(writer)
            killed = copy_tree(self.root, self.folder / "killed")
        self.root.rename(self.folder / f"dead {self.backups}")
        killed.rename(self.root)
        self.recover()

    def damage(self) -> None:
        self.said.append(describe(damage_store(self.root, self.random.randrange(1 << 32))))
        if self.random.random() < 0.5:
            (self.root / "abort").write_text("")
        if not log_bytes(self.root):  # without any it is refused: see test_recover.py
            self.root.rename(self.folder / f"dead {self.backups}")
            self.begin()
            return
        self.run("verify", self.root)
        self.run("recover", self.root)
        self.recover()

    def deliver(self) -> None:
        self.run("deliver", self.root, "--at", "2099-01-01", "--apply")

    def rebuild(self) -> None:
        self.run("rebuild", self.root, "--apply", "--backup-dir", self.backup())

    def expire(self) -> None:
        with Store.open(self.root) as store:
            files = store.layout.commit_log
        before = self.random.randrange(files[0].file_from_offset, files[-1].end + 1)
        self.run("expire", self.root, "--before", before, "--apply", "--force")

    # how

    def recover(self) -> None:
        rows, before, log = self.rows(), records(self.root), log_bytes(self.root)
        outcome = self.recovered()
        must_have_kept(before, log, records(self.root), outcome)
        if outcome.backup is not None and self.random.random() < 0.3:
            undo_recover(opener(self.root, self.conf), outcome.backup)
            assert self.rows() == rows
            self.recovered()

    def recovered(self) -> Outcome:
        return recovered(self.root, backup=self.backup(), yes=True, conf=self.conf)

    def writer(self) -> StoreWriter:
        return StoreWriter.open(self.root, auto_create_queues=3, broker_conf=self.conf)

    def run(self, *arguments: object) -> None:
        """A command; 3 and 4 are answers to what damage has made of the config."""
        code = main([str(each) for each in (*arguments, "--broker-conf", self.conf, "--quiet")])
        assert code in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT, EXIT_REFUSED)

    def rows(self) -> list[object]:
        """Everything in the store; of folders not when they changed, for the guard was in one."""
        rows = tree_rows(self.root)
        return [row if row[1] == "file" else row[:2] for row in rows if row[0] not in (".", "lock")]

    def backup(self) -> Path:
        self.backups += 1
        return self.folder / f"backup {self.backups}"

    def message(self) -> NewMessage:
        random = self.random
        more: dict[str, Any] = {}
        if random.random() < 0.2:
            more["delay_level"] = random.randrange(1, 5)
        if random.random() < 0.2:
            more["compression"] = random.choice(("zlib", "lz4", "zstd"))
        if random.random() < 0.1:
            more["born_host"] = bytes(15) + b"\1" + (1234).to_bytes(4, "big")
        long = "C" if self.profile == "4.9" else "Long" * 30  # a record of version 2
        return NewMessage(
            random.choice(("A", "B", "%RETRY%g", long)), random.randbytes(int(2 ** random.uniform(0, 11))),
            tags=random.choice((None, "t1", "t2")), keys=[f"k{random.randrange(200)}"], **more,
        )  # fmt: skip


@pytest.mark.parametrize("seed", sample(range(200), 100))
def test_a_life(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    life = Life(tmp_path, random, random.choice(PROFILES))
    life.begin()
    try:
        for _ in range(STEPS):
            life.step()
    except BaseException as error:
        error.add_note(f"{life.profile}: {'; '.join(life.said)}")
        raise
