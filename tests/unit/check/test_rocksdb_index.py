"""The index in RocksDB against the log, both ways; entries are made in plain Python, as 5.4.0 makes them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rmqtool.check.verify import Bounds, rocksdb_index
from rmqtool.formats import properties
from rmqtool.formats.message import TRANSACTION_ROLLBACK, Message
from rmqtool.index.rocksdb_entries import of_database, rows_of_records
from rmqtool.log.frames import Frames, walk
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.source import open_source
from tests.support.build_store import write_store
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.rocksdb_databases import options, write_ahead_log, write_rows
from tests.support.whole_store import findings_of

HOUR = 3_600_000
INDEX_ONLY = ("index",)
ODD = b"UNIQ_KEY\x01u\xff\x02KEYS\x01k\xc3 k2\x02TAGS\x01\xe2\x82\x02"
FEW_PROPERTIES: tuple[dict[str, str] | bytes, ...] = (
    {"UNIQ_KEY": "u{}", "KEYS": "a{} b a{}", "TAGS": "t"},
    {"UNIQ_KEY": "u{}", "KEYS": "  x  y{}  "},
    {"UNIQ_KEY": "u{}", "TAGS": "\u6807"},
    {"KEYS": "only{}"},
    {},
    ODD,
)  # fmt: skip


def rows_of(stored: Iterable[Message]) -> dict[bytes, bytes]:
    """The entries of these records."""
    rows: dict[bytes, bytes] = {}
    for message in stored:
        found = properties.decode(message.properties_bytes)
        uniq = found.get(properties.UNIQ_KEY)
        if not uniq or message.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
            continue
        time = message.store_timestamp
        names = [("K", key) for key in found.get(properties.KEYS, "").split(" ") if key]
        names += [("T", found[properties.TAGS])] if found.get(properties.TAGS) else []
        for text in [*(f"{letter}@{name}@{uniq}" for letter, name in names), f"U@{uniq}"]:
            key = struct.pack(">q", time - time % HOUR) + f"@{message.topic}@{text}@".encode()
            rows[key + struct.pack(">q", message.physical_offset)] = struct.pack(">q", time)
    return rows


def stored_in(root: Path, count: int = 120) -> list[Message]:
    """A log of several files and hours; one record in twenty is rolled back."""
    made = []
    for number in range(count):
        found = FEW_PROPERTIES[number % len(FEW_PROPERTIES)]
        if isinstance(found, dict):
            found = {name: value.replace("{}", str(number)) for name, value in found.items()}
        made.append(
            record(
                ("TopicTest", "%RETRY%g", "\u4e3b\u9898")[number % 3], b"x" * (number % 50), found,
                queue_offset=number // 3, sys_flag=TRANSACTION_ROLLBACK if number % 20 == 0 else 0,
                store_timestamp=STORE_TIMESTAMP + number * HOUR // 25,
            )
        )  # fmt: skip
    return write_store(root, made)


def with_index(root: Path, rows: dict[bytes, bytes], last: int) -> None:
    noted = {b"lastOffsetPy": struct.pack(">q", last)}
    write_rows(root / "rocksdbstore", {"default": rows | noted}, block_size=512)


def found_in(root: Path, **arguments: object) -> dict[str, dict[str, object]]:
    return {each.problem.code: each.detail for each in findings_of(root, passes=INDEX_ONLY, **arguments)}


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_index, "_RANGE_BITS", 10)


def test_differences(tmp_path: Path) -> None:
    """Sound; then entries that are missing inside and outside of the index, and those without a record."""
    stored = stored_in(tmp_path)
    rows, last = rows_of(stored), stored[-1].physical_offset
    keys = sorted(rows, key=lambda key: key[-8:])
    assert len(rows) > 150
    offsets = [struct.unpack(">q", key[-8:])[0] for key in keys]
    middle = len(keys) // 2
    lacking = {key: rows[key] for key in (*keys[:middle], *keys[middle + 5 :])}
    wrong = dict(rows)
    wrong[keys[0]] = struct.pack(">q", 1)  # the time
    wrong[keys[1][:-8] + struct.pack(">q", offsets[1] + 1)] = rows[keys[1]]
    wrong[keys[2][:-8] + struct.pack(">q", 1 << 50)] = rows[keys[2]]
    late = {key: rows[key] for key in keys[middle:]}
    early = {key: rows[key] for key in keys[:middle]}
    cases = (
        ("sound", rows, last, {}),
        ("repeats", rows, 0, {}),
        ("lacking", lacking, last, {"RD07": (5, offsets[middle], offsets[middle + 4])}),
        ("wrong", wrong, last, {"RD08": (3, offsets[0], 1 << 50)}),
        ("late", late, last, {"IX10": (middle, offsets[0], offsets[middle - 1])}),
        ("early", early, offsets[middle - 1], {"IX10": (len(keys) - middle, offsets[middle], offsets[-1])}),
        ("after", rows, 1 << 40, {"RD09": None}),
    )  # fmt: skip
    for name, content, noted, expected in cases:
        with_index(tmp_path, content, noted)
        details = found_in(tmp_path)
        assert set(details) == set(expected), name
        for code, numbers in expected.items():
            detail = details[code]
            assert numbers is None or (
                (detail["keys"], detail["first_record"], detail["last_record"]) == numbers
            ), name
        for path in (tmp_path / "rocksdbstore").iterdir():
            path.unlink()
    with_index(tmp_path, early, offsets[middle - 1])
    (tmp_path / "abort").touch()
    assert set(found_in(tmp_path)) == {"IX08"}
    assert not found_in(tmp_path, bounds=Bounds(limit_bytes=2000)).keys() - {"IX08"}


def test_rows_of_a_window(tmp_path: Path) -> None:
    """The rows that a rebuild writes are those that 5.4.0 makes, of properties that are not UTF-8 too."""
    stored = stored_in(tmp_path)
    made: dict[bytes, bytes] = {}
    for path in sorted((tmp_path / "commitlog").iterdir()):
        with closing(open_source(path)) as source:
            events = list(walk(source, file_from_offset=int(path.name), crc=False))
            for event in events:
                if isinstance(event, Frames):
                    made |= dict(rows_of_records(event))
    assert made == rows_of(stored) and len(made) > 150


def test_what_is_read_again_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding says how many ranges were not compared entry by entry."""
    stored = stored_in(tmp_path)
    rows = rows_of(stored)
    keys = sorted(rows, key=lambda key: key[-8:])
    kept = {*keys[::2], keys[-1]}
    with_index(tmp_path, {key: rows[key] for key in kept}, stored[-1].physical_offset)
    whole = found_in(tmp_path)["RD07"]
    assert whole["keys"] == len(keys) - len(kept) and "ranges_not_compared" not in whole
    monkeypatch.setattr(rocksdb_index, "_READ_AGAIN_MAX", 40)
    part = found_in(tmp_path)["RD07"]
    assert 0 < int(str(part["keys"])) <= 40 and int(str(part["ranges_not_compared"])) > 5


def test_a_damaged_database(tmp_path: Path) -> None:
    """Its damage is one finding, and no record is blamed."""
    stored = stored_in(tmp_path, 60)
    with_index(tmp_path, rows_of(stored), stored[-1].physical_offset)
    (table,) = (tmp_path / "rocksdbstore").glob("*.sst")
    sound = table.read_bytes()
    for at, codes, passes in ((2000, ["RD10"], INDEX_ONLY), (20, ["RD10"], ("files", "index"))):
        data = bytearray(sound)
        data[at] ^= 1
        table.write_bytes(data)
        assert [each.problem.code for each in findings_of(tmp_path, passes=passes)] == codes


@pytest.mark.parametrize("seed", range(4))
def test_entries_are_those_of_a_scan(seed: int, tmp_path: Path) -> None:
    """Of overwritten and deleted keys, range deletes, several tables and a write-ahead log."""
    from rocksdict import Rdict

    rng = random.Random(seed)
    opened = Rdict(str(tmp_path / "db"), options=options(block_size=256, compaction=False))
    keys = [
        struct.pack(">q", hour * HOUR) + b"@t@U@%d@" % rng.randrange(60) + bytes(7) + rng.randbytes(1)
        for hour in range(1, 9)
        for _ in range(100)
    ]
    for _ in range(8):
        for key in rng.sample(keys, 200):
            opened[key] = struct.pack(">q", rng.randrange(3))
        for key in rng.sample(keys, 30):
            del opened[key]
        start, stop = sorted(rng.sample(keys, 2))
        opened.delete_range(start[: rng.choice((8, 12))], stop)
        opened.flush()
    opened.close()
    changes = [(0, key, rng.choice((None, bytes(8)))) for key in rng.sample(keys, 20)]
    (tmp_path / "db/000900.log").write_bytes(write_ahead_log(changes))
    database = Database(tmp_path / "db")
    expected = list(database.scan("default"))
    database.close()
    write_rows(tmp_path / "merged", {"default": dict(expected)})
    merged = Database(tmp_path / "merged")
    (wanted,) = (np.concatenate(list(of_database(merged))),)
    merged.close()
    entries = np.concatenate(list(of_database(database)))
    database.close()
    assert len(entries) == len(expected) > 40
    for name in ("physical_offset", "key", "fingerprint"):
        assert (np.sort(entries[name]) == np.sort(wanted[name])).all()
