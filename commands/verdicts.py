"""The last lines of a report: what it means in one or two sentences, and the command to run next.

Each function takes the row that the command's `--format json` shows, with its times as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmqtool.errors import AS_OWNER
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS, RETRY_PREFIX
from rmqtool.problems import BY_CODE, LOG_ELSEWHERE, OF_CONFIG_PAGE, leaves_ledger
from rmqtool.sizes import largest_counts
from rmqtool.terminal import counted, format_size, shortened
from rmqtool.times import DAY_MS, HOUR_MS, format_duration

if TYPE_CHECKING:
    from rmqtool.report.stats.lag import QueueLag

Row = Mapping[str, Any]

LOG_MISSING = "CL26"
LOG_NOT_FOUND = f"The commit log was not found: {LOG_ELSEWHERE}."
_SOON_MS = 30 * DAY_MS  # a forecast for later is not worth a sentence
MEASURED_MIN_MS = 600_000  # a rate of less time says nothing about tomorrow
STALE_MS = HOUR_MS  # after so long without a message, the rate may not be that of today


def verdict_lines(sentences: Sequence[str], *, next: str | None = None) -> Iterator[str]:
    """Yield the lines that end a report: the sentences, and the command line to run next."""
    if not (sentences or next):
        return
    yield ""
    if sentences:
        yield f"{'verdict':<13}{' '.join(sentences)}"
    if next is not None:
        yield from next_lines(next, 13)


_HELP_OF_CONFIG = "rmqtool help recovery"
SECTION_OF_CONFIG = "Consumer offsets or the folder config are lost"
"""The section of rmqtool-recovery(7) on lost configuration files."""


def next_lines(line: str, label_width: int) -> Iterator[str]:
    """Yield the lines for the command to run next; below that of a long page the section to read."""
    yield f"{'next':<{label_width}}{line}"
    if line == _HELP_OF_CONFIG:
        yield f"{'':<{label_width}}section: {SECTION_OF_CONFIG}"


def listed(names: Sequence[str], *, word: str = "and") -> str:
    """Return the names as `a`, `a and b` or `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def of_transactions(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield what a broker does with stored half messages and op records; `counts` are by topic."""
    halves = sum(counts.get(topic, 0) for topic in HALF_TOPICS)
    ops = sum(counts.get(topic, 0) for topic in OP_TOPICS)
    if halves:
        yield (
            f"half messages: {halves}; a broker asks the producers whether to commit those that no op record"
            " names, and discards old ones"
        )
    if ops:
        yield (
            f"op records: {ops}; each finishes whatever half messages this store has at the queue offsets"
            " that the op record names"
        )


def by_name(counts: Mapping[str, int], what: str, names: str = "topic") -> str:
    """Return `154 messages of Orders`, or the sum and the largest: `9 messages (5 of A and 4 of B)`."""
    text = counted(sum(counts.values()), what)
    if len(counts) == 1:
        return f"{text} of {shortened(next(iter(counts)))}"
    return f"{text} ({listed(largest_counts(counts, names, shortened))})"


def span(first: str, last: str) -> str:
    """Return `first to last`; what both times share, the date and the zone, stands once."""
    day, zone = first[:_TIME_START], first[_ZONE_START:]
    if last == first:
        return first
    if last[:_TIME_START] == day and last[_ZONE_START:] == zone:
        return f"{first[:_ZONE_START]} to {last[_TIME_START:]}"
    return f"{first} to {last}"


def disk_text(used_ratio: float, free_bytes: int, reserved_bytes: int, assumed: str = "") -> str:
    """Return how full a disk is for a broker, to which the blocks that are reserved for root do not count."""
    text = f"{used_ratio:.0%} used{assumed}, {format_size(free_bytes)} free"
    if reserved_bytes * 20 < free_bytes:
        return text
    return f"{text}, {format_size(reserved_bytes)} reserved for root"


def usage_text(usage: Sequence[Row], shown: int = 5) -> str:
    """Return the space that a store takes, and its largest files and folders: `4 MiB: commitlog 3 MiB`."""
    parts = [f"{shortened(each['name'])} {format_size(each['bytes'])}" for each in usage[:shown]]
    rest = usage[shown:]
    if rest:
        parts.append(f"{len(rest)} more {format_size(sum(each['bytes'] for each in rest))}")
    return f"{format_size(sum(each['bytes'] for each in usage))}: {listed(parts)}"


_TIME_START, _ZONE_START = len("2026-11-21T"), len("2026-11-21T08:50:33.180")


def cure(codes: Iterable[str], recover: str | None, copy: str | None = None) -> str | None:
    """Return the command line for findings with these codes: that repairs them, or else explains one.

    `recover` is the command line of recover, which also does all that rebuild does; None if it has found
    that it cannot repair them. `copy` is that of copy if the log is in DLedger, where no command repairs the
    log. Where no command repairs anything, the worst code is explained, with what to do by hand. None if
    there is nothing to do.
    """
    found = [BY_CODE[code] for code in codes if BY_CODE[code].severity != "note"]
    if copy is not None and any(map(leaves_ledger, found)):
        return copy
    if recover is not None and any(
        (each.repair or "").startswith(("rmqtool recover ", "rmqtool rebuild ")) for each in found
    ):
        return recover
    by_hand = (each for each in found if each.repair is not None or each.severity == "error")
    worst = sorted(by_hand, key=lambda each: each.severity != "error")
    if worst and worst[0].code in OF_CONFIG_PAGE:
        return _HELP_OF_CONFIG  # its codes say no more than the report
    return f"rmqtool problems {worst[0].code}" if worst else None


def denied_sentence(count: int) -> str:
    """Say that `count` files may not be read by this user, and what to do."""
    files = "1 file" if count == 1 else f"{count} files"
    return f"This user may not read {files}, of which nothing else is known: {AS_OWNER}."


def lost_offsets_cure(reason: str) -> tuple[str, str]:
    """Return what to copy where committed offsets are lost, and what to do without a copy.

    `reason` says what is missing, as a finding CF08 does.
    """
    what, without = "consumerOffset.json", "rmqtool reset-offset sets them"
    if "RocksDB" in reason or "the database with" in reason:
        what, without = "the folder config/consumerOffsets (RocksDB)", "do what rmqtool verify says (CF08)"
    if "still lost" in reason:
        what += " (which replaces the offsets set since)"
    return what, without


# expire


def of_expire(found: Row) -> list[str]:
    """Say what is deleted, what that costs, and what comes next."""
    totals, log = found["totals"], found["commit_log"]
    sentences: list[str] = []
    if not totals["files_going"]:
        sentences += _later(found)
        if found["free_before"] is not None and not found["offsets_unknown"]:
            sentences.append(_free_sentence(found["free_before"], log["start_before"]))
        if found["offsets_unknown"]:
            what, without = lost_offsets_cure(" ".join(found["offsets_unknown"]))
            sentences.append(
                f"Committed offsets are lost: before any file is deleted, copy {what} from a backup or a"
                f" slave; without a copy, {without}."
            )
    else:
        verb = "Deleted" if found["applied"] else "Would delete"
        freed = format_size(totals["freed_bytes"])
        if totals["allocated_bytes"] and not totals["freed_bytes"]:
            freed = "nothing: the archive is on the same disk"
        sentences.append(
            f"{verb} {log['files_going']} of {counted(log['files'], 'log file')} with"
            f" {counted(totals['messages_going'], 'message')}, which"
            f" {'freed' if found['applied'] else 'frees'} {freed}."
        )
        unconsumed: dict[str, int] = {}
        for row in found["unconsumed"]:
            unconsumed[row["group"]] = unconsumed.get(row["group"], 0) + row["messages"]
        if unconsumed:
            text = by_name(unconsumed, "message", "group")
            sentences.append(f"Groups {'had' if found['applied'] else 'have'} not consumed {text}.")
        sentences += _waiting(found)
        sentences += _unknown_groups(found)
        free = found["free_before"]
        if free is not None and free < log["start_after"] and not found["applied"]:
            sentences.append(_free_sentence(free, log["start_before"]))
    if found["goal"] is not None and found["goal"]["missing_bytes"]:
        verb = "is not" if found["applied"] else "cannot be"
        missing = format_size(found["goal"]["missing_bytes"])
        sentences.append(f"--until-free {verb} reached: {missing} are missing.")
    if is_held_by_overdue(found):
        sentences.append(
            "First deliver the delayed messages that are overdue: their copies stay, at the end of the log."
        )
    for row in found["forecast"]["reached"] if _is_measured(found) else ():
        if row["limit"] == "diskSpaceWarningLevelRatio" and 0 < row["after_ms"] < _SOON_MS:
            when = format_duration(row["after_ms"])
            sentences.append(f"At the measured growth a broker refuses messages in {when}.")
    sentences += _refusing(found)
    return sentences


def _later(found: Row) -> Iterator[str]:
    """Yield that nothing is deleted, and what a broker deletes at the next hour of deleteWhen."""
    later = next((row for row in found["what_if"] if row["limit"] is None), None)
    if later is None or not later["log_files_going"]:
        yield "No file expires."
        return
    going = what_goes(later, found["commit_log"]["files"])
    yield f"No file expires now. A broker that runs at {later['at_time']} deletes {going}."


def what_goes(row: Row, files: int) -> str:
    """Return what a broker with `files` log files would delete, and what of that is still needed.

    `row` is one of what_if.
    """
    text = f"{row['log_files_going']} of {counted(files, 'log file')}"
    text += f" with {counted(row['messages_going'], 'message')}"
    needed = []
    if row["messages_unconsumed"]:
        needed.append(f"groups have not consumed {row['messages_unconsumed']}")
    if row["messages_pending"]:
        needed.append(f"{row['messages_pending']} {'is' if row['messages_pending'] == 1 else 'are'} pending")
    if row["unknown"]:
        needed.append("what groups need is unknown" if not needed else "what else is needed is unknown")
    return f"{text} ({', '.join(needed)})" if needed else text


def is_overdue(row: Row, at_ms: int) -> bool:
    """Whether messages that wait inside the broker, a row of pending, are all due at a time."""
    due_ms = row["last_due_timestamp_ms"]
    return due_ms is not None and due_ms <= at_ms


def is_held_by_overdue(found: Row) -> bool:
    """Whether overdue delayed messages would be lost, or hold the first log file if none goes."""
    going = found["totals"]["files_going"]
    free, start = found["free_before"], found["commit_log"]["start_before"]
    is_free = not going and free is not None and free > start
    if found["applied"] or found["in_use"] or found["offsets_unknown"] or is_free:
        return False
    waiting = found["pending"] if going else found["needed_after"]["pending"]
    return any(is_overdue(row, found["at_timestamp_ms"]) for row in waiting)


def _free_sentence(free: int, start: int) -> str:
    """Say which log files nothing needs any more."""
    if free > start:
        return f"Up to offset {free} nothing is still needed: --before {free}."
    return "Even the first log file holds messages that are, or may be, still needed."


def _refusing(found: Row) -> Iterator[str]:
    """Yield that the disk is too full for new messages, and whether the deletion changes that."""
    names = ("diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio")
    forced, warning = (found["settings"][name]["value"] for name in names)
    full = [disk for disk in found["disks"] if "commitlog" in disk["holds"] and disk["used_ratio"] > warning]
    if full:
        enough = max(disk["used_after_ratio"] for disk in full) <= forced
        text = f"A broker refuses messages: the disk is {max(disk['used_ratio'] for disk in full):.0%} full"
        if found["totals"]["files_going"]:
            text += f"; the deletion is {'enough to end that' if enough else 'not enough to end that'}"
        yield f"{text}."


def _is_measured(found: Row) -> bool:
    """Whether the growth was measured for long enough, and lately."""
    forecast = found["forecast"]
    if forecast["store_bytes_per_s"] is None:
        return False
    first, last = forecast["measured_from_timestamp_ms"], forecast["measured_to_timestamp_ms"]
    return bool(last - first >= MEASURED_MIN_MS and found["at_timestamp_ms"] - last < STALE_MS)


def _waiting(found: Row) -> Iterator[str]:
    """Yield how many messages that wait inside the broker are deleted, by their kind."""
    kinds: dict[str, int] = {}
    for row in found["pending"]:
        kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["messages"]
    if kinds:
        most = "" if all(row["exact"] for row in found["pending"]) else "at most "
        text = listed([counted(count, f"{kind} message") for kind, count in kinds.items()])
        if found["applied"]:
            yield f"That deleted {most}{text} that still waited."
        else:
            yield f"This deletes {most}{text} that still {'waits' if [*kinds.values()] == [1] else 'wait'}."


def _unknown_groups(found: Row) -> Iterator[str]:
    unknown = found["groups_unknown"]
    if unknown is None:
        return
    need = "needed" if found["applied"] else "need"
    yield (
        f"Groups still {need} an unknown number of them, up to {unknown['messages_max']}:"
        f" {listed(unknown['reasons'])}."
    )
    if not found["applied"]:
        yield (
            "First restore consumerOffset.json from a slave or a backup, or set the offsets of each group:"
            " rmqtool reset-offset."
        )


# diff


def of_diff(row: Row, result: str) -> list[str]:
    """Say whether the stores differ, and which side to trust where one of them is damaged.

    `result` is the first sentence without its end.
    """
    sentences = [f"{result[:1].upper()}{result[1:]}."]
    log = row["commit_log"]
    damaged: Counter[tuple[str, str]] = Counter()
    for each in log["ranges"] if log is not None else ():
        found = {name: (each[name] or {}).get("at") for name in "ab"}
        sides = [name for name in "ab" if _is_sound(found[name])]
        if len(sides) == 1 and not any(map(ends_file, found.values())):
            damaged[sides[0], damage_text(each)] += 1
    for name, other in (("a", "b"), ("b", "a")):
        for text in [text for side, text in damaged if side == name]:
            ranges = counted(damaged[name, text], "differing range")
            what = text or f"only {name.upper()} is sound: {other.upper()} is damaged there"
            sentences.append(f"In {ranges} {what}.")
        sentences += _filler_sentence(row, name, other)
        sentences += _properties_sentence(row, name, other)
    whole = wholly_held(row)
    if len(whole) == 2:
        sentences.append("Each holds every message of the other, by unique key.")
    for name in whole if len(whole) == 1 else ():
        other = "b" if name == "a" else "a"
        if log["diverged"] is None:
            sentences.append(f"{other.upper()} holds every message of {name.upper()}.")
            continue
        missing = _missing(row, other)
        lacks = f"; {name.upper()} lacks {counted(missing, 'message')} of {other.upper()}" if missing else ""
        sentences.append(f"{other.upper()} holds every message of {name.upper()}, by unique key{lacks}.")
    if not whole:
        sentences += _cheaper_sentence(row)
    return sentences


def _cheaper_sentence(row: Row) -> Iterator[str]:
    """Yield which of two stores whose logs have diverged takes fewer messages to carry over, if it is clear.

    It is if half as many are enough, even without those that are in files to be copied.
    """
    log = row["commit_log"]
    diverged = log["diverged"] if log is not None else None
    if diverged is None or not _is_compared(log) or any(part["place"] == "inside" for part in log["only"]):
        return
    if None in [diverged[name]["carried"] for name in "ab"]:
        return
    for name, other in (("a", "b"), ("b", "a")):
        own = diverged[name]["carried"]
        least = own["messages"] - own["in_other"]  # if the other store stays
        needed, most = _missing(row, other), _missing(row, name)
        if least and needed * 2 <= least:
            yield (
                f"Less has to be carried over if {name.upper()} stays:"
                f" {counted(needed, 'message')} instead of {most}."
            )


def _is_compared(log: Row) -> bool:
    """Whether all differing ranges are listed before logs part: what is not listed was not compared."""
    place = log["ranges"][-1]["physical_offset"] + log["ranges"][-1]["length"]
    return not log["more_ranges"] or place > log["diverged"]["physical_offset"]


def _missing(row: Row, name: str) -> int:
    """Return how many messages of one side the other one lacks, of logs that have diverged."""
    parts = [each["carried"] for each in lacking_ranges(row) if each["side"] != name]
    own = row["commit_log"]["diverged"][name]["carried"]
    parts += [own] if own is not None else []
    return sum(each["messages"] - each["in_other"] for each in parts)


def wholly_held(row: Row) -> list[str]:
    """Return the sides, `a` or `b`, of which the other store has every message.

    Of logs that have diverged it is not a side that is damaged, or that has messages without a unique key, or
    messages or files that the other lacks before the logs part. Of others it is one that lacks messages in
    the middle of its log.
    """
    log = row["commit_log"]
    diverged = log["diverged"] if log is not None else None
    if diverged is None:
        return _wholly_held_in_place(row)
    lacking = {
        each["side"]
        for each in lacking_ranges(row)
        if each["carried"]["messages"] > each["carried"]["in_other"]
    }
    if not _is_compared(log):
        return []
    lacking |= {"b" if part["side"] == "a" else "a" for part in log["only"] if part["place"] == "inside"}
    found = []
    for name, other in (("a", "b"), ("b", "a")):
        carried = diverged[name]["carried"]
        is_whole = carried is not None and not (carried["damaged_places"] or carried["damaged_properties"])
        if is_whole and carried["messages"] == carried["in_other"] and other not in lacking:
            found.append(name)
    return found


def _wholly_held_in_place(row: Row) -> list[str]:
    """Return the side that lacks messages where the other has them, if it has none that the other lacks.

    All that differs is known then: it lies in ranges where this side lacks messages.
    """
    log = row["commit_log"]
    if log is None or log["more_ranges"] or row["unread"] or log["common_start"] >= log["common_end"]:
        return []
    if not all(map(_is_lacking_only, log["ranges"])):
        return []
    lacking = [{part["side"] for part in each["lacking"]} for each in log["ranges"]]
    lacking += [{"b" if part["side"] == "a" else "a"} for part in log["only"] if part["place"] == "inside"]
    only = {"b" if part["side"] == "a" else "a" for part in log["only"]}
    return [name for name in "ab" if lacking and all(each == {name} for each in (*lacking, only or {name}))]


def _is_lacking_only(each: Row) -> bool:
    """Whether one side or the other has no message, wherever a differing range differs."""
    place = each["physical_offset"]
    for part in sorted(each["lacking"], key=lambda part: int(part["from_offset"])):
        if part["from_offset"] <= place:
            place = max(place, part["to_offset"])
    return bool(place >= each["physical_offset"] + each["length"])


def damage_text(each: Row) -> str:
    """Return what stands where one side has a filler and the other is damaged, of a differing range.

    An empty text if the sound record of the one side is not a filler.
    """
    for name, other in (("a", "b"), ("b", "a")):
        part, damage = ((each[side] or {}).get("at") for side in (name, other))
        if part is not None and _is_sound(part) and part["is_filler"] and not _is_sound(damage):
            is_message = damage is not None and damage["kind"] == "record"
            what = "a damaged message" if is_message else "no message"
            return f"{name.upper()} has a filler, {other.upper()} {what}"
    return ""


def _filler_sentence(row: Row, name: str, other: str) -> Iterator[str]:
    """Yield how many fillers one side has where the other has messages, and what it has elsewhere."""
    found = [each for each in lacking_ranges(row) if (each["kind"], each["side"]) == ("fillers", name)]
    fillers = sum(each["fillers"] for each in found)
    if not fillers:
        return
    parts = [each["carried"] for each in found]
    there, messages = (sum(each[key] for each in parts) for key in ("in_other", "messages"))
    elsewhere = ""
    if there:
        them = "them" if there == messages else f"{there} of these {messages}"
        elsewhere = f"; {name.upper()} has {them} elsewhere, by unique key"
    stand = "stands" if fillers == 1 else "stand"
    count = counted(fillers, "filler")
    yield f"{count} in {name.upper()} {stand} where {other.upper()} has the messages{elsewhere}."


def _properties_sentence(row: Row, name: str, other: str) -> Iterator[str]:
    """Yield how many messages have damaged properties on one side and sound ones on the other."""
    found = [each for each in lacking_ranges(row) if (each["kind"], each["side"]) == ("properties", name)]
    count = sum(each["messages"] for each in found)
    if count:
        has = "has" if count == 1 else "have"
        there = sum(each["carried"]["in_other"] for each in found)
        elsewhere = f"; {name.upper()} has {there} of them sound elsewhere" if there else ""
        yield (
            f"{counted(count, 'message')} {has} damaged properties in {name.upper()} and sound ones in"
            f" {other.upper()}{elsewhere}."
        )


def lacking_ranges(row: Row) -> list[Row]:
    """Return the ranges that one side lacks and where the other has messages, in the log's order."""
    log = row["commit_log"]
    ranges = log["ranges"] if log is not None else ()
    return sorted(
        (part for each in ranges for part in each["lacking"]), key=lambda part: int(part["from_offset"])
    )


def _is_sound(part: Row | None) -> bool:
    return part is not None and part["kind"] == "record" and part["status"] == "ok"


def ends_file(part: Row | None) -> bool:
    """Whether one side of a differing range has the blank there that ends its file: nothing is damaged."""
    return part is not None and part["kind"] == "blank" and part["status"] == "ok"


# stats


def of_lag(rows: Iterable[Row], recover: str = "rmqtool recover", *, lost: int = 0) -> list[str]:
    """Say which groups lag, by the rows of `stats --by group`, whatever else they are counted by.

    `recover` is the command line that makes a lost queue again, `lost` the number of groups whose offsets
    are lost.
    """
    lags: dict[str, int] = {}
    known = set()
    oldest: tuple[int, str] | None = None
    missed: dict[str, int] = {}
    without: dict[str, list[str]] = {}
    ahead: dict[str, list[str]] = {}
    for row in rows:
        if row["group"] is None:  # a topic that no group reads, or the offsets are lost
            continue
        lag = row["lag_messages_max"]
        if row.get("lost_queues"):
            without.setdefault(row["group"], []).extend(row["lost_queues"])
            lag = row["lag_messages_min"]
        elif lag is not None or "never_committed" not in row["status"]:
            known.add(row["group"])
        if row.get("ahead_queues"):
            ahead.setdefault(row["group"], []).extend(row["ahead_queues"])
            lag = row["lag_messages_min"]
        lags[row["group"]] = lags.get(row["group"], 0) + (lag or 0)
        if row.get("lost_messages"):
            missed[row["group"]] = missed.get(row["group"], 0) + row["lost_messages"]
        if lag and row["oldest_timestamp_ms"] and (oldest is None or row["oldest_timestamp_ms"] < oldest[0]):
            oldest = row["oldest_timestamp_ms"], row["oldest_time"]
    behind = {group: lag for group, lag in lags.items() if lag}
    if not lags:
        return []
    sentences = []
    if lost:
        theirs = "its offsets are" if lost == 1 else "their offsets are"
        sentences.append(f"The lag of {counted(lost, 'group')} is unknown: {theirs} lost.")
    if behind:
        since = f"; the oldest was stored {oldest[1]}" if oldest is not None else ""
        others = len(known | behind.keys())
        of = f"{len(behind)} of {counted(others, 'other group' if lost else 'group')}"
        if len(behind) > 1:
            text = f"{of} lag by {by_name(behind, 'message', 'group')}"
        else:
            ((group, count),) = behind.items()
            one = shortened(group)
            text = f"{one} lags" if others == 1 else f"{of} lags: {one}"
            text += f" by {counted(count, 'message')}"
        sentences.append(f"{text}{since}.")
    elif known:
        what = "other group" if without or ahead or lost else "group"
        sentences.append(f"No {what} lags ({counted(len(known), 'group')} with offsets).")
    sentences += missed_sentence(missed)
    sentences += _without_files(without, recover)
    sentences += _beyond_the_end(ahead)
    rest = len(lags.keys() - known - without.keys())
    if rest:
        has = "it has" if rest == 1 else "they have"
        sentences.append(f"The lag of {counted(rest, 'more group')} is unknown: {has} no offset there.")
    return sentences


def _beyond_the_end(queues: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield which groups have committed offsets beyond the ends of queues: their lag there is unknown."""
    for group, of_group in list(queues.items())[:_GROUPS_NAMED]:
        topic, _, queue_id = of_group[0].rpartition("/")
        text = f"{shortened(group)} is beyond the end of queue {queue_id} of {shortened(topic)}"
        if len(of_group) > 1:
            text += f" and of {counted(len(of_group) - 1, 'more queue')}"
        yield f"{text}: its lag there is unknown, and it stalls or skips messages."
    if len(queues) > _GROUPS_NAMED:
        yield f"{counted(len(queues) - _GROUPS_NAMED, 'more group')} are beyond the end of queues."


def _without_files(queues: Mapping[str, Sequence[str]], recover: str) -> Iterator[str]:
    """Yield which groups have an unknown lag, because queues from which they have consumed have no files."""
    if not queues:
        return
    names = list(map(shortened, queues))
    more = [f"{len(names) - _GROUPS_NAMED} more"] if len(names) > _GROUPS_NAMED else []
    lost = list(dict.fromkeys(queue for of_group in queues.values() for queue in of_group))
    topic, _, queue_id = lost[0].rpartition("/")
    have = f"queue {queue_id} of {shortened(topic)}"
    if len(lost) > 1:
        have += f" and {counted(len(lost) - 1, 'more queue')}"
    yield (
        f"The lag of {listed([*names[:_GROUPS_NAMED], *more])} is unknown: {have}"
        f" {'has' if len(lost) == 1 else 'have'} no files; {recover} shows how to build"
        f" {'it' if len(lost) == 1 else 'them'} from the log. A queue of which the log has no message is"
        " only in consumerOffset.json."
    )


_GROUPS_NAMED = 3


def undelivered_sentence(levels: Mapping[int, int]) -> Iterator[str]:
    """Yield that delayed messages expired before they were due, if any; their numbers are by level."""
    if levels:
        total, names = sum(levels.values()), [str(level) for level in sorted(levels)]
        where = f"level{'s' if len(names) > 1 else ''} {listed(names)}"
        be = "it is" if total == 1 else "they are"
        count = counted(total, "delayed message")
        yield f"{count} of {where} expired before the delivery time: {be} never delivered."


def missed_sentence(missed: Mapping[str, int]) -> Iterator[str]:
    """Yield that messages expired before groups read them, if any; `missed` are their numbers by group."""
    if missed:
        text = by_name(missed, "message", "group")
        yield f"{'Groups' if len(missed) > 1 else 'A group'} missed {text}, which expired unread."


def resets_of_lag(lags: Iterable[QueueLag]) -> Iterator[tuple[str, list[str]]]:
    """Yield what reset-offset can do for a group, and its options: one line at most for each reason.

    It is for the group and the topic of which most messages expired unread, and for those of which most are
    in queues beyond whose end the offset is. Only such queues are named: in others the group would receive
    all messages again. The broker's own groups are never reset.
    """
    from rmqtool.read.lost_config import is_group_of_brokers

    expired: dict[tuple[str, str], dict[int, int]] = {}  # messages by group and topic, and queue
    beyond: dict[tuple[str, str], dict[int, int]] = {}
    for each in lags:
        if each.group is not None and not is_group_of_brokers(each.group):
            name = each.group, each.topic
            expired.setdefault(name, {})[each.queue_id] = each.lost or 0
            beyond.setdefault(name, {})[each.queue_id] = each.at_most or 0 if each.ahead else 0
    for counts, what in (
        (expired, "begin with the oldest message that is left of"),
        (beyond, "receive again all messages of the queues that it is beyond, of"),
    ):
        group, topic = max(counts, key=lambda name: sum(counts[name].values()), default=("", ""))
        named = [str(queue_id) for queue_id, count in sorted(counts.get((group, topic), {}).items()) if count]
        if named:
            queues = ["--queue", ",".join(named)] if len(named) < len(counts[group, topic]) else []
            words = ["--group", group, "--topic", topic, *queues, "--from", "earliest"]
            yield f"to let {shortened(group)} {what} {shortened(topic)}", words


# lookup --trace


def of_trace(rows: Sequence[Row]) -> tuple[str, str]:
    """Return which message it is, and what became of it, by the rows of its trace; empty if nothing is known.

    That is who is past it, retries and dead letters. A group whose offset is past a message may have
    skipped it, for example by its tag. That no group has an offset is said once for all messages, by
    `of_topics_without_groups`.
    """
    parts = []
    steps = [row for row in rows if row["kind"] not in _NO_STEPS]
    origin = steps[0]["physical_offset"] if steps else None
    visible = [row for row in steps if row["kind"] in _VISIBLE]
    first = visible[0]["physical_offset"] if visible else origin
    groups = [row for row in rows if row["kind"] == "group" and row["physical_offset"] == first]
    for row in steps:
        if is_unreached(row):
            queue = f"queue {row['queue_id']} of {shortened(row['topic'])}"
            parts.append(f"{queue} lacks it, so that no consumer gets it")
    for state, text in _STATES.items():
        names = [shortened(row["group"]) for row in groups if row["state"] == state]
        if names:
            parts.append(f"{text} {listed(names)}")
    for kind, text in _KINDS.items():
        found: dict[str, list[Row]] = {}
        for row in steps:
            if row["kind"] == kind:
                found.setdefault(row["group"] or row["topic"], []).append(row)
        for name, records in found.items():
            times = f" {len(records)} times, last" if len(records) > 1 else ","
            parts.append(f"{text} {shortened(name)}{times} stored {records[-1]['time']}")
    parts += (text for number in range(len(steps)) if (text := _of_waiting(steps, number)))
    return str(rows[0]["uniq_key"] or f"offset {origin}"), "; ".join(parts)


def _of_waiting(steps: Sequence[Row], number: int) -> str:
    """Return what became of a half, delayed or timer message: for which topic, when, how late; else empty."""
    row = steps[number]
    state, detail, rest = row["state"], row["detail"] or {}, steps[number + 1 :]
    topic = shortened(detail.get("real_topic") or "?")
    if row["kind"] == "half":
        checks = detail.get("check_times") or 0
        asked = f"asked {counted(checks, 'time')}" if checks else "not asked"
        committed = [each["time"] for each in rest if each["kind"] == "committed"]
        time = next(iter(committed), detail.get("finished_time"))
        what = {
            "open": f"its transaction for {topic} is open",
            "committed": f"committed to {topic} {time}",
            "rolled_back": f"rolled back {time}, for {topic}",
        }.get(state)
        return "" if what is None else f"{what}, its producer was {asked}"
    due, time_ms = detail.get("deliver_time") or "unknown", detail.get("deliver_timestamp_ms")
    if state == "waiting":
        return f"waits to be delivered to {topic}, due {due}"
    kind = f"{row['kind']}_delivered"
    copy = next((each for each in rest if each["kind"] in (row["kind"], kind)), None)
    if copy is None or copy["kind"] != kind or time_ms is None:
        return ""
    late_ms = copy["timestamp_ms"] - time_ms
    late = f", {format_duration(late_ms)} late" if late_ms >= _LATE_MS else ""
    return f"due {due}, delivered to {topic} {copy['time']}{late}"


def is_unreached(row: Row) -> bool:
    """Whether a row of a trace is a record that consumers do not get, because its queue lacks it."""
    return (row["detail"] or {}).get("in_queue") is False


def of_topics_without_groups(messages: Mapping[str, int]) -> Iterator[str]:
    """Say of which traced messages no group has an offset for the topic; the reason -> how many."""
    for reason, count in messages.items():
        them = "it" if count == 1 else "them"
        is_retry = reason.rpartition(" ")[2].startswith(RETRY_PREFIX)  # not broadcast, and of one group
        who = "its group has not" if is_retry else "no group in clustering mode has"
        text = f"{reason} ({counted(count, 'message')}): {who} consumed {them}, {_UNLESS}"
        if not is_retry:
            text += (
                "; broadcasting consumers keep their offsets themselves, so the store cannot show whether one"
                f" has read {them}"
            )
        yield text


# Consumers commit every 5 s (persistConsumerOffsetInterval), not with each message.
_UNLESS = "unless it had not committed yet or was deleted with its offsets"
_NO_STEPS = ("group", "sent", "consumed", "transaction_end")
_VISIBLE = ("stored", "committed", "delayed_delivered", "timer_delivered")
GROUP_STATES = {
    "passed": "passed",
    "not_passed": "not yet",
    "never_committed": "no offset for this queue",
}
"""States of groups in words."""
PASSED_MEANS = (
    "passed by a group: its committed offset, in parentheses, is past the message. It has consumed the"
    " message, or a filter or a reset skipped it; the store does not record when"
)
_NOT_PASSED_AFTER_CRASH = (
    "not yet: consumers commit every 5 s, and the broker saves that every 5 s; it did not stop cleanly, so a"
    " group may have consumed a few seconds more than its offset shows"
)
_STATES = {
    "passed": "passed by",
    "not_passed": "not yet passed by",
    "never_committed": "never read from its queue by",
}
_KINDS = {"retry": "sent again to", "dead_letter": "gave up: dead letter queue of"}
_LATE_MS = 1000  # a broker looks once a second


def what_states_mean(states: Collection[str | None], *, is_unclean: bool) -> Iterator[str]:
    """Say what a committed offset does not show; `is_unclean`: the broker did not stop cleanly."""
    if "passed" in states:
        yield PASSED_MEANS
    if is_unclean and "not_passed" in states:
        yield _NOT_PASSED_AFTER_CRASH
