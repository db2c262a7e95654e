"""The text of `rmqtool diff`: what differs. `diff_carry` has the lines that carry messages over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rmqtool.commands.diff_carry import Stores, carry_lines, lacking_lines, newer_lines
from rmqtool.commands.verdicts import (
    Row,
    damage_text,
    ends_file,
    of_diff,
    verdict_lines,
)
from rmqtool.message.cells import json_text
from rmqtool.terminal import counted, format_size, shortened

if TYPE_CHECKING:
    from rmqtool.check.diff import Difference

_TOPICS_SHOWN = 5
_QUEUES_SHOWN = 8
_OTHER = {"a": "b", "b": "a"}
_STATUS = {
    "ok": "sound",
    "body_crc": "its body does not match its CRC",
    "foreign": "stored for another offset",
    "ends_in_zeros": "ends in zeros",
    "properties": "its properties (keys, tags) are damaged",
}

_KINDS = {"unused": "bytes after a blank, which no broker reads", "zeros": "zeros up to the end of the file"}


def lines(row: Row, found: Difference, stores: Stores) -> Iterator[str]:
    """Yield the lines of a comparison: `row` is `found.row()` with times as text."""
    for name in "ab":
        yield f"{name.upper():<13}{_side_text(row[name])}"
    if row["commit_log"] is not None:
        yield from _log_lines(row["commit_log"], row)
    if row["queues"] is not None:
        log = row["commit_log"]
        yield from _queue_lines(row["queues"], by_queues=log is None or log["diverged"] is None)
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
    yield from verdict_lines(of_diff(row, _result(found)))
    yield from carry_lines(row, stores)
    yield from newer_lines(row, found, stores)
    yield from lacking_lines(row, found, stores)


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
    yield from _epoch_lines(log, row)
    if log["diverged"] is not None:
        yield from _diverged_lines(log["diverged"])
    for part in log["only"]:
        if part["place"] == "after" and log["diverged"] is not None:
            continue  # of what it has of its own: that has been said
        yield f"only {part['side'].upper():<8}{_only_text(part)}"
    if log["diverged"] is None:
        yield from _ahead_lines(log, row)


def _epoch_lines(log: Row, row: Row) -> Iterator[str]:
    """Where a broker in controller mode cuts its log if it becomes a slave of the other one."""
    if not log["has_epochs"]:
        return
    place = log["epochs_end"]
    if place is None:
        yield "epochs       none in common: neither broker can become a slave of the other one"
        return
    logs = {name.upper(): row[name]["commit_log"] for name in "ab"}
    beyond = [name for name, found in logs.items() if found is not None and found["end_offset"] > place]
    if beyond:
        yield (
            f"epochs       as a slave of the other one the broker of {' or '.join(beyond)} cuts its log at"
            f" {place}"
        )


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
    at = (each["a"] or {}).get("at")
    if fields and at is not None and stop > at["physical_offset"] + at["size"]:
        fields += " of the first record"
    yield f"differs      {start} to {stop}: {text}{fields}{_sound_text(each)}"
    for found in each["lacking"]:
        side, other = found["side"].upper(), _OTHER[found["side"]].upper()
        has = "no sound record"
        if found["kind"] == "properties":
            has = "damaged properties (keys, tags)"
        elif found["kind"] == "fillers":
            has = counted(found["fillers"], "filler")
        place, messages = (
            f"{found['from_offset']} to {found['to_offset']}",
            counted(found["messages"], "message"),
        )
        whole = " with sound ones" if found["kind"] == "properties" else ""
        yield f"{'':<13}{place}: {has} in {side}, {messages}{whole} in {other}{_elsewhere_text(found)}"
    for place in ("before", "at", "after") if is_first else ("at",):
        a, b = ((each[name] or {}).get(place) for name in "ab")
        label = {"before": "before it ", "at": "", "after": "after it "}[place]
        if a == b and a is not None:
            yield f"             {label or 'there '}in both {_found_text(a)}"
            continue
        for name, part in (("A", a), ("B", b)):
            if part is not None:
                yield f"             {label}in {name} {_found_text(part)}"


def _elsewhere_text(found: Row) -> str:
    """Say where the side with the fillers has the messages of the other one."""
    carried, side = found["carried"], found["side"].upper()
    if not carried["in_other"]:
        return ""
    first, last = carried["in_other_first_offset"], carried["in_other_last_offset"]
    them = "it" if found["messages"] == 1 else str(carried["in_other"])
    place = f"at {first}" if first == last else f"from {first} to {last}"
    return f"; {side} has {them} {place}, by unique key"


def _sound_text(each: Row) -> str:
    """Say which side has a sound record: with two of them the logs differ, with one a log is damaged."""
    sides = [
        name.upper()
        for name in "ab"
        if (part := (each[name] or {}).get("at")) and part["kind"] == "record" and part["status"] == "ok"
    ]
    if not sides:
        return ""
    if any(found["kind"] == "fillers" for found in each["lacking"]):
        return "; fillers of rmqtool recover"
    if len(sides) == 2:
        return "; two different records"
    if any(ends_file((each[name] or {}).get("at")) for name in "ab"):
        return f"; a record in {sides[0]}, where the file of {_OTHER[sides[0].lower()].upper()} ends"
    return f"; {damage_text(each) or f'the record is sound in {sides[0]} only'}"


def _found_text(part: Row) -> str:
    place = f"{part['physical_offset']} to {part['physical_offset'] + part['size']}"
    if part["kind"] == "record":
        words = ", ".join(_STATUS.get(word, word) for word in part["status"].split("+"))
        if part["is_filler"]:
            words += ", a filler of rmqtool recover"
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
    yield f"ahead        {log['ahead'].upper()} by {_ahead_text(log)}{live}"
    behind = log["behind_end"]
    if behind is None or behind["state"] == "empty":
        return
    side, other = behind["side"].upper(), _OTHER[behind["side"]].upper()
    what = f"bytes that {other} does not have: a damaged record, or the remains of an older log"
    if behind["state"] == "part":
        what = "part of the next record"
    yield f"             after its end {side} has {what}"


def _ahead_text(log: Row) -> str:
    count, size = log["ahead_messages"], format_size(log["ahead_bytes"])
    return size if count is None else f"{counted(count, 'message')}, {size}"


def _queue_lines(queues: Row, *, by_queues: bool) -> Iterator[str]:
    """Yield how the queues differ, with `by_queues` by how many messages only one side has.

    That says nothing of logs that have diverged: there the same queue offsets hold other messages.
    """
    texts = (
        ("identical", "identical"),
        ("different", "different"),
        ("behind", "lag behind their log"),
        ("more", "have messages that only one store has"),
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
    for name in "ab" if by_queues else "":
        yield from _topic_lines(name, queues["only_by_topic"])
    yield from _twice_lines(queues["given_twice"])


def _twice_lines(found: list[Row]) -> Iterator[str]:
    """Yield how many queue offsets name one message in A and another in B, by topic and queue."""
    topics: dict[str, dict[str, int]] = {}
    for each in found:
        queue = f"queue {each['queue_id']} {each['from_offset']} to {each['to_offset'] - 1}"
        topics.setdefault(each["topic"], {})[queue] = each["to_offset"] - each["from_offset"]
    if found:
        total = counted(sum(sum(queues.values()) for queues in topics.values()), "queue offset")
        yield f"given twice  {total}, since the logs parted: in A of one message, in B of another"
    for topic, queues in topics.items():
        shown = list(queues)[:_QUEUES_SHOWN]
        more = f" and {len(queues) - len(shown)} more (--json)" if len(queues) > len(shown) else ""
        yield f"{'':<13}{sum(queues.values())} of {shortened(topic)}: {', '.join(shown)}{more}"


def _singular(text: str) -> str:
    """Return the text in the singular, for a count of one."""
    verb, *others = text.split(" ")
    return " ".join(({"lag": "lags", "have": "has"}.get(verb, verb), *others))


def _topic_lines(side: str, topics: list[Row]) -> Iterator[str]:
    """Yield the counts of messages, by topic, that only this side's queues hold."""
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
    ) + (" differs" if sum(config["differing_entries"].values()) == 1 else " differ")  # fmt: skip
    yield f"config       {counted(files, 'file')} compared: {verdict}"
    for name, side in config["only_in"].items():
        yield f"             {name}: only in {side.upper()}"
    for each in [each for each in config["entries"] if each["file"] not in config["only_in"]]:
        a, b = (_value_text(each[name]) for name in "ab")
        text = f"A {a}, B {b}"
        for name in "AB":
            if each[_OTHER[name.lower()]] is None:
                text = f"only in {name}: {_value_text(each[name.lower()])}"
        yield f"             {each['file']} {each['entry']}: {text}"


def _value_text(value: Any) -> str:
    """Return a value as the file has it: of an object the names and values of its fields that have one."""
    if isinstance(value, dict):
        fields = {
            name: item for name, item in value.items() if item not in (None, "", [], {}) and name != "name"
        }
        text = ", ".join(f"{_camel(name)} {json_text(item)}" for name, item in fields.items()) or "none"
    else:
        text = "none" if value is None else json_text(value)
    return text if len(text) <= _VALUE_LENGTH else f"{text[: _VALUE_LENGTH - 3]}..."


_VALUE_LENGTH = 240


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _result(found: Difference) -> str:
    if found.is_continued and found.log is not None and found.log.ahead is not None:
        text = f"same history: {found.log.ahead.upper()} is ahead by {_ahead_text(found.row()['commit_log'])}"
        if found.differs_in_common:
            return f"{text}; the configuration differs"
        return f"{text}; offsets of consumers or deliveries differ" if found.differs else text
    if found.differs_in_common:
        if found.log is not None and found.log.diverged is not None:
            return "the stores differ; their logs have diverged"
        messages = (found.log, found.queues)
        if None not in messages and not found.has_more and not any(each.differs for each in messages if each):
            return "logs and queues are identical; only the configuration differs"
        return "the stores differ"
    more = ", one side holds more" if found.has_more else ""
    moving = ", offsets of consumers or deliveries differ" if found.differs else ""
    rest = ", some parts could not be read" if found.unread else ""
    common = "identical in what both hold" if more or moving else "identical"
    return common + more + moving + rest
