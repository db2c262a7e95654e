"""What every recovered store must be: sound, with every record that was valid, the same when done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rmqtool.check.verify import verify
from rmqtool.read.store import Store
from rmqtool.repair.recover import Outcome, Request, recover_store
from tests.support import records as made

BEST = Request()
SOUND = ("CL15", "CL17")  # what verify says of records that a broker and its consumers read
Record = tuple[str, int, int, bytes, bool]
"""Topic, queue id, queue offset, the record's bytes, whether it is a filler."""


# Where a file of some kind is not there yet, only broker.conf tells how long the others will be.
_SIZES = {
    "commit_log_file_size": "mappedFileSizeCommitLog",
    "consume_queue_file_size": "mappedFileSizeConsumeQueue",
    "batch_queue_file_size": "mapperFileSizeBatchConsumeQueue",
    "ext_queue_file_size": "mappedFileSizeConsumeQueueExt",
    "index_slots": "maxHashSlotNum",
    "index_entries": "maxIndexNum",
}


def write_sizes(path: Path, options: Mapping[str, Any]) -> Path:
    """A broker.conf with the sizes among a writer's options."""
    path.write_text("".join(f"{_SIZES[name]}={options[name]}\n" for name in options.keys() & _SIZES.keys()))
    return path


def opener(root: Path, conf: Path | None = None) -> Callable[[], Store]:
    """How a store is opened, as `recover_store` wants it."""
    return lambda: Store.open(root, broker_conf=conf)


def recovered(
    root: Path,
    request: Request = BEST,
    backup: Path | None = None,
    *,
    yes: bool = False,
    conf: Path | None = None,
) -> Outcome:
    """`recover --apply`, with the backup beside the store or in `backup`."""
    return recover_store(opener(root, conf), request, backup_dir=backup, yes=yes, jobs=1)


def log_bytes(root: Path) -> dict[int, bytes]:
    """Every file of the log, by its first offset."""
    with Store.open(root) as store:
        return {file.file_from_offset: file.path.read_bytes() for file in store.layout.commit_log}


def records(root: Path) -> dict[int, Record]:
    """Every record of the log that is sound for `verify`, by physical offset; of older logs' ends none."""
    found: dict[int, Record] = {}
    read: Path | None = None
    data_of = b""
    with Store.open(root) as store:
        bad, zombies = _bad_places(store)
        for stored in store.messages(damage="skip"):
            message, place = stored.message, stored.physical_offset
            if stored.status or place in bad or (zombies is not None and place >= zombies):
                continue
            if stored.path != read:
                read, data_of = stored.path, stored.path.read_bytes()
            at = place - int(stored.path.name)
            found[place] = (
                message.topic,
                message.queue_id,
                message.queue_offset,
                data_of[at : at + message.total_size],
                made.is_filler(message),
            )
    return found


def _bad_places(store: Store) -> tuple[set[int], int | None]:
    """Offsets of records that look sound and are not, and where records of an older log begin."""
    bad: set[int] = set()
    zombies = None
    for found in verify(store, passes=("log", "queues"), jobs=1):
        place = found.physical_offset
        code = found.problem.code
        is_bad = found.problem.severity != "note" and code not in SOUND
        if is_bad and code.startswith("CL") and place is not None:
            bad.add(place)
        if found.problem.code == "CL07" and place is not None:
            zombies = place if zombies is None else min(place, zombies)
    return bad, zombies


def is_filler(record: Record) -> bool:
    """Whether a record was made to fill a hole."""
    return record[4]


def codes(root: Path, conf: Path | None = None) -> set[str]:
    """The problems of warning or error that `verify` finds."""
    with Store.open(root, broker_conf=conf) as store:
        found = list(verify(store, jobs=1))
    return {each.problem.code for each in found if each.problem.severity != "note"}


def must_have_kept(
    before: dict[int, Record], log: dict[int, bytes], after: dict[int, Record], outcome: Outcome
) -> None:
    """Every valid record is where it was, byte for byte, but those that the plan names; none is invented.

    Args:
        before: `records` of the damaged store.
        log: `log_bytes` of it.
        after: `records` of the recovered one.
        outcome: of `recovered`.
    """
    summary = outcome.recovery.plan.summary
    taken = {row["physical_offset"] for row in summary["lost"] if row["fate"] != "filled"}
    corrected = {row["physical_offset"]: row for row in summary["corrected"]}
    gone = {
        place: record
        for place, record in before.items()
        if after.get(place) != record and place not in corrected
    }
    names = ("topic", "queue_id", "queue_offset")
    for place, row in corrected.items():  # what it says of its place is something else
        assert after[place][:3] == tuple(row[name] for name in names)
        if place in before:  # else it looked like the first one of a queue that was made anew
            assert before[place][:3] == tuple(row[f"said_{name}"] for name in names)
            assert len(before[place][3]) == len(after[place][3])
    unexplained = {place: record[:3] for place, record in gone.items() if place not in taken}
    assert not unexplained
    assert len(gone) <= summary["given_up_messages"]
    for place, record in after.items():
        if place not in before and place not in corrected and not is_filler(record):
            start = max(first for first in log if first <= place)
            was = log[start][place - start : place - start + len(record[3])]
            assert was == record[3], f"{place}: {record[:3]} was not there"
