"""Make the `kind_` cases of `fixtures/`: stores of real brokers that keep a part in another form.

    python -m tests.tools.make_kinds SAMPLES

SAMPLES holds one folder per sample with `store/` as the broker left it, `broker.conf` and `answers.json`,
what the broker answered. Index files of the two DLedger samples were cut after their last entry: they
get back their sizes. `codes` and `verify.json` are made by
`pytest tests/fixtures_run/test_fixtures.py --write-golden`.
"""

from __future__ import annotations

import lzma
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rmqtool.storage.ledger import INDEX_FILE_SIZE as ENTRY_INDEX_FILE_SIZE
from tests.support.stores import FIXTURES
from tests.support.trees import copy_tree
from tests.tools.make_fixtures import gzipped, pack

SAYS = {
    "combine_index_timer_540": ("5.4", "", "queues in files and in RocksDB; index and timer in RocksDB"),
    "compaction_540": ("5.4", "", "a topic with cleanup.policy=COMPACTION, compacted"),
    "config_v2_540": ("5.4", "", "config v2 and queues in RocksDB"),
    "dledger_497": ("4.9", "", "the commit log in DLedger"),
    "dledger_540": ("5.4", "", "the commit log in DLedger"),
    "rocksdb_533": ("5.3", "", "queues, config v1 and pop records in RocksDB"),
    "rocksdb_540": ("5.4", "", "queues, config v1 and pop records in RocksDB"),
    "rocksdb_540_files": ("5.4", "", "queues in RocksDB, made by the broker from 16 log files"),
    "rocksdb_540_running": ("5.4", "CL24 CP04 CQ01 IX09", "queues in RocksDB, copied while the broker ran"),
    "tiered_540": ("5.4", "", "tiered storage, posix provider"),
    "trans_540": ("5.4", "", "transactions in RocksDB, one open"),
}
INDEX_FILE_SIZE = 40 + 1000 * 4 + 4000 * 20  # maxHashSlotNum, maxIndexNum of every sample


def make(sample: Path, scratch: Path) -> None:
    """Write the folder of one sample."""
    profile, codes, says = SAYS[sample.name]
    folder = FIXTURES / f"kind_{sample.name}"
    folder.mkdir(exist_ok=True)
    store = copy_tree(sample / "store", scratch / sample.name)
    for path in store.glob("index/*"):
        if path.stat().st_size < INDEX_FILE_SIZE:
            os.truncate(path, INDEX_FILE_SIZE)
    for path in store.glob("dledger-*/index/*"):
        os.truncate(path, ENTRY_INDEX_FILE_SIZE)
    (folder / "store.tar.gz").write_bytes(gzipped(pack(store, None)))
    shutil.copyfile(sample / "broker.conf", folder / "broker.conf")
    answers = (sample / "answers.json").read_bytes()
    (folder / "answers.json.xz").write_bytes(lzma.compress(answers, preset=9 | lzma.PRESET_EXTREME))
    listed = ", ".join(f'"{code}"' for code in codes.split())
    (folder / "case.toml").write_text(
        f'says = "{says}"\norigin = "real broker, made by tests/tools/make_kinds.py"\n'
        f'profile = "{profile}"\ncodes = [{listed}]\n',
        "utf-8",
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        for name in SAYS:
            make(Path(sys.argv[1]) / name, Path(scratch))
