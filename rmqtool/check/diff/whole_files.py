"""Files of the log that one store has whole and sound, and the other one lacks or has damaged.

Where two logs have not diverged, a file has the same name and the same bytes in both. To copy it into the
other store, before a repair or after that was undone, keeps every message in its place: with its queue
offset, and half messages too, which `append` cannot add.

Source: spec 02 12.1: a slave has its master's bytes at the master's offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.check.diff.ends import SideName
from rmqtool.check.diff.operands import Operand
from rmqtool.check.diff.windows import Range
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import Finding
from rmqtool.read.selection import Selection
from rmqtool.storage.layout import StoreFile, StoreLayout

if TYPE_CHECKING:
    from rmqtool.check.diff.log import DifferingRange, LogDifference


@dataclass(frozen=True, slots=True)
class WholeFiles:
    """Files to copy to `side`: (path in the other store, path in this one), in the log's order.

    `messages` is how many records of these files `side` lacks; None if they were not counted. `fillers` is
    whether `side` has fillers there: its repair has to be undone first.
    """

    side: SideName
    files: tuple[tuple[Path, Path], ...]
    messages: int | None
    fillers: bool

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "side": self.side,
            "files": [{"from": str(source), "to": str(target)} for source, target in self.files],
            "messages": self.messages,
            "fillers": self.fillers,
        }


def whole_files(a: Operand, b: Operand, log: LogDifference, jobs: int) -> Iterator[WholeFiles]:
    """The files to copy to either side; none if the logs have diverged, or a store is in use or not local.

    Args:
        a: one store.
        b: the other.
        log: their logs, compared.
        jobs: number of threads.
    """
    layouts, is_local = (a.store.layout, b.store.layout), a.store.is_local and b.store.is_local
    is_known = log.diverged is None and not log.more and not log.unread and log.start < log.stop
    if not (is_known and is_local) or a.live or b.live or not all(map(_takes_files, layouts)):
        return
    if layouts[0].commit_log_file_size != layouts[1].commit_log_file_size:
        return
    sides: tuple[tuple[SideName, Operand, Operand], ...] = (("a", a, b), ("b", b, a))
    for name, side, other in sides:
        wanted = _wanted(name, side, log)
        chosen = [file for file in other.store.layout.commit_log if _overlaps(file, wanted)]
        found = list(_copied(side, other, chosen, log, jobs))
        if found:
            yield _whole_files(name, side, found, log)


def _takes_files(layout: StoreLayout) -> bool:
    return layout.kind == "store" and layout.ledger is None


def _wanted(name: SideName, side: Operand, log: LogDifference) -> list[Range]:
    """The ranges that a side lacks; of what follows its end only if it has had more, or ends in damage."""
    lacking = [each for found in log.ranges for each in found.lacking if each.side == name]
    only = [part for part in log.only if part.side != name]
    ranges = [(each.start, each.stop) for each in lacking]
    ranges += ((part.start, part.stop) for part in only if part.place == "inside")
    after = log.behind_end
    is_cut = after is not None and after.side == name and after.state != "empty"
    if ranges or is_cut or side.store.dispatched_end() > side.end:
        ranges += ((part.start, part.stop) for part in only if part.place == "after")
    return ranges


def _overlaps(file: StoreFile, ranges: list[Range]) -> bool:
    return any(low < file.end and file.file_from_offset < high for low, high in ranges)


def _copied(
    side: Operand, other: Operand, chosen: list[StoreFile], log: LogDifference, jobs: int
) -> Iterator[StoreFile]:
    """Those of the chosen files of `other` that leave no gap, are sound, and have all that `side` has."""
    size, held_end = other.store.layout.commit_log_file_size, side.end
    for file in chosen:
        low, high = file.file_from_offset, file.end
        is_whole = file.size == size and low <= held_end and not other.end < min(side.end, high)
        differs = [each for each in log.ranges if each.start < high and low < each.stop]
        if is_whole and not any(map(_is_undecided, differs)) and _is_sound_in(other, low, high, jobs):
            held_end = max(held_end, high)
            yield file


def _is_undecided(each: DifferingRange) -> bool:
    """Whether it is not known which of the two logs is right there."""
    if not each.lacking:
        parts = [None if part is None else part.at for part in (each.a, each.b)]
        return all(part is not None and part.kind == "record" for part in parts)
    return len({part.side for part in each.lacking}) > 1


def _is_sound_in(side: Operand, start: int, stop: int, jobs: int) -> bool:
    """Whether a log has nothing but sound records in [start, stop), up to its end."""
    from rmqtool.read.messages import message_batches

    found: list[Finding] = []
    chosen = Selection(from_offset=start, to_offset=min(stop, side.end))
    for _ in message_batches(side.store, chosen, columns=("status",), jobs=jobs, report=found.append):
        pass
    return all(each.problem.severity == "note" for each in found)


def _whole_files(name: SideName, side: Operand, files: list[StoreFile], log: LogDifference) -> WholeFiles:
    layout = side.store.layout
    places = {file.file_from_offset: file.path for file in layout.commit_log}
    folder = layout.commit_log[0].path.parent
    counts: list[int | None] = []
    fillers = False
    for found in log.ranges:
        for each in found.lacking:
            if each.side == name and any(_overlaps(file, [(each.start, each.stop)]) for file in files):
                counts.append(each.messages)
                fillers = fillers or bool(each.fillers)
    for part in log.only:
        if part.side != name and any(_overlaps(file, [(part.start, part.stop)]) for file in files):
            counts.append(part.records if part.stop <= files[-1].end else None)
    known = [count for count in counts if count is not None]
    pairs = tuple((file.path, places.get(file.file_from_offset, folder / file.path.name)) for file in files)
    return WholeFiles(name, pairs, sum(known) if len(known) == len(counts) else None, fillers)
