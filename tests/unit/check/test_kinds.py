"""Stores of real brokers that keep a part in another form: every command answers or refuses, by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_REFUSED
from rmqtool.read.store import Store
from tests.support.build_store import patch
from tests.support.stores import Library, case_names
from tests.support.sweep import paired
from tests.support.trees import unchanged
from tests.support.whole_store import codes_of, report_of

pytestmark = pytest.mark.sweep

Capture = pytest.CaptureFixture[str]

KINDS = tuple(name for name in case_names() if name.startswith("kind_"))
DLEDGER = ("kind_dledger_497", "kind_dledger_540")
# `deliver` lists what is due. test_ledger_stores.py tests what is done with such a store.
LEDGER_REFUSES = ("expire", "append")
COMBINED = "kind_combine_index_timer_540"
CLASSIC = "kind_compaction_540"  # what is compacted lies beside the log, which is read as any
QUEUES_ELSEWHERE = tuple(name for name in KINDS if "rocksdb" in name or "config_v2" in name)
TIERED = "kind_tiered_540"  # its copy in files of its own is read as a store
COMMANDS = {
    "info": (), "doctor": (), "verify": (), "stats": (), "stats-group": ("--by", "group"),
    "dump": ("--stats-only",),
    "dump-queues": ("--what", "consumequeue"),
    "dump-config": ("--what", "config"), "dump-pop": ("--what", "pop"), "dump-timer": ("--what", "timer"),
    "lookup-key": ("--key", "nokey", "--topic", "TopicA"),
    "lookup-time": ("--topic", "TopicA", "--time", "2026-11-23T06:55:00Z"),
    "lookup-unit": ("--topic", "TopicA", "--queue", "0", "--queue-offset", "0"),
    "tail": ("--topic", "TopicA", "-n", "2"), "recover": (), "rebuild": (), "expire": (),
    "warm": (), "warm-queues": ("--queues", "--index"),
    "append": ("--topic", "TopicA", "--body", "x", "--dry-run"), "deliver": (), "diff": ("STORE",),
    "export": ("--output", "NEW", "--output-format", "jsonl"), "copy": ("--output", "NEW"),
}  # fmt: skip
OF_QUEUE_FILES = {"deliver", "warm-queues"}
"""What writes queues or needs them in files: refused where they are in RocksDB, which is read only."""


@pytest.mark.parametrize(("name", "command"), paired(KINDS, COMMANDS, rounds=2))
def test_every_command(name: str, command: str, cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Nothing is called damaged, what is not read is named, and no byte of the store changes."""
    store = cases.path(name)
    words = {"STORE": str(store), "NEW": str(tmp_path / "new")}
    arguments = [words.get(each, each) for each in COMMANDS[command]]
    capfd.readouterr()
    with unchanged(store):
        code = main([command.partition("-")[0], str(store), *arguments])
    out, err = capfd.readouterr()
    assert code in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT, EXIT_REFUSED), err
    out = out.replace("left_out_damaged  0\n", "")  # of copy: a name, and that there is none
    for word in ("damaged", "Traceback", '"error"', "error:", "CL26", "CQ14"):
        assert word not in out + err, (word, out, err)
    if name in DLEDGER:
        assert (code == EXIT_REFUSED) == (command in LEDGER_REFUSES)
        assert ("the commit log is in DLedger" in err) == (command in (*LEDGER_REFUSES, "deliver"))
        assert (tmp_path / "new").exists() == (command in ("export", "copy"))
    if name in QUEUES_ELSEWHERE and command in OF_QUEUE_FILES:
        assert code == EXIT_INPUT and "the consume queues are in RocksDB" in err
        line = f"rmqtool stats {store} --delayed shows what waits"
        way = f"their broker delivers what is due once it runs; {line}"
        assert (way in err) == (command == "deliver")
        assert command != "deliver" or main(["deliver", str(store), "--apply"]) == EXIT_INPUT
        assert command != "deliver" or way in capfd.readouterr().err
    if command in ("info", "verify", "diff", "dump-config", "dump-pop"):
        assert code == EXIT_OK, (out, err)
    if name not in (CLASSIC, TIERED, *DLEDGER) and command == "append":
        assert code == EXIT_REFUSED
        assert "which rmqtool does not write" in err or "was not closed cleanly" in err
        assert ("does not write" in err) == (f"rmqtool copy {store} --output NEW" in " ".join(err.split()))


@pytest.mark.parametrize("name", DLEDGER)
def test_queues_and_index_of_dledger_are_looked_at(name: str, cases: Library, tmp_path: Path) -> None:
    """What lies in files is checked as such."""
    store = cases.copy(name, tmp_path / "store")
    assert report_of(store).units > 50
    (store / "consumequeue/TopicA/0/00000000000000000000").write_bytes(bytes(60))
    assert "CQ09" in codes_of(store)


def test_a_log_that_is_gone_is_still_missed(cases: Library, tmp_path: Path) -> None:
    """Without the DLedger folder nothing holds the log."""
    store = cases.copy(DLEDGER[1], tmp_path / "store")
    shutil.rmtree(store / "dledger-n0")
    assert "CL26" in codes_of(store)


def test_queues_that_are_written_twice(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Those in files are checked as in any store; the files of RocksDB beside them are not strays."""
    store = cases.copy(COMBINED, tmp_path / "store")
    with Store.open(store) as opened:
        assert opened.layout.has_files_of_queues and not opened.layout.consume_queue_strays
        assert not opened.layout.unsupported
        whats = [(part.what, part.path.name) for part in opened.layout.read_only]
        assert whats == [
            ("second consume queues", "consumequeue"),
            ("second index entries", "rocksdbstore"),
            ("timer messages", "rocksdbstore"),
        ]
        assert opened.max_offset("TopicA", 0) == 30
    report = report_of(store)
    assert (report.records, report.units) == (99, 99)
    patch(store / "consumequeue/TopicA/0/00000000000000000000", 0, bytes(7) + b"\7")
    (store / "consumequeue/stray").write_text("x")
    assert {"CQ05", "CQ11"} <= set(codes_of(store))
    capfd.readouterr()
    assert main(["rebuild", str(store), "--apply"]) == EXIT_OK
    assert "CQ05" not in codes_of(store)


def test_old_files_of_queues_beside_rocksdb(cases: Library, tmp_path: Path) -> None:
    """A store whose type was changed: what the files hold is stale, and nobody reads it."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    other = cases.path(COMBINED) / "consumequeue/TopicA"
    shutil.copytree(other, store / "consumequeue/TopicA")
    assert not codes_of(store)
    with Store.open(store) as opened:
        assert opened.layout.has_queues_in_rocksdb and opened.max_offset("TopicB", 0) == 14


def test_the_store_type_of_broker_conf_decides(cases: Library, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("storeType=defaultRocksDB\n")
    with Store.open(cases.path(COMBINED), broker_conf=conf) as opened:
        assert opened.layout.has_queues_in_rocksdb


def test_info_says_what_is_not_read(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Files in tiered storage, of which the store has no copy."""
    store = cases.copy(CLASSIC, tmp_path / "store")
    (store / "config/tieredStoreMetadata.json").write_text("{}", "utf-8")
    assert main(["info", str(store), "--format", "json"]) == EXIT_INPUT
    found = json.loads(capfd.readouterr().out)
    assert found["unsupported"]
    assert main(["info", str(store)]) == EXIT_INPUT
    text = capfd.readouterr().out
    for part in found["unsupported"]:
        assert f"not read     {part['what']} in {part['form']}: {part['path']}" in text
