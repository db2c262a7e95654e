"""What the broker's host says about the store: pages to be written, swap, read-ahead, mount, inodes, limits.

Only what explains something becomes a diagnosis. Whether this machine is the broker's is known only while a
process here holds the lock; otherwise a diagnosis is at most likely.

Source: proc(5), Documentation/admin-guide/sysctl/vm.rst; DefaultMappedFile (maps every file),
TransientStorePool#init (mlock), MessageStoreConfig.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmqtool.errors import InputError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.store import Store
from rmqtool.report.doctor.diagnosis import Certainty, Diagnosis, Examination, Omission
from rmqtool.report.doctor.names import result
from rmqtool.sizes import format_size
from rmqtool.storage.open_files import head_of

_LENGTH_MAX = 1 << 20  # of a file in /proc or /sys that is read
_DIRTY_RATIO = 0.8  # of the limit at which the kernel makes writers wait
_SWAPPINESS_MAX = 10
_READ_AHEAD_MAX = 4 << 20
_INODES_MIN = 1000
_MAPS_RATIO = 0.9
_POOL_BUFFERS = 5  # transientStorePoolSize
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "9p")
_VOLATILE = {"tmpfs": "in memory", "ramfs": "in memory", "overlay": "in the layer of a container"}


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount that holds the store: where, the file system's type, and all of its options."""

    point: str
    kind: str
    options: tuple[str, ...]
    device: str


@dataclass(frozen=True, slots=True)
class Host:
    """Facts of a Linux host; None for what it does not say. Sizes in bytes.

    `dirty_limit_bytes` is where the kernel makes writers wait. `memory_lock_bytes` and `broker_swap_bytes`
    are those of the process that holds the store's lock; `maps_max` is the most maps of a process.
    """

    dirty_bytes: int | None
    writeback_bytes: int | None
    dirty_limit_bytes: int | None
    swappiness: int | None
    swap_used_bytes: int | None
    broker_swap_bytes: int | None
    read_ahead_bytes: int | None
    mount: Mount | None
    inodes: int
    inodes_free: int
    memory_lock_bytes: int | None
    maps_max: int | None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        names = (
            "dirty_bytes", "writeback_bytes", "dirty_limit_bytes", "swappiness", "swap_used_bytes",
            "broker_swap_bytes", "read_ahead_bytes", "inodes", "inodes_free", "memory_lock_bytes", "maps_max",
        )  # fmt: skip
        row = {name: getattr(self, name) for name in names}
        mount = self.mount
        return row | {
            "mount_point": mount.point if mount else None,
            "file_system": mount.kind if mount else None,
            "mount_options": list(mount.options) if mount else None,
        }


def look_at_host(store: Store, found: Examination, root: Path = Path("/")) -> None:
    """Add the facts of the host, and what they explain, to an examination.

    Args:
        store: the store that was examined.
        found: the examination.
        root: the folder in which proc and sys of the host are.

    Raises:
        InputError: `root` was named and has no proc.
    """
    if not store.is_local or store.layout.kind != "store":
        return
    if not (root / "proc" / "meminfo").is_file():
        if root != Path("/"):
            raise InputError("there is no proc/meminfo below this folder", path=root)
        found.omissions.append(Omission("the host", "it has no /proc: it does not run Linux"))
        return
    folders = store.layout.commit_log_folders
    folder = folders[0] if folders else store.layout.place
    pid = found.info["state"]["lock_holder_pid"]
    host = read_host(folder, root, pid)
    found.host = host.row()
    certainty: Certainty = "likely" if pid else "possible"
    found.add(_of_memory(host, certainty))
    found.add(_of_disk(host, str(folder)))
    found.add(_of_limits(store, host, certainty))


def read_host(folder: Path, root: Path, pid: int | None) -> Host:
    """The facts for a store in `folder`, from proc and sys below `root`; `pid` holds the store's lock."""
    proc, memory = root / "proc", _fields(root / "proc/meminfo")
    vm = {name: _number(proc / "sys/vm" / name) for name in (
        "dirty_bytes", "dirty_ratio", "swappiness", "max_map_count")}  # fmt: skip
    limit = vm["dirty_bytes"] or None
    if limit is None and vm["dirty_ratio"] is not None and "MemAvailable" in memory:
        limit = memory["MemAvailable"] * vm["dirty_ratio"] // 100
    swap = memory.get("SwapTotal"), memory.get("SwapFree")
    mount = _mount(folder, proc)
    ahead = _number(root / "sys/class/bdi" / mount.device / "read_ahead_kb") if mount is not None else None
    status = os.statvfs(folder)
    process = proc / str(pid)
    return Host(
        dirty_bytes=memory.get("Dirty"),
        writeback_bytes=memory.get("Writeback"),
        dirty_limit_bytes=limit,
        swappiness=vm["swappiness"],
        swap_used_bytes=None if swap[0] is None or swap[1] is None else swap[0] - swap[1],
        broker_swap_bytes=_fields(process / "status").get("VmSwap") if pid else None,
        read_ahead_bytes=None if ahead is None else ahead << 10,
        mount=mount,
        inodes=status.f_files,
        inodes_free=status.f_favail,
        memory_lock_bytes=_memory_lock(process / "limits") if pid else None,
        maps_max=vm["max_map_count"],
    )


def _text(path: Path) -> str:
    return head_of(path, _LENGTH_MAX).decode("utf-8", "replace")


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """The sizes in a file of lines such as `Dirty:  312 kB`, bytes by name."""
    found = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isascii() and words[0].isdigit():
            found[name] = int(words[0]) << 10
    return found


def _memory_lock(path: Path) -> int | None:
    """The soft limit of locked memory of a process; None if it has none, or it is unknown."""
    for line in _text(path).splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[:1]
            return int(soft[0]) if soft and soft[0].isdigit() else None
    return None


def _mount(folder: Path, proc: Path) -> Mount | None:
    """The mount of a folder: that of its device, else the longest mount point above it.

    The host's table is that of its process 1; on the machine itself every process has its own.
    """
    table = proc / ("self" if proc == Path("/proc") else "1") / "mountinfo"
    device = folder.stat().st_dev
    wanted, real = f"{os.major(device)}:{os.minor(device)}", folder.resolve()
    best: Mount | None = None
    for line in _text(table).splitlines():
        left, _, right = line.partition(" - ")
        fields, more = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(more) < 3:
            continue
        point = _unescaped(fields[4])
        options = tuple(dict.fromkeys([*fields[5].split(","), *more[2].split(",")]))
        mount = Mount(point, more[0], options, fields[2])
        same = (fields[2] == wanted, real.is_relative_to(point), len(point))
        if best is None or same >= (best.device == wanted, real.is_relative_to(best.point), len(best.point)):
            best = mount
    return best if best and (best.device == wanted or real.is_relative_to(best.point)) else None


def _unescaped(name: str) -> str:
    r"""A mount point in the table, where a blank is `\040`."""
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        name = name.replace(f"\\{code}", character)
    return name


def _of_memory(host: Host, certainty: Certainty) -> Iterator[Diagnosis]:
    dirty, limit = (host.dirty_bytes or 0) + (host.writeback_bytes or 0), host.dirty_limit_bytes
    if limit and dirty > limit * _DIRTY_RATIO:
        yield result(
            "dirty_pages", certainty, "/proc/meminfo",
            f"{format_size(dirty)} wait to be written to disks; at {format_size(limit)} the kernel makes"
            " writers wait",
            command=("sysctl", "vm.dirty_background_ratio", "vm.dirty_ratio"),
            detail={"dirty_bytes": dirty, "limit_bytes": limit},
        )  # fmt: skip
    swapped = host.broker_swap_bytes if host.broker_swap_bytes is not None else host.swap_used_bytes
    if swapped and host.swappiness is not None and host.swappiness > _SWAPPINESS_MAX:
        whose = "of the broker's memory" if host.broker_swap_bytes is not None else "of memory"
        yield result(
            "swapping", certainty, "/proc/sys/vm/swappiness",
            f"{format_size(swapped)} {whose} are swapped out, and vm.swappiness is {host.swappiness}",
            severity="warning" if host.broker_swap_bytes else "note",
            command=("sysctl", "-w", "vm.swappiness=1"),
            detail={"swapped_bytes": swapped, "swappiness": host.swappiness},
        )  # fmt: skip
    if host.read_ahead_bytes is not None and host.read_ahead_bytes > _READ_AHEAD_MAX:
        device = host.mount.device if host.mount is not None else ""
        path = f"/sys/class/bdi/{device}/read_ahead_kb"
        message = f"the kernel reads {format_size(host.read_ahead_bytes)} ahead"
        detail = {"read_ahead_bytes": host.read_ahead_bytes}
        yield result("read_ahead", certainty, path, message, command=("cat", path), detail=detail)


def _of_disk(host: Host, folder: str) -> Iterator[Diagnosis]:
    if host.inodes and host.inodes_free < _INODES_MIN:
        yield result(
            "inodes", "certain", folder, f"{host.inodes_free} of {host.inodes} inodes are free",
            severity="error" if host.inodes_free == 0 else "warning", command=("df", "-i", folder),
            detail={"inodes_free": host.inodes_free, "inodes": host.inodes},
        )  # fmt: skip
    mount = host.mount
    if mount is None:
        return
    command = ("findmnt", "--target", folder)
    if "ro" in mount.options:
        message = f"the file system ({mount.kind}) is read-only"
        yield result("read_only", "likely", mount.point, message, command=command)
    if "sync" in mount.options:
        message = "the file system is mounted with sync"
        yield result("mount_sync", "certain", mount.point, message, command=command)
    if mount.kind in _VOLATILE:
        message = f"the store lies {_VOLATILE[mount.kind]} ({mount.kind})"
        yield result("volatile", "likely", mount.point, message, command=command)
    if mount.kind in _NETWORK:
        message = f"the store lies on a network file system ({mount.kind})"
        yield result("network_file_system", "likely", mount.point, message, command=command)


def _of_limits(store: Store, host: Host, certainty: Certainty) -> Iterator[Diagnosis]:
    layout, conf = store.layout, store.layout.broker_conf
    queues = (queue.files for queue in (*layout.unit_queues, *layout.ext_queues.values()))
    files = len(layout.commit_log) + sum(map(len, queues)) + len(layout.index_files)
    if host.maps_max is not None and files > host.maps_max * _MAPS_RATIO:
        yield result(
            "maps", certainty, "/proc/sys/vm/max_map_count",
            f"the store has {files} files, and a process may map {host.maps_max}",
            severity="error" if files > host.maps_max else "warning",
            command=("sysctl", "-w", "vm.max_map_count=655360"),
            detail={"files": files, "maps_max": host.maps_max},
        )  # fmt: skip
    if conf is None or host.memory_lock_bytes is None or not conf.flag("transientStorePoolEnable"):
        return
    buffers = conf.integer("transientStorePoolSize")
    wanted = layout.commit_log_file_size * (_POOL_BUFFERS if buffers is None else buffers)
    if host.memory_lock_bytes < wanted:
        yield result(
            "memory_lock", "certain", "/proc/PID/limits",
            f"the broker may lock {format_size(host.memory_lock_bytes)} of memory, and its pool"
            f" (transientStorePoolEnable) wants {format_size(wanted)}",
            detail={"memory_lock_bytes": host.memory_lock_bytes, "wanted_bytes": wanted},
        )  # fmt: skip
