"""Real brokers open queues in RocksDB that rmqtool has built: they serve every message, and go on writing.

The folder of the queues was deleted, or a table of it damaged. A broker of storeType defaultRocksDB would
build only a part of them again; the queues of a double write are read from RocksDB here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.errors import EXIT_OK
from tests.interop.after_repair import check_broker, conf_of, run
from tests.support.stores import Library

SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "messageDelayLevel": "1s 3s 5s 1h", "mappedFileSizeTimerLog": 1 << 20,
}  # fmt: skip
ROCKSDB = SETTINGS | {"storeType": "defaultRocksDB"}
OF_FILES = ROCKSDB | {"mappedFileSizeCommitLog": 65536, "maxMessageSize": 16384}
TWICE = SETTINGS | {
    "rocksdbCQDoubleWriteEnable": "true", "combineCQPreferCQType": "defaultRocksDB",
    "timerRocksDBEnable": "true", "transRocksDBEnable": "true",
}  # fmt: skip


def is_gone(folder: Path) -> None:
    shutil.rmtree(folder)


def is_damaged(folder: Path) -> None:
    for path in folder.glob("*.sst"):
        path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("version", "name", "damage", "settings"),
    [
        ("5.3.3", "kind_rocksdb_533", is_gone, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540", is_damaged, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540_files", is_gone, OF_FILES),
        ("5.4.0", "kind_combine_index_timer_540", is_damaged, TWICE),
    ],
)
def test_brokers_serve_queues_that_were_built(
    version: str, name: str, damage: Callable[[Path], None], settings: dict[str, object], cases: Library,
    tmp_path: Path,
) -> None:  # fmt: skip
    root = cases.copy(name, tmp_path / "store")
    damage(root / "consumequeue")
    conf = conf_of(root, settings)
    assert run("rebuild", root, "--broker-conf", conf, "--apply", "--quiet") == EXIT_OK
    made = {path.name for path in (root / "consumequeue").glob("*.sst")}
    assert made and not list((root / "consumequeue").glob("OPTIONS*"))
    check_broker(version, tmp_path / "lab", root, settings, but=frozenset({"UN01"}))
