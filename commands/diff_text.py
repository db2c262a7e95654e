"""What `rmqtool diff` says to a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rmqtool.terminal import counted, format_size

if TYPE_CHECKING:
    from rmqtool.check.diff import Difference

Row = dict[str, Any]

_TOPICS_SHOWN = 5
_OTHER = {"a": "b", "b": "a"}
_STATUS = {
    "ok": "sound",
    "body_crc": "its body does not match its CRC",
    "foreign": "stored for another offset",
    "ends_in_zeros": "ends in zeros",
}

_KINDS = {"unused": "bytes after a blank, which no broker reads", "zeros": "zeros up to the end of the file"}


def lines(row: Row, found: Difference) -> Iterator[str]:
    """The lines of a comparison: `row` is `found.row()` with times as text."""
    for name in "ab":
        yield f"{name.upper():<13}{_side_text(row[name])}"
    if row["commit_log"] is not None:
        yield from _log_lines(row["commit_log"], row)
    if row["queues"] is not None:
        yield from _queue_lines(row["queues"])
    if row["config"] is not None:
        yield from _config_lines(row["config"])
    for part in row["unread"]:
        side = f"{part['side'].upper()} " if part["side"] else ""
        yield f"not read     {side}{part['path']}: {part['reason']}"
    if row["vanished"]:
        gone = len(row["vanished"])
        was = "was" if gone == 1 else "were"
        yield f"vanished     {counted(gone, 'file')} {was} deleted during the comparison by a running broker"
    if row["not_compared"]:
        yield f"left out     {', '.join(row['not_compared'])}: each broker has its own"
    yield f"result       {_result(found)}"


def _side_text(side: Row) -> str:
    text = f"{side['path']}"
    if side["written_by"] is not None:
        from rmqtool.storage.profile import WrittenBy

        state = "in use" if side["live"] else "not cleanly stopped" if side["abort"] else "stopped cleanly"
        text += f" (broker {WrittenBy.of_row(side)}, {state})"
    if side["repair_unfinished"]:
        text += ", a repair was interrupted"
    log = side["commit_log"]
    return f"{text}, log {log['min_offset']} to {log['end_offset']}" if log is not None else text


def _log_lines(log: Row, row: Row) -> Iterator[str]:
    if log["common_start"] >= log["common_end"]:
        if log["only"]:
            yield "commit log   the stores have no common range"
    else:
        verdict = "identical" if log["identical"] else _log_verdict(log)
        yield (
            f"commit log   {log['common_start']} to {log['common_end']} in both,"
            f" {format_size(log['compared_bytes'])} compared: {verdict}"
        )
    for number, each in enumerate(log["ranges"]):
        yield from _range_lines(each, is_first=number == 0)
    if log["more_ranges"]:
        yield "             and more ranges: --differences N shows N of them"
    if None not in (log["epoch_a"], log["epoch_b"]):
        yield f"epoch        of the first difference: {log['epoch_a']} in A, {log['epoch_b']} in B"
    if log["diverged"] is not None:
        yield from _diverged_lines(log["diverged"])
    for part in log["only"]:
        if part["place"] == "after" and log["diverged"] is not None:
            continue  # of what it has of its own: that has been said
        yield f"only {part['side'].upper():<8}{_only_text(part)}"
    if log["diverged"] is None:
        yield from _ahead_lines(log, row)


def _diverged_lines(found: Row) -> Iterator[str]:
    start = found["physical_offset"]
    yield (
        f"diverged     the logs part at {start}; each has records that the other lacks, and no broker"
        " merges them"
    )
    for name in "ab":
        yield f"             {name.upper()} has {_only_text(found[name])}"


def _log_verdict(log: Row) -> str:
    if log["first_difference"] is None:
        return "equal where both have bytes, but files are missing"
    if log["differing_bytes"] == 1:
        return f"the byte at {log['first_difference']} differs"
    return f"{log['differing_bytes']} bytes differ, the first at {log['first_difference']}"


def _range_lines(each: Row, *, is_first: bool) -> Iterator[str]:
    start, stop = each["physical_offset"], each["physical_offset"] + each["length"]
    text = f"{each['differing_bytes']} of {each['length']} bytes" if each["length"] > 1 else "1 byte"
    fields = f", in {', '.join(each['changed_fields'])}" if each["changed_fields"] else ""
    yield f"differs      {start} to {stop}: {text}{fields}{_sound_text(each)}"
    for place in ("before", "at", "after") if is_first else ("at",):
        a, b = ((each[name] or {}).get(place) for name in "ab")
        label = {"before": "before it ", "at": "", "after": "after it "}[place]
        if a == b and a is not None:
            yield f"             {label or 'there '}in both {_found_text(a)}"
            continue
        for name, part in (("A", a), ("B", b)):
            if part is not None:
                yield f"             {label}in {name} {_found_text(part)}"


def _sound_text(each: Row) -> str:
    """Which side has a sound record there: two of them are two logs, one is one log and damage."""
    sides = [
        name.upper()
        for name in "ab"
        if (part := (each[name] or {}).get("at")) and part["kind"] == "record" and part["status"] == "ok"
    ]
    if not sides:
        return ""
    return "; two different records" if len(sides) == 2 else f"; the record is sound in {sides[0]} only"


def _found_text(part: Row) -> str:
    place = f"{part['physical_offset']} to {part['physical_offset'] + part['size']}"
    if part["kind"] == "record":
        words = ", ".join(_STATUS.get(word, word) for word in part["status"].split("+"))
        return (
            f"{place}: {part['topic']} queue {part['queue_id']} offset {part['queue_offset']},"
            f" stored {part['store_time'] or part['store_timestamp_ms']}: {words}"
        )
    if part["kind"] == "blank":
        return f"{place}: the blank that ends a file" + (
            "" if part["status"] == "ok" else ", of a wrong size"
        )
    if part["kind"] == "damage":
        return f"{place}: no sound record ({part['status']})"
    return f"{place}: {_KINDS[part['kind']]}"


def _only_text(part: Row) -> str:
    stop = part["physical_offset"] + part["length"]
    count = f", {counted(part['records'], 'record')}" if part["records"] is not None else ""
    first, last = part["first_store_time"], part["last_store_time"]
    times = f", stored {first} to {last}" if first and last else f", stored from {first} on" if first else ""
    if first and first == last:
        times = f", stored {first}"
    missing = f": {_OTHER[part['side']].upper()} lacks it" if part["place"] == "inside" else ""
    return f"{part['physical_offset']} to {stop}, {format_size(part['length'])}{count}{times}{missing}"


def _ahead_lines(log: Row, row: Row) -> Iterator[str]:
    if log["ahead"] is None:
        yield "ahead        neither"
        return
    live = " when they were compared" if row["a"]["live"] or row["b"]["live"] else ""
    yield f"ahead        {log['ahead'].upper()} by {format_size(log['ahead_bytes'])}{live}"
    behind = log["behind_end"]
    if behind is None or behind["state"] == "empty":
        return
    side, other = behind["side"].upper(), _OTHER[behind["side"]].upper()
    what = f"bytes that {other} does not have: a damaged record, or the remains of an older log"
    if behind["state"] == "part":
        what = "part of the next record"
    yield f"             after its end {side} has {what}"


def _queue_lines(queues: Row) -> Iterator[str]:
    texts = (
        ("identical", "identical"),
        ("different", "different"),
        ("behind", "lag behind their log"),
        ("more", "reach further on one side"),
    )
    counts = (
        f"{queues[name]} {_singular(text) if queues[name] == 1 else text}"
        for name, text in texts
        if queues[name]
    )
    verdict = "identical" if queues["identical"] == queues["compared"] else ", ".join(counts)
    units = counted(queues["compared_units"], "unit")
    yield f"queues       {queues['compared']} with {units} in both: {verdict}"
    for each in queues["queues"]:
        if each["state"] != "more":
            yield f"             {_queue_text(each)}"
    for name in "ab":
        yield from _topic_lines(name, queues["only_by_topic"])


def _singular(text: str) -> str:
    """The text after a count of one."""
    verb, *others = text.split(" ")
    return " ".join(({"lag": "lags", "reach": "reaches"}.get(verb, verb), *others))


def _topic_lines(side: str, topics: list[Row]) -> Iterator[str]:
    """How many messages only this side's queues hold, and of which topics."""
    counts = [(each[f"only_{side}"], each["topic"]) for each in topics if each[f"only_{side}"]]
    if not counts:
        return
    counts.sort(key=lambda item: (-item[0], item[1]))
    text = ", ".join(f"{topic} {count}" for count, topic in counts[:_TOPICS_SHOWN])
    rest = (
        f" and {len(counts) - _TOPICS_SHOWN} more topic{'s' * (len(counts) > _TOPICS_SHOWN + 1)}"
        if len(counts) > _TOPICS_SHOWN
        else ""
    )
    total = sum(count for count, _ in counts)
    yield f"only {side.upper():<8}{counted(total, 'message')} by its queues: {text}{rest}"


def _queue_text(each: Row) -> str:
    spans = " and ".join(
        f"{name.upper()} {each[f'min_offset_{name}']} to {each[f'max_offset_{name}']}"
        if each[f"min_offset_{name}"] is not None
        else f"none in {name.upper()}"
        for name in "ab"
    )
    text = f"{each['topic']} queue {each['queue_id']} ({spans}): "
    if each["state"] == "behind":
        return text + f"{each['lacking'].upper()} has not dispatched all records of its log yet"
    if each["state"] == "lacks":
        return text + f"{each['lacking'].upper()} has no units for records that its log holds"
    first = each["first_difference"]
    if first is None:
        return text + "different kinds of queue"
    return (
        text
        + f"differing units: {each['differing_units']}, the first at queue offset {first['queue_offset']}"
    )


def _config_lines(config: Row) -> Iterator[str]:
    files = len(config["compared"])
    verdict = "identical by value" if config["identical"] else ", ".join(
        f"{count} {'entry' if count == 1 else 'entries'} of {name}"
        for name, count in config["differing_entries"].items()
    ) + " differ"  # fmt: skip
    yield f"config       {counted(files, 'file')} compared: {verdict}"
    for each in config["entries"]:
        a, b = (_value_text(each[name]) for name in "ab")
        yield f"             {each['file']} {each['entry']}: A {a}, B {b}"


def _value_text(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _result(found: Difference) -> str:
    if found.differs_in_common:
        parted = found.log is not None and found.log.diverged is not None
        return "the stores differ; their logs have diverged" if parted else "the stores differ"
    more = ", one side holds more" if found.has_more else ""
    moving = ", offsets of consumers or deliveries differ" if found.differs else ""
    rest = ", some parts could not be read" if found.unread else ""
    common = "identical in what both hold" if more or moving else "identical"
    return common + more + moving + rest
