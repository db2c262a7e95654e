"""Look-ups in a store that has an index in RocksDB and no index files."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK
from rmqtool.formats import properties
from rmqtool.read.hits import Hit, SearchReport
from rmqtool.read.lookup_request import lookup
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.rocksdb.database import Database
from tests.support.build_store import patch
from tests.support.rocksdb_databases import write_ahead_log
from tests.support.stores import Library
from tests.support.trees import unchanged
from tests.unit.check.test_rocksdb_kinds import COMBINED, answers_of


def without_files(cases: Library, target: Path) -> Path:
    store = cases.copy(COMBINED, target)
    shutil.rmtree(store / "index")
    return store


def offsets(hits: list[Hit]) -> list[int]:
    return [hit.stored.physical_offset for hit in hits]


def test_keys_as_the_broker_answers(cases: Library, tmp_path: Path) -> None:
    """With and without a scan of the log, which finds messages without a unique key too."""
    root = without_files(cases, tmp_path / "store")
    answers = {
        name: found for name, found in answers_of(COMBINED)["query"].items() if isinstance(found, list)
    }
    assert len(answers) >= 5
    with unchanged(root), Store.open(root) as store:
        for name, expected in answers.items():
            topic, _, key = name.partition("#")
            selection = Selection(topics=(topic,))
            only_index = list(lookup(store, key, selection, scan="never"))
            assert offsets(only_index) == expected and {hit.found_by for hit in only_index} <= {"index"}
            assert offsets(list(lookup(store, key, selection))) == expected


def test_unique_keys_need_no_scan(cases: Library, tmp_path: Path) -> None:
    """Of every message: the records that a scan of the log finds."""
    root = without_files(cases, tmp_path / "store")
    with Store.open(root) as store:
        wanted: dict[str, list[int]] = {}
        for stored in store.messages():
            key = properties.decode(stored.message.properties_bytes).get(properties.UNIQ_KEY)
            if key:
                wanted.setdefault(key, []).append(stored.physical_offset)
        for key, expected in wanted.items():
            looked = SearchReport()
            found = list(lookup(store, key, kind="uniq_key", looked=looked))
            assert offsets(found) == expected and {hit.found_by for hit in found} == {"index"}
            assert all(gap.start >= max(map(max, wanted.values())) for gap in looked.gaps)
    assert len(wanted) > 80


def last_of_topic_b(root: Path) -> tuple[int, str]:
    """Physical offset and unique key of a message in the middle of the log."""
    with Store.open(root) as store:
        found = [each for each in store.messages() if each.message.topic == "TopicB"][-1]
        return found.physical_offset, properties.decode(found.message.properties_bytes)[properties.UNIQ_KEY]


def test_an_index_that_ends_early(cases: Library, tmp_path: Path) -> None:
    """What comes after its end is scanned."""
    root = without_files(cases, tmp_path / "store")
    offset, key = last_of_topic_b(root)
    database = Database(root / "rocksdbstore")
    keys = [name for name, _ in database.scan("default") if key.encode() in name]
    database.close()
    assert len(keys) >= 2
    changes: list[tuple[int, bytes, bytes | None]] = [(0, name, None) for name in keys]
    changes.append((0, b"lastOffsetPy", struct.pack(">q", 20_000)))
    for number, change in enumerate(changes):
        log = root / "rocksdbstore" / f"{900 + number:06}.log"
        log.write_bytes(write_ahead_log([change], sequence=(1 << 40) + number))
    with Store.open(root) as store:
        looked = SearchReport()
        found = list(lookup(store, key, kind="uniq_key", looked=looked))
        assert offset in offsets(found) and {hit.found_by for hit in found} == {"scan"}
        assert looked.gaps and all(gap.start >= 20_000 for gap in looked.gaps)


def test_a_damaged_index_counts_for_nothing(cases: Library, tmp_path: Path) -> None:
    root = without_files(cases, tmp_path / "store")
    offset, key = last_of_topic_b(root)
    tables = (root / "rocksdbstore").glob("*.sst")
    (table,) = (path for path in tables if b"lastOffsetPy" in path.read_bytes())
    patch(table, 10, b"\xff" * 8)
    with Store.open(root) as store:
        found = list(lookup(store, key, kind="uniq_key"))
        assert offset in offsets(found) and {hit.found_by for hit in found} == {"scan"}


def test_explain_shows_the_entries(cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It shows what a look-up reads: the entries, and the log for messages without a unique key."""
    root = without_files(cases, tmp_path / "store")
    for key, code, results in (("key7", EXIT_OK, ["found"]), ("nokey", EXIT_FINDINGS, [])):
        assert main(["lookup", str(root), key, "--topic", "TopicA", "--explain", "--json"]) == code
        first, *rows, last = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert (first["step"], first["file"]) == ("file", "rocksdbstore")
        assert [(row["step"], row["result"]) for row in rows] == [("entry", each) for each in results]
        assert last["result"] == "the index in RocksDB lacks messages without a unique key"
        assert [row["physical_offset"] for row in rows] == [2650] * len(results)


def test_dump_says_what_it_does_not_show(
    cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Entries in RocksDB are not among the rows; without index files that is a warning."""
    text = "index entries in RocksDB are not shown, only those of index files"
    for root, code, word in (
        (cases.path(COMBINED), EXIT_OK, "note"),
        (without_files(cases, tmp_path / "store"), EXIT_INPUT, "warning"),
    ):
        assert main(["dump", str(root), "--what", "index"]) == code
        err = " ".join(capfd.readouterr().err.split())
        assert f"{word}: UN01 {text}" in err and "cannot read this form" not in err
