"""The text of `rmqtool diff`: what differs, and the lines that carry messages over from one side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmqtool.commands import options
from rmqtool.commands.verdicts import (
    damage_text,
    ends_file,
    filled_ranges,
    lacking_ranges,
    listed,
    of_diff,
    verdict_lines,
    wholly_held,
)
from rmqtool.message.cells import json_text
from rmqtool.sizes import largest_counts
from rmqtool.terminal import counted, format_size, shortened

if TYPE_CHECKING:
    from rmqtool.check.diff import Difference
    from rmqtool.storage.layout import StoreLayout

Row = dict[str, Any]

_TOPICS_SHOWN = 5
_RANGES_SHOWN = 3  # of messages to carry over, each with a command line
_OTHER = {"a": "b", "b": "a"}
_CHOOSE = (
    "carry over   Stop both brokers and choose the store that stays. Run only what is printed for that"
    " store, and only once: a second run adds the messages again. Delayed messages that were delivered"
    " already are delivered again."
)
_STATUS = {
    "ok": "sound",
    "body_crc": "its body does not match its CRC",
    "foreign": "stored for another offset",
    "ends_in_zeros": "ends in zeros",
}

_KINDS = {"unused": "bytes after a blank, which no broker reads", "zeros": "zeros up to the end of the file"}


Stores = Mapping[str, options.StoreOptions]
"""The stores `a` and `b`, for command lines."""


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
    yield from _carry_lines(row, stores)
    yield from _newer_lines(row, found, stores)
    yield from _lacking_lines(row, found, stores)


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
    beyond = [name.upper() for name in "ab" if row[name]["commit_log"]["end_offset"] > place]
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


def _carry_lines(row: Row, stores: Stores) -> Iterator[str]:
    """Yield for each store the command lines that add the other's messages, if it is the one that stays."""
    diverged = row["commit_log"]["diverged"] if row["commit_log"] is not None else None
    if diverged is None:
        return
    yield ""
    yield from _offset_lines(row["committed_offsets"])
    yield from _repeated_lines(diverged, stores)
    whole = wholly_held(row)
    if whole:
        yield from _nothing_lines(whole, row, stores)
        return
    yield _CHOOSE
    for name in "ab":
        yield from _repair_lines(name, row, stores)
    for name in "ba":
        yield from _carry_one_way(name, row, stores)


def _nothing_lines(whole: list[str], row: Row, stores: Stores) -> Iterator[str]:
    """Yield that no message has to be carried over; `whole` as `wholly_held`."""
    if len(whole) == 2:
        yield (
            "carry over   Nothing: each store holds every message of the other already, by unique key. Keep"
            " one, and empty the other before it becomes its slave."
        )
    else:
        name, other = whole[0].upper(), _OTHER[whole[0]].upper()
        yield (
            f"carry over   Nothing: {other} holds every message of {name} already, by unique key."
            f" Keep {other}, and empty {name} before it becomes a slave of {other}."
        )
    for name in "ab":
        yield from _repair_lines(name, row, stores)
    for name in whole:
        yield from _offset_commands(_OTHER[name], row, stores)


def _repeated_lines(diverged: Row, stores: Stores) -> Iterator[str]:
    """Yield that one side has messages of the other more than once, as after a second run of a line."""
    for name in "ab":
        found, other = diverged[name]["carried"], _OTHER[name]
        if found is not None and found["in_other_repeated"]:
            what = counted(found["in_other_repeated"], "message")
            line = stores[other].command("stats", "--duplicates")
            yield f"{'repeated':<13}{other.upper()} has {what} of {name.upper()} more than once: {line}"


_OFFSETS_SHOWN = 10


def _offset_lines(found: Row | None) -> Iterator[str]:
    """Yield which committed offsets fit both stores, and which do not."""
    if found is None:
        return
    for each in found["unknown"]:
        yield f"offsets      those of {each['side'].upper()} are unknown: {each['reason']}"
    if found["unknown"] or not found["compared"]:
        return
    what = f"{counted(found['compared'], 'committed offset')} of {counted(found['groups'], 'group')}"
    others = found["others"]
    if not others:
        yield (
            f"offsets      {what}: equal in A and B, and none is past the place where its queue parts: they"
            " fit both stores"
        )
        return
    fit = found["compared"] - len(others)
    yield (
        f"offsets      of {what} {fit} {'fits' if fit == 1 else 'fit'} both stores: equal in A and B, and not"
        f" past the place where the queue parts. The {'other' if len(others) == 1 else 'others'}:"
    )
    for each in others[:_OFFSETS_SHOWN]:
        yield f"{'':<13}{_offset_text(each)}"
    if len(others) > _OFFSETS_SHOWN:
        yield f"{'':<13}and {len(others) - _OFFSETS_SHOWN} more: --json names them"


def _offset_text(each: Row) -> str:
    a, b = ("none" if each[name] is None else each[name] for name in "ab")
    queue = f"{shortened(each['topic'])} queue {each['queue_id']}"
    text = f"group {shortened(each['group'])}, {queue}"
    if each["parts_at"] is not None:
        text += f", which parts at {each['parts_at']}"
    text += f": A {a}, B {b}. "
    if each["parts_at"] is None:
        return f"{text}{each['fits_a']} fits both"
    if each["a"] == each["b"]:
        return f"{text}One of the two names other messages; with {each['fits_a']} the group skips none"
    text += f"{each['fits_a']} fits A, {each['fits_b']} fits B"
    for name in "ab":
        again, other = each[f"fits_{name}"] - each["parts_at"], _OTHER[name].upper()
        if again > 0 and (each[name] or 0) > each["parts_at"]:
            text += f". In {other} {each[name]} names another message; if {other} stays, the group receives"
            text += f" {counted(again, 'message')} of {name.upper()} again"
    return text


def _offset_commands(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield the lines that set the offsets that fit store `name`, where it has others."""
    found = row["committed_offsets"]
    others = found["others"] if found is not None and not found["unknown"] else ()
    changed = [each for each in others if (each[name] or 0) != each[f"fits_{name}"]]
    if changed:
        yield f"{'':<13}and set the offsets that fit {name.upper()}:"
    for each in changed[:_OFFSETS_SHOWN]:
        words = ("--group", each["group"], "--topic", each["topic"], "--queue", str(each["queue_id"]))
        line = stores[name].command("reset-offset", *words, "--from", str(each[f"fits_{name}"]), "--apply")
        yield f"{'run':<13}{line}"


def _lacking_lines(row: Row, found: Difference, stores: Stores) -> Iterator[str]:
    """Yield the command lines that add the messages of one side where the other has fillers or damage.

    If one side is ahead too, the choice of the store that stays decides which lines are run.
    """
    log = row["commit_log"]
    if log is None or log["diverged"] is not None or not log["ranges"]:
        return
    lines = {name: list(_carry_lacking(name, row, stores)) for name, to in (("a", found.b), ("b", found.a))
             if _takes_messages(to.store.layout)}  # fmt: skip
    ahead = log["ahead"]
    newer = list(_carry_ahead(ahead, row, stores)) if ahead in lines else []
    if newer:
        yield ""
        yield _CHOOSE
        for name in "ba":
            own = newer if name == ahead else []
            if own or lines.get(name):
                yield from _of_one_choice(name, lines[name], own, row, stores)
    elif any(lines.values()):
        yield ""
        yield (
            "carry over   Stop both brokers before you run a line. It adds the messages at the end of the"
            " log, with new queue offsets. Run each line once: a second run adds the messages again."
        )
        for name in lines:
            if lines[name] and _damaged_places(_OTHER[name], row):
                yield from _repair_lines(_OTHER[name], row, stores)
        for name in lines:
            yield from lines[name]
    for name in "ab":
        yield from _restore_lines(name, row, stores)


def _of_one_choice(name: str, lines: list[str], newer: list[str], row: Row, stores: Stores) -> Iterator[str]:
    """Yield what to do if the other side of `name` stays: `lines` and `newer` carry messages to it."""
    what = [_carried_text(row["commit_log"]["ahead_carried"], name)] if newer else []
    if lines:
        what.append(_lacking_text(name, row))
    yield f"{f'if {_OTHER[name].upper()} stays':<13}{'; '.join(what)}"
    yield from _repair_lines(_OTHER[name], row, stores)
    yield from newer
    yield from lines


def _carry_ahead(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield the lines that carry over what side `name` has after the end of the other log, if it lacks it."""
    from rmqtool.check.diff import NOT_CARRIED

    found = row["commit_log"]["ahead_carried"]
    if found is not None and found["messages"] > found["in_other"]:
        limits = row["commit_log"]["common_end"], row[name]["commit_log"]["end_offset"]
        yield from _carry_ranges(row, name, found, NOT_CARRIED, limits, stores)
        yield from _new_topic_lines(row, name)


def _takes_messages(layout: StoreLayout) -> bool:
    """Whether `append` writes to this store."""
    return layout.kind == "store" and layout.ledger is None and layout.has_files_of_queues


def _lacking_text(name: str, row: Row) -> str:
    """Return which messages of side `name` the other side lacks, in places that both logs have."""
    why = "is damaged" if _damaged_places(_OTHER[name], row) else "has fillers"
    return f"messages where {_OTHER[name].upper()} {why}"


def _damaged_places(name: str, row: Row) -> int:
    """Return the number of damaged places of a side where the other one has messages."""
    return sum(part["side"] == name for each in row["commit_log"]["ranges"] for part in each["lost"])


def _restore_lines(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield which messages of side `name` the lines leave behind, and the repair that keeps all of them."""
    from rmqtool.check.diff import NOT_CARRIED

    ranges = [each for each in filled_ranges(row) if each["side"] == _OTHER[name]]
    if not ranges:
        return
    filled, whole = _OTHER[name].upper(), name.upper()
    count = sum(each["messages"] for each in ranges)
    if behind := count - sum(each["carried"]["messages"] for each in ranges):
        stay = "stays" if behind == 1 else "stay"
        what = f"{counted(behind, 'message')} of topics {NOT_CARRIED}"
        yield f"{'':<13}{what} {stay} behind (half messages, op records)."
    what = "it keeps its queue offset" if count == 1 else f"all {count} messages keep their queue offsets"
    yield (
        f"instead      If nothing was written to {filled} since its repair, undo that, and copy the files of"
        f" the log that hold bytes {ranges[0]['from_offset']} to {ranges[-1]['to_offset']} from"
        f" {whole}: {what}."
    )
    yield f"{'undo':<13}{stores[_OTHER[name]].command('recover', '--undo', 'BACKUP')}"


def _carry_lacking(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield the lines that carry over the messages of side `name` where the other has fillers or damage.

    Messages that the other side has elsewhere are left out.
    """
    from rmqtool.check.diff import NOT_CARRIED

    ranges = [
        each
        for each in lacking_ranges(row)
        if each["side"] == _OTHER[name] and each["carried"]["messages"] > each["carried"]["in_other"]
    ]
    for each in ranges[:_RANGES_SHOWN]:
        found = each["carried"]
        if found["in_other"] or found["without_uniq_key"]:
            place = f"{each['from_offset']} to {each['to_offset']}"
            yield f"{'':<13}{place}: {_carried_text(found, name)}"
        yield from _carry_ranges(
            row, name, found, NOT_CARRIED, (each["from_offset"], each["to_offset"]), stores
        )
    if ranges:
        yield from _new_topic_lines(row, name)
    if len(ranges) > _RANGES_SHOWN:
        yield f"{'':<13}and {counted(len(ranges) - _RANGES_SHOWN, 'more range')}: --json names them"


def _newer_lines(row: Row, found: Difference, stores: Stores) -> Iterator[str]:
    """Yield what to do about a store that is ahead of the other: nothing, or to carry the messages over."""
    from rmqtool.check.diff import NOT_CARRIED

    log, is_store = row["commit_log"], row["a"]["kind"] == row["b"]["kind"] == "store"
    if not found.is_continued or not is_store:
        return
    name = log["ahead"]
    new, old = name.upper(), _OTHER[name].upper()
    older = f" except those before {log['common_start']}"
    held = f"all messages of {old}{older if any(part['side'] != name for part in log['only']) else ''}"
    yield ""
    nothing = f"carry over   Nothing if {new} stays: it holds {held}."
    layout = (found.a, found.b)["ab".index(_OTHER[name])].store.layout
    if layout.ledger is not None:  # it has replicas, and append does not write there
        yield nothing
        return
    yield f"{nothing} As a slave of {new}, {old} gets the others from {new} by itself."
    if not layout.has_files_of_queues:
        return  # append does not write there
    yield (
        f"if {old} stays   Stop both brokers and run the line once: a second run adds the messages again."
        f" Delayed messages that were delivered already are delivered again. Empty {new} before it becomes a"
        f" slave of {old}."
    )
    yield from _repair_lines(_OTHER[name], row, stores)
    part = next(part for part in log["only"] if part["place"] == "after")
    limits = part["physical_offset"], part["physical_offset"] + part["length"]
    yield _carry_line(row, name, NOT_CARRIED, limits, stores)
    yield from _new_topic_lines(row, name)


def _repair_lines(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield the line that repairs a side first, if it is damaged or was not stopped cleanly."""
    log = row["commit_log"]
    found = log["diverged"][name]["carried"] if log["diverged"] is not None else None
    reasons = ["was not stopped cleanly"] if row[name]["abort"] and not row[name]["live"] else []
    damaged = _damaged_places(name, row) + (found["damaged_places"] if found is not None else 0)
    if damaged:
        reasons.append(f"is damaged in {counted(damaged, 'place')}")
    after = log["behind_end"]
    is_behind = log["diverged"] is None and after is not None and after["side"] == name
    if is_behind and after["state"] != "empty":
        reasons.append("has bytes after its end")
    if row[name]["repair_unfinished"]:
        reasons.append("has an interrupted repair")
    if reasons:
        why = f"{name.upper()} {' and '.join(reasons)}"
        yield f"first        {why}: repair it, do not start it, then compare again:"
        yield f"{'run':<13}{stores[name].command('recover', '--apply')}"


def _carry_one_way(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield what one side has that the other lacks, and the lines that carry it over."""
    label = f"if {_OTHER[name].upper()} stays"
    lacking = list(_carry_lacking(name, row, stores))
    if row["commit_log"]["diverged"][name]["records"] != 0:
        yield f"{label:<13}{_parted_text(name, row)}"
        yield from _carry_parted(name, row, stores)
    elif lacking:
        yield f"{label:<13}{_lacking_text(name, row)}"
    yield from lacking
    yield from _offset_commands(_OTHER[name], row, stores)


def _parted_text(name: str, row: Row) -> str:
    found = row["commit_log"]["diverged"][name]["carried"]
    if found is None:
        return "not compared by unique key (more than 2 GiB): messages that both have are added twice"
    return _carried_text(found, name)


def _carry_parted(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield the lines that carry over what one side has from the offset on where the logs part."""
    diverged = row["commit_log"]["diverged"]
    found = diverged[name]["carried"]
    limits = diverged["physical_offset"], row[name]["commit_log"]["end_offset"]
    if found is None:
        yield _carry_line(row, name, diverged["not_carried"], limits, stores)
    elif found["messages"] == found["in_other"]:
        return
    else:
        yield from _carry_ranges(row, name, found, diverged["not_carried"], limits, stores)
    yield from _new_topic_lines(row, name)


def _carry_ranges(
    row: Row, name: str, found: Row, exclude: str, limits: tuple[int, int], stores: Stores
) -> Iterator[str]:
    """Yield the lines that carry over what the other side lacks of the messages within the limits."""
    ranges = [(each["from_offset"], each["to_offset"]) for each in found["ranges"]]
    if not 1 <= len(ranges) <= _RANGES_SHOWN:
        if found["in_other"]:
            twice = counted(found["in_other"], "message")
            where = f" ({len(ranges)} ranges in --json leave them out)" if ranges else ""
            yield f"             the line adds {twice} a second time, which lie between the others{where}"
        ranges = [limits]
    for each in ranges:
        # With both limits the line never takes messages that another line has added to the end.
        yield _carry_line(row, name, exclude, each, stores)


def _carried_text(found: Row, name: str) -> str:
    total, both, only = found["messages"], found["in_other"], found["only_here"]
    topics = listed(largest_counts(found["topics"], "topic", shortened))
    if total == only:
        return f"{counted(total, 'message')} only in {name.upper()}: {topics}"
    parts = [f"{only} only in {name.upper()}"]
    if both:
        parts.insert(0, f"{both} already in {_OTHER[name].upper()} by unique key")
    if found["without_uniq_key"]:
        parts.append(f"{found['without_uniq_key']} without a unique key may be in both")
    return f"{counted(total, 'message')}: {', '.join(parts)}{f' ({topics})' if topics else ''}"


def _carry_line(row: Row, name: str, exclude: str, limits: tuple[int, int], stores: Stores) -> str:
    """Return the line that adds messages of side `name` to the other store.

    A topic that the other store lacks is created there with as many queues as it has here.
    """
    words = ["--from-offset", str(limits[0]), "--to-offset", str(limits[1])]
    line = stores[name].command("dump", *words, "--exclude-topic", exclude, "--json")
    numbers = set(_new_topics(row, name).values())
    queues = ["--queues", str(numbers.pop())] if len(numbers) == 1 else []
    append = stores[_OTHER[name]].command("append", "--create-topic", *queues, "--input", "-")
    return f"{'run':<13}{line} | {append}"


def _new_topics(row: Row, name: str) -> dict[str, int]:
    """Return the topics of side `name` that the other side lacks, with their numbers of queues."""
    other, entries = _OTHER[name], row["config"]["entries"] if row["config"] is not None else []
    return {
        each["entry"]: each[name]["write_queue_nums"]
        for each in entries
        if each["file"] == "topics.json" and each[other] is None and each[name] is not None
    }


def _new_topic_lines(row: Row, name: str) -> Iterator[str]:
    """Yield that topics must be created first, because a line creates all with the same number of queues."""
    topics = _new_topics(row, name)
    listed = 0 if row["config"] is None else sum(
        each["file"] == "topics.json" for each in row["config"]["entries"]
    )  # fmt: skip
    if row["config"] is None:
        yield "             append creates a topic with 4 queues: create topics that are missing first"
    elif len(set(topics.values())) > 1:
        shown = ", ".join(
            f"{shortened(topic)} {count}" for topic, count in list(topics.items())[:_TOPICS_SHOWN]
        )
        more = f" and {len(topics) - _TOPICS_SHOWN} more" if len(topics) > _TOPICS_SHOWN else ""
        yield (
            f"             append creates a topic with 4 queues, but {name.upper()} has other numbers"
            f" ({shown}{more}): create these topics in {_OTHER[name].upper()} first"
        )
    elif listed < row["config"]["differing_entries"].get("topics.json", 0):
        yield "             more topics may be missing (--differences N shows N entries of each file)"


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
    for found in each["filled"]:
        side, other = found["side"].upper(), _OTHER[found["side"]].upper()
        fillers, messages = counted(found["fillers"], "filler"), counted(found["messages"], "message")
        place = f"{found['from_offset']} to {found['to_offset']}"
        yield f"{'':<13}{place}: {fillers} in {side}, {messages} in {other}{_elsewhere_text(found)}"
    for found in each["lost"]:
        side, other = found["side"].upper(), _OTHER[found["side"]].upper()
        place = f"{found['from_offset']} to {found['to_offset']}"
        messages = counted(found["messages"], "message")
        yield f"{'':<13}{place}: no sound record in {side}, {messages} in {other}{_elsewhere_text(found)}"
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
    if each["filled"]:
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
