"""Mutations of the files of RocksDB databases, as disks, other tools and attackers make them.

Bits, lengths and whole files are changed; or a file is made whose checksums are right and whose content is
hostile: a MANIFEST that names tables twice, of impossible numbers and sizes, a write-ahead log with rows that
no broker writes, a table whose handles, counts and sizes lead elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rmqtool.formats import rocksdb as format_
from rmqtool.formats.rocksdb_queue import CHECKPOINT_TOPIC, EndKey, end_key, unit_key
from tests.fuzz.mutate import NUMBERS, mutate
from tests.support.rocksdb_databases import log_of

Edit = dict[str, Any]
Edits = list[Edit]

STORES = (
    "kind_rocksdb_540", "kind_rocksdb_533", "kind_rocksdb_540_files", "kind_rocksdb_540_running",
    "kind_combine_index_timer_540", "kind_config_v2_540", "kind_trans_540",
)  # fmt: skip
_PAGE = 4096
_LOG_MAX = 1 << 18
_LARGE = (0, 1, 127, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 57) + 3, (1 << 63) - 1, (1 << 64) - 1)
_OFFSETS = (-1, 0, 30, 1 << 31, 1 << 40, (1 << 57) + 3, (1 << 63) - 1, -(1 << 63))
_NAMES = (b"", b"TopicA", b"a/b", b"..", b"x" * 300, b"\xff\xfe", b"TopicA@cg1", b"key@" * 30, b"\0" * 20)
_VALUES = (b"", b"{}", b"[" * 5000, b"null", b'{"a":' * 3000, b"\xff" * 28, bytes(28), b"x" * 100_000)


def edits(root: Path, random: Random) -> Edits:
    """One to three mutations of the databases below `root`."""
    folders = sorted(path.parent for path in root.rglob("CURRENT"))
    made: Edits = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        folder = random.choice(folders)
        made += random.choice(_KINDS)(root, folder, random)
    return made


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _create(root: Path, path: Path, data: bytes, why: str) -> Edits:
    return [{"op": "create", "path": _name(root, path), "hex": data.hex(), "why": why}]


# -- bytes of files that are there ------------------------------------------------------------------------


def _bytes(root: Path, folder: Path, random: Random) -> Edits:
    path = random.choice(_files(folder))
    return _create(root, path, mutate(path.read_bytes()[: 1 << 16], random), "mutated")


def _flipped(root: Path, folder: Path, random: Random) -> Edits:
    path = random.choice(_files(folder))
    data = bytearray(path.read_bytes() or b"\0")
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return _create(root, path, bytes(data), "a bit")


def _resized(root: Path, folder: Path, random: Random) -> Edits:
    path = random.choice(_files(folder))
    size = path.stat().st_size
    new = random.choice((0, 1, size // 2, max(size - 1, 0), size + 1, size + _PAGE, 1 << 24, 1 << 40))
    return [{"op": "truncate", "path": _name(root, path), "size": new, "why": "resized"}]


def _zeros(root: Path, folder: Path, random: Random) -> Edits:
    path = random.choice(_files(folder))
    data = bytearray(path.read_bytes())
    at = random.randrange(len(data) // _PAGE + 1) * _PAGE
    data[at : at + _PAGE] = bytes(len(data[at : at + _PAGE]))
    return _create(root, path, bytes(data), "a page of zeros")


def _swapped(root: Path, folder: Path, random: Random) -> Edits:
    folders = sorted(path.parent for path in root.rglob("CURRENT"))
    one, other = random.choice(_files(folder)), random.choice(_files(random.choice(folders)))
    return [
        *_create(root, one, other.read_bytes(), "the bytes of another file"),
        *_create(root, other, one.read_bytes(), "the bytes of another file"),
    ]


def _moved(root: Path, folder: Path, random: Random) -> Edits:
    path = random.choice(_files(folder))
    name = random.choice((
        "000000.sst", "9" * 20 + ".log", "000001.log", "MANIFEST-000000", "MANIFEST-" + "9" * 20, "CURRENT",
        "00000000000000000000.sst", "000900.log",
    ))  # fmt: skip
    op = random.choice(("copy", "rename"))
    return [{"op": op, "path": _name(root, path), "to": _name(root, folder / name), "why": op}]


def _replaced(root: Path, folder: Path, random: Random) -> Edits:
    path = _name(root, random.choice(_files(folder)))
    other = random.choice(_files(folder)).name
    made = random.choice((
        {"op": "mkdir", "path": path}, {"op": "pipe", "path": path},
        {"op": "link", "path": path, "to": other},
        {"op": "link", "path": path, "to": "nowhere"}, {"op": "link", "path": path, "to": Path(path).name},
        {"op": "link", "path": path, "to": "/dev/zero"}, {"op": "link", "path": path, "to": ".."},
    ))  # fmt: skip
    return [{"op": "delete", "path": path, "why": "replaced"}, made | {"why": "replaced"}]


def _gone(root: Path, folder: Path, random: Random) -> Edits:
    paths = [_name(root, path) for path in _files(folder)]
    chosen = random.choice(([_name(root, folder)], random.sample(paths, random.randrange(1, len(paths) + 1))))
    return [{"op": "delete", "path": path, "why": "gone"} for path in chosen]


# -- files whose checksums are right ----------------------------------------------------------------------


def _current(root: Path, folder: Path, random: Random) -> Edits:
    text = random.choice((
        b"", b"\n", b"CURRENT\n", b"MANIFEST-000000\n", b"MANIFEST-\n", b"../topics/MANIFEST-000005\n",
        b"/etc/passwd\n", b"MANIFEST-000005", b"MANIFEST-000005\n\n", b"MANIFEST-000005\0\n", b"\0" * 64,
        b"MANIFEST-" + b"9" * 20 + b"\n", b"x" * (1 << 20), b"000004.log\n",
    ))  # fmt: skip
    return _create(root, folder / "CURRENT", text, "another CURRENT")


def _manifest(root: Path, folder: Path, random: Random) -> Edits:
    path = next((path for path in _files(folder) if path.name.startswith("MANIFEST-")), None)
    if path is None:
        return []
    data = path.read_bytes()
    records = [record for _, record in format_.log_records(lambda at, size: data[at : at + size], len(data))]
    kind = random.randrange(8)
    if kind == 0 and records:
        records.insert(random.randrange(len(records) + 1), random.choice(records))  # twice
    elif kind == 1 and records:
        del records[random.randrange(len(records))]
    elif kind == 2:
        random.shuffle(records)
    elif kind == 3:
        records += [_new_file(random)] * random.choice((1, 2, 4000))
    elif kind == 4:
        records.append(_varints(2, random.choice(_LARGE)))  # the number of the first log
    elif kind == 5:
        family = _varints(200, random.choice((0, 1, 2, 7, (1 << 32) - 1)))
        records.append(family + random.choice((_new_file(random), _varints(202), _named(201, random))))
    elif kind == 6:
        records.append(_varints(6, random.randrange(8), random.choice((9, 10, 11, 1 << 63))))
    else:
        records += [_varints(200, number) + _named(201, random) for number in range(3, 3000)]
    return _create(root, path, log_of(records), "a hostile MANIFEST")


def _new_file(random: Random) -> bytes:
    low, high = sorted((random.choice(_NAMES), random.choice(_NAMES)))
    keys = [_text(key + bytes(8)) for key in (low, high)]
    number, size = random.choice((9, 10, 11, 13, *_LARGE)), random.choice((*_LARGE, 1500, 40_000))
    return _varints(100, random.choice((0, 6, 1 << 31)), number, size) + b"".join(keys) + _varints(0, 1)


def _named(tag: int, random: Random) -> bytes:
    return _varints(tag) + _text(random.choice((b"default", b"offset", b"timer", b"x" * 5000, b"")))


def _log(root: Path, folder: Path, random: Random) -> Edits:
    """A write-ahead log with rows that no broker writes."""
    rows = [_row(random) for _ in range(random.choice((1, 3, 50)))]
    count = random.choice((len(rows), len(rows), 0, (1 << 32) - 1))
    size = sum(map(len, rows))
    if random.random() < 0.1:
        times = max(_LOG_MAX // max(size, 1), 1)
        rows, count = rows * times, len(rows) * times
    batch = struct.pack("<QI", random.choice((1 << 40, 0, (1 << 56) - 1)), count) + b"".join(rows)
    return _create(root, folder / "000900.log", log_of([batch]), "a hostile write-ahead log")


def _row(random: Random) -> bytes:
    family = random.choice((0, 0, 1, 2, 3, (1 << 32) - 1))
    offset, at = random.choice(_OFFSETS), random.choice((*_OFFSETS, 26))
    key, value = random.choice((
        (end_key(EndKey("TopicA", True, 0)), struct.pack(">qq", at, offset)),
        (end_key(EndKey("TopicA", random.random() < 0.5, 0)), random.choice(_VALUES)),
        (end_key(EndKey("New" * random.choice((1, 9000)), True, -1)), struct.pack(">qq", at, offset)),
        (end_key(EndKey(CHECKPOINT_TOPIC, True, 0)), struct.pack(">q", offset)),
        (_unit("TopicA", 0, offset), struct.pack(">qiqq", at, 1 << 30, at, offset)),
        (struct.pack(">q", offset) + b"@TopicA@K@key0@u@" + struct.pack(">q", at), struct.pack(">q", offset)),
        (b"lastOffsetPy", random.choice((struct.pack(">q", offset), b"", b"x" * 9))),
        (struct.pack(">q", offset) + random.choice(_NAMES), random.choice((struct.pack(">iq", -1, at), b""))),
        (random.choice(_NAMES), random.choice(_VALUES)),
        (b"kvDataVersionKey", random.choice(_VALUES)),
    ))  # fmt: skip
    if random.random() < 0.15:
        return bytes((random.choice((4, 8)),)) + _varints(family) + _text(key)
    if random.random() < 0.1:
        return (
            b"\x0e" + _varints(family) + _text(key) + _text(random.choice((key + b"\xff", b"", b"\xff" * 9)))
        )
    if random.random() < 0.1:
        return b"\x05" + _varints(family) + _varints(random.choice(_LARGE)) + key
    return b"\x05" + _varints(family) + _text(key) + _text(value)


def _unit(topic: str, queue_id: int, offset: int) -> bytes:
    return unit_key(topic, queue_id, 0)[:-8] + struct.pack(">q", offset)


def _table(root: Path, folder: Path, random: Random) -> Edits:
    """A table without checksums, with hostile handles, counts, sizes or compression."""
    path = next(
        iter(random.sample(list(folder.glob("*.sst")), 1) if list(folder.glob("*.sst")) else []), None
    )
    if path is None:
        return []
    data = bytearray(path.read_bytes())
    footer = len(data) - format_.FOOTER.size
    if footer < 0:
        return []
    data[footer] = 0
    kind = random.randrange(4)
    if kind == 0:
        handles = b"".join(_varints(random.choice((*_LARGE, 100, footer))) for _ in range(4))
        data[footer + 1 : footer + 41] = handles[:40].ljust(40, b"\0")
    elif kind == 1:
        data[footer + 41 : footer + 45] = struct.pack("<I", random.choice((0, 1, 2, 6, 7, 1 << 31)))
    elif kind == 2:  # the index, the properties, or a block
        at = random.randrange(footer + 1)
        piece = random.choice(
            (*NUMBERS, b"\xff\xff\xff\xff\x0f", b"\x80" * 9 + b"\1", b"\7\xff\xff\xff\xff\x07")
        )
        data[at : at + len(piece)] = piece
    else:
        at = random.randrange(footer + 1)
        data[at : at + 5] = bytes((random.choice((0, 1, 2, 4, 5, 7, 9)),)) + bytes(4)
    return _create(root, path, bytes(data), "a hostile table")


def _varints(*numbers: int) -> bytes:
    made = bytearray()
    for number in numbers:
        while number >= 0x80:
            made.append(number & 0x7F | 0x80)
            number >>= 7
        made.append(number)
    return bytes(made)


def _text(data: bytes) -> bytes:
    return _varints(len(data)) + data


_KINDS: tuple[Callable[[Path, Path, Random], Edits], ...] = (
    _bytes, _flipped, _resized, _zeros, _swapped, _moved, _replaced, _gone, _current, _manifest, _manifest,
    _log, _log, _log, _table, _table,
)  # fmt: skip

COMMANDS = (
    "info {store}", "info {store} --format json", "verify {store} --severity note --format jsonl",
    "verify {store}", "doctor {store}", "doctor {store} --format json", "recover {store}", "rebuild {store}",
    "recover {store} --format json", "stats {store}", "stats {store} --by group --format json",
    "stats {store} --all --format json", "stats {store} --delayed", "stats {store} --transactions",
    "lookup {store} --key key0 --topic TopicA", "lookup {store} --key key7 --trace",
    "lookup {store} --time 2026-11-23T06:51:30Z --topic TopicA --queue 0",
    "lookup {store} --topic TopicA --queue 0 --queue-offset 2", "dump {store} --topic TopicA --format jsonl",
    "dump {store} --what consumequeue", "dump {store} --what timer", "dump {store} --what pop",
    "dump {store} --what index", "dump {store} --what config", "tail {store} --last 3",
)  # fmt: skip
