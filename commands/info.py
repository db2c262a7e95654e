"""`rmqtool info`: the state of a store on one screen."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from itertools import chain
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from rmqtool.command_line import on_store
from rmqtool.commands import options
from rmqtool.commands.groups import Only, with_groups
from rmqtool.commands.recover_verdicts import config_lost_sentence
from rmqtool.commands.rocksdb_text import rocksdb_parts
from rmqtool.commands.verdicts import (
    LOG_MISSING,
    LOG_NOT_FOUND,
    by_name,
    cure,
    disk_text,
    listed,
    span,
    usage_text,
    verdict_lines,
)
from rmqtool.errors import EXIT_INPUT, EXIT_OK, worst_exit_code
from rmqtool.output import Output, filled
from rmqtool.problems import BY_CODE
from rmqtool.storage.size_settings import own_settings
from rmqtool.terminal import bar, counted, format_size, shortened
from rmqtool.times import format_duration, format_time

_TOPICS_SHOWN, _TOPICS_MIN = 20, 2
_AROUND_TOPICS = 5  # an empty line, two of the heading, one for the other topics, the prompt
_BAR_WIDTH = 12
_PROBLEMS_SHOWN = 5
_USAGE_SHOWN = 2
_FIRST_TO_GO = ("sizes", "takes", "last file", "checkpoint")  # lines that a small terminal does without
_LEFT_OUT = "more rows"
_UNREADABLE_SHOWN = 20
_QUEUE_COLUMNS = ("topic", "queue_id", "min_offset", "max_offset", "messages")

Queues = Annotated[
    bool, typer.Option("--queues", help="Show every queue and every topic, not only the largest.")
]
Residency = Annotated[
    bool,
    typer.Option("--residency", help="Show for each file the cached bytes, allocated bytes and extents."),
]


@with_groups
def info(
    *,
    store: options.StoreOptions,
    queues: Queues = False,
    residency: Residency = False,
    shown: Annotated[options.ObjectOutput, Only("tz format json")],
) -> int:
    r"""Show a store at a glance.

    Shows which broker wrote the store and with which file sizes, how full it is, which times it
    covers, which topics and queues it has, whether it was stopped cleanly or is in use, how far
    queues and index lag behind the log, and what a power failure now could cost. Reads only the
    starts and ends of files, so the time does not depend on the amount of data. Shows only damage
    that is visible from file names and sizes, and from the ends of queues and index: queues or an index
    that are ahead of the log, an index that is gone, queues that are gone although groups have consumed
    from them. verify finds the rest.

    Exits with 0 when it shows nothing worse than a note, even if the store is in use; 1 when it shows a
    warning or an error; 2 for a usage error; 3 when something could not be read or is stored in a form
    rmqtool cannot read.
    """
    from rmqtool.report.info import store_info

    writer, zone = shown.writer(), shown.zone
    with store.open() as opened:
        found = store_info(opened)
        if residency:
            from rmqtool.report.residency import residency_rows

            found["residency"] = list(residency_rows(opened))
    writer.write_object(_with_times(found, zone), _screen(store, found, zone, every_queue=queues))
    codes = [BY_CODE[row["problem"]].exit_code for row in found["problems"]]
    is_partial = found["unsupported"] or found["unreadable"]
    return worst_exit_code(EXIT_INPUT if is_partial else EXIT_OK, *codes)


def _screen(
    store: options.StoreOptions, found: dict[str, Any], zone: tzinfo | None, *, every_queue: bool
) -> Iterator[str]:
    """Yield the report; on a terminal it fits the screen, and shows fewer topics for that."""
    columns, lines = get_terminal_size() if sys.stdout is not None and sys.stdout.isatty() else (None, None)
    head = [filled(line, columns) for line in _lines(found, zone)]
    sentences = _of_info(found)
    if found["config_lost"]:
        sentences.insert(0, config_lost_sentence(row["problem"] for row in found["problems"]))
    verdict = verdict_lines(sentences, next=_next(store, found))
    tail = [piece for line in verdict for piece in filled(line, columns)]
    shown = _TOPICS_SHOWN
    if lines is not None and columns is not None and "residency" not in found:
        used = _lines_used((*chain(*head), *tail), columns)
        left_out: list[str] = []
        for label in _FIRST_TO_GO:
            if used > lines - _AROUND_TOPICS - _TOPICS_MIN:
                left_out += [label for row in head if row[0].startswith(label)]
                head = [row for row in head if not row[0].startswith((label, _LEFT_OUT))]
                if left_out:
                    text = f"{_LEFT_OUT:<13}{listed(left_out)}: add | cat to the command"
                    head.append(filled(text, columns))
                used = _lines_used((*chain(*head), *tail), columns)
        shown = min(max(lines - used - _AROUND_TOPICS, _TOPICS_MIN), shown)
    yield from chain(*head)
    yield from _topic_lines(found["topics"], shown, every_queue=every_queue)
    if "residency" in found:
        yield ""
        yield from Output.table_lines(
            [_sizes_as_text(row) for row in found["residency"]],
            ("path", "size", "allocated", "resident", "extents"),
        )
    yield from tail


def _of_info(found: dict[str, Any]) -> list[str]:
    """Say what the state of the store and the names and sizes of its files show."""
    state = found["state"]
    errors = [row for row in found["problems"] if row["severity"] == "error"]
    sentences = [LOG_NOT_FOUND] if any(row["problem"] == LOG_MISSING for row in errors) else []
    if state is not None and state["repair_unfinished"]:
        sentences.append("A repair was interrupted; no broker loads the store until it is completed.")
    elif state is not None and state["lock"] == "held":
        sentences.append("A broker is using the store.")
    elif state is not None and state["abort"]:
        sentences.append("The broker was not stopped cleanly; its next start examines the end of the log.")
    if errors:
        first = f"{errors[0]['message']} ({errors[0]['problem']})"
        count = counted(len(errors), "error")
        sentences.append(f"{count}: {first}." if len(errors) == 1 else f"{count}, the first: {first}.")
    elif not (found["unsupported"] or found["unreadable"]):
        warnings = [row for row in found["problems"] if row["severity"] == "warning"]
        sentences += _of_holes(found) or _of_warnings(warnings, found["queues_without_files"])
    return sentences


def _of_holes(found: dict[str, Any]) -> list[str]:
    """Say where files of a log, without queues, have bytes that are no record."""
    log = found["commit_log"]
    if found["kind"] != "commitlog" or log is None:
        return []
    before, after = log["bytes_before_records"], log["bytes_after"]
    places = [f"in the first {counted(before, 'byte')}"] if before else []
    places += [f"at {log['end_offset']}, where info stopped"] if after is not None else []
    if not places:
        return []
    where = ", nor ".join(places)
    return [f"No whole record is {where}: damage, or a record that was cut. rmqtool verify reads every byte."]


def _of_warnings(warnings: Sequence[dict[str, Any]], empty: Sequence[dict[str, Any]]) -> Iterator[str]:
    if warnings:
        count = counted(len(warnings), "warning")
        rest = "" if len(warnings) == 1 else ", the first"
        yield f"{count}{rest}: {warnings[0]['message']} ({warnings[0]['problem']})."
    elif empty:
        queues = by_name(Counter(row["topic"] for row in empty), "queue")
        queues += " has no files" if len(empty) == 1 else " have no files"
        yield f"Names and sizes of files show no damage, but {queues}; records were not read."
    else:
        yield "Names and sizes of files show no damage; records were not read."


def _lines_used(lines: Iterable[str], columns: int) -> int:
    return sum(max(-(-len(line) // columns), 1) for line in lines)


def _next(store: options.StoreOptions, found: dict[str, Any]) -> str | None:
    """Return the command line that shows more of what the report hints at."""
    state = found["state"]
    if found["kind"] != "store" or state is None:
        return None
    if state["repair_unfinished"]:
        return store.command("recover", "--apply")
    recover = store.command("recover")
    copy = store.command("copy", "--output", "NEW") if found["ledger"] is not None else None
    is_partial = bool(found["unsupported"])  # what lies elsewhere may say more of all but a damaged database
    codes = (row["problem"] for row in found["problems"])
    of_log = any(row["problem"].startswith("CL") for row in found["problems"])
    repair = None if found["config_lost"] and not of_log else recover  # first of all, a copy of config/
    line = cure((code for code in codes if not is_partial or code.startswith("RD")), repair, copy)
    if line is not None or is_partial:
        return line
    return recover if state["abort"] and state["lock"] != "held" else store.command("verify")


def _with_times(value: Any, zone: tzinfo | None) -> Any:
    """Return the object with a readable time next to every `*_timestamp`."""
    if isinstance(value, list):
        return [_with_times(item, zone) for item in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for name, item in value.items():
        if name.endswith("_timestamp"):
            result[f"{name}_ms"] = item
            result[f"{name.removesuffix('stamp')}"] = _time(item, zone)
        else:
            result[name] = _with_times(item, zone)
    return result


def _time(timestamp_ms: int | None, zone: tzinfo | None) -> str | None:
    return format_time(timestamp_ms, zone) if timestamp_ms else None


_COMPACTED_SHOWN = 3


def _copy_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a tiered copy, or of compacted topics: their queues, and how to read them."""
    label = f"{found['kind']:<13}"
    queues = found.get("compacted_queues")
    if not queues:
        yield f"{label}{found['path']}: the logs of {counted(found['queues'], 'queue')}"
        return
    for each in queues[:_COMPACTED_SHOWN]:
        last = each["compacted_to"]
        what = "position unknown" if last is None else f"compacted up to {last}"
        records = counted(each["messages"], "record")
        yield f"{label}{shortened(each['topic'])} queue {each['queue_id']}: {records}, {what}"
        label = " " * 13
    if len(queues) > _COMPACTED_SHOWN:
        yield f"{label}and {counted(len(queues) - _COMPACTED_SHOWN, 'more queue')}"
    yield f"{label}{on_store(found['path'], 'dump')}"


def _lines(found: dict[str, Any], zone: tzinfo | None) -> Iterator[str]:
    yield f"{found['kind']:<13}{found['path']}"
    if found["written_by"] is not None:
        versions = ", ".join(str(version) for version in found["record_versions"]) or "none"
        from rmqtool.storage.profile import WrittenBy

        broker = WrittenBy.of_row(found)
        yield f"written by   broker {broker}, record version {versions}"
    if found["kind"] == "store":
        yield f"state        {_state_text(found['state'])}"
    if found["commit_log"] is not None:
        yield from _log_lines(found, zone)
    if found["queue_logs"] is not None:
        yield from _queue_log_lines(found["queue_logs"], zone)
    for each in found["copies"]:
        yield from _copy_lines(each)
    if found["ledger"] is not None:
        yield _ledger_line(found["ledger"])
    yield from _behind_lines(found)
    parts = list(rocksdb_parts(found))
    for label, where in parts:
        yield f"{label:<12} {where}"
    if found["index"] is None and found["kind"] == "store" and "index" not in dict(parts):
        yield "index        none"
    if found["index"] is not None:
        index = found["index"]
        label = "index files" if "index" in dict(parts) else "index"
        yield (
            f"{label:<12} {counted(index['files'], 'file')}, {index['entries']} entries,"
            f" up to {_time(index['last_timestamp'], zone) or 'no time'}"
        )
    if found["kind"] == "store":
        yield from _size_lines(found["sizes"])
    if found["checkpoint"] is not None:
        yield f"checkpoint   {_checkpoint_text(found['checkpoint'], zone)}"
    elif found["kind"] == "store" and found["commit_log"] is not None and not _is_unreadable(found):
        yield "checkpoint   missing"
    if found["epochs"]:
        newest = found["epochs"][-1]
        confirmed = (found["checkpoint"] or {}).get("confirm_phy_offset", 0)
        yield (
            f"epochs       {len(found['epochs'])}, the newest is {newest['epoch']}"
            f" from offset {newest['start_offset']}"
            + (f"; the log is confirmed up to {confirmed}" if confirmed else "")
        )
    for part in found["unsupported"]:
        yield f"not read     {part['what']} in {part['form']}: {part['path']}"
    yield from _unreadable_lines(found["unreadable"])
    yield from _problem_lines(found["problems"])
    topics = found["topics"]
    if topics:
        count = sum(topic["queue_count"] for topic in topics)
        total = sum(topic["messages"] for topic in topics)
        unpacked = " (batches unpacked)" if found["has_batch_queues"] else ""
        others = found["topics_without_queue"]
        queues = (
            f"with {count} queues," if not others else f"of {len(topics) + others} have queues: {count} with"
        )
        yield f"topics       {len(topics)} {queues} {total} messages{unpacked}"
    elif found["kind"] == "store" and not found["unsupported"] and _has_records(found["commit_log"]):
        yield "topics       no topic has a queue, although the log has records"


def _has_records(log: dict[str, Any] | None) -> bool:
    return log is not None and log["last_store_timestamp"] is not None


def _is_unreadable(found: dict[str, Any]) -> bool:
    return any(part["path"] == "checkpoint" for part in found["unreadable"])


def _queue_log_lines(logs: list[dict[str, Any]], zone: tzinfo | None) -> Iterator[str]:
    segments, size = (sum(log[name] for log in logs) for name in ("segments", "size_bytes"))
    queues = counted(len(logs), "queue")
    yield f"logs         of {queues}: {counted(segments, 'segment')}, {format_size(size)}"
    first, last = (
        [log[name] for log in logs if log[name] is not None]
        for name in ("first_store_timestamp", "last_store_timestamp")
    )
    yield f"messages     {_span(min(first, default=None), max(last, default=None), zone)}"


def _ledger_line(ledger: dict[str, Any]) -> str:
    known = {name: "unknown" if value is None else value for name, value in ledger.items()}
    start = "" if ledger["min_offset"] is None else f" from offset {ledger['min_offset']}"
    return (
        f"DLedger      {known['path']}: {counted(ledger['files'], 'file')}{start},"
        f" entries to {known['end_index']}, committed to {known['committed_index']},"
        f" term {known['current_term']}"
    )


def _log_lines(found: dict[str, Any], zone: tzinfo | None) -> Iterator[str]:
    log, sizes, disk = found["commit_log"], found["sizes"], found["disk"]
    size = sizes["commit_log_file_size"]
    yield (
        f"commit log   {counted(log['files'], 'file')} of {format_size(size['value'])} ({size['from']}),"
        f" offsets {log['min_offset']} to {log['end_offset']}"
    )
    if log["bytes_after"] is not None:
        yield (
            f"{'':<13}looked at up to there only: {counted(log['bytes_after'], 'byte')} follow,"
            " but no whole record begins right there"
        )
    if found["kind"] == "commitlog" and log["bytes_before_records"]:
        yield f"{'':<13}the first record begins after {counted(log['bytes_before_records'], 'byte')}"
    last, newest = log["last_store_timestamp"], log["newest_store_timestamp"]
    text = _span(log["first_store_timestamp"], last, zone)
    if last is not None and newest > last:
        text += f" (last record); earlier records have times up to {_time(newest, zone)}"
    if log["bytes_after"] is not None:
        text += " (up to there)"
    if found["kind"] == "commitlog" and log["bytes_before_records"] is None:
        from rmqtool.report.info import SEARCHED_BYTES

        searched = min(SEARCHED_BYTES, log["size_bytes"])
        text = f"none begins in the first {format_size(searched)}; verify looks at every byte"
    yield f"messages     {text}"
    if log["last_file_used_bytes"] is not None:
        yield (
            f"last file    {format_size(log['last_file_used_bytes'])} of {format_size(size['value'])} used"
            f" ({log['last_file_used_bytes'] / max(size['value'], 1):.0%})"
        )
    if disk is not None and disk["used_ratio"] is not None:
        text = disk_text(disk["used_ratio"], disk["free_bytes"], disk["reserved_bytes"])
        yield f"disk         {text}"
    if disk is not None and disk["usage"]:
        yield f"takes        {usage_text(disk['usage'], _USAGE_SHOWN)}"


def _size_lines(sizes: dict[str, Any]) -> Iterator[str]:
    """Yield the sizes that are not the defaults, as settings of broker.conf."""
    if given := own_settings(sizes):
        yield f"sizes        {', '.join(given.values())}"


def _behind_lines(found: dict[str, Any]) -> Iterator[str]:
    behind, risk = found["behind"], found["power_failure"]
    by_code = {row["problem"]: row["detail"] for row in found["problems"] if row["path"] in _OF_ENDS}
    parts = []
    missing = [row["detail"] for row in found["problems"] if row["problem"] == "CQ13"]
    if "CQ03" in by_code:
        parts.append(f"{counted(by_code['CQ03']['queues'], 'queue')} ahead of the log")
    elif behind["queues_bytes"] is not None:
        parts.append(f"queues {_behind_text(behind['queues_bytes'])}")
    if "IX04" in by_code:
        parts.append("index ahead of the log")
    elif behind["index_bytes"] is not None:
        parts.append(f"index {_behind_text(behind['index_bytes'])}")
    if behind["queues_bytes"] == behind["index_bytes"] == 0 and not by_code.keys() & {"CQ03", "IX04"}:
        parts = [f"{'the other ' if missing else ''}queues and index level with the log"]
    if missing:
        topics = list(dict.fromkeys(shortened(detail["topic"]) for detail in missing))
        more = [f"{len(topics) - _MISSING_SHOWN} more"] if len(topics) > _MISSING_SHOWN else []
        parts.append(f"queues missing: {listed([*topics[:_MISSING_SHOWN], *more])}")
    if parts:
        yield f"dispatch     {', '.join(parts)}"
    if risk is not None and risk["records"] and found["state"]["lock"] != "free":
        yield f"unflushed    {_risk_text(risk)}"


_OF_ENDS = ("consumequeue", "index")  # the paths of findings on all queues, and on the index
_MISSING_SHOWN = 3


def _behind_text(count_bytes: int) -> str:
    return f"{format_size(count_bytes)} behind" if count_bytes else "level with the log"


def _unreadable_lines(unreadable: list[dict[str, Any]]) -> Iterator[str]:
    for part in unreadable[:_UNREADABLE_SHOWN]:
        yield f"unreadable   {part['path']}: {part['reason']}"
    if len(unreadable) > _UNREADABLE_SHOWN:
        yield f"             and {len(unreadable) - _UNREADABLE_SHOWN} more: --format json shows all"


def _problem_lines(problems: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the problems that names and sizes of files show; `verify` finds all others."""
    for row in problems[:_PROBLEMS_SHOWN]:
        yield f"{row['severity']:<13}{row['problem']} {row['path']}: {row['message']}"
    if len(problems) > _PROBLEMS_SHOWN:
        yield f"             and {len(problems) - _PROBLEMS_SHOWN} more: rmqtool verify shows all"


def _risk_text(risk: dict[str, Any]) -> str:
    count = f"up to {risk['records']}" if risk["records_exact"] else f"more than {risk['records']}"
    seconds = ""
    if risk["seconds"] is not None:
        seconds = f" of the last {format_duration(int(risk['seconds'] * 1000))}"
    return f"{count} records{seconds} may be in memory only; a power failure now could lose them"


def _state_text(state: dict[str, Any]) -> str:
    if state["repair_unfinished"]:
        return "a repair was interrupted: no broker can load the store until it is finished"
    if state["lock"] == "held":
        pid = state["lock_holder_pid"]
        return f"in use{f' by process {pid}' if pid else ''} and still being written"
    text = "stopped cleanly"
    if state["abort"]:
        text = "unclean: abort is there, the next start recovers"
    return f"{text} (lock: {state['lock_note']})" if state["lock"] == "unknown" else text


def _checkpoint_text(checkpoint: dict[str, Any], zone: tzinfo | None) -> str:
    """The three times, the date once if they share it; parts with the same time stand together."""
    names = {"log": "physic", "queues": "logics", "index": "index"}
    found = {label: _time(checkpoint[f"{name}_msg_timestamp"], zone) for label, name in names.items()}
    known = [time for time in found.values() if time is not None]
    is_one_day = len(known) == len(found) and len({(time[:10], time[23:]) for time in known}) == 1
    parts: dict[str, list[str]] = {}
    for label, time in found.items():
        shown = "never" if time is None else time[11:19] if is_one_day else time
        parts.setdefault(shown, []).append(label)
    text = ", ".join(f"{' and '.join(labels)} {shown}" for shown, labels in parts.items())
    return f"{known[0][:10]} {text}{known[0][23:]}" if is_one_day else text


def _span(first_ms: int | None, last_ms: int | None, zone: tzinfo | None) -> str:
    first, last = _time(first_ms, zone), _time(last_ms, zone)
    if first is None or last is None:
        return "none"
    return span(first, last)


def _topic_lines(topics: list[dict[str, Any]], shown: int, *, every_queue: bool) -> Iterator[str]:
    """Yield the topics with the most messages, with bars in proportion to the first."""
    if not topics:
        return
    yield ""
    if every_queue:
        rows = [{"topic": topic["topic"], **queue} for topic in topics for queue in topic["queues"]]
        yield from Output.table_lines(rows, _QUEUE_COLUMNS)
        return
    largest = sorted(topics, key=lambda topic: (-topic["messages"], topic["topic"]))
    rows = [
        {
            "topic": shortened(topic["topic"]), "queues": topic["queue_count"], "messages": topic["messages"],
            "share": bar(topic["messages"], largest[0]["messages"], _BAR_WIDTH),
        }
        for topic in largest[:shown]
    ]  # fmt: skip
    yield from Output.table_lines(rows, ("topic", "queues", "messages", "share"))
    rest = largest[shown:]
    if rest:
        count = sum(topic["messages"] for topic in rest)
        yield f"and {counted(len(rest), 'more topic')} with {counted(count, 'message')}; --queues shows all"


def _sizes_as_text(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": row["path"],
        "size": format_size(row["size_bytes"]),
        "allocated": format_size(row["allocated_bytes"]),
        "resident": "" if row["resident_bytes"] is None else format_size(row["resident_bytes"]),
        "extents": row["extents"],
    }
