"""An operator's rules, which replace the broker's: a number of hours, free space, an offset or a time.

Like `broker.expiry_rules`, this module decides from numbers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo

from rmqtool.broker.expiry_rules import Chain, Decision, Disks, FollowFile, LogFile, ago, expired_count, stay
from rmqtool.lazy_dataclass import dataclass
from rmqtool.sizes import format_size
from rmqtool.times import HOUR_MS, format_time


@dataclass(frozen=True, slots=True)
class OwnRules:
    """Which files may be deleted. Every rule that is not None must allow it.

    Attributes:
        keep_hours: delete files that were last changed at least this many hours ago, as the broker counts.
        until_free: delete files while fewer than this many bytes are free on a disk of the commit log.
        until_free_ratio: the same as a part of the disk, above 0 and below 1.
        before_offset: delete files that end at or before this physical offset.
        before_ms: delete files whose messages were all stored before this time, ms since 1970.
    """

    keep_hours: float | None = None
    until_free: int | None = None
    before_offset: int | None = None
    before_ms: int | None = None
    until_free_ratio: float | None = None

    def for_disks(self, disks: Disks) -> OwnRules:
        """The rules with the part of the disk as bytes of the fullest one."""
        if self.until_free_ratio is None:
            return self
        total = min((disk.usable, disk.total) for disk in disks.of_log)[1] if disks.of_log else 0
        return replace(self, until_free=round(self.until_free_ratio * total))

    @property
    def given(self) -> bool:
        """Whether there is any rule."""
        return any(
            value is not None
            for value in (
                self.keep_hours,
                self.until_free,
                self.until_free_ratio,
                self.before_offset,
                self.before_ms,
            )
        )


Test = Callable[[LogFile, LogFile], tuple[bool, str]]
"""(whether a file may be deleted, the reason); the second argument is the next file."""


def by_own_rules(
    files: Sequence[LogFile],
    chains: Sequence[Chain],
    disks: Disks,
    rules: OwnRules,
    now_ms: int,
    end_offset: int,
    zone: tzinfo | None = UTC,
) -> list[Decision]:
    """The decision for each file by an operator's rules.

    The last file stays, as in a broker, and so does the file with the newest message, which ends at the
    physical offset `end_offset`. As in a broker, all files after one that stays stay too. Reasons show times
    in `zone`.
    """
    tests = _tests(rules, now_ms, zone)
    decisions: list[Decision] = []
    gone_before = [0] * len(chains)
    reason = "is the last file, which always stays"
    for file, after in zip(files, files[1:], strict=False):
        if file.end >= end_offset:
            reason = "holds the newest message, and always stays"
            break
        results = [test(file, after) for test in tests]
        if rules.until_free is not None:
            results.append(_until_free(rules.until_free, disks))
        refused = [text for may_go, text in results if not may_go]
        if refused:
            reason = refused[0]
            break
        decisions.append(Decision(True, "; ".join(text for _, text in results)))
        gone: list[LogFile | FollowFile] = [file]
        for place, chain in enumerate(chains):
            count = expired_count(chain, after.start)
            gone += chain.files[gone_before[place] : count]
            gone_before[place] = count
        disks = disks.freed(gone)
    rest = files[len(decisions) :]
    return decisions + stay(rest, [reason] * (len(rest) - 1))


def free_afterwards(files: Sequence[LogFile], chains: Sequence[Chain], disks: Disks, start_after: int) -> int:
    """Bytes free on the fullest disk of the log once it begins at `start_after`, a physical offset."""
    return disks_afterwards(files, chains, disks, start_after).usable


def disks_afterwards(
    files: Sequence[LogFile], chains: Sequence[Chain], disks: Disks, start_after: int
) -> Disks:
    """The file systems once the log begins at `start_after`, a physical offset."""
    gone: list[LogFile | FollowFile] = [file for file in files if file.start < start_after]
    for chain in chains:
        gone += chain.files[: expired_count(chain, start_after) if start_after > 0 else 0]
    return disks.freed(gone)


def _tests(rules: OwnRules, now_ms: int, zone: tzinfo | None) -> list[Test]:
    tests: list[Test] = []
    if rules.keep_hours is not None:
        hours = rules.keep_hours

        def is_old(file: LogFile, after: LogFile) -> tuple[bool, str]:
            age = now_ms - file.mtime_ms
            return age >= hours * HOUR_MS, f"changed {ago(age)}, kept {hours:g}h"

        tests.append(is_old)
    if rules.before_offset is not None:
        offset = rules.before_offset

        def lies_before(file: LogFile, after: LogFile) -> tuple[bool, str]:
            before = file.end <= offset
            return before, f"ends {'at or before' if before else 'after'} offset {offset}"

        tests.append(lies_before)
    if rules.before_ms is not None:
        time_ms = rules.before_ms
        time = format_time(time_ms, zone) or f"{time_ms} ms"

        def was_stored_before(file: LogFile, after: LogFile) -> tuple[bool, str]:
            # Store times never decrease along the log, so the next file's first one bounds this file's.
            if after.first_ms is None:
                return False, "the next file does not start with a message, so its newest message is unknown"
            before = after.first_ms < time_ms
            return before, f"holds {'only messages' if before else 'messages not'} stored before {time}"

        tests.append(was_stored_before)
    return tests


def _until_free(wanted: int, disks: Disks) -> tuple[bool, str]:
    """The rule for free space. The text omits the present number, which changes while a plan is reviewed."""
    enough = disks.usable >= wanted
    fullest = min(
        ((disks.by_id[each].usable, each) for each in disks.log if each in disks.by_id), default=None
    )
    if not enough and fullest is not None and fullest[1] == disks.archive:
        return False, "an archive on the same disk frees nothing"
    return not enough, f"{'at least' if enough else 'less than'} {format_size(wanted)} are free"
