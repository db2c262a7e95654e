"""What a disk may hold after the power has gone: rebuilt from the recorded calls of `disk`.

Sure is only what was synced: the bytes of a file that were written before a `sync` of it began, and
the entries of a folder that were made before a `sync_folder` of it began, or both before a `sync_all`
began. Everything later may be there
or not, whatever came after it: page by page (or sector by sector) a file holds an older or a newer
state, a file has its size but none of its bytes, an entry is missing, a deleted one is back. A rename
is done or not done; it is sure when both its folders are synced. The mtime of a file is one that was set
and synced, or one that came later. Calls of one kind on one page keep their order, as the page
cache keeps it.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Literal

from tests.support.disk_calls import FOLDER, Call, numbered

Mode = Literal["nothing", "names", "bytes", "prefix", "one lost", "one kept", "random", "everything"]
MODES: tuple[Mode, ...] = ("nothing", "names", "bytes", "prefix", "one lost", "one kept", "random")
SECTOR, PAGE = 512, 4096
_NAMESPACE = ("make_folder", "create_file", "rename", "remove", "remove_folder")


@dataclass
class _File:
    """The bytes of a file: what was there first, then writes (index of the call, offset, data).

    `sizes` and `mtimes` are (index of the call, what was set).
    """

    data: bytes = b""
    size: int = 0
    made: int = -1
    synced: int = 0  # calls before this one are on the device
    synced_times: int = 0
    mtime_ns: int = 0
    writes: list[tuple[int, int, bytes]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    mtimes: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Choice:
    """Which of the unsynced changes are on the device."""

    mode: Mode
    random: Random
    unit: int
    chosen: int  # the call of `prefix`, `one lost`, `one kept`

    def has_name(self, index: int) -> bool:
        """Whether the change of a name by call `index` is there."""
        match self.mode:
            case "everything" | "names":
                return True
            case "nothing" | "bytes":
                return False
            case "prefix":
                return index <= self.chosen
            case "one lost":
                return index != self.chosen
            case "one kept":
                return index == self.chosen
            case "random":
                return self.random.random() < 0.5

    def state(self, indexes: Sequence[int]) -> int:
        """How many of the writes `indexes` to one unit are there; they are in order."""
        match self.mode:
            case "everything" | "bytes":
                return len(indexes)
            case "nothing" | "names":
                return 0
            case "prefix":
                return bisect_left(indexes, self.chosen) + (
                    self.chosen in indexes and self.random.random() < 0.5  # torn
                )
            case "one lost":
                return bisect_left(indexes, self.chosen) if self.chosen in indexes else len(indexes)
            case "one kept":
                return bisect_left(indexes, self.chosen) + 1 if self.chosen in indexes else 0
            case "random":
                return self.random.randrange(len(indexes) + 1)


def rebuild(
    calls: Sequence[Call], cut: int, root: Path, target: Path, mode: Mode, seed: int, base: Path | None = None
) -> None:
    """Make `target` what the device may hold of `root` when the power goes before call `cut`.

    Args:
        calls: the record.
        cut: an index into it.
        root: the folder in which everything recorded took place.
        target: a folder that does not exist; it is not made when `root` is lost.
        mode: what of the unsynced is there.
        seed: for the choices left.
        base: a copy of `root` from before the first call; None: it was not there.
    """
    random = Random(f"{seed} {cut} {mode}")
    names: dict[str, int | None] = {}  # None is a folder
    files: dict[int, _File] = {}
    for path in [] if base is None else [base, *base.rglob("*")]:
        names[str(root / path.relative_to(base))] = None if path.is_dir() else 0
    for path, number in {} if base is None else numbered(base).items():
        data = Path(path).read_bytes()
        files[number] = _File(data, len(data), mtime_ns=Path(path).stat().st_mtime_ns)
        names[str(root / Path(path).relative_to(base))] = number
    before = calls[:cut]
    sure = _survey(before, files)
    unsure = [
        index for index, call in enumerate(before)
        if (call.name in _NAMESPACE and index not in sure)
        or (call.name == "write" and index >= files[call.file].synced)
    ]  # fmt: skip
    choice = _Choice(mode, random, random.choice((SECTOR, PAGE)), random.choice(unsure) if unsure else -1)
    for index, call in enumerate(before):
        if call.name in _NAMESPACE and (index in sure or choice.has_name(index)):
            _apply(names, call)
    for path in sorted(names):
        if any(str(above) not in names for above in Path(path).parents if above.is_relative_to(root)):
            continue  # its folder is lost
        place, number = target / Path(path).relative_to(root), names[path]
        if number is None:
            place.mkdir(parents=place == target)
        else:
            place.write_bytes(_content(files[number], choice))
            mtime_ns = _mtime(files[number], choice)
            os.utime(place, ns=(mtime_ns, mtime_ns))


def _survey(calls: Sequence[Call], files: dict[int, _File]) -> set[int]:
    """Gather the bytes of all files in `files`; the indexes of the changes of names that are sure."""
    pending: dict[int, set[str]] = {}
    sure: set[int] = set()
    for index, call in enumerate(calls):
        if call.name == "create_file":
            files[call.file] = _File(size=call.size, made=index, mtime_ns=call.mtime_ns)
        if call.name in _NAMESPACE:
            pending[index] = {str(Path(path).parent) for path in (call.path, call.other) if path}
        elif call.name == "write":
            files[call.file].writes.append((index, call.offset, call.data))
            files[call.file].mtimes.append((index, call.mtime_ns))
        elif call.name == "truncate":
            files[call.file].sizes.append((index, call.size))
            files[call.file].mtimes.append((index, call.mtime_ns))
        elif call.name == "set_mtime" and call.file in files:
            files[call.file].mtimes.append((index, call.size))
        elif call.name == "sync":
            _sync(files[call.file], call)
        elif call.name in ("sync_folder", "sync_all"):
            for made, folders in pending.items():
                if made < call.begun:
                    folders.difference_update([call.path] if call.name == "sync_folder" else list(folders))
                    sure.update(() if folders else (made,))
            for file in files.values() if call.name == "sync_all" else ():
                _sync(file, call)
    return sure


def _sync(file: _File, call: Call) -> None:
    file.synced = max(file.synced, call.begun)
    if call.size:
        file.synced_times = max(file.synced_times, call.begun)


def _mtime(file: _File, choice: _Choice) -> int:
    """One of the mtimes that the device may hold."""
    mtime_ns = file.mtime_ns
    for index, wanted in file.mtimes:
        if index < file.synced_times or choice.has_name(index):
            mtime_ns = wanted
    return mtime_ns


def _apply(names: dict[str, int | None], call: Call) -> None:
    if call.name == "make_folder":
        names[call.path] = None
    elif call.name == "create_file":
        names[call.path] = call.file
    else:
        names.pop(call.path, None)
        if call.name == "rename":
            names[call.other] = None if call.file == FOLDER else call.file
            for path in [each for each in names if each.startswith(f"{call.path}/")]:  # of a folder
                names[call.other + path.removeprefix(call.path)] = names.pop(path)


def _content(file: _File, choice: _Choice) -> bytes:
    data = bytearray(file.data)
    if file.made < file.synced or choice.has_name(file.made):
        data.extend(bytes(max(file.size - len(data), 0)))
    done: list[tuple[int, int, bytes | None]] = []  # index of the call, offset or size, bytes written
    pieces: dict[int, list[tuple[int, int, bytes]]] = {}
    for index, offset, written in file.writes:
        if index < file.synced:
            done.append((index, offset, written))
            continue
        start, stop = offset, offset + len(written)
        while start < stop:
            end = min(stop, start - start % choice.unit + choice.unit)
            piece = written[start - offset : end - offset]
            pieces.setdefault(start // choice.unit, []).append((index, start, piece))
            start = end
    for writes in pieces.values():
        done += writes[: choice.state([index for index, _, _ in writes])]
    done += ((index, size, None) for index, size in file.sizes
             if index < file.synced or choice.has_name(index))  # fmt: skip
    for _, place, piece_or_none in sorted(done, key=itemgetter(0)):
        if piece_or_none is None:
            data = data[:place].ljust(place, b"\0")
        else:
            _put(data, place, piece_or_none)
    return bytes(data)


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if len(data) < offset + len(piece):
        data.extend(bytes(offset + len(piece) - len(data)))
    data[offset : offset + len(piece)] = piece
