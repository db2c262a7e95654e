"""The calls of `rmqtool.storage.durable` in a process: counted, recorded, failing, or its end.

    with watched(root) as calls: ...                           record them, and what is told between them
    with watched(root, stop=Stop(17, "half")) as calls: ...    SIGKILL in the middle of the 17th
    with watched(root, full=17) as calls: ...                  the 17th and all later ones find a full disk

Only for a process that is made for it: `disk` is changed while the block lasts.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rmqtool.errors import UnwritableError
from rmqtool.storage import durable as disk

How = Literal["before", "half", "after"]
HOWS: tuple[How, ...] = ("before", "half", "after")
# What needs new space: the calls that a full disk refuses.
TAKES_SPACE = ("make_folder", "create_file", "write", "copy_range")
_SYNCS = ("sync", "sync_folder", "sync_all")
NAMES = (
    "make_folder", "create_file", "open_file", "write", "copy_range", "truncate", "set_mtime", "take_owner",
    *_SYNCS, "rename", "remove", "remove_folder",
)  # fmt: skip


FOLDER = -1
"""Instead of the number of a file."""


class Call(NamedTuple):
    """One call that has ended well, or something told between calls (`name` is `told`).

    `file` numbers what a descriptor or a path stands for, in the order in which they were met: two
    calls with one number mean one file, under whatever name. `begun` is the number of calls that
    had ended when this one began; what a sync covers is known by it. A `copy_range` is kept as the
    `write` that it comes to. `size` is that of the file for create_file and truncate, the time in ns for
    set_mtime, and 1 for a sync that covers the times. `mtime_ns` is the file's after a change of its bytes.
    """

    name: str
    path: str
    file: int = FOLDER
    offset: int = 0
    data: bytes = b""
    size: int = 0
    begun: int = 0
    other: str = ""
    told: Any = None
    mtime_ns: int = 0


class Stop(NamedTuple):
    """The end of the process: at the `number`-th call, from 1."""

    number: int
    how: How


@dataclass
class Calls:
    """What happened so far."""

    stop: Stop | None = None
    full: int = 0  # number of the first call that finds the disk full; 0 never
    failing: str = ""  # the next sync of a path with this in it fails
    number: int = 0
    done: list[Call] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    files: dict[str, int] = field(default_factory=dict)  # by path
    descriptors: dict[int, int] = field(default_factory=dict)
    made: int = 0
    short: str = ""  # the next write to a path with this in it is done by half, as on a full disk
    refused: int = 0

    def tell(self, what: Any) -> None:
        """Keep something in the order of the calls."""
        with self.lock:
            self.done.append(Call("told", "", told=what))

    def file_of(self, path: str, *, new: bool = False) -> int:
        """The number of the file that has the name `path`."""
        if new or path not in self.files:
            self.made += 1
            self.files[path] = self.made
        return self.files[path]


def numbered(root: Path) -> dict[str, int]:
    """The files below `root`, by path, with the numbers that they have in a record that begins now."""
    paths = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(root / path): number for number, path in enumerate(paths, 1)}


@contextmanager
def watched(root: Path, *, stop: Stop | None = None, full: int = 0, failing: str = "") -> Iterator[Calls]:
    """Watch the functions of `disk`, which change only what lies below `root`, inside the block."""
    files = numbered(root)
    calls = Calls(stop, full, failing, files=files, made=len(files))
    originals = {name: getattr(disk, name) for name in NAMES}
    for name, original in originals.items():
        setattr(disk, name, _watch(calls, name, original))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(disk, name, original)


def _watch(calls: Calls, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def watching(*args: Any, **named: Any) -> Any:
        with calls.lock:
            calls.number += 1
            number, begun = calls.number, len(calls.done)
            if calls.stop is not None and calls.stop.number == number:
                _end(calls.stop.how, name, original, args, named)
            _refuse(calls, name, number, args)
            if name not in _SYNCS:  # one after the other, so that their order is known
                result = original(*args, **named)
                calls.done.append(_call(calls, name, args, result))
                return result
        result = original(*args, **named)
        with calls.lock:
            if result is not False:
                times = int(bool(named.get("times")) or name == "sync_all")
                calls.done.append(_call(calls, name, args, None)._replace(begun=begun, size=times))
        return result

    return watching


def _call(calls: Calls, name: str, args: tuple[Any, ...], result: Any) -> Call:
    if name in ("write", "copy_range"):
        descriptor, data, offset, path = args if name == "write" else (args[1], b"", args[2], args[4])
        written = bytes(data) if name == "write" else os.pread(descriptor, args[3], offset)
        time = os.fstat(descriptor).st_mtime_ns
        return Call("write", str(path), calls.descriptors[descriptor], offset, written, mtime_ns=time)
    if name == "truncate":
        time = os.fstat(args[0]).st_mtime_ns
        return Call(name, str(args[2]), calls.descriptors[args[0]], size=args[1], mtime_ns=time)
    if name == "sync":
        return Call(name, str(args[1]), calls.descriptors[args[0]])
    path = str(args[0])
    if name == "set_mtime":
        return Call(name, path, calls.files.get(path, FOLDER), size=args[1])
    if name in ("create_file", "open_file"):
        calls.descriptors[result] = number = calls.file_of(path, new=name == "create_file")
        time = os.fstat(result).st_mtime_ns
        return Call(name, path, number, size=args[1] if name == "create_file" else 0, mtime_ns=time)
    if name == "rename":
        other = str(args[1])
        for inside in [each for each in calls.files if each.startswith(f"{path}/")]:  # of a folder
            calls.files[other + inside.removeprefix(path)] = calls.files.pop(inside)
        number = FOLDER
        if path in calls.files:
            calls.files[other] = number = calls.files.pop(path)
        return Call(name, path, number, other=other)
    if name == "remove":
        return Call(name, path, calls.files.pop(path, FOLDER))
    return Call(name, path)


def _end(how: How, name: str, original: Callable[..., Any], args: tuple[Any, ...], named: Any) -> None:
    """Do what part of the call is to be done, then end like a process that is killed."""
    with suppress(UnwritableError):
        if how == "after":
            original(*args, **named)
        elif how == "half" and name == "write":
            descriptor, data, offset, path = args
            original(descriptor, memoryview(data)[: len(data) // 2], offset, path)
        elif how == "half" and name == "copy_range":
            source, descriptor, offset, length, path = args
            original(source, descriptor, offset, length // 2, path)
        elif how == "half" and name == "create_file":
            with suppress(OSError):
                os.open(args[0], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _refuse(calls: Calls, name: str, number: int, args: tuple[Any, ...]) -> None:
    path = Path(args[{"sync": 1, "write": 3, "copy_range": 4, "truncate": 2}.get(name, 0)])
    if name in _SYNCS and calls.failing and calls.failing in str(path):
        calls.failing = ""
        calls.refused += 1
        raise UnwritableError(f"cannot flush: {os.strerror(errno.EIO)}", path=path)
    if name == "write" and calls.short and calls.short in str(path):
        calls.short = ""
    elif not calls.full or number < calls.full or name not in TAKES_SPACE:
        return
    if name == "make_folder" and path.is_dir():
        return
    calls.refused += 1
    if name == "write":  # a part of it still fits
        descriptor, data, offset, _ = args
        os.pwrite(descriptor, memoryview(data)[: len(data) // 2], offset)
    what = {
        "write": "write",
        "copy_range": "copy to",
        "create_file": "make the file",
        "make_folder": "make the folder",
    }[name]
    raise UnwritableError(f"cannot {what}: {os.strerror(errno.ENOSPC)}", path=path)
