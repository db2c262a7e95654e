"""DLedger stores and real brokers: a copy without DLedger is served, and so is a ledger with rebuilt queues.

The copy of a 4.9.7 or 5.4.0 DLedger store is a classic one: a stock broker serves every message of it. A
broker with DLedger starts on a store whose queues and index rmqtool built, and on a log that the tests wrote
in several files. It serves every message where rmqtool finds it, which proves the reading of both.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqtool.errors import EXIT_OK
from tests.interop.after_repair import check_broker, run
from tests.interop.brokers import free_port
from tests.support.ledgers import converted
from tests.support.rebuild_checks import without
from tests.support.stores import Library, case

VERSION = "5.4.0"
REAL = ("kind_dledger_497", "kind_dledger_540")
ORIGIN = "ok_540_small_ipv6"
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "messageDelayLevel": "1s 3s 5s 1h",
}  # fmt: skip


def with_ledger(settings: dict[str, object]) -> dict[str, object]:
    """The settings of a broker that is the only member of its group."""
    peers = f"n0-127.0.0.1:{free_port()}"
    return settings | {
        "enableDLegerCommitLog": "true", "dLegerGroup": "broker-a", "dLegerPeers": peers,
        "dLegerSelfId": "n0",
    }  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_a_copy_is_served_without_dledger(name: str, cases: Library, tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert run("copy", cases.path(name), "--output", root, "--profile", "5.4", "--quiet") == EXIT_OK
    assert not list(root.glob("dledger*"))
    check_broker(VERSION, tmp_path / "lab", root, SETTINGS)


def test_a_ledger_with_rebuilt_queues_is_served(cases: Library, tmp_path: Path) -> None:
    root = cases.copy(REAL[1], tmp_path / "store")
    without(root, "consumequeue", "index")
    (root / "consumequeue").mkdir()
    conf = tmp_path / "rebuild.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    assert run("rebuild", root, "--apply", "--broker-conf", conf, "--quiet") == EXIT_OK
    check_broker(VERSION, tmp_path / "lab", root, with_ledger(dict(SETTINGS)))


def test_a_ledger_of_a_recovered_store_is_served(cases: Library, tmp_path: Path) -> None:
    """Queues, topics, checkpoint and the timer are lost, and the broker was killed."""
    root = cases.copy(REAL[1], tmp_path / "store")
    without(root, "consumequeue/TopicA")
    for name in (
        "config/timercheck",
        "timerwheel",
        "config/topics.json",
        "config/topics.json.bak",
        "checkpoint",
    ):
        (root / name).unlink(missing_ok=True)
    (root / "abort").write_text("1")
    conf = tmp_path / "recover.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    assert run("recover", root, "--apply", "--broker-conf", conf, "--quiet") == EXIT_OK
    check_broker(VERSION, tmp_path / "lab", root, with_ledger(dict(SETTINGS)))


def test_a_ledger_of_several_files_is_served(cases: Library, tmp_path: Path) -> None:
    """What rmqtool's tests take for a DLedger log, a broker takes for one."""
    source = cases.path(ORIGIN)
    settings = dict(case(ORIGIN).settings)
    root = converted(source, tmp_path / "store", file_size=1 << 20, settings=settings)
    shutil.rmtree(root / "dledger-n0/index")  # the broker makes it again, and checks every entry
    check_broker(VERSION, tmp_path / "lab", root, with_ledger(SETTINGS | settings))
