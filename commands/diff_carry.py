"""The lines of `rmqtool diff` that carry messages over from one store to the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rmqtool.command_line import argument, command_line
from rmqtool.commands import options
from rmqtool.commands.verdicts import Row, lacking_ranges, listed, wholly_held
from rmqtool.sizes import largest_counts
from rmqtool.storage.size_settings import settings_to_give
from rmqtool.terminal import counted, shortened

if TYPE_CHECKING:
    from rmqtool.check.diff import Difference
    from rmqtool.storage.layout import StoreLayout

Stores = Mapping[str, options.StoreOptions]
"""The stores `a` and `b`, for command lines."""

_TOPICS_SHOWN = 5
_RANGES_SHOWN = 3  # of messages to carry over, each with a command line
_FILES_SHOWN = 5
_OTHER = {"a": "b", "b": "a"}
_CHOOSE = (
    "carry over   Stop both brokers and choose the store that stays. Run only what is printed for that"
    " store, and only once: a second run adds the messages again. Delayed messages that were delivered"
    " already are delivered again."
)
_KINDS = ("damage", "fillers", "properties")
_FILES_OF = {
    "commit_log_file_size": "log files",
    "consume_queue_file_size": "queue files",
    "batch_queue_file_size": "batch queue files",
    "ext_queue_file_size": "extension files",
    "index_slots": "index files",
    "index_entries": "index files",
}


def carry_lines(row: Row, stores: Stores) -> Iterator[str]:
    """Yield for each store the command lines that add the other's messages, if it is the one that stays.

    Only of logs that have diverged. Before them stand the files to copy: afterwards there is less to add.
    """
    diverged = row["commit_log"]["diverged"] if row["commit_log"] is not None else None
    if diverged is None:
        return
    yield ""
    yield from _copy_lines(row, stores)
    yield from _offset_lines(row["committed_offsets"])
    yield from _repeated_lines(diverged, stores)
    whole = wholly_held(row)
    if len(whole) == 2:
        yield (
            "carry over   Nothing: each store holds every message of the other already, by unique key. Keep"
            " one, and empty the other before it becomes its slave."
        )
    else:
        yield _CHOOSE
    for name in "ab":
        yield from _repair_lines(name, row, stores, "" if len(whole) == 2 else "Whichever store stays: ")
    for name in "ba":
        other = _OTHER[name].upper()
        if name in whole and len(whole) == 1:
            yield (
                f"{f'if {other} stays':<13}Nothing: {other} holds every message of {name.upper()} already,"
                f" by unique key. Empty {name.upper()} before it becomes a slave of {other}."
            )
        elif name not in whole:
            yield from _titled(f"if {other} stays", _groups(name, row, stores))
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
    topics: dict[tuple[str, str], list[Row]] = {}
    for each in others[:_OFFSETS_SHOWN]:
        topics.setdefault((each["group"], each["topic"]), []).append(each)
    for (group, topic), queues in topics.items():
        head, place = f"group {shortened(group)}, {shortened(topic)}", f"{'':<13}"
        if len(queues) > 1:
            yield f"{place}{head}, {len(queues)} queues{'. '.join(['', *_again_texts(queues)])}"
            head, place = "", f"{place}  "
        for each in queues:
            texts = [_offset_text(each), *(_again_texts(queues) if head else ())]
            yield f"{place}{head}{' ' if head else ''}{'. '.join(texts)}"
    if len(others) > _OFFSETS_SHOWN:
        yield f"{'':<13}and {len(others) - _OFFSETS_SHOWN} more: --json names them"


def _offset_text(each: Row) -> str:
    a, b = ("none" if each[name] is None else each[name] for name in "ab")
    text = f"queue {each['queue_id']}"
    if each["parts_at"] is not None:
        text += f", which parts at {each['parts_at']}"
    text += f": A {a}, B {b}. "
    if each["parts_at"] is None:
        return f"{text}{each['fits_a']} fits both"
    if each["a"] == each["b"]:
        return f"{text}One of the two names other messages; with {each['fits_a']} the group skips none"
    return f"{text}{each['fits_a']} fits A, {each['fits_b']} fits B"


def _again_texts(queues: Sequence[Row]) -> Iterator[str]:
    """Yield what happens with the offsets of a group past the places where queues of a topic part."""
    parted = [each for each in queues if each["parts_at"] is not None and each["a"] != each["b"]]
    for name in "ab":
        past = [each for each in parted if each["parts_at"] < min(each[name] or 0, each[f"fits_{name}"])]
        if past:
            other = _OTHER[name].upper()
            again = sum(each[f"fits_{name}"] - each["parts_at"] for each in past)
            offset = f"{past[0][name]} names another message"
            if len(queues) > 1:
                offset = f"{name.upper()}'s offsets past the parting name other messages"
            yield (
                f"In {other} {offset}; if {other} stays, the group receives {counted(again, 'message')} of"
                f" {name.upper()} again"
            )


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


Group = tuple[str, list[str]]
"""What is carried over, as a title, and its lines."""


def lacking_lines(row: Row, found: Difference, stores: Stores) -> Iterator[str]:
    """Yield the command lines that add the messages of one side where the other lacks them.

    Only of logs that have not diverged. If one side is ahead too, the choice of the store that stays decides
    which lines are run.
    """
    log = row["commit_log"]
    if log is None or log["diverged"] is not None or found.is_continued:
        return
    groups = {name: _groups(name, row, stores) if _takes_messages(to.store.layout) else []
              for name, to in (("b", found.a), ("a", found.b))}  # fmt: skip
    copied = [each["side"] for each in log["whole_files"]]
    for each in log["whole_files"]:
        if each["is_all"]:
            groups[_OTHER[each["side"]]] = []
    unfilled = [
        name for name, side in (("a", found.a), ("b", found.b))
        if _missing_parts(name, row) and _takes_messages(side.store.layout)
        and not (groups[_OTHER[name]] or name in copied)
    ]  # fmt: skip
    if copied or unfilled or any(groups.values()):
        yield ""
    yield from _copy_lines(row, stores)
    ahead = log["ahead_carried"]
    if ahead is not None and ahead["messages"] > ahead["in_other"] and groups[log["ahead"]]:
        yield _CHOOSE
        for name in groups:
            yield from _titled(f"if {_OTHER[name].upper()} stays", groups[name],
                               list(_repair_lines(_OTHER[name], row, stores)))  # fmt: skip
    elif any(groups.values()):
        yield (
            "carry over   Stop both brokers before you run a line. It adds the messages at the end of the"
            " log, with new queue offsets. Run each line once: a second run adds the messages again."
        )
        for name in groups:
            if groups[name] and _is_repaired_first(_OTHER[name], row):
                yield from _repair_lines(_OTHER[name], row, stores)
        for name in groups:
            yield from _titled("", groups[name])
    for name in unfilled:
        yield from _repair_lines(name, row, stores, f"If {name.upper()} stays: ")


def _is_repaired_first(name: str, row: Row) -> bool:
    """Whether `append` refuses a side, or what it lacks shows only after a repair."""
    return bool(_damaged_places(name, row) or _missing_parts(name, row)) or _units_past_end(name, row)


def _titled(label: str, groups: list[Group], first: list[str] | None = None) -> Iterator[str]:
    """Yield the groups, each with its title; the lines `first` follow the first title."""
    for number, (title, lines) in enumerate(groups):
        yield f"{label if number == 0 else 'and':<13}{title}"
        if number == 0:
            yield from first or ()
        yield from lines


def _groups(name: str, row: Row, stores: Stores) -> list[Group]:
    """Return what carries over the messages of side `name` that the other side lacks."""
    log = row["commit_log"]
    groups: list[Group] = []
    if log["diverged"] is not None:
        if log["diverged"][name]["records"] != 0:
            groups.append((_parted_text(name, row), list(_carry_parted(name, row, stores))))
    elif log["ahead"] == name and (lines := list(_carry_ahead(name, row, stores))):
        groups.append((_carried_text(log["ahead_carried"], name), lines))
    for kind in _KINDS:
        ranges = [
            each
            for each in lacking_ranges(row)
            if (each["kind"], each["side"]) == (kind, _OTHER[name])
            and each["carried"]["messages"] > each["carried"]["in_other"]
        ]
        if ranges:
            groups.append(
                (_lacking_text(kind, name, ranges), list(_carry_lacking(name, ranges, row, stores)))
            )
    return groups


def _lacking_text(kind: str, name: str, ranges: list[Row]) -> str:
    """Return how many messages of side `name` lie in ranges that the other side lacks, by kind."""
    other, parts = _OTHER[name].upper(), [each["carried"] for each in ranges]
    count = sum(each["messages"] - each["in_other"] for each in parts)
    topics: Counter[str] = Counter()
    for each in parts:
        topics.update(each["topics"])
    what = f"{counted(count, 'message')} ({listed(largest_counts(topics, 'topic', shortened))})"
    if kind == "properties":
        have, them = ("has", "it") if count == 1 else ("have", "them")
        text = (
            f"{what} that {have} damaged properties (keys, tags) in {other} and sound ones in {name.upper()}."
            f" {other} keeps the body: consumers receive {them} twice"
        )
    else:
        text = f"{what} where {other} {'is damaged' if kind == 'damage' else 'has fillers'}"
    return text + _behind_text(sum(each["not_carried"] for each in parts))


def _behind_text(count: int) -> str:
    """Return how many messages no line carries over: their offsets mean nothing in another store."""
    from rmqtool.check.diff import NOT_CARRIED

    if not count:
        return ""
    stay = "stays" if count == 1 else "stay"
    return f"; {counted(count, 'message')} of topics {NOT_CARRIED} {stay} behind (half messages, op records)"


def _damaged_places(name: str, row: Row) -> int:
    """Return the number of places of a side that recover repairs, and where the other one has messages."""
    return sum((part["kind"], part["side"]) == ("damage", name) for part in lacking_ranges(row))


def _missing_parts(name: str, row: Row) -> int:
    """Return how many files, or parts of files, a side lacks between its others: recover fills them."""
    return sum(
        (part["place"], part["side"]) == ("inside", _OTHER[name]) for part in row["commit_log"]["only"]
    )


def _units_past_end(name: str, row: Row) -> bool:
    """Whether the queues of a side name records past the end of its log, which has lost them."""
    side = row[name]
    is_known = side["commit_log"] is not None and side["units_end_offset"] is not None and not side["live"]
    return is_known and side["units_end_offset"] > side["commit_log"]["end_offset"]


def _copy_lines(row: Row, stores: Stores) -> Iterator[str]:
    """Yield the files that one side has whole and the other lacks: to copy them keeps all messages."""
    for each in row["commit_log"]["whole_files"]:
        side, other, count = each["side"].upper(), _OTHER[each["side"]].upper(), each["messages"]
        files = counted(len(each["files"]), "file")
        what = "all messages keep their queue offsets"
        if count is not None:
            what = (
                "it keeps its queue offset"
                if count == 1
                else f"all {count} messages keep their queue offsets"
            )
        before = "before you repair it"
        if each["fillers"]:
            before = f"if nothing was written to {side} since its repair: undo that first"
        then = "before you run any other line: fewer messages are left to carry over"
        if each["is_all"]:
            then = f"to see that {side} lacks no message of {other}"
        yield (
            f"{'best':<13}If {side} stays, copy {files} of the log, whole and sound in {other}, {before}."
            f" Stop both brokers, copy, recover {side}: {what}. Then compare again {then}."
        )
        if each["fillers"]:
            yield f"{'undo':<13}{stores[each['side']].command('recover', '--undo', 'BACKUP')}"
        if replaced := [argument(path) for path in each["replaced"][:_FILES_SHOWN]]:
            keep = argument(each["keep"])
            yield f"{'keep':<13}{command_line('mkdir', '-p', keep)}"
            yield from (f"{'keep':<13}{command_line('mv', '-i', path, keep)}" for path in replaced)
        for file in each["files"][:_FILES_SHOWN]:
            yield f"{'copy':<13}{command_line('cp', '-p', argument(file['from']), argument(file['to']))}"
        if len(each["files"]) > _FILES_SHOWN:
            more = counted(len(each["files"]) - _FILES_SHOWN, "more file")
            yield f"{'and':<13}keep and copy {more} before the next line: --json names all (whole_files)"
        yield from _recover_lines(each["side"], row, stores)


def _carry_lacking(name: str, ranges: list[Row], row: Row, stores: Stores) -> Iterator[str]:
    """Yield the lines that carry over the messages of side `name` in ranges that the other side lacks.

    Messages that the other side has elsewhere are left out.
    """
    from rmqtool.check.diff import NOT_CARRIED

    for each in ranges[:_RANGES_SHOWN]:
        found = each["carried"]
        if found["in_other"] or found["without_uniq_key"]:
            place = f"{each['from_offset']} to {each['to_offset']}"
            yield f"{'':<13}{place}: {_carried_text(found, name)}"
        yield from _carry_ranges(
            row, name, found, NOT_CARRIED, (each["from_offset"], each["to_offset"]), stores
        )
    yield from _new_topic_lines(row, name)
    if len(ranges) > _RANGES_SHOWN:
        yield f"{'':<13}and {counted(len(ranges) - _RANGES_SHOWN, 'more range')}: --json names them"


def _parted_text(name: str, row: Row) -> str:
    found = row["commit_log"]["diverged"][name]["carried"]
    if found is None:
        return "not compared by unique key (more than 2 GiB): messages that both have are added twice"
    return _carried_text(found, name)


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


def newer_lines(row: Row, found: Difference, stores: Stores) -> Iterator[str]:
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
    yield from _copy_lines(row, stores)
    yield f"{nothing} As a slave of {new}, {old} gets the others from {new} by itself."
    if not layout.has_files_of_queues:
        return  # append does not write there
    yield (
        f"if {old} stays   Stop both brokers and run the line once: a second run adds the messages again."
        f" Delayed messages that were delivered already are delivered again. Empty {new} before it becomes a"
        f" slave of {old}."
    )
    ahead = log["ahead_carried"]
    if ahead is not None and (behind := ahead["not_carried"]):
        yield f"{'':<13}{_behind_text(behind)[2:]}."
    if ahead is not None and ahead["damaged_places"]:
        places = counted(ahead["damaged_places"], "place")
        yield f"{'':<13}{new} is damaged in {places} after the end of {old}: what is sound is added."
    yield from _repair_lines(_OTHER[name], row, stores)
    if ahead is None:
        limits = log["common_end"], row[name]["commit_log"]["end_offset"]
        yield _carry_line(row, name, NOT_CARRIED, limits, stores)
        yield from _new_topic_lines(row, name)
    else:
        yield from _carry_ahead(name, row, stores)


def _repair_lines(name: str, row: Row, stores: Stores, lead: str = "") -> Iterator[str]:
    """Yield the line that repairs a side first, if it is damaged or was not stopped cleanly.

    `lead` says when that is needed, if not always.
    """
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
    if _units_past_end(name, row):
        reasons.append("has queues that reach past its log")
    if missing := _missing_parts(name, row):
        reasons.append(f"lacks {counted(missing, 'part')} of its log")
    if reasons:
        why = f"{name.upper()} {' and '.join(reasons)}"
        yield f"first        {lead}{why}: repair it, do not start it, then compare again:"
        yield from _recover_lines(name, row, stores)


def _recover_lines(name: str, row: Row, stores: Stores) -> Iterator[str]:
    """Yield the line that repairs a side, and the sizes of files that only the other side shows."""
    settings = settings_to_give(row[name]["sizes"], row[_OTHER[name]]["sizes"])
    if settings:
        this, kinds = name.upper(), listed([*dict.fromkeys(_FILES_OF[each] for each in settings)], word="or")
        yield (
            f"{'sizes':<13}{this} has no {kinds} that show their size. If its broker has the settings of"
            f" {_OTHER[name].upper()}, write them into a FILE, each on a line:"
            f" {listed([*settings.values()])}. With the default sizes run recover without --broker-conf."
        )
    words = ("--broker-conf", "FILE") if settings else ()
    yield f"{'run':<13}{stores[name].command('recover', *words, '--apply')}"


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
    words: tuple[str, ...] = ()
    if not 1 <= len(ranges) <= _RANGES_SHOWN:
        if found["damaged_places"] or found["damaged_properties"]:
            words = ("--on-error", "skip")
            yield "             append skips the damaged messages between the others, and exits with 3 then"
        if found["in_other"]:
            twice = counted(found["in_other"], "message")
            where = f" ({len(ranges)} ranges in --json leave them out)" if ranges else ""
            yield f"             the line adds {twice} a second time, which lie between the others{where}"
        ranges = [limits]
    for each in ranges:
        # With both limits the line never takes messages that another line has added to the end.
        yield _carry_line(row, name, exclude, each, stores, *words)


def _carried_text(found: Row, name: str) -> str:
    total, both, only = found["messages"], found["in_other"], found["only_here"]
    topics = listed(largest_counts(found["topics"], "topic", shortened))
    rest = _behind_text(found["not_carried"])
    if found["damaged_properties"]:
        rest += f"; {found['damaged_properties']} with damaged properties, which append refuses"
    if total == only:
        return f"{counted(total, 'message')} only in {name.upper()}{f': {topics}' if topics else ''}{rest}"
    parts = [f"{only} only in {name.upper()}"]
    if both:
        parts.insert(0, f"{both} already in {_OTHER[name].upper()} by unique key")
    if found["without_uniq_key"]:
        parts.append(f"{found['without_uniq_key']} without a unique key may be in both")
    return f"{counted(total, 'message')}: {', '.join(parts)}{f' ({topics})' if topics else ''}{rest}"


def _carry_line(
    row: Row, name: str, exclude: str, limits: tuple[int, int], stores: Stores, *given: str
) -> str:
    """Return the line that adds messages of side `name` to the other store; `given` are options of append.

    A topic that the other store lacks is created there with as many queues as it has here.
    """
    words = ["--from-offset", str(limits[0]), "--to-offset", str(limits[1])]
    line = stores[name].command("dump", *words, "--exclude-topic", exclude, "--json")
    numbers = set(_new_topics(row, name).values())
    queues = ["--queues", str(numbers.pop())] if len(numbers) == 1 else []
    append = stores[_OTHER[name]].command("append", "--create-topic", *queues, *given, "--input", "-")
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
        from rmqtool.write.topics import DEFAULT_QUEUES

        others = [(topic, count) for topic, count in topics.items() if count != DEFAULT_QUEUES]
        shown = ", ".join(f"{shortened(topic)} {count}" for topic, count in others[:_TOPICS_SHOWN])
        more = f" and {len(others) - _TOPICS_SHOWN} more" if len(others) > _TOPICS_SHOWN else ""
        yield (
            f"             append creates a topic with 4 queues, but {name.upper()} has other numbers"
            f" ({shown}{more}): create these topics in {_OTHER[name].upper()} first"
        )
    elif listed < row["config"]["differing_entries"].get("topics.json", 0):
        yield "             more topics may be missing (--differences N shows N entries of each file)"
