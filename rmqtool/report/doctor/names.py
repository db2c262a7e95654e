"""Results that have a name instead of the code of a finding: what each means, costs, and what to do.

`rmqtool problems NAME` shows it; `result` makes the result of one store from it, with its numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rmqtool.formats.filler import FIELDS, TAG
from rmqtool.report.doctor.diagnosis import Certainty, Diagnosis, Severity


class Named(NamedTuple):
    """One name.

    Attributes:
        name: as in a result.
        severity: the worst one that it can have.
        message: what is wrong.
        cost: its effect if nothing is done.
        cure: what to do; `rmqtool NAME STORE ...: effect` is a line to run.
    """

    name: str
    severity: Severity
    message: str
    cost: str
    cure: str


_PLAN = (
    "rmqtool recover STORE: shows what each broker's start would do, and a repair that keeps every sound"
    " message"
)
_FREE = "rmqtool expire STORE: shows which files expire, who would miss their messages, and frees space"

NAMES = {
    each.name: each
    for each in (
        Named(
            "start_fails",
            "error",
            "a broker's start on this store fails: the result says on which file",
            "no client can send or consume",
            _PLAN,
        ),
        Named(
            "start_crashes",
            "error",
            "a broker's start runs out of memory: a damaged record claims too many bytes",
            "no client can send or consume",
            _PLAN,
        ),
        Named(
            "start_hangs",
            "error",
            "a broker's start never ends: its dispatch waits forever",
            "no client can send or consume",
            _PLAN,
        ),
        Named(
            "start_loses_messages",
            "error",
            "a broker's start ends the log before sound messages",
            "these messages are lost for good",
            _PLAN,
        ),
        Named(
            "start_leaves_messages",
            "warning",
            "a broker's start leaves messages without a unit in their queue",
            "these messages stay in the log, and no consumer receives them",
            _PLAN,
        ),
        Named(
            "queues_missing",
            "warning",
            "the folder consumequeue is missing, and the log is in DLedger",
            "consumers receive nothing until the queues are made again",
            "rmqtool recover STORE: makes them again; no file shows their size: name the broker.conf if it"
            " sets mappedFileSizeConsumeQueue (--broker-conf)",
        ),
        Named(
            "queues_lag",
            "warning",
            "the queues of a running broker lag behind the commit log",
            "consumers do not receive the newest messages yet",
            "look at the load of the disk; the broker dispatches one record after the other",
        ),
        Named(
            "cannot_read",
            "error",
            "a file or folder of the store cannot be read",
            "nothing is known of its content; a broker that cannot read it either does not start",
            "check permissions, and the kernel's log for errors of the disk",
        ),
        Named(
            "expired_unread",
            "note",
            "messages expired before a group read them",
            "these groups never receive them",
            "rmqtool stats STORE --by group: shows by group how many; keep files longer (fileReservedTime),"
            " or make the consumers faster",
        ),
        Named(
            "expired_undelivered",
            "note",
            "delayed messages expired before they were due",
            "they are never delivered",
            "send them again; keep files longer than the longest delay level (fileReservedTime), and the disk"
            " less full than 85 %",
        ),
        Named(
            "fillers",
            "note",
            "rmqtool recover has written fillers",
            "each stands for a lost message; consumers that subscribe to * receive it",
            f"rmqtool dump STORE --tag {TAG} --fields {FIELDS}: lists them; consumers should ignore messages"
            " with this tag. Fillers of delayed messages, and of places with unknown messages, have no tag,"
            " and are not counted",
        ),
        Named(
            "disk_full",
            "error",
            "the disk of the commit log is so full that a broker refuses messages",
            "producers get errors; the broker deletes the oldest files, consumed or not",
            _FREE,
        ),
        Named(
            "disk_forces_deletion",
            "warning",
            "the disk is so full that a broker deletes files that have not expired",
            "groups that lag miss messages",
            _FREE,
        ),
        Named(
            "disk_deletes_early",
            "note",
            "the disk is so full that a broker deletes expired files at any hour",
            "expired files are deleted at once, not at the hour of deleteWhen",
            _FREE,
        ),
        Named(
            "disk_fills",
            "warning",
            "the disk will be full before the files on it expire",
            "the broker deletes files before they expire: groups that lag miss messages",
            "rmqtool expire STORE: shows what expires and when each limit is reached",
        ),
        Named(
            "deletes_unread",
            "warning",
            "with this broker.conf, messages that are still needed expire at the next hour of deleteWhen",
            "groups never receive what they have not read; what waits inside the broker is lost",
            "rmqtool expire STORE: shows which files go, and who needs their messages; before the broker"
            " starts, raise fileReservedTime",
        ),
        Named(
            "delete_when",
            "warning",
            "deleteWhen of the broker.conf is not a list of hours",
            "the broker never deletes a file, until the disk is full",
            "correct deleteWhen, for example 04",
        ),
        Named(
            "dirty_pages",
            "warning",
            "so much waits to be written to disks that the kernel makes writers wait",
            "sends take long or fail (busy page cache)",
            "compare with the speed of the disk; a lower vm.dirty_background_bytes makes the kernel write"
            " earlier",
        ),
        Named(
            "swapping",
            "warning",
            "memory is swapped out, and vm.swappiness is not small",
            "pauses of the broker: its heap comes back from the disk",
            "sysctl -w vm.swappiness=1 keeps the heap in memory",
        ),
        Named(
            "read_ahead",
            "note",
            "the kernel reads a large part of each file ahead",
            "consumers that read old messages push the newest ones out of the page cache",
            "set read_ahead_kb of the disk in /sys/class/bdi to 128 to 1024 KiB",
        ),
        Named(
            "inodes",
            "error",
            "the file system has few or no free inodes",
            "the broker cannot create its next file, whatever space is free",
            "delete files that are not the broker's",
        ),
        Named(
            "read_only",
            "error",
            "the file system is read-only",
            "no broker starts or stores messages here",
            "look in the kernel's log: it changes to read-only after errors of the disk",
        ),
        Named(
            "mount_sync",
            "warning",
            "the file system is mounted with sync",
            "every write waits for the disk",
            "mount it without sync: flushDiskType decides what waits",
        ),
        Named(
            "volatile",
            "note",
            "the store lies in memory or in a container",
            "it is gone after a restart of the host or of the container",
            "use a volume on a disk",
        ),
        Named(
            "network_file_system",
            "warning",
            "the store lies on a network file system",
            "the lock may not keep out brokers of other hosts; a fault of the network kills the broker",
            "use a disk of the host",
        ),
        Named(
            "maps",
            "error",
            "the store has more files than a process may map, or nearly",
            "the broker ends with 'Map failed' when it opens or creates a file",
            "sysctl -w vm.max_map_count=655360 raises the limit",
        ),
        Named(
            "memory_lock",
            "warning",
            "the broker may not lock its pool (transientStorePoolEnable) in memory",
            "the pool may be swapped out, and sends wait for it",
            "set LimitMEMLOCK=infinity in its systemd unit, or memlock in limits.conf",
        ),
    )
}
"""By name."""


def result(
    name: str,
    certainty: Certainty,
    path: str,
    message: str,
    *,
    severity: Severity | None = None,
    command: tuple[str, ...] = (),
    detail: dict[str, Any] | None = None,
    count: int = 1,
    paths: tuple[str, ...] = (),
    is_unread: bool = False,
) -> Diagnosis:
    """The result of this name for one store.

    Args:
        name: one of `NAMES`, which gives cost and cure.
        certainty: see `Diagnosis`.
        path: the subject.
        message: what is wrong, with the numbers.
        severity: the name's, unless it is less bad here.
        command: the line to run next, unless the cure is one.
        detail: the numbers.
        count: how many places it stands for.
        paths: the first of them.
        is_unread: see `Diagnosis`.
    """
    known = NAMES[name]
    words, effect = line_of(known.cure)
    cure = f"{' '.join(words[:2])} {effect}" if words else effect
    return Diagnosis(
        name, severity or known.severity, certainty, path, message, known.cost, cure, words or command,
        count=count, paths=paths, detail=detail or {}, is_unread=is_unread,
    )  # fmt: skip


def line_of(cure: str) -> tuple[tuple[str, ...], str]:
    """The words of a cure's line and its effect; no words, and the cure, where it is not a line to run."""
    if not cure.startswith("rmqtool "):
        return (), cure
    line, _, effect = cure.partition(": ")
    return tuple(line.split()), effect
