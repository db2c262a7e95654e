"""The kinds of damage that `tests.support.damage` draws from, each a function that adds its edits to a draft.

The log's kinds know records where the log is sound from the file's start; what lies behind older damage is
hit blindly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

PAGE = 4096
UNIT_SIZES = {"consumequeue": 20, "batchconsumequeue": 46}
MAGICS = (0xDAA320A7, 0xDAA320AB)
BLANK_MAGIC = 0xCBD43194
BLANK_SIZE = 8
RECORD_FIELDS: tuple[tuple[str, int, str], ...] = (
    ("total size", 0, "i"), ("magic", 4, "I"), ("body CRC", 8, "i"), ("queue id", 12, "i"),
    ("queue offset", 20, "q"), ("physical offset", 28, "q"), ("sys flag", 36, "i"),
    ("store timestamp", 56, "q"), ("body length", 84, "i"),
)  # fmt: skip
INDEX_FIELDS: tuple[tuple[str, int, str], ...] = (
    ("begin time", 0, "q"), ("end time", 8, "q"), ("begin offset", 16, "q"), ("end offset", 24, "q"),
    ("slot count", 32, "i"), ("entry count", 36, "i"),
)  # fmt: skip
UNIT_FIELDS: tuple[tuple[str, int, str], ...] = (("offset", 0, "q"), ("size", 8, "i"), ("tags code", 12, "q"))
CHECKPOINT_FIELDS: tuple[tuple[str, int, str], ...] = (
    ("log time", 0, "q"), ("queue time", 8, "q"), ("index time", 16, "q"), ("master offset", 24, "q"),
    ("confirm offset", 32, "q"),
)  # fmt: skip

Edit = dict[str, Any]


@dataclass
class Draft:
    """The edits drawn so far, and the sizes that the files will have after them."""

    root: Path
    random: Random
    sizes: dict[str, int]
    edits: list[Edit] = field(default_factory=list)
    _data: dict[str, bytes] = field(default_factory=dict)

    def files(self, part: str) -> list[str]:
        """The part's files that the store has and the edits leave, sorted by path."""
        return sorted(path for path in self.sizes if path == part or path.startswith(f"{part}/"))

    def data(self, path: str) -> bytes:
        """What the file held before all edits, as far as it still reaches."""
        if path not in self._data:
            self._data[path] = (self.root / path).read_bytes()
        return self._data[path][: self.sizes[path]]

    def used(self, path: str) -> int:
        """Bytes of the file up to its last one that is not zero."""
        return len(self.data(path).rstrip(b"\0"))

    def place(self, path: str) -> int | None:
        """A random position within the used bytes; None where there are none."""
        used = self.used(path)
        return self.random.randrange(used) if used else None

    def write(self, path: str, offset: int, data: bytes, why: str) -> None:
        """New bytes, cut at the file's end."""
        data = data[: max(0, self.sizes[path] - offset)]
        if data:
            self.edits.append({"op": "write", "path": path, "offset": offset, "hex": data.hex(), "why": why})

    def zero(self, path: str, offset: int, length: int, why: str) -> None:
        """Zeros, cut at the file's end."""
        length = min(length, self.sizes[path] - offset)
        if length > 0:
            self.edits.append({"op": "zero", "path": path, "offset": offset, "length": length, "why": why})

    def truncate(self, path: str, size: int, why: str) -> None:
        """Another length; a longer file gets zeros."""
        self.edits.append({"op": "truncate", "path": path, "size": size, "why": why})
        self.sizes[path] = min(size, self.sizes[path])

    def delete(self, path: str, why: str) -> None:
        """A file, or a folder with all that is in it."""
        self.edits.append({"op": "delete", "path": path, "why": why})
        for name in [name for name in self.sizes if name == path or name.startswith(f"{path}/")]:
            del self.sizes[name]

    def create(self, path: str, data: bytes, size: int, why: str) -> None:
        """A new file; it is not drawn again."""
        if not self.exists(path):
            self.edits.append({"op": "create", "path": path, "hex": data.hex(), "size": size, "why": why})

    def copy(self, path: str, to: str, why: str) -> None:
        """A copy of a file under a name that is free."""
        if not self.exists(to):
            self.edits.append({"op": "copy", "path": path, "to": to, "why": why})

    def exists(self, path: str) -> bool:
        """Whether something has the name, before or after the edits."""
        made = {edit.get("to", edit["path"]) for edit in self.edits if edit["op"] in ("create", "copy")}
        return path in made or (self.root / path).exists()


Kind = Callable[[Draft, str], None]
"""Draws edits of one kind for one file."""


def odd_number(random: Random, value: int, code: str) -> bytes:
    """A number for a field: near the old value, at an end of the type, or anything."""
    bits = struct.calcsize(code) * 8
    choice = random.choice((0, -1, 1, value + 1, value - 1, value ^ (1 << random.randrange(bits)),
                            (1 << (bits - 1)) - 1, 1 << (bits - 1), random.getrandbits(bits)))  # fmt: skip
    return (choice & ((1 << bits) - 1)).to_bytes(bits // 8, "big")


def write_field(
    draft: Draft, path: str, start: int, fields: Sequence[tuple[str, int, str]], what: str
) -> None:
    """One field of the structure at `start` gets an odd number."""
    name, offset, code = draft.random.choice(fields)
    old = draft.data(path)[start + offset : start + offset + struct.calcsize(code)]
    value = int.from_bytes(old, "big")
    draft.write(path, start + offset, odd_number(draft.random, value, code), f"{what} at {start}: {name}")


# -- any file --------------------------------------------------------------------------------------


def flip(draft: Draft, path: str) -> None:
    """One to eight bytes get other values."""
    place = draft.place(path)
    if place is None:
        return
    old = draft.data(path)[place : place + draft.random.choice((1, 1, 1, 2, 8))]
    draft.write(path, place, bytes(byte ^ draft.random.randrange(1, 256) for byte in old), "flipped bytes")


def zero_range(draft: Draft, path: str) -> None:
    """A range of some bytes or some KiB is zero."""
    place = draft.place(path)
    if place is not None:
        draft.zero(path, place, int(2 ** draft.random.uniform(0, 14)), "zeroed range")


def zero_pages(draft: Draft, path: str) -> None:
    """One to four pages were never written."""
    place = draft.place(path)
    if place is not None:
        draft.zero(path, place // PAGE * PAGE, PAGE * draft.random.randrange(1, 5), "zeroed pages")


def garbage(draft: Draft, path: str) -> None:
    """A range of random bytes."""
    place = draft.place(path)
    if place is not None:
        draft.write(path, place, draft.random.randbytes(int(2 ** draft.random.uniform(2, 13))), "garbage")


def tear(draft: Draft, path: str) -> None:
    """From some place on the file holds nothing."""
    place = draft.place(path)
    if place is not None:
        draft.zero(path, place, draft.sizes[path] - place, "torn: zero to the end")


def lose_pages(draft: Draft, path: str) -> None:
    """Of the last pages some were not written, as after a power cut."""
    last = draft.used(path) // PAGE
    for page in range(max(0, last - draft.random.randrange(1, 12)), last + 1):
        if draft.random.random() < 0.5:
            draft.zero(path, page * PAGE, PAGE, "page lost in a power cut")


def truncate(draft: Draft, path: str) -> None:
    """Another length: nothing, part of it, or more."""
    size = draft.sizes[path]
    new = draft.random.choice((0, draft.random.randrange(size + 1), max(0, size - PAGE), size + PAGE))
    draft.truncate(path, new, f"length {size} is now {new}")


def delete(draft: Draft, path: str) -> None:
    """The file is gone."""
    draft.delete(path, "deleted file")


def stray(draft: Draft, path: str) -> None:
    """An entry that does not belong there."""
    name = draft.random.choice(("lost+found.txt", "00000000000000000001.bak", ".nfs0001"))
    data = draft.random.randbytes(draft.random.choice((0, 1, 100)))
    draft.create(f"{path.rsplit('/', 1)[0]}/{name}", data, len(data), "stray entry")


# -- the log ---------------------------------------------------------------------------------------


def frame_starts(data: bytes) -> tuple[list[int], int]:
    """(starts of the records from the file's start on, position of the blank or end behind them)."""
    starts, position = [], 0
    while position + 91 <= len(data):
        size, magic = struct.unpack_from(">iI", data, position)
        if magic not in MAGICS or not 91 <= size <= len(data) - position:
            break
        starts.append(position)
        position += size
    return starts, position


def record_field(draft: Draft, path: str) -> None:
    """A header field of a record."""
    starts, _ = frame_starts(draft.data(path))
    if starts:
        write_field(draft, path, draft.random.choice(starts), RECORD_FIELDS, "record")


def records_gone(draft: Draft, path: str) -> None:
    """One to forty whole records are zero or garbage; the first and the last ones more often."""
    starts, end = frame_starts(draft.data(path))
    if not starts:
        return
    count = draft.random.choice((1, 1, 2, 3, 10, 40))
    first = draft.random.choice((0, max(0, len(starts) - count), draft.random.randrange(len(starts))))
    begin, stop = starts[first], (*starts, end)[min(first + count, len(starts))]
    if draft.random.random() < 0.7:
        draft.zero(path, begin, stop - begin, f"{count} records zeroed")
    else:
        draft.write(path, begin, draft.random.randbytes(stop - begin), f"{count} records are garbage")


def record_elsewhere(draft: Draft, path: str) -> None:
    """A record lies over another one: bytes that are sound, at a place that is not theirs."""
    data = draft.data(path)
    starts, end = frame_starts(data)
    if len(starts) > 1:
        at, other = draft.random.sample(range(len(starts)), 2)
        stop = (*starts, end)[other + 1]
        draft.write(path, starts[at], data[starts[other] : stop], "copy of another record")


def torn_record(draft: Draft, path: str) -> None:
    """A record is half written and nothing follows in its file."""
    starts, end = frame_starts(draft.data(path))
    if starts:
        number = draft.random.randrange(max(0, len(starts) - 20), len(starts))
        inside = draft.random.randrange((*starts, end)[number + 1] - starts[number])
        draft.zero(path, starts[number] + inside, draft.sizes[path], "torn record, nothing behind it")


def bad_blank(draft: Draft, path: str) -> None:
    """The blank at a file's end is gone or odd."""
    _, end = frame_starts(draft.data(path))
    if end + BLANK_SIZE <= draft.sizes[path]:
        data = draft.random.choice((bytes(8), draft.random.randbytes(8), struct.pack(">iI", 7, BLANK_MAGIC)))
        draft.write(path, end, data, "blank")


def false_blank(draft: Draft, path: str) -> None:
    """A blank's head stands where a record was."""
    starts, _ = frame_starts(draft.data(path))
    if starts:
        start = draft.random.choice(starts)
        data = struct.pack(">iI", draft.sizes[path] - start, BLANK_MAGIC)
        draft.write(path, start, data, "blank's head over a record")


def next_file(draft: Draft, path: str) -> None:
    """A file follows the last one: all zero as the broker makes it ahead, garbage, or a copy of a file."""
    last = draft.files("commitlog")[-1]
    name, size = last.rsplit("/", 1)[-1], draft.sizes[last]
    if not name.isdigit() or not size:
        return
    to = f"commitlog/{int(name) + size:020d}"
    choice = draft.random.randrange(3)
    if choice == 2:
        draft.copy(last, to, "next file: a copy of the last one")
    else:
        data = draft.random.randbytes(PAGE) if choice else b""
        draft.create(to, data, size, "next file of garbage" if choice else "next file, all zero")


# -- queues, index, state --------------------------------------------------------------------------


def unit_size(path: str) -> int:
    """Bytes of a unit in this file."""
    return UNIT_SIZES[path.split("/", 1)[0]]


def unit_field(draft: Draft, path: str) -> None:
    """One field of one unit."""
    units = draft.used(path) // unit_size(path)
    if units:
        write_field(draft, path, draft.random.randrange(units) * unit_size(path), UNIT_FIELDS, "unit")


def swap_units(draft: Draft, path: str) -> None:
    """Two units have changed places."""
    size, data = unit_size(path), draft.data(path)
    units = draft.used(path) // size
    if units > 1:
        one, two = sorted(draft.random.sample(range(units), 2))
        why = f"units {one} and {two} swapped"
        draft.write(path, one * size, data[two * size : (two + 1) * size], why)
        draft.write(path, two * size, data[one * size : (one + 1) * size], why)


def last_units(draft: Draft, path: str) -> None:
    """The last units are gone."""
    size = unit_size(path)
    units = draft.used(path) // size + 1
    count = min(units, draft.random.choice((1, 2, 5, 50)))
    draft.zero(path, (units - count) * size, (count + 1) * size, f"last {count} units gone")


def drop_units(draft: Draft, path: str) -> None:
    """Units are missing and those behind them have moved up."""
    size, data = unit_size(path), draft.data(path)
    units = draft.used(path) // size
    if units > 2:
        first, count = draft.random.randrange(units - 1), draft.random.choice((1, 2))
        moved = data[(first + count) * size :] + bytes(count * size)
        draft.write(path, first * size, moved, f"{count} units from {first} left out")


def delete_folder(draft: Draft, path: str) -> None:
    """The whole queue, its topic, or all queues are gone."""
    parts = path.split("/")
    depth = draft.random.choice((3, 3, 3, 2, 1))
    draft.delete("/".join(parts[: min(depth, len(parts) - 1)]), "deleted folder")


def index_header(draft: Draft, path: str) -> None:
    """A field of an index file's header."""
    if draft.sizes[path] >= 40:
        write_field(draft, path, 0, INDEX_FIELDS, "index header")


def checkpoint_field(draft: Draft, path: str) -> None:
    """One number of the checkpoint."""
    if draft.sizes[path] >= 40:
        write_field(draft, path, 0, CHECKPOINT_FIELDS, "checkpoint")


_BYTES: tuple[Kind, ...] = (flip, flip, zero_range, zero_pages, garbage, lose_pages)
_FILES: tuple[Kind, ...] = (truncate, delete, stray)
_UNITS: tuple[Kind, ...] = (unit_field, unit_field, swap_units, last_units, last_units, drop_units)
KINDS: dict[str, tuple[Kind, ...]] = {
    "commitlog": (*_BYTES, *_BYTES, *_FILES, tear, record_field, record_field, record_field, records_gone,
                  records_gone, records_gone, record_elsewhere, torn_record, torn_record, bad_blank,
                  false_blank, next_file),
    "consumequeue": (*_BYTES, *_UNITS, *_FILES, delete_folder, delete_folder),
    "batchconsumequeue": (*_BYTES, *_UNITS, *_FILES, delete_folder),
    "index": (*_BYTES, *_FILES, delete_folder, index_header, index_header, index_header),
    "checkpoint": (flip, zero_range, garbage, truncate, delete, checkpoint_field, checkpoint_field),
    "config": (flip, garbage, truncate, delete, tear),
}  # fmt: skip
"""By part; a kind that stands there twice is drawn twice as often."""
