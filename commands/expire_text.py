"""What `rmqtool expire` says to a person."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from typing import Any

from rmqtool.output import Output
from rmqtool.terminal import counted, format_size
from rmqtool.times import format_duration, format_time

Row = dict[str, Any]

_GONE = ("goes", "deleted")
_FILES_SHOWN = 40
_ROWS_SHOWN = 20
_FILE_COLUMNS = ("decision", "pass", "path", "size", "modified_time", "reason")
_QUEUE_COLUMNS = (
    "topic", "queue_id", "min_offset_before", "min_offset_after", "max_offset", "messages_going",
    "becomes_empty",
)  # fmt: skip
_TOPIC_COLUMNS = ("topic", "messages")
_GROUP_COLUMNS = ("group", "topic", "queue_id", "committed", "messages")
_LIMITS = {
    "diskMaxUsedSpaceRatio": "old files are deleted at any hour",
    "diskSpaceCleanForciblyRatio": "files of any age are deleted",
    "diskSpaceWarningLevelRatio": "messages are refused",
}


def expire_lines(found: Row, zone: tzinfo | None, *, everything: bool) -> Iterator[str]:
    """The lines of a report, as `rmqtool.repair.expire.report` makes it."""
    yield f"store        {found['path']}"
    yield f"at           {format_time(found['at_timestamp_ms'], zone)}"
    yield from _rule_lines(found, zone)
    yield from _disk_lines(found)
    yield from _outcome_lines(found)
    yield ""
    yield from _file_lines(found, everything=everything)
    yield from _queue_lines(found, everything=everything)
    yield from _loss_lines(found, everything=everything)
    yield from _unread_topic_lines(found, everything=everything)
    yield from _goal_lines(found)
    for reason in found["unknown"]:
        yield f"unknown      {reason}"
    for row in found["unread"]:
        yield f"unreadable   {row['path']}: {row['reason']}"
    for refusal in found["refusals"]:
        needs = f" (--{refusal['needs']})" if refusal["needs"] else ""
        yield f"refused      {refusal['reason']}{needs}"
    if found.get("manifest") is not None:
        yield f"archive      {counted(found['totals']['files_going'], 'file')}, listed in {found['manifest']}"


def _go(found: Row, count: int) -> str:
    """The verb for `count` things: what the plan would do to them, or what was done."""
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
        yield "rules        your own"
    else:
        hours = ", ".join(f"{hour:02}" for hour in settings["deleteWhen"]) or "never"
        yield (
            f"rules        of broker {_rules_of(found)}: keep {settings['fileReservedTime']}h,"
            f" delete at {hours} h; above {settings['diskMaxUsedSpaceRatio']:.0%} disk usage at any hour,"
            f" above {settings['diskSpaceCleanForciblyRatio']:.0%} at any age"
        )
        yield f"trigger      {_trigger_text(found, zone)}"
    for name, row in found["settings"].items():
        if isinstance(row.get("configured"), str):
            text = f"{name} is {row['configured']!r}"
            yield f"ignored      {text}, which a broker cannot parse: it uses its default"
        elif "configured" in row:
            yield f"limited      {name} is {row['configured']}, a broker uses {row['value']:.0%}"


def _trigger_text(found: Row, zone: tzinfo | None) -> str:
    trigger = found["trigger"]
    if trigger["reason"]:
        return str(trigger["reason"])
    following = found["next_delete_timestamp_ms"]
    if following is None:
        return "none, and deleteWhen names no valid hour"
    wait = format_duration(following - found["at_timestamp_ms"])
    return f"none now; deleteWhen comes in {wait}, at {format_time(following, zone)}"


def _disk_lines(found: Row) -> Iterator[str]:
    for disk in found["disks"]:
        yield (
            f"disk         {disk['used_ratio']:.0%} used, {format_size(disk['usable_bytes'])} free"
            f" ({' and '.join(disk['holds'])})"
        )
    forecast = found["forecast"]
    rate = forecast["store_bytes_per_s"]
    if rate is None:
        yield "growth       unknown: the store times of the log give no rate"
        return
    hourly, of_log = (format_size(round(each * 3600)) for each in (rate, forecast["log_bytes_per_s"]))
    yield (
        f"growth       {hourly} an hour, {of_log} of it commit log;"
        f" {format_size(forecast['reserved_bytes'])} in fileReservedTime;"
        f" {forecast['hours_that_fit']:.0f}h fit below {forecast['reached'][0]['ratio']:.0%}"
    )
    for row in forecast["reached"]:
        when = "already" if row["after_ms"] == 0 else f"in {format_duration(row['after_ms'])}"
        yield f"             {row['ratio']:.0%} {when}: then {_LIMITS[row['limit']]}"


def _outcome_lines(found: Row) -> Iterator[str]:
    log, totals = found["commit_log"], found["totals"]
    if not totals["files_going"]:
        yield "outcome      nothing to delete"
        return
    starts = "now starts" if found["applied"] else "would then start"
    yield (
        f"outcome      {log['files_going']} of {counted(log['files'], 'log file')}"
        f" {_go(found, log['files_going'])}, {counted(totals['files_going'], 'file')} in all,"
        f" {format_size(totals['freed_bytes'])}; the log {starts} at {log['start_after']}"
    )
    messages, empty = totals["messages_going"], totals["queues_that_become_empty"]
    become = "are empty now" if found["applied"] else "would become empty"
    if empty == 1 and found["applied"]:
        become = "is empty now"
    yield (
        f"             {counted(messages, 'message')} {_go(found, messages)},"
        f" {counted(empty, 'queue')} {become}"
    )


def _file_lines(found: Row, *, everything: bool) -> Iterator[str]:
    """Log files, and of what follows it the files that go."""
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
    yield from _table(rows, _QUEUE_COLUMNS, "queues", None if everything else _ROWS_SHOWN)
    if any(row["becomes_empty"] for row in rows):
        yield "note         an empty queue keeps its max_offset: its next message gets that offset"
    if any(row["min_offset_after"] == 0 < row["first_offset_after"] for row in rows):
        yield (
            "note         a min_offset_after of 0 although messages are deleted: this broker answers 0 for a"
            " queue whose first file has no message left"
        )


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
    for row in found["pending"]:
        level = f" of level {row['level']}" if row["level"] is not None else ""
        most = "" if row["exact"] else "at most "
        what = counted(row["messages"], f"{row['kind']} message")
        yield f"warning      {most}{what}{level} still pending {_go(found, row['messages'])}"


def _unread_topic_lines(found: Row, *, everything: bool) -> Iterator[str]:
    rows = [{"topic": topic, "messages": count} for topic, count in found["without_group"].items()]
    rows.sort(key=lambda row: (-row["messages"], row["topic"]))
    if not rows:
        return
    total = sum(row["messages"] for row in rows)
    yield (
        f"warning      {counted(total, 'message')} of {counted(len(rows), 'topic')} that no group has ever"
        f" read {_go(found, total)} (broadcasting consumers commit no offset here)"
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
