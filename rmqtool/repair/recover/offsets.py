"""Corrects offsets in config files that would be outside of a queue: of groups and of delay levels.

If a group's offset is after the queue's end, the group misses the next messages, because their queue offsets
are reused. So the offset is set back to the end: no message is consumed twice, and the next ones are not
missed. But if the offset was wrong, the group skips what it has not read: the plan counts the messages of the
queue, and names the command that lets the group receive them again.

With CID_RMQ_SYS_TRANS a broker checks half messages, so its offset goes back to the first open one, and that
of the op records to the first that names a half message from there on: at the ends no open transaction would
ever be checked, and without their op records those that are finished would be checked again.

A lost delayOffset.json is made again, as far as the log shows which messages were delivered: without a .bak,
or from a .bak that is older than the log.

Source: ConsumerOffsetManager, ScheduleMessageService#correctDelayOffset; spec 02 sections 8.3 and 10.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats import config_change, config_json
from rmqtool.formats.fastjson import resolve
from rmqtool.message.system_topics import SCHEDULE_TOPIC, TRANSACTION_GROUP
from rmqtool.problems import COPY_CONFIG, Finding
from rmqtool.read.consumer_offsets import Offsets
from rmqtool.read.delay_loss import MESSAGES_MAX, DelayLoss, find_delay_loss, offsets_of_bak
from rmqtool.read.half_checks import HALF_TOPIC, OP_TOPIC, find_checks
from rmqtool.read.hidden_messages import hidden_finding, hidden_queues
from rmqtool.read.lost_config import CONSUMER_OFFSETS, how_lost, lost_config, what_happened_to
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action, ActionKind
from rmqtool.repair.rebuild.config import can_write_topics
from rmqtool.repair.recover.after import After
from rmqtool.storage.config_files import DELAY_OFFSETS, FOLDER, read_config

_MOVED_SHOWN = 100  # most offsets that a plan lists
_LEVELS_NAMED = 3
_WHY = {
    "no_key": "the message there has no unique key",
    "no_copy": "the log has no copy of the message there",
}


def delay_loss(store: Store, after: After) -> DelayLoss | None:
    """What the log shows of the delay levels if delayOffset.json is lost; None if it is not.

    Raises:
        UnreadableError: the log or a config file cannot be read.
    """
    noted = offsets_of_bak(store.layout)
    if noted is not None:
        return find_delay_loss(store, after.queues, after.log_end, noted)
    codes = {each.problem.code for each in lost_config(store.layout, _messages(after))}
    return find_delay_loss(store, after.queues, after.log_end) if "CF07" in codes else None


def offset_actions(store: Store, after: After, delays: DelayLoss | None) -> tuple[list[Action], list[str]]:
    """The changes of config files with wrong offsets, and warnings about files that could not be checked.

    `delays` is the result of `delay_loss`. If the log shows enough, delayOffset.json is made again.

    Raises:
        UnreadableError: a config file cannot be read.
    """
    root = store.layout.root
    hidden = hidden_queues(store.layout, after.queues, after.queues.get)
    if can_write_topics(store.layout):  # more queues are read then
        hidden = [each for each in hidden if not each.config.is_readable]
    lost = chain(
        lost_config(store.layout, _messages(after), last_ms=after.last_store_timestamp),
        hidden_finding(store.layout, hidden),
    )
    actions: list[Action] = []
    warnings: list[str] = []
    checked: list[tuple[str, Callable[[Any, After], tuple[list[dict[str, Any]], Any]]]] = [
        (CONSUMER_OFFSETS, partial(_consumers, store)), (DELAY_OFFSETS, _delays),
    ]  # fmt: skip
    if delays is None and offsets_of_bak(store.layout) is not None:
        warnings.append(_unexamined(store))
    if delays is not None and delays.is_known:
        checked.pop()
        lost = chain(each for each in lost if each.problem.code != "CF07")
        actions.append(_delay_action(store, after, delays))
    if delays is not None and (delays.is_known or delays.noted is not None):
        warnings += _twice(delays)
    warnings += [_lost_text(each, delays) for each in lost]
    if root is None or "config" not in store.layout.folders:
        return actions, warnings
    made = store.layout.rocksdb_config
    for name, moved in checked:
        try:
            in_rocksdb = made is not None and name in made.documents
            loaded = read_config(made.root if made is not None else root / FOLDER, name)
            if loaded.source == "none":
                continue
            changes, document = moved(loaded.document, after)
            if name == CONSUMER_OFFSETS and loaded.source == "bak":
                is_known = store.written_by.is_known
                document = config_change.with_old_offsets(document, is_known=is_known)
            if changes and in_rocksdb:
                warnings.append(_in_rocksdb(changes))
            elif changes:
                actions.append(_action(store, root / FOLDER / name, changes, document))
        except FormatError as error:
            warnings.append(f"{FOLDER}/{name} cannot be parsed, its offsets are not checked: {error.message}")
    return actions, warnings


def _in_rocksdb(changes: Sized) -> str:
    """A warning about committed offsets in RocksDB, which is not written."""
    what = _counted(
        changes,
        "committed offset in RocksDB is past the end of its queue, and stays as it is",
        "committed offsets in RocksDB are past the ends of their queues, and stay as they are",
    )
    return f"{what}: mqadmin resetOffsetByTime sets them on the running broker"


def _messages(after: After) -> dict[str, int]:
    """The number of messages that the queues will serve, by topic."""
    counts: dict[str, int] = {}
    for (topic, _), (low, high) in after.queues.items():
        counts[topic] = counts.get(topic, 0) + max(high - low, 0)
    return counts


def _lost_text(found: Finding, delays: DelayLoss | None) -> str:
    """A warning about a missing config file that recover cannot restore: the effect, and the remedy."""
    problem = found.problem
    repair = problem.repair or ""
    what = found.message or problem.message
    if problem.code == "CF07":
        repair = f"{COPY_CONFIG}; without one, accept that these messages are delivered again"
        what += _why_unknown(delays)
    return f"{problem.code} {what}; {problem.reaction}. {repair[:1].upper()}{repair[1:]}"


def _why_unknown(delays: DelayLoss | None) -> str:
    """Why nothing is known of the levels, as a clause; None: there are too many messages."""
    if delays is None:
        return f": rmqtool finds out which were delivered of at most {MESSAGES_MAX:,}"
    return (
        f", and {_counted(delays.copies, 'of them was', 'of them were')} delivered already; the log does not"
        f" show where each level has to go on, because {_without_key(delays.unclear)}"
    )


def _unexamined(store: Store) -> str:
    """A warning about the .bak of a lost delayOffset.json if there are too many messages."""
    return (
        f"CF07 {what_happened_to(store.layout, DELAY_OFFSETS)}, and its .bak is copied: what was delivered"
        " since it was written is delivered again; rmqtool finds out which messages that are of at most"
        f" {MESSAGES_MAX:,}"
    )


def _without_key(count: int) -> str:
    return "1 message has no unique key" if count == 1 else f"{count} messages have no unique key"


def _delay_action(store: Store, after: After, delays: DelayLoss) -> Action:
    """Makes delayOffset.json again. The text does not show a version that was only assumed."""
    assert store.layout.root is not None, "a lost file belongs to a store"
    path = store.layout.root / FOLDER / DELAY_OFFSETS
    noted = delays.noted
    offsets = {
        each.level: each.next_offset
        for each in delays.levels
        if noted is None or each.next_offset != noted.get(each.level, 0)
    }
    content = config_json.dump(_delay_document(store, after, offsets, noted), store.profile.name)
    count = _counted(delays.copies, "message", "messages")
    if noted is not None:
        how = f"{what_happened_to(store.layout, DELAY_OFFSETS)}, and its .bak is older than the log"
        done = f"and the .bak: with the .bak alone a start delivers {count} again"
    else:
        how = how_lost(store.layout, DELAY_OFFSETS)
        done = f": without it a start delivers {count} again"
        done = done if delays.copies else ": none of the delayed messages was delivered yet"
    reason = f"{how}; made again from the log{' ' * (noted is not None)}{done}"
    kind: ActionKind = "replace" if path.exists() else "create"
    detail = {"offsets": len(offsets), "levels": delays.rows()}
    return Action(kind, f"{FOLDER}/{DELAY_OFFSETS}", 0, len(content), reason, "CF07", detail, content)


def _delay_document(
    store: Store, after: After, offsets: Mapping[int, int], noted: Mapping[int, int] | None
) -> dict[str | int, Any]:
    """delayOffset.json with these offsets; `noted` are those of its .bak, which gives the others."""
    assert store.layout.root is not None, "a lost file belongs to a store"
    dialect, time_ms = store.profile.name, max(after.last_store_timestamp, 0)
    if not store.written_by.is_known:
        return config_change.delay_offsets_without_dialect({**(noted or {}), **offsets})
    document = config_change.new_delay_offsets(dialect, time_ms)
    if noted is not None:
        document = read_config(store.layout.root / FOLDER, DELAY_OFFSETS).document
    return config_change.with_delay_offsets(document, offsets, dialect, time_ms)


def _twice(delays: DelayLoss) -> Iterator[str]:
    """A warning that messages are delivered twice with the new offsets, and why."""
    held = [each for each in delays.levels if each.why is not None]
    if not held:
        return
    most = sum(each.again + each.unclear for each in held)
    levels = [
        f"level {each.level} goes on at queue offset {each.next_offset}, because {_WHY[each.why or '']}"
        for each in held[:_LEVELS_NAMED]
    ]
    more = f", and {len(held) - _LEVELS_NAMED} more levels" if len(held) > _LEVELS_NAMED else ""
    yield (
        f"CF07 with the new {DELAY_OFFSETS} up to {most} delayed message{'s'[most == 1 :]} are delivered"
        f" twice, and none is lost: {'; '.join(levels)}{more}"
    )


def _action(store: Store, path: Path, changes: list[dict[str, Any]], document: Any) -> Action:
    content = config_json.dump(document, store.profile.name)
    delays = path.name == DELAY_OFFSETS
    reason = (
        _counted(changes, "delay offset is outside its queue", "delay offsets are outside their queues")
        if delays
        else _counted(
            [each for each in changes if each["from"] > each["queue_end"]],
            "committed offset is past the end of its queue",
            "committed offsets are past the ends of their queues",
        )
    )
    detail = {"offsets": len(changes), "moved": changes[:_MOVED_SHOWN]}
    kind: ActionKind = "replace" if path.exists() else "create"
    problem = "CF05" if delays else "CF04"
    return Action(kind, f"{FOLDER}/{path.name}", 0, len(content), reason, problem, detail, content)


def _consumers(store: Store, document: Any, after: After) -> tuple[list[dict[str, Any]], Any]:
    """The changed offsets, and the document with them; its entries keep their order."""
    offsets = config_json.consumer_offsets(document)
    changed = {
        (topic, group, queue_id): _change(topic, group, queue_id, offset, span[1], span)
        for (topic, group), queues in offsets.items()
        for queue_id, offset in queues.items()
        if (span := after.queues.get((topic, queue_id), (0, offset)))[1] < offset
    }
    if not changed:
        return [], document
    if any(key[:2] in _OF_CHECKS for key in changed):
        changed |= _of_checks(store, offsets, after)
    changes: list[dict[str, Any]] = []
    table = {}
    for name, queues in resolve(document).get("offsetTable", {}).items():
        topic, _, group = str(name).partition(config_json.TOPIC_GROUP_SEPARATOR)
        mine = {key: changed.get((topic, group, int(key))) for key in queues}
        table[name] = {key: queues[key] if row is None else row["to"] for key, row in mine.items()}
        changes += [row for row in mine.values() if row is not None]
    return changes, config_change.with_offsets_set_back({**document, "offsetTable": table})


_Key = tuple[str, str, int]
_OF_CHECKS = ((HALF_TOPIC, TRANSACTION_GROUP), (OP_TOPIC, TRANSACTION_GROUP))


def _of_checks(store: Store, offsets: Offsets, after: After) -> dict[_Key, dict[str, Any]]:
    """The changes of the offsets with which a broker checks half messages.

    That of the op records goes back too if only that of the half messages is past the end.
    """
    changed: dict[_Key, dict[str, Any]] = {}
    halves, ops = (offsets.get(pair, {}) for pair in _OF_CHECKS)
    for queue_id, checks in find_checks(store, after.log_end).items():
        span = after.queues.get((HALF_TOPIC, queue_id), (0, 0))
        of_ops = after.queues.get((OP_TOPIC, queue_id), (0, 0))
        committed, op = halves.get(queue_id, span[0]), ops.get(queue_id, 0)
        half = checks.first_open(span) if committed > span[1] else committed
        count = sum(half <= each < span[1] for each in checks.open)
        if half != committed:
            key = (*_OF_CHECKS[0], queue_id)
            changed[key] = _change(*key, committed, half, span) | {"open": count}
        first = checks.first_op(half, of_ops)
        if op > of_ops[1] or (half != committed and first < op):
            key = (*_OF_CHECKS[1], queue_id)
            changed[key] = _change(*key, op, first, of_ops)
    return changed


def _change(
    topic: str, group: str, queue_id: int, offset: int, to: int, span: tuple[int, int]
) -> dict[str, Any]:
    return {"topic": topic, "group": group, "queue_id": queue_id, "from": offset, "to": to,
            "queue_end": span[1], "messages": max(span[1] - span[0], 0)}  # fmt: skip


def _delays(document: Any, after: After) -> tuple[list[dict[str, Any]], Any]:
    changes: list[dict[str, Any]] = []
    for level, offset in config_json.delay_offsets(document).items():
        span = after.queues.get((SCHEDULE_TOPIC, level - 1))
        if span is not None and not 0 <= offset <= span[1]:
            changes.append({"level": level, "from": offset, "to": min(max(offset, span[0]), span[1])})
    if not changes:
        return [], document
    new = {change["level"]: change["to"] for change in changes}
    table = {
        key: new.get(int(key), offset) for key, offset in resolve(document).get("offsetTable", {}).items()
    }
    return changes, {**document, "offsetTable": table}


def _counted(changes: Sized, one: str, several: str) -> str:
    return f"{len(changes)} {one if len(changes) == 1 else several}"
