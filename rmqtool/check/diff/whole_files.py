"""Files of the log that one store has whole and sound, and the other one lacks or has damaged.

Up to the place where two logs part, a file has the same name and the same bytes in both. To copy it into the
other store, before a repair or after that was undone, keeps every message in its place: with its queue
offset, and half messages too, which `append` cannot add. Damage may hide where the logs part: a file counts
only if a message after the damage is still the same in both.

Source: spec 02 12.1: a slave has its master's bytes at the master's offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.check.diff.ends import Only, SideName
from rmqtool.check.diff.lacking import LackingRange, are_different, is_whole
from rmqtool.check.diff.operands import Operand
from rmqtool.check.diff.windows import Range, without
from rmqtool.formats.filler import is_filler
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.problems import Finding
from rmqtool.read.fillers import fillers
from rmqtool.read.log_items import log_items
from rmqtool.read.selection import Selection
from rmqtool.storage.layout import StoreFile, StoreLayout

if TYPE_CHECKING:
    from rmqtool.check.diff.log import LogDifference


@dataclass(frozen=True, slots=True)
class WholeFiles:
    """Files to copy to `side`: (path in the other store, path in this one), in the log's order.

    `messages` is how many records of these files `side` lacks; None if they were not counted. `fillers` is
    whether `side` has fillers there: its repair has to be undone first. `is_all` is whether nothing is left
    to carry over: the files hold all that `side` lacks, and no repair has to be undone. `replaced` are the
    files of `side` that the copies replace, and that can be kept in the folder `keep`, outside of the store;
    none if a repair has to be undone, whose backup keeps them.
    """

    side: SideName
    files: tuple[tuple[Path, Path], ...]
    messages: int | None
    fillers: bool
    is_all: bool
    replaced: tuple[Path, ...]
    keep: Path

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "side": self.side,
            "files": [{"from": str(source), "to": str(target)} for source, target in self.files],
            "messages": self.messages,
            "fillers": self.fillers,
            "is_all": self.is_all,
            "replaced": [str(path) for path in self.replaced],
            "keep": str(self.keep),
        }


def whole_files(a: Operand, b: Operand, log: LogDifference, jobs: int) -> Iterator[WholeFiles]:
    """The files to copy to either side; none if a store is in use or not local.

    Of logs that have diverged these are files that end before the place where they part.

    Args:
        a: one store.
        b: the other.
        log: their logs, compared.
        jobs: number of threads.
    """
    layouts, is_local = (a.store.layout, b.store.layout), a.store.is_local and b.store.is_local
    is_known = _is_complete(log) and not log.unread and log.start < log.stop
    if not (is_known and is_local) or a.live or b.live or not all(map(_takes_files, layouts)):
        return
    if layouts[0].commit_log_file_size != layouts[1].commit_log_file_size:
        return
    sides: tuple[tuple[SideName, Operand, Operand], ...] = (("a", a, b), ("b", b, a))
    for name, side, other in sides:
        wanted = _wanted(name, side, log)
        chosen = [file for file in other.store.layout.commit_log if _overlaps(file, wanted)]
        found = list(_copied(name, side, other, chosen, log, jobs))
        if found:
            yield _whole_files(name, side, found, log)


def _takes_files(layout: StoreLayout) -> bool:
    return layout.kind == "store" and layout.ledger is None


def _is_complete(log: LogDifference) -> bool:
    """Whether all differing ranges are listed, up to the place where the logs part."""
    return not log.more or (log.diverged is not None and log.ranges[-1].stop > log.diverged.start)


def _wanted(name: SideName, side: Operand, log: LogDifference) -> list[Range]:
    """The ranges that a side lacks; of what follows its end only if it has had more, or ends in damage."""
    lacking = [each for found in log.ranges for each in found.lacking if each.side == name]
    only = [part for part in log.only if part.side != name]
    ranges = [(each.start, each.stop) for each in lacking]
    ranges += ((part.start, part.stop) for part in only if part.place == "inside")
    after = log.behind_end
    is_cut = after is not None and after.side == name and after.state != "empty"
    if ranges or is_cut or side.units_end > side.end:
        ranges += (_lacked(part, name, log) for part in only if part.place == "after")
    return ranges


def _held_end(name: SideName, log: LogDifference) -> int:
    """Where a log that is shorter than the other goes on: its end, or after the blank there; else 0."""
    after = log.behind_end
    return after.physical_offset if after is not None and after.side == name else 0


def _lacked(part: Only, name: SideName, log: LogDifference) -> Range:
    """What side `name` lacks of a part that only the other side has: not the blank that both have."""
    return max(part.start, _held_end(name, log)) if part.place == "after" else part.start, part.stop


def _overlaps(file: StoreFile, ranges: list[Range]) -> bool:
    return any(low < file.end and file.file_from_offset < high for low, high in ranges)


def _copied(
    name: SideName, side: Operand, other: Operand, chosen: list[StoreFile], log: LogDifference, jobs: int
) -> Iterator[StoreFile]:
    """Those of the chosen files of `other` that leave no gap, are sound, and have all that `side` has."""
    size, held_end = other.store.layout.commit_log_file_size, max(side.end, _held_end(name, log))
    for file in chosen:
        low, high = file.file_from_offset, file.end
        is_complete = file.size == size and low <= held_end and not other.end < min(side.end, high)
        if (
            is_complete
            and not _has_own(name, side, other, file, log)
            and _is_of_both(other, file, log)
            and _is_sound_in(other, low, high, jobs)
        ):
            held_end = max(held_end, high)
            yield file


def _has_own(name: SideName, side: Operand, other: Operand, file: StoreFile, log: LogDifference) -> bool:
    """Whether `side` has a message that a file of `other` would replace by another one, or by damage.

    Or has messages of the file elsewhere too, carried over after a repair had put fillers in their place.
    There may be messages after the end of its log too, if damage in the last file ends it.
    """
    low, high = file.file_from_offset, file.end
    differs = [each for each in log.ranges if each.start < high and low < each.stop]
    if any(map(_is_replaced, (part for each in differs for part in each.lacking if part.side == name))):
        return True
    places = [(max(each.first, low), min(each.stop, high)) for each in differs]
    places += [(max(side.end, low), high)] if side.end < high else []
    return any(
        isinstance(item, StoredMessage) and not item.status and _is_own(item, other)
        for start, stop in places
        for item in log_items(side.store, Selection(from_offset=start, to_offset=stop))
    )


def _is_replaced(part: LackingRange) -> bool:
    return part.kind == "fillers" and part.carried is not None and part.carried.in_other > 0


def _is_own(item: StoredMessage, other: Operand) -> bool:
    """Whether `other` lacks a message of one log, or has it with another content that is sound too."""
    if is_filler(item.message):
        return False
    there = other.store.find(item.physical_offset)
    if there is None:
        return True
    if is_whole(item.message, item.physical_offset):
        return item.message != there.message
    return are_different(item.message, there.message)


def _is_of_both(other: Operand, file: StoreFile, log: LogDifference) -> bool:
    """Whether a file of `other` is of the log that both have in common.

    Of logs that part, a message shows it that is the same in both, between what differs in the file and the
    place where they part. Without one the damage, or the lack of files, may hide that they part there.
    """
    if log.diverged is None:
        return True
    low, high, parted = file.file_from_offset, file.end, log.diverged.start
    unequal = [(each.start, each.stop) for each in log.ranges]
    unequal += ((part.start, part.stop) for part in log.only if part.place == "inside")
    last = max((stop for start, stop in unequal if start < high and low < stop), default=low)
    return high <= parted and any(
        isinstance(item, StoredMessage)
        and not item.status
        and start <= item.physical_offset < item.end <= stop
        for start, stop in without([(last, parted)], sorted(unequal))
        for item in log_items(other.store, Selection(from_offset=start, to_offset=stop))
    )


def _is_sound_in(side: Operand, start: int, stop: int, jobs: int) -> bool:
    """Whether a log has nothing but sound records in [start, stop), up to its end, and no fillers."""
    from rmqtool.read.messages import message_batches

    found: list[Finding] = []
    chosen = Selection(from_offset=start, to_offset=min(stop, side.end))
    for _ in message_batches(side.store, chosen, columns=("status",), jobs=jobs, report=found.append):
        pass
    is_sound = all(each.problem.severity == "note" for each in found)
    return is_sound and not any(fillers(side.store, start=start, stop=min(stop, side.end)))


def _whole_files(name: SideName, side: Operand, files: list[StoreFile], log: LogDifference) -> WholeFiles:
    layout = side.store.layout
    places = {file.file_from_offset: file.path for file in layout.commit_log}
    folder = layout.commit_log[0].path.parent
    lacking = [each for found in log.ranges for each in found.lacking if each.side == name]
    only = [part for part in log.only if part.side != name]
    held: list[tuple[int, int, int | None]] = [(each.start, each.stop, each.messages) for each in lacking]
    held += ((*_lacked(part, name, log), part.records) for part in only)
    parts = [part for part in held if any(_overlaps(file, [part[:2]]) for file in files)]
    copied = [(file.file_from_offset, file.end) for file in files]
    # Of a part that goes on in files that are not copied, the messages were not counted separately.
    counts = [None if without([part[:2]], copied) else part[2] for part in parts]
    known = [count for count in counts if count is not None]
    pairs = tuple((file.path, places.get(file.file_from_offset, folder / file.path.name)) for file in files)
    has_fillers = any(each.fillers and (each.start, each.stop, each.messages) in parts for each in lacking)
    is_all = log.diverged is None and not has_fillers
    is_all = is_all and not any(without([part[:2]], copied) for part in held)
    replaced = tuple(path for _, path in pairs if path in places.values() and not has_fillers)
    root = layout.root or folder.parent
    return WholeFiles(
        name, pairs, sum(known) if len(known) == len(counts) else None, has_fillers, is_all, replaced,
        root.with_name(f"{root.name}.replaced"),
    )  # fmt: skip
