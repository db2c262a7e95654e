"""The text of `rmqtool recover`: each broker's start next to the plan, what is lost, and what changes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rmqtool.command_line import command_line
from rmqtool.commands.finding_report import commands_on_store
from rmqtool.commands.recover_verdicts import (
    at_least,
    beyond_texts,
    checks_texts,
    keeping_torn,
    ledger_is_damaged,
    lost_already,
    of_recover,
    of_repair,
    starts_up,
    torn_rows,
)
from rmqtool.commands.verdicts import LOG_MISSING, by_name, verdict_lines
from rmqtool.message.system_topics import SCHEDULE_TOPIC, is_system_topic
from rmqtool.output import Output
from rmqtool.problems import COPY_CONFIG
from rmqtool.terminal import counted, format_size

_LOST_SHOWN = 20
_CHANGES_SHOWN = 10
_QUEUES_SHOWN = 10
_LOST_COLUMNS = (
    "topic", "queue_id", "queue_offset", "messages", "physical_offset", "size", "place", "from_time",
    "until_time",
)  # fmt: skip
_LOST_BY_TOPIC = ("topic", "queues", "messages", "places", "first_physical_offset", "from_time", "until_time")
_LOST_BY_QUEUE = ("topic", "queue_id", "first_queue_offset", "last_queue_offset", "messages")
_READABLE_COLUMNS = ("physical_offset", "topic", "queue_id", "queue_offset", "keys", "uniq_key", "status")
_REMAINS_COLUMNS = (
    "physical_offset", "left", "topic", "queue_id", "queue_offset", "stored", "tags", "keys", "uniq_key"
)  # fmt: skip
_REMAINS_ALWAYS = ("physical_offset", "topic", "queue_id", "queue_offset")
_SAVED_SHOWN = 3
_LOST_IF_KNOWN = (
    "queue_id", "queue_offset", "queues", "messages", "place", "places", "from_time", "until_time"
)  # fmt: skip
_CHANGE_COLUMNS = ("change", "path", "count", "bytes", "reason")
WHOLE_FILE = "whole.jsonl"
"""Where the last messages are saved if their bodies are whole."""
_EACH = "--all shows the ranges of each queue, and each lost message, with queue and offsets"

Row = dict[str, Any]


def recover_lines(
    found: Row,
    *,
    everything: bool = False,
    undo: str | None = None,
    check: str | None = None,
    whole: tuple[str, str] | None = None,
    keys: str | None = None,
    each: str = _EACH,
    slave: str | None = None,
    command: Callable[[str], str] = "rmqtool {} STORE".format,
) -> Iterator[str]:
    """Yield the lines of a report, the row of a `Recovery` or an `Outcome`; with `everything` in full.

    `undo` is the command line that undoes it, `check` the one to run next: it checks the repaired store, or
    explains what recover cannot repair. `whole` prints the last messages if their bodies are whole, and
    stores them again. `keys` says how to see whether a key is that of a lost message, `each` how to see each
    lost message if only their topics are shown; a command line is a line of its own. `slave` compares the
    store with a slave, `command` returns the line of another command on the store.
    """
    yield from _head(found)
    if found.get("predictions"):
        yield ""
        yield from _starts(found)
        if found.get("not_shown"):
            versions = ", ".join(f"--broker {version}" for version in found["not_shown"])
            yield f"{'':<13}starts of other versions: {versions}"
        yield from _queue_lines(found, everything=everything)
    yield from _note_lines(found["predictions"])
    if found["ledger"] is not None and found["applied"] is None:
        from rmqtool.broker.predict import NOT_PREDICTED

        yield ""
        yield f"{'a start':<13}{NOT_PREDICTED}"
    yield from _lost_lines(found, command, each, everything=everything)
    yield from _torn_lines(found, whole)
    if keys is not None:
        text, *lines = keys.split("\n")
        yield f"{'keys':<13}{text}"
        yield from (f"{'':<13}{line}" for line in lines)
    yield from _change_lines(found, everything=everything)
    moved = [each for row in found["actions"] if row["problem"] == "CF04" for each in row["detail"]["moved"]]
    for text, line in beyond_texts(moved, command("reset-offset")):
        yield f"{'offsets':<13}{text}{'' if found['applied'] else ', after --apply'}:"
        yield f"{'':<13}{line}"
    yield from (f"{'offsets':<13}{text}" for text in checks_texts(moved))
    if found["warnings"] and not found["actions"]:
        yield ""
    for title, texts in (
        ("warning", _without_repeats(found["warnings"], command)),
        ("replica", found["replica"]),
    ):
        for text in texts:
            yield f"{title:<13}{text}"
    for refusal in found["refusals"]:
        needs = f" (--{refusal['needs']})" if refusal["needs"] else ""
        yield f"{'refused':<13}{refusal['reason']}{needs}"
    yield from _applied_lines(found["applied"], undo)
    applied = found["applied"]
    yield from verdict_lines(of_recover(found) if applied is None else of_repair(found), next=check)
    if slave is not None and found["lost"]:
        yield f"{'slave':<13}for the lost messages: {slave}"


def _without_repeats(warnings: Sequence[str], command: Callable[[str], str]) -> Iterator[str]:
    """Yield the warnings; how to get a copy of a configuration file is said once."""
    how = COPY_CONFIG[:1].upper() + COPY_CONFIG[1:]
    is_said = False
    for text in warnings:
        said = text.replace(how, "Copy it to config/ from the same place") if is_said else text
        yield commands_on_store(said, command)
        is_said = is_said or how in text


def _head(found: Row) -> Iterator[str]:
    is_open = found["guard"] and found["applied"] is None
    state = "unclean: abort is there" if found["abort"] else "stopped cleanly"
    if found["guard"]:
        state = "a repair was interrupted"
        if is_open:
            state += "; no broker loads the store until it is finished"
    yield f"{'store':<13}{found['store']}"
    yield f"{'state':<13}{state}"
    if is_open:
        yield f"{'':<13}--apply first undoes its changes; everything below describes the store as it is now"
    yield f"{'mode':<13}{_mode_text(found)}"
    if not found["actions"]:
        nothing = (
            "nothing that recover can repair: see the warnings" if found["warnings"] else "nothing to do"
        )
        yield f"{'plan':<13}{'undo the changes of the interrupted repair' if is_open else nothing}"
        return
    lost, given_up = sum(row["count"] for row in lost_already(found)), found["given_up_messages"]
    count, torn = len(found["actions"]), sum(row["count"] for row in torn_rows(found))
    parts = [counted(count, "change")]
    if not (LOG_MISSING in found["remaining"] or ledger_is_damaged(found)) and (lost or not given_up):
        parts.append(_lost_in_short(found, lost) if lost else "no message is lost")
    if given_up:
        parts.append(f"{counted(given_up, 'sound message')} given up")
    if torn:
        parts.append(f"{counted(torn, 'message')} with a whole body given up")
    needs = f"up to {format_size(found['needed_bytes'])} of free space"
    parts[-1] += f"; --apply needs {needs}, {format_size(found['backup_bytes'])} of it for the backup"
    yield f"{'plan':<13}{', '.join(parts)}"


def _lost_in_short(found: Row, lost: int) -> str:
    least = at_least(lost_already(found))
    text = f"{least}{counted(lost, 'message')} {'is' if lost == 1 else 'are'} lost already"
    readable = sum(row["count"] for row in _readable(found))
    if not readable:
        return text
    return f"{text} ({'' if readable == lost else f'{readable} '}can be read in part)"


def _readable(found: Row) -> list[Row]:
    """Return the lost records of which something can still be read."""
    return [row for row in lost_already(found) if row["status"] is not None or row["remains"] is not None]


def _mode_text(found: Row) -> str:
    if found["ledger"] is not None:
        return f"best: repair all but the DLedger log in {found['ledger']}, which is never changed"
    if found["mode"] == "broker":
        return f"broker: the log ends where a start of {found['broker']} ends it"
    if found["fill"] == "none":
        return "best without fillers: the log ends at the first hole"
    return "best: keep every valid message; put a filler where one is lost"


# Each broker next to the plan


def _starts(found: Row) -> Iterator[str]:
    """Yield a table: one line for each question, one column for each broker and one for the plan."""
    titles, of_plan = [], []
    of_broker: dict[str, list[str]] = {row["broker"]: [] for row in found["predictions"]}
    for title, ask_broker, ask_plan in _QUESTIONS:
        is_of_load = title in _OF_THE_LOAD
        cells = [ask_broker(row) if is_of_load or starts_up(row) else "" for row in found["predictions"]]
        plan_cell = ask_plan(found)
        if title == _ALWAYS or any(cell not in ("", "0", "-") for cell in (*cells, plan_cell)):
            titles.append(title)
            of_plan.append(plan_cell)
            for column, cell in zip(of_broker.values(), cells, strict=True):
                column.append(cell)
    columns = {"a start would": titles, **_merged(of_broker), "recover": of_plan}
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    yield from Output.table_lines(rows, tuple(columns))
    shown = set(titles)
    yield from (f"{'':<13}{text}" for title, text in _LEGEND.items() if title in shown)


def _merged(of_broker: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the columns of the brokers; brokers whose cells are all the same share one."""
    brokers: dict[tuple[str, ...], list[str]] = {}
    for broker, cells in of_broker.items():
        brokers.setdefault(tuple(cells), []).append(broker)
    return {", ".join(names): list(cells) for cells, names in brokers.items()}


def _outcome(row: Row) -> str:
    if row["crashes"]:
        return "no: out of memory"
    if not starts_up(row):
        return "no: does not start"
    return "yes, but hang" if row["hangs"] else "yes"


def _names(names: Sequence[str], empty: Sequence[str] = ()) -> str:
    if not names:
        return "0"
    first = names[0].rpartition("/")[2].lstrip("0") or "0"
    text = f"{len(names)}: {first}{', ...' if len(names) > 1 else ''}"
    if not empty:
        return text
    return f"{text} (empty)" if len(empty) == len(names) else f"{text} ({len(empty)} empty)"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _size(value: int) -> str:
    return format_size(value) if value else "0"


def _cut_queues(row: Row) -> str:
    return str(sum(queue["cut_to"] is not None for queue in row["queues"]))


def _shortened_queues(plan: Row) -> set[tuple[str, int]]:
    """Return the queues that end earlier than now, after the plan."""
    now = {
        (queue["topic"], queue["queue_id"]): queue["max_before"]
        for row in plan["predictions"]
        for queue in row["queues"]
        if queue["max_before"] is not None
    }
    ends = {(queue["topic"], queue["queue_id"]): queue["max_offset"] for queue in plan["queues"]}
    return {queue for queue, end in now.items() if ends.get(queue, 0) < end}


_OF_THE_LOAD = ("load the store", "allocate", "of a heap of")
_ALWAYS = "lose sound messages"  # the one number that is looked for, also when it is 0
_LEGEND = {
    "dispatch once more": "dispatch once more: write units and index entries of messages that had them; a key"
    " may then find a message twice",
    "deliver again": "deliver again: delayed messages of which the log has the delivered copy",
    "hide messages": "hide messages: their queue has no unit of them any more, so its consumers never receive"
    " them",
    "leave groups ahead": "leave groups ahead: their committed offset is past the end of a queue, so they"
    " skip its next messages",
}
_Question = tuple[str, Callable[[Row], str], Callable[[Row], str]]
_QUESTIONS: tuple[_Question, ...] = (
    ("load the store", _outcome, lambda plan: ""),
    ("allocate", lambda row: _size(row["claimed_bytes"] or 0), lambda plan: ""),
    ("of a heap of", lambda row: _size(row["heap_bytes"]) if row["claimed_bytes"] else "-",
     lambda plan: ""),
    ("examine the log from", lambda row: _text(row["start_file"]), lambda plan: "the start"),
    ("end the log at", lambda row: _text(row["end_offset"]), lambda plan: _text(plan["log_end"])),
    ("delete log files", lambda row: _names(row["log_files_deleted"], row["empty_files_deleted"]),
     lambda plan: _names(plan["log_files_deleted"])),
    ("give up log bytes", lambda row: _size(row["bytes_abandoned"]),
     lambda plan: _size(plan["given_up_bytes"])),
    (_ALWAYS, lambda row: _text(row["messages_abandoned"]),
     lambda plan: _text(plan["given_up_messages"] + sum(row["count"] for row in torn_rows(plan)))),
    ("shorten queues", _cut_queues, lambda plan: str(len(_shortened_queues(plan)))),
    ("delete index files", lambda row: _names(row["index_files_deleted"]), lambda plan: "0"),
    ("dispatch once more", lambda row: _text(row["dispatched_again"]), lambda plan: "0"),
    ("lose queues", lambda row: _text(row["queues_lost"]), lambda plan: "0"),
    ("deliver again", lambda row: _text(row["delivered_again"]),
     lambda plan: _text(plan["delivered_again"])),
    ("hide messages", lambda row: _text(row["messages_hidden"]), lambda plan: "0"),
    (
        "leave groups ahead",
        lambda row: str(len({each["group"] for each in row["consumer_offsets_beyond"]})),
        lambda plan: "0",
    ),
)  # fmt: skip


def _queue_lines(found: Row, *, everything: bool) -> Iterator[str]:
    """Yield the queues whose range a start changes, or that the plan shortens, with their ends."""
    brokers = found["predictions"]
    ends: dict[tuple[str, int], Row] = {}
    now = {  # of any broker: 4.x does not see the batch queues that are there
        (queue["topic"], queue["queue_id"]): f"{queue['min_before']}..{queue['max_before']}"
        for row in brokers
        for queue in row["queues"]
        if queue["max_before"] is not None
    }
    for row in brokers:
        for queue in row["queues"] if starts_up(row) else ():
            before = (queue["min_before"] or 0, queue["max_before"] or 0)
            if before == (queue["min_after"], queue["max_after"]) and not queue["messages_hidden"]:
                continue
            key = (queue["topic"], queue["queue_id"])
            entry = ends.setdefault(key, {"topic": key[0], "queue_id": key[1], "now": now.get(key, "none")})
            span = f"{queue['min_after']}..{queue['max_after']}"
            entry[row["broker"]] = "none" if queue["lost"] else span
    shortened = _shortened_queues(found)
    for key in shortened:
        ends.setdefault(key, {"topic": key[0], "queue_id": key[1], "now": now[key]})
    if not ends:
        return
    planned = {(queue["topic"], queue["queue_id"]): queue for queue in found["queues"]}
    keys = sorted(ends)
    merged = _merged(
        {row["broker"]: [ends[key].get(row["broker"], "same") for key in keys] for row in brokers}
    )
    rows = []
    for number, key in enumerate(keys):
        own = planned.get(key)
        entry = ends[key] | {names: cells[number] for names, cells in merged.items()}
        entry["recover"] = f"{own['min_offset']}..{own['max_offset']}" if own is not None else "-"
        rows.append(entry)
    columns = ("topic", "queue_id", "now", *merged, "recover")
    yield ""
    yield f"queue offsets that change or are unreachable in {counted(len(ends), 'queue')} (minimum..maximum)"
    shown = _first_rows(rows, _QUEUES_SHOWN, everything=everything)
    yield from Output.table_lines(shown, columns)
    if len(rows) > len(shown):
        yield f"... and {counted(len(rows) - len(shown), 'more queue')} (--all shows all)"
    if shortened:
        yield f"{'recover':<13}shortens queues whose last units lead to no sound record of the queue"


def _note_lines(brokers: Sequence[Row]) -> Iterator[str]:
    """Yield the notes on the starts, each once, with the brokers that it applies to."""
    notes: dict[str, list[str]] = {}
    for row in brokers:
        for note in row["notes"]:
            notes.setdefault(note, []).append(row["broker"])
    for note, versions in notes.items():
        yield f"{'a start':<13}{', '.join(versions)}: {note}"


# What is lost, what changes


def _first_rows(rows: Sequence[Row], most: int, *, everything: bool) -> Sequence[Row]:
    """Return the rows that the text shows: the first ones, or all."""
    return rows if everything else rows[:most]


def _lost_lines(found: Row, command: Callable[[str], str], each: str, *, everything: bool) -> Iterator[str]:
    lost = lost_already(found)
    if not lost:
        return
    yield ""
    yield f"{'lost already':<13}{_lost_text(lost)}{''.join(_fates(lost))}"
    is_each = everything or len(lost) <= _LOST_SHOWN
    rows, columns = (_lost_rows(lost), _LOST_COLUMNS) if is_each else (_lost_by_topic(lost), _LOST_BY_TOPIC)
    shown = [
        name for name in columns if name not in _LOST_IF_KNOWN or any(row[name] is not None for row in rows)
    ]
    if everything and len(lost) > _LOST_SHOWN:
        yield from Output.table_lines(_lost_by_queue(lost), _LOST_BY_QUEUE)
        yield ""
    first = _first_rows(rows, _LOST_SHOWN, everything=everything)
    yield from Output.table_lines(first, shown)
    if len(rows) > len(first):
        yield f"... and {counted(len(rows) - len(first), 'more topic')}"
    if not is_each:
        yield from each.split("\n")
    yield from _original_lines(found, command, everything=everything)
    yield from _readable_lines(found, command, everything=everything)


def _original_lines(found: Row, command: Callable[[str], str], *, everything: bool) -> Iterator[str]:
    """Yield which of the lost messages are copies of delayed messages that the log still has."""
    rows = found["delayed_originals"]
    if not rows:
        return
    of_topics = by_name(Counter(row["topic"] for row in rows), "message")
    where = f"{SCHEDULE_TOPIC}, where {'it' if len(rows) == 1 else 'they'} waited"
    yield f"{'delayed':<13}{of_topics} can be read in {where}: only delivered copies are lost"
    shown = _first_rows(rows, _SAVED_SHOWN, everything=everything)
    for row in shown:
        yield f"{'':<13}{command('lookup')} --offset {row['physical_offset']} --json"
    if len(rows) > len(shown):
        yield f"{'':<13}and {len(rows) - len(shown)} more (--all shows all)"


def _torn_lines(found: Row, whole: tuple[str, str] | None) -> Iterator[str]:
    """Yield the last messages that are given up although their bodies are whole, and how to keep them."""
    torn = torn_rows(found)
    if not torn:
        return
    count = sum(row["count"] for row in torn)
    one, what, its = ("it", "message: its body is", "its queue offset")
    if count > 1:
        one, what, its = ("them", f"{count} messages: their bodies are", "their queue offsets")
    versions = keeping_torn(found)
    keep = f" A start of {versions} keeps {one}." if versions else ""
    yield ""
    yield (
        f"{'given up':<13}the last {what} whole, but the properties end in zeros, as in a record that was not"
        f" written in full.{keep} The next messages of the queue get {its}"
    )
    rows = [{**row, "keys": " ".join(row["keys"]), "status": " ".join(row["status"])} for row in torn]
    yield from Output.table_lines(rows, _READABLE_COLUMNS)
    if whole is not None:
        print_them, store_them = whole
        yield f"{'save first':<13}{print_them} > {WHOLE_FILE}"
        yield f"{'':<13}After --apply, before a broker starts, this stores {one} again with what is left:"
        yield f"{'':<13}{store_them}"


def _lost_rows(lost: Sequence[Row]) -> list[Row]:
    """Return a row for each lost message, or for several of one queue with consecutive queue offsets.

    `messages` is None in all if each row is one message. `place` is None where physical offset and size are
    certain.
    """
    is_single = all(each["count"] == 1 for each in lost)
    return [
        {
            "topic": each["topic"] if each["count"] else "(unknown)",
            **{name: each[name] for name in ("queue_id", "queue_offset", "physical_offset", "size")},
            "messages": None if is_single else each["count"] or None,
            "place": "guessed" if _is_guess(each) else None,
            "from_time": each.get("stored_after_time"),
            "until_time": each.get("stored_before_time"),
        }
        for each in lost
    ]


def _is_guess(lost: Row) -> bool:
    """Return whether nothing shows where a lost record began: then it got a share of the hole."""
    left = lost["remains"]
    is_end = lost["known_from"] == "end" and (left is None or left["body_length"] is None)
    return is_end or lost["known_from"] == "gap"


def _readable_lines(found: Row, command: Callable[[str], str], *, everything: bool) -> Iterator[str]:
    """Yield which of the lost messages can still be read in part, and the command lines that save them."""
    readable = _readable(found)
    if not readable:
        return
    whole = [row for row in readable if row["status"] is not None]
    partial = [row for row in readable if row["status"] is None]
    is_planned = found["applied"] is None
    if whole:
        yield from _whole_lines(whole, everything=everything)
    if partial:
        effect = "the plan overwrites what is left" if is_planned else "what was left is in the backup"
        yield f"{'readable':<13}in part: {counted(len(partial), 'record')}; {effect}"
        yield from _remains_lines(partial, everything=everything)
    if is_planned:
        yield from _save_lines([*whole, *partial], command, everything=everything)


def _remains_lines(partial: Sequence[Row], *, everything: bool) -> Iterator[str]:
    """Yield the table of what is left of records that cannot be read as a whole."""
    rows = []
    for row in partial:
        left = row["remains"]
        parts = [name for name in ("header", "properties") if left[name]]
        if left["body_bytes"]:  # first of all: where the table is narrow, it shows only this
            total = "" if left["body_length"] is None else f"/{left['body_length']}"
            parts.insert(0, f"body {left['body_bytes']}{total}")
        rows.append(row | {
            "keys": " ".join(row["keys"] or ()), "tags": left["tags"], "left": ", ".join(parts),
            "stored": left.get("store_time"),
        })  # fmt: skip
    names = [name for name in _REMAINS_COLUMNS if any(row[name] for row in rows) or name in _REMAINS_ALWAYS]
    yield from _table_lines(rows, names, everything=everything)


def _save_lines(readable: Sequence[Row], command: Callable[[str], str], *, everything: bool) -> Iterator[str]:
    """Yield the command lines that save what is left of records, and the one that stores a body again.

    A second run refuses the .body file, and then adds nothing to the other.
    """
    saved = _first_rows(readable, _SAVED_SHOWN, everything=everything)
    for row in saved:
        place, left = row["physical_offset"], row["remains"]
        body = f" -o damaged-{place}.body" if left is None or left["body_bytes"] else ""
        line = f"{command('dump')} --explain {place}{body} --json >> damaged-{place}.jsonl"
        yield f"{'save first':<13}{line}"
    if len(readable) > len(saved):
        yield f"{'':<13}and so on with the other offsets"
    bodies = [row for row in saved if _may_be_whole(row["remains"])]
    if bodies:
        it = "this stores it" if len(bodies) == 1 else "these store them"
        yield (
            f"{'':<13}dump says how much of a body is in a .body file. After --apply, {it} again, if not"
            " compressed:"
        )
    for row in bodies:
        yield f"{'':<13}{command('append')} {command_line(*_append_words(row))}"


def _may_be_whole(left: Row | None) -> bool:
    """Return whether all of a body may be left: of the whole record, or as far as its length is known."""
    return left is None or (left["body_bytes"] > 0 and left["body_length"] in (None, left["body_bytes"]))


def _append_words(row: Row) -> Iterator[object]:
    """Yield the words with which append stores what is left of a lost record as a new message."""
    topic = row["topic"]
    if topic is None or is_system_topic(topic):
        yield from ("--topic", "TOPIC")
    else:
        yield from ("--topic", topic)
        if row["queue_id"] is not None:
            yield from ("--queue", row["queue_id"])
    tags = row["remains"]["tags"] if row["remains"] is not None else None
    for option, value in (("--tag", tags), ("--uniq-key", row["uniq_key"])):
        if value:
            yield from (option, value)
    for key in row["keys"] or ():
        yield from ("--key", key)
    yield from ("--body-file", f"damaged-{row['physical_offset']}.body")


def _table_lines(rows: Sequence[Row], columns: Sequence[str], *, everything: bool) -> Iterator[str]:
    """Yield the table of lost records that can be read in part, and how many more there are."""
    shown = _first_rows(rows, _LOST_SHOWN, everything=everything)
    yield from Output.table_lines(shown, columns, keeps_place=True)
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown)} more (--all shows all)"


def _whole_lines(readable: Sequence[Row], *, everything: bool) -> Iterator[str]:
    """Yield the lost records that can be read as a whole."""
    what = counted(len(readable), "record")
    yield f"{'readable':<13}header and properties of {what}; status says what is damaged"
    rows = [row | {"keys": " ".join(row["keys"]), "status": " ".join(row["status"])} for row in readable]
    yield from _table_lines(rows, _READABLE_COLUMNS, everything=everything)


def _lost_by_topic(lost: Sequence[Row]) -> list[Row]:
    """Return a row for each topic, the one with the most lost messages first; last the unknown messages."""
    by_topic: dict[str | None, list[Row]] = {}
    for each in lost:
        by_topic.setdefault(each["topic"] if each["count"] else None, []).append(each)
    rows = []
    for topic, of_topic in by_topic.items():
        after = [each["stored_after_time"] for each in of_topic if each.get("stored_after_time")]
        before = [each["stored_before_time"] for each in of_topic if each.get("stored_before_time")]
        is_known = topic is not None
        rows.append({
            "topic": topic if is_known else "(unknown)",
            "queues": len({each["queue_id"] for each in of_topic}) if is_known else None,
            "messages": sum(each["count"] for each in of_topic) if is_known else None,
            "places": None if is_known else len(of_topic),
            "first_physical_offset": min(each["physical_offset"] for each in of_topic),
            "from_time": min(after, default=None),
            "until_time": max(before, default=None),
        })  # fmt: skip
    return sorted(rows, key=lambda row: -(row["messages"] or 0))


def _lost_by_queue(lost: Sequence[Row]) -> list[Row]:
    """Return a row for each range of queue offsets that a queue has lost."""
    rows: list[Row] = []
    known = [each for each in lost if each["count"]]
    for each in sorted(known, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"])):
        queue, first, stop = (each["topic"], each["queue_id"]), each["queue_offset"], each["queue_offset"]
        stop += each["count"]
        if rows and rows[-1]["queue"] == queue and rows[-1]["stop"] == first:
            rows[-1]["stop"] = stop
        else:
            rows.append({"queue": queue, "first": first, "stop": stop})
    return [
        {
            "topic": row["queue"][0],
            "queue_id": row["queue"][1],
            "first_queue_offset": row["first"],
            "last_queue_offset": row["stop"] - 1,
            "messages": row["stop"] - row["first"],
        }
        for row in rows
    ]


def _lost_text(lost: Sequence[Row]) -> str:
    """Say how many messages of how many queues are lost, and how many places hold unknown ones."""
    queues = {(row["topic"], row["queue_id"]) for row in lost if row["topic"] is not None}
    unknown, messages = sum(row["count"] == 0 for row in lost), sum(row["count"] for row in lost)
    parts = []
    if messages:
        named = f" of {counted(len(queues), 'queue')}" if queues else ""
        parts.append(f"{at_least(lost)}{counted(messages, 'message')}{named}")
    if unknown:
        parts.append(f"{counted(unknown, 'place')} of the log with unknown messages")
    return " and ".join(parts)


def _fates(lost: Sequence[Row]) -> Iterator[str]:
    """Yield what consumers see of lost messages, each part after a semicolon."""
    filled_rows = [row for row in lost if row["fate"] == "filled"]
    own = sum(row["count"] for row in filled_rows if is_system_topic(row["topic"] or ""))
    filled = sum(row["count"] for row in filled_rows) - own
    cut, count = sum(row["count"] for row in lost if row["fate"] == "cut"), sum(row["count"] for row in lost)
    if filled:
        instead = "each" if filled == count else f"{filled} of them"
        if own:
            instead += f" ({own} of the broker's own topics go to no consumer)"
        yield f"; subscribers to * receive a message tagged RMQTOOL_FILLER instead of {instead}, and should"
        yield " ignore it"
    if cut:
        of_all = "its queue offset" if count == 1 else "their queue offsets"
        yield f"; new messages reuse {of_all if cut == count else f'the queue offsets of {cut} of them'}"


def _change_lines(found: Row, *, everything: bool) -> Iterator[str]:
    actions = found["actions"]
    if not actions:
        return
    yield ""
    counts = Counter(_change_of(row) for row in actions)
    yield f"changes      {', '.join(_changes(*what, count) for what, count in counts.items())}"
    rows = _changes_by_place(actions)
    columns = [name for name in _CHANGE_COLUMNS if name != "count" or any(row["count"] > 1 for row in rows)]
    shown = _first_rows(rows, _CHANGES_SHOWN, everything=everything)
    yield from Output.table_lines(shown, columns)
    if len(rows) > len(shown):
        yield f"... and {_change_sums(rows[len(shown) :])} (--all shows all)"
    added = [topic for row in actions for topic in row.get("detail", {}).get("added", ())]
    if added and everything:
        yield f"{'topics':<13}new in topics.json: compare the numbers of queues with your notes"
        yield from Output.table_lines(added, ("topic", "queues", "messages"))


def _change_sums(rows: Sequence[Row]) -> str:
    """Return how many changes of each kind some rows of the table stand for, and their bytes."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        folder, slash, _ = row["path"].partition("/")
        found = sums.setdefault((row["change"], folder, slash or "/" * (row["count"] > 1)), [0, 0])
        found[0] += row["count"]
        found[1] += row["bytes"]
    return ", ".join(
        f"{_changes(*what, count)} ({format_size(size)})" for what, (count, size) in sums.items()
    )


def _changes_by_place(actions: Sequence[Row]) -> list[Row]:
    """Return a row for each kind of change of a log file, or in a folder for one reason; queues last."""
    places: dict[tuple[str, str, str], list[Row]] = {}
    for each in sorted(actions, key=lambda row: "consumequeue" in row["path"].partition("/")[0]):
        folder = each["path"].partition("/")[0]
        is_of_log = folder in ("commitlog", "timerlog")
        place = (each["path"], "") if is_of_log else (folder, each["reason"])
        places.setdefault((_change(each), *place), []).append(each)
    rows = []
    for (change, _, _), found in places.items():
        reasons = list(dict.fromkeys(each["reason"] for each in found))
        rows.append({
            "change": change,
            "path": os.path.commonpath([each["path"] for each in found]),
            "count": len(found),
            "problem": found[0]["problem"] or "",
            "bytes": sum(each["length"] for each in found),
            "reason": reasons[0] + (f" (and {len(reasons) - 1} more)" if reasons[1:] else ""),
        })  # fmt: skip
    return list(_without_same_reasons(rows))


def _without_same_reasons(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows; a reason right after the same one says so, because one loss changes several files.

    Files of config/ are lost each for itself: their reasons are always shown.
    """
    before = None
    for row in rows:
        is_same = row["reason"] == before and not row["problem"].startswith("CF")
        yield row | {"reason": "as above"} if is_same else row
        before = row["reason"]


def _change_of(row: Row) -> tuple[str, str, str]:
    """Return the change, and the folder of its path and `/`, or its file and nothing."""
    folder, slash, _ = row["path"].partition("/")
    return _change(row), folder, slash


def _changes(change: str, folder: str, slash: str, count: int) -> str:
    if not slash:
        return f"{change} {folder}"
    return f"{change} {counted(count, 'range' if change in ('fill', 'write', 'cut') else 'file')} in {folder}"


def _change(row: Row) -> str:
    """Return what a change does to its file, in one word: a cut that makes a file longer extends it."""
    return "extend" if row["kind"] == "cut" and row["problem"] == "CL21" else str(row["kind"])


def _applied_lines(applied: Row | None, undo: str | None) -> Iterator[str]:
    if applied is None:
        return
    yield ""
    yield f"{'applied':<13}{counted(applied['changes'], 'change')}"
    if applied["backup"] is not None:
        yield f"{'backup':<13}{applied['backup']}"
        yield f"{'undo':<13}{undo}"
    if applied["tail"] is not None:
        yield from _tail_lines(applied)


def _tail_lines(applied: Row) -> Iterator[str]:
    """Yield where the messages after the new end are, and which of them append stores only in part."""
    yield f"{'tail':<13}{applied['tail']}: {counted(applied['tail_messages'], 'message')}, for rmqtool append"
    incomplete, refused = applied["tail_incomplete"], applied["tail_refused"]
    if incomplete:
        they, them = ("has", "it") if incomplete == 1 else ("have", "them")
        yield (
            f"{'':<13}{incomplete} of them {they} damaged properties (CL13): append stores {them} with what"
            " is left of them"
        )
    if refused:
        yield (
            f"{'':<13}append refuses {refused} of them, whose status says why; --on-error skip leaves"
            f" {'it' if refused == 1 else 'them'} out"
        )


def undo_lines(row: Row, again: str) -> Iterator[str]:
    """Yield the lines of the result of `--undo`; `again` is the command line that plans a repair."""
    if row["already"]:
        yield f"{'undone':<13}nothing to do: {row['backup']} was already restored"
    else:
        restored, removed = row["files"] - row["removed"], row["removed"]
        parts = [f"{counted(restored, 'file')} restored"] if restored else []
        parts += [f"{counted(removed, 'new file')} removed"] if removed else []
        yield (
            f"{'undone':<13}{', '.join(parts) or 'nothing had changed'}: the store is as it was before"
            f" rmqtool {row['command']}"
        )
        yield f"{'backup':<13}{row['backup']}"
        if row["command"] in ("recover", "rebuild") and row["next"] is None:
            yield f"{'next':<13}before a broker starts again: {again}"
    if row["next"] is not None:
        yield f"{'next':<13}an earlier run is unfinished too: --undo {row['next']}"
