"""The report of `rmqtool expire` as text: rules, disks, files, who needs them, and what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import tzinfo
from typing import Any

from rmqtool.commands.finding_report import times_text
from rmqtool.commands.verdicts import (
    MEASURED_MIN_MS,
    STALE_MS,
    disk_text,
    is_held_by_overdue,
    is_overdue,
    listed,
    of_expire,
    usage_text,
    verdict_lines,
    what_goes,
)
from rmqtool.output import Output
from rmqtool.terminal import counted, format_size, shortened
from rmqtool.times import HOUR_MS, format_duration, format_time

Row = dict[str, Any]

_GONE = ("goes", "deleted")
_FILES_SHOWN = 40
_HOURS_SHOWN = 1000  # hours as a number; more are days or years
_ROWS_SHOWN = 20
_FILE_COLUMNS = ("decision", "pass", "path", "size", "modified_time", "reason")
_QUEUE_COLUMNS = (
    "topic", "queue_id", "min_offset_before", "min_offset_after", "max_offset", "messages_going",
    "becomes_empty",
)  # fmt: skip
_TOPIC_OF_QUEUES_COLUMNS = ("topic", "queues", "messages_going", "queues_that_become_empty")
_TOPIC_COLUMNS = ("topic", "messages")
_GROUP_COLUMNS = ("group", "topic", "queue_id", "committed", "messages")
_GROUPS_SHOWN = 3
_SKIPS_SHOWN = 8  # command lines; a topic has one for each queue
_LIMITS = {
    "diskMaxUsedSpaceRatio": "files older than {hours}h are deleted at any hour",
    "diskSpaceCleanForciblyRatio": "files of any age are deleted",
    "diskSpaceWarningLevelRatio": "files of any age are deleted, and messages are refused",
}


def expire_lines(
    found: Row, zone: tzinfo | None, command: Callable[..., str], *, everything: bool
) -> Iterator[str]:
    """Yield the lines of a report, as `rmqtool.repair.expire.report` makes it.

    `command` returns the line that runs a command on the store.
    """
    yield f"store        {found['path']}"
    yield f"at           {format_time(found['at_timestamp_ms'], zone)}"
    yield from _rule_lines(found, zone)
    yield from _disk_lines(found, zone)
    yield from _outcome_lines(found)
    yield ""
    yield from _file_lines(found, everything=everything)
    yield from _queue_lines(found, everything=everything)
    yield from _loss_lines(found, everything=everything)
    yield from _unread_topic_lines(found, everything=everything)
    yield from _goal_lines(found)
    shown = found["groups_unknown"]["reasons"] if found["groups_unknown"] is not None else ()
    for reason in (each for each in found["unknown"] if each not in shown):
        yield f"unknown      {reason}"
    for row in found["unread"]:
        yield f"unreadable   {row['path']}: {row['reason']}"
    yield from _free_lines(found, command, everything=everything)
    for refusal in found["refusals"]:
        needs = f" without --{refusal['needs']}" if refusal["needs"] else ""
        yield f"refused      --apply is refused{needs}: {refusal['reason']}"
    yield from _archive_lines(found)
    if times_text(_times(found), zone, only_future=True):
        yield (
            "warning      --before is in the future: all messages were stored before it; a time without a"
            " date is today's"
        )
    yield from verdict_lines(of_expire(found), next=_next_plan(found, command))


def _archive_lines(found: Row) -> Iterator[str]:
    """Yield what is copied to the archive, and how to restore it."""
    count, folder = counted(found["totals"]["files_going"], "file"), found.get("archive")
    if folder is None or not found["totals"]["files_going"]:
        return
    kept = found["totals"]["allocated_bytes"] - found["totals"]["freed_bytes"]
    if kept:
        copies = "have taken" if found["applied"] else "take"
        yield (
            f"warning      {folder} is on the same disk as the store: archiving there frees nothing (the"
            f" copies {copies} {format_size(kept)} first); name a folder on another disk"
        )
    if not found["applied"]:
        yield f"archive      {count}, {_sizes_text(found['totals'])}, would first be copied to {folder}"
        return
    yield f"archive      {count}, listed in {found['manifest']}"
    yield f"restore      {found['restore']}"
    yield (
        f"{'':<13}only while no broker runs, with fileReservedTime raised: otherwise it deletes the files"
        " again; README.txt in the archive says how to restore single log files"
    )


def _next_plan(found: Row, command: Callable[..., str]) -> str | None:
    """Return the command to run next: to deliver messages, delete free files, or see who needs the first."""
    log, free = found["commit_log"], found["free_before"]
    if is_held_by_overdue(found):
        return command("deliver")
    if found["totals"]["files_going"] or found["offsets_unknown"] or log["files"] < 2 or free is None:
        return None
    if free > log["start_before"]:
        return command("expire", "--before", str(free))
    return command("stats", "--by", "group")


def _free_lines(found: Row, command: Callable[..., str], *, everything: bool) -> Iterator[str]:
    """Yield what can go without a loss, and what is unknown if nothing goes."""
    free, log = found["free_before"], found["commit_log"]
    if not found["totals"]["files_going"] and found["offsets_unknown"]:
        reasons = ", ".join(found["offsets_unknown"])
        yield f"warning      what groups would lose is unknown: {reasons}"
    if free is None or found["applied"]:
        return
    if free > log["start_before"]:
        text = f"the log files before offset {free}: nothing there is known to be needed (--before {free})"
        needed = "the next log file"
    else:
        text, needed = "no file", "the first log file"
    yield f"free to go   {text}"
    why = _needed_by(found, everything=everything)
    yield f"{'':<13}{needed} {f'is needed: {why}' if why else 'is the last one, which always stays'}"
    if found["needed_after"]["unconsumed"]:
        how = "rmqtool help recovery (The disk is full)"
        yield f"{'':<13}to store such messages again at the end of the log: {how}"
    yield from _skip_lines(found["needed_after"], command, everything=everything)


def _skip_lines(needed: Row, command: Callable[..., str], *, everything: bool) -> Iterator[str]:
    """Yield the lines that let groups skip what they have not consumed, if nothing else needs the log file.

    They skip nothing that stays: no copy at the end of the log, and no later message.
    """
    queues: dict[tuple[str, str, int], list[int]] = {}
    for row in needed["unconsumed"]:
        queues.setdefault((row["group"], row["topic"], row["next_offset"]), []).append(row["queue_id"])
    if not queues or needed["pending"] or needed["unknown"]:
        return
    who, them = (
        ("this group is", "it") if len({place[0] for place in queues}) == 1 else ("these groups are", "them")
    )
    count = sum(row["messages"] for row in needed["unconsumed"])
    these = "this message" if count == 1 else f"these {count} messages"
    is_stored = "it is" if count == 1 else "they are"
    yield (
        f"{'':<13}once {is_stored} stored again, or if {who} no longer used, let {them} skip {these}, and"
        " none that stays:"
    )
    places = list(queues.items())
    shown = places if everything else places[:_SKIPS_SHOWN]
    for (group, topic, offset), ids in shown:
        words = [word for queue_id in sorted(ids) for word in ("--queue", str(queue_id))]
        skip = command("reset-offset", "--group", group, "--topic", topic, *words, "--from", str(offset))
        yield f"{'run':<13}{skip}"
    if places[len(shown) :]:
        yield f"{'':<13}and {counted(len(places) - len(shown), 'more line')} (--all shows all)"


def _needed_by(found: Row, *, everything: bool) -> str:
    """Return for whom messages are needed: groups with their offsets, what waits, what is unknown."""
    needed = found["needed_after"]
    rows = sorted(needed["unconsumed"], key=lambda row: (-row["messages"], row["group"], row["topic"]))
    shown = rows if everything else rows[:_GROUPS_SHOWN]
    parts = [_needed_row(row) for row in shown]
    if rows[len(shown) :]:
        count = counted(len(rows) - len(shown), "more queue")
        parts.append(f"groups have not consumed messages of {count} (--all lists them)")
    parts += [_pending_text(row, found["at_timestamp_ms"]) for row in needed["pending"]]
    parts += needed["unknown"]
    return "; ".join(parts)


def _needed_row(row: Row) -> str:
    """Return which group has not consumed how many messages of which queue."""
    what = f"{counted(row['messages'], 'message')} of {shortened(row['topic'])} queue {row['queue_id']}"
    if row["committed"] is None:
        return f"group {shortened(row['group'])}, which has no committed offset, has not consumed {what}"
    return f"group {shortened(row['group'])} has not consumed {what}, from offset {row['committed']} on"


def _pending_text(row: Row, at_ms: int) -> str:
    """Return how many messages of a kind wait inside the broker."""
    level = f" of level {row['level']}" if row["level"] is not None else ""
    most = "" if row["exact"] else "at most "
    what = counted(row["messages"], f"{'overdue ' if is_overdue(row, at_ms) else ''}{row['kind']} message")
    return f"{most}{what}{level} still pending"


def _go(found: Row, count: int) -> str:
    """Return the verb for `count` files: would be deleted, or deleted."""
    if found["applied"]:
        return "was deleted" if count == 1 else "were deleted"
    return "would be deleted"


def _rules_of(found: Row) -> str:
    from rmqtool.storage.profile import WrittenBy, profile_named

    reason = found["rules_reason"]
    by = WrittenBy(profile_named(found["rules"]), tuple(found["rules_candidates"]), reason)
    return str(by) if by.is_known else f"{by.profile.name}, an assumption: {by}"


def _rule_lines(found: Row, zone: tzinfo | None) -> Iterator[str]:
    settings = {name: row["value"] for name, row in found["settings"].items()}
    if found["rules"] == "own":
        before = times_text(_times(found), zone, only_future=False)
        yield f"rules        your own{f': {before}' if before else ''}"
    else:
        hours = ", ".join(f"{hour:02}:00" for hour in settings["deleteWhen"]) or "never"
        is_default = all(row["from"] == "default" for row in found["settings"].values())
        whose = "defaults of" if is_default else "of"
        own = " (--broker-conf FILE uses those of your broker)" if is_default else ""
        yield (
            f"rules        {whose} broker {_rules_of(found)}{own}: keep {settings['fileReservedTime']}h,"
            f" delete from {hours}; above {settings['diskMaxUsedSpaceRatio']:.0%} disk usage at any hour;"
            f" above {settings['diskSpaceCleanForciblyRatio']:.0%}, files of any age too"
        )
        yield f"trigger      {_trigger_text(found, zone)}"
    for name, row in found["settings"].items():
        if isinstance(row.get("configured"), str):
            text = f"{name} is {row['configured']!r}"
            yield f"ignored      {text}, which a broker cannot parse: it uses its default"
        elif "configured" in row:
            yield f"limited      {name} is {row['configured']}, a broker uses {row['value']:.0%}"


def _times(found: Row) -> dict[str, int | None]:
    return {"--before": found["before_timestamp_ms"]}


def _trigger_text(found: Row, zone: tzinfo | None) -> str:
    trigger = found["trigger"]
    if trigger["reason"]:
        return str(trigger["reason"])
    following = found["next_delete_timestamp_ms"]
    if following is None:
        return "none, and deleteWhen names no valid hour"
    wait = format_duration(following - found["at_timestamp_ms"])
    return f"none now; deleteWhen comes in {wait}, at {format_time(following, zone)}"


def _disk_lines(found: Row, zone: tzinfo | None) -> Iterator[str]:
    assumed = " (assumed by --disk-used)" if found["disk_used_ratio"] is not None else ""
    for disk in found["disks"]:
        text = disk_text(disk["used_ratio"], disk["usable_bytes"], disk["reserved_bytes"], assumed)
        yield f"disk         {text} ({' and '.join(disk['holds'])})"
        if "commitlog" in disk["holds"]:
            yield from _level_lines(found, disk)
    if found["usage"] and not found["applied"]:
        yield f"{'':<13}the store takes {usage_text(found['usage'])}"
    yield from _growth_lines(found, zone)
    yield from _what_if_lines(found)


def _level_lines(found: Row, disk: Row) -> Iterator[str]:
    """Yield what a disk above a limit stops, and whether the deletion is enough.

    A broker that refuses messages accepts them only once the disk is not above the limit of forced deletion:
    CleanCommitLogService#isSpaceToDelete.
    """
    maximum, forced, warning = (found["settings"][name]["value"] for name in _LIMITS)
    used, after = disk["used_ratio"], disk["used_after_ratio"]
    refuses = used > warning
    if refuses:
        until = f"until at most {forced:.0%} are used"
        yield f"             above {warning:.0%} the broker refuses messages, {until}"
    if not found["totals"]["files_going"]:
        return
    text = f"             after the deletion {after:.0%} used, {format_size(disk['usable_after_bytes'])} free"
    if found["rules"] != "own" and used > maximum:
        limit = forced if used > forced else maximum
        if after > limit:
            text += f": not enough, it is still above {limit:.0%}"
            text += " and the broker still refuses messages" if refuses else ""
        else:
            text += f": enough, it is not above {limit:.0%}"
            text += " and the broker accepts messages again" if refuses else ""
    yield text


def _growth_lines(found: Row, zone: tzinfo | None) -> Iterator[str]:
    """Yield how fast the store grows, from how long that was measured, and when the disk is full."""
    forecast = found["forecast"]
    rate = forecast["store_bytes_per_s"]
    if rate is None:
        yield "growth       unknown: the store times of the log give no rate"
        return
    first, last = forecast["measured_from_timestamp_ms"], forecast["measured_to_timestamp_ms"]
    hourly, of_log = (format_size(round(each * 3600)) for each in (rate, forecast["log_bytes_per_s"]))
    took = format_duration(last - first)
    over = f"over {took}" if last - first >= MEASURED_MIN_MS else f"over only {took}: a rough guide"
    yield f"growth       {hourly} an hour, {of_log} of it commit log, measured {over}"
    age = found["at_timestamp_ms"] - last
    if age >= STALE_MS:
        who = (
            "the broker that uses the store receives none" if found["in_use"] else "no broker uses the store"
        )
        yield (f"             no message since {format_time(last, zone)}, {format_duration(age)} ago: {who}")
    hours = found["settings"]["fileReservedTime"]["value"]
    yield (
        f"             at this rate the files of {hours}h (fileReservedTime) take"
        f" {format_size(forecast['reserved_bytes'])}; {_fit_text(forecast)}"
    )
    past = [f"{row['ratio']:.0%}" for row in forecast["reached"] if row["after_ms"] == 0]
    times = [
        f"{row['ratio']:.0%} full in {format_duration(row['after_ms'])}"
        for row in forecast["reached"]
        if row["after_ms"]
    ]
    if past:
        yield f"             the disk is {listed(past)} full already"
    if times:
        start = "once messages arrive again, the disk is" if age >= STALE_MS else "the disk is"
        yield f"             {start} {', '.join(times)}"


def _fit_text(forecast: Row) -> str:
    """Return how many hours of messages fit below the lowest limit."""
    hours, limit = forecast["hours_that_fit"], f"{forecast['reached'][0]['ratio']:.0%}"
    if hours == 0:
        return f"files other than log, queues and index alone fill {limit} of the disk"
    span = f"{hours:.0f}h" if hours < _HOURS_SHOWN else format_duration(round(hours * HOUR_MS))
    return f"{f'{span} fit' if hours >= 1 else 'less than 1h fits'} below {limit}"


def _what_if_lines(found: Row) -> Iterator[str]:
    """Yield what the broker would delete at the next deleteWhen, and with a disk above each limit."""
    files = found["commit_log"]["files"]
    label, before = "what if", ""
    hours = found["settings"]["fileReservedTime"]["value"]
    for row in found["what_if"]:
        if row["limit"] is None:
            when, rule = f"at {row['at_time']}", f"files older than {hours}h are deleted then"
        else:
            when = f"above {row['used_ratio'] - 0.01:.0%}"
            rule = _LIMITS[row["limit"]].format(hours=hours)
        deleted = "no file is deleted"
        if row["log_files_going"]:
            freed = format_size(row["freed_bytes"])
            deleted = f"deletes {what_goes(row, files)}, {freed}"
        yield f"{label:<13}{when}: {'the same' if deleted == before else deleted}; {rule}"
        label, before = "", deleted


def _outcome_lines(found: Row) -> Iterator[str]:
    log, totals = found["commit_log"], found["totals"]
    if not totals["files_going"]:
        return
    starts = "now starts" if found["applied"] else "would then start"
    yield (
        f"outcome      {log['files_going']} of {counted(log['files'], 'log file')}"
        f" {_go(found, log['files_going'])}, {counted(totals['files_going'], 'file')} in all,"
        f" {_sizes_text(totals)}; the log {starts} at {log['start_after']}"
    )
    messages, empty = totals["messages_going"], totals["queues_that_become_empty"]
    become = "are empty now" if found["applied"] else "would become empty"
    if empty == 1 and found["applied"]:
        become = "is empty now"
    yield (
        f"             {counted(messages, 'message')} {_go(found, messages)},"
        f" {counted(empty, 'queue')} {become}"
    )


def _sizes_text(totals: Row) -> str:
    """Return the sum of the sizes of files, and the space that they take if that differs: they have holes."""
    size, allocated = format_size(totals["size_bytes"]), format_size(totals["allocated_bytes"])
    return size if size == allocated else f"{size} with {allocated} on the disk"


def _file_lines(found: Row, *, everything: bool) -> Iterator[str]:
    """Yield a line for each log file, and for the other files that expire."""
    shown = [
        row for row in found["files"] if row["kind"] == "commitlog" or row["decision"] in _GONE or everything
    ]
    rows = [
        {**row, "size": format_size(row["size_bytes"]), "modified_time": row.get("modified_time")}
        for row in shown
    ]
    yield from _table(rows, _FILE_COLUMNS, "files", None if everything else _FILES_SHOWN)


def _queue_lines(found: Row, *, everything: bool) -> Iterator[str]:
    rows = [row for row in found["queues"] if row["messages_going"] or everything]
    rows.sort(key=lambda row: (-row["messages_going"], row["topic"], row["queue_id"]))
    if rows:
        yield ""
    if everything:
        yield from _table(rows, _QUEUE_COLUMNS, "queues", None)
    else:
        yield from _table(_by_topic(rows), _TOPIC_OF_QUEUES_COLUMNS, "topics", _ROWS_SHOWN)
    if any(row["becomes_empty"] for row in rows):
        yield "note         an empty queue keeps its max_offset: its next message gets that offset"
    if everything and any(row["min_offset_after"] == 0 < row["first_offset_after"] for row in rows):
        yield (
            "note         a min_offset_after of 0 although messages are deleted: this broker answers 0 for a"
            " queue whose first file has no message left"
        )


def _by_topic(queues: list[Row]) -> list[Row]:
    """Return a row for each topic, that with the most messages first."""
    topics: dict[str, Row] = {}
    for queue in queues:
        row = topics.setdefault(
            queue["topic"],
            {"topic": queue["topic"], "queues": 0, "messages_going": 0, "queues_that_become_empty": 0},
        )
        row["queues"] += 1
        row["messages_going"] += queue["messages_going"]
        row["queues_that_become_empty"] += queue["becomes_empty"]
    return sorted(topics.values(), key=lambda row: (-row["messages_going"], row["topic"]))


def _loss_lines(found: Row, *, everything: bool) -> Iterator[str]:
    rows = sorted(found["unconsumed"], key=lambda row: (-row["messages"], row["group"], row["topic"]))
    if rows:
        yield ""
        total = sum(row["messages"] for row in rows)
        yield (
            f"warning      {counted(total, 'message')} that groups have not consumed {_go(found, total)};"
            " a message counts once for each group"
        )
    yield from _table(rows, _GROUP_COLUMNS, "rows", None if everything else _ROWS_SHOWN)
    yield from _unknown_group_lines(found)
    for row in found["pending"]:
        yield f"warning      {_pending_text(row, found['at_timestamp_ms'])} {_go(found, row['messages'])}"


def _unknown_group_lines(found: Row) -> Iterator[str]:
    unknown = found["groups_unknown"]
    if unknown is not None:
        count = unknown["messages_max"]
        yield (
            f"warning      up to {counted(count, 'message')} that groups have not consumed"
            f" {_go(found, count)}; how many is unknown: {', '.join(unknown['reasons'])}"
        )


def _unread_topic_lines(found: Row, *, everything: bool) -> Iterator[str]:
    rows = [{"topic": topic, "messages": count} for topic, count in found["without_group"].items()]
    rows.sort(key=lambda row: (-row["messages"], row["topic"]))
    if not rows:
        return
    total = sum(row["messages"] for row in rows)
    yield (
        f"warning      {counted(total, 'message')} of {counted(len(rows), 'topic')} for which no group"
        f" has an offset {_go(found, total)} (broadcasting consumers commit none here)"
        + ("" if found["applied"] else "; that alone does not need --force")
    )
    yield from _table(rows, _TOPIC_COLUMNS, "topics", None if everything else _ROWS_SHOWN)


def _goal_lines(found: Row) -> Iterator[str]:
    goal = found["goal"]
    if goal is None or not goal["missing_bytes"]:
        return
    verb = "is not" if found["applied"] else "cannot be"
    gain = goal["free_after_bytes"] - goal["free_before_bytes"]
    were, freed = ("were", "freed") if found["applied"] else ("are", "would free")
    yield (
        f"warning      --until-free {verb} reached: {format_size(goal['free_before_bytes'])} {were} free,"
        f" deleting {freed} {format_size(gain)}; {format_size(goal['missing_bytes'])} are missing"
        f" to {format_size(goal['wanted_bytes'])}"
    )


def _table(rows: list[Row], columns: tuple[str, ...], what: str, limit: int | None) -> Iterator[str]:
    yield from Output.table_lines(rows[:limit], columns)
    if limit is not None and len(rows) > limit:
        yield f"... and {len(rows) - limit} more {what} (--all shows them)"
