"""Sets the committed offsets of consumer groups in consumerOffset.json: the plan, and carrying it out.

A group begins in each queue at a position, or at the first message that was stored at a time or later. Reset
are the topics in which a group has committed an offset, its own retry topic, and topics that are named in
full for a group that is named in full: once the file is lost, only retry messages show what a group consumes.
The new file then notes that the offsets of all other groups are lost (`config_change.OFFSETS_LOST`).

The text is what a broker would write: the previous one becomes the .bak if a broker could read it, and on 5.x
the version counts one change. Its time stays, because a plan that is made again has to be equal.

Source: ConsumerOffsetManager, DataVersion#nextVersion, ConfigManager#persist; spec 01 section 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rmqtool.errors import FormatError, RefusedError, UnreadableError, UsageError
from rmqtool.formats import config_change, config_json, properties
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.message.system_topics import RETRY_PREFIX
from rmqtool.near_names import listed, near_or_listed
from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.read.by_time import exact_offset_by_time
from rmqtool.read.consumer_offsets import Offsets, offsets_are_lost
from rmqtool.read.known_topics import queues_by_topic
from rmqtool.read.lost_config import CONSUMER_OFFSETS, by_length, is_group_of_brokers, known_groups
from rmqtool.read.offsets_back import offsets_that_went_back, what_went_back
from rmqtool.read.selection import Selection, is_glob
from rmqtool.read.store import Store
from rmqtool.repair import plan as plans
from rmqtool.repair.plan import Action, ActionKind, Applied, OpenStore, Plan, Refusal
from rmqtool.storage.config_files import FOLDER, read_config
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock
from rmqtool.storage.next_command import command_on
from rmqtool.storage.open_files import read_head
from rmqtool.times import format_time

COMMAND = "reset-offset"
Position = Literal["earliest", "latest"] | int
"""`earliest`, `latest`, a queue offset, or a negative number that counts from the end of the queue."""
Pairs = dict[tuple[str, str], dict[int, int]]
_LIGHT_FILE = "lmqConsumerOffset.json"
_BY_BROKER = "start the broker without consumers, and set them with mqadmin resetOffsetByTime"
_NO_EARLIER = plans.Earlier()
_LIMIT = 1 << 63
_OTHERS = 3  # groups without offsets whose lines stand below the plan of others; more push it away
_LINES = 20  # groups that get a command line of their own
_GROUP = pattern(r"[%|a-zA-Z0-9_-]{1,255}")  # Validators, with the length that a retry topic leaves


@dataclass(frozen=True, slots=True)
class Request:
    """Which groups begin where; globs, as in `Selection`. One of `position` and `since` is set.

    `since` is ms since 1970: the first message stored then or later.
    """

    groups: tuple[str, ...]
    topics: tuple[str, ...] = ()
    exclude_topics: tuple[str, ...] = ()
    queues: tuple[int, ...] = ()
    position: Position | None = None
    since: int | None = None

    def options(self) -> dict[str, Any]:
        """As JSON, for `Plan.options`."""
        return {
            "groups": list(self.groups), "topics": list(self.topics),
            "exclude_topics": list(self.exclude_topics), "queues": list(self.queues),
            "position": self.position, "since": self.since,
        }  # fmt: skip

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Request:
        """The inverse of `options`; the input is untrusted. Raises FormatError for other options."""
        texts = [options.get(name) for name in ("groups", "topics", "exclude_topics")]
        queues, position, since = (options.get(name) for name in ("queues", "position", "since"))
        if not all(isinstance(each, list) and all(isinstance(one, str) for one in each) for each in texts):
            raise FormatError("the plan's groups or topics are not a list of texts")
        if not isinstance(queues, list) or not all(type(number) is int for number in queues):
            raise FormatError("the plan's queues are not a list of numbers")
        is_number = type(position) is int and abs(position) < _LIMIT
        if not (is_number or position in ("earliest", "latest", None)):
            raise FormatError("the plan's position is not one")
        is_time = type(since) is int and abs(since) < _LIMIT
        if (position is None) == (since is None) or not (since is None or is_time):
            raise FormatError("the plan needs either a position or a time")
        groups, topics, excluded = (tuple(each or ()) for each in texts)
        return cls(groups, topics, excluded, tuple(queues), position, since)

    def selection(self) -> Selection:
        """The topics and queues."""
        return Selection(topics=self.topics, exclude_topics=self.exclude_topics, queues=self.queues)

    def start(self) -> tuple[str, str]:
        """The option that sets the start, and its value."""
        if self.since is None:
            return "--from", str(self.position)
        return "--since", format_time(self.since, UTC) or str(self.since)

    def matches_group(self, group: str) -> bool:
        """Whether a group is meant; a group of the broker itself never is."""
        return not is_group_of_brokers(group) and any(fnmatchcase(group, each) for each in self.groups)


@dataclass(frozen=True, slots=True)
class Reset:
    """The offset of one group in one queue.

    Attributes:
        committed: the present one; None without one.
        offset: the new one; None if it is left, because of `reason`.
        min_offset, max_offset: of the queue: its first message in the log, and its end.
        reason: also why the new offset is not the requested one.
        is_lost: the group may have had an offset, which is lost.
    """

    group: str
    topic: str
    queue_id: int
    committed: int | None
    offset: int | None
    min_offset: int
    max_offset: int
    reason: str | None = None
    is_lost: bool = False

    @property
    def again(self) -> int | None:
        """How many messages the group had consumed and receives again; None if that is unknown."""
        if self.committed is None or self.offset is None:
            return None
        return max(min(self.committed, self.max_offset) - self.offset, 0)

    @property
    def skipped(self) -> int | None:
        """How many messages it had not consumed and never receives; None if that is unknown.

        Without an offset a client begins a retry topic at its first message, whatever its consumeFromWhere.
        """
        is_retry = self.topic == f"{RETRY_PREFIX}{self.group}" and not self.is_lost
        committed = 0 if self.committed is None and is_retry else self.committed
        if committed is None or self.offset is None:
            return None
        return max(self.offset - max(committed, self.min_offset), 0)

    @property
    def lag(self) -> int | None:
        """How many messages it receives from the new offset on."""
        return None if self.offset is None else self.max_offset - self.offset

    @property
    def is_change(self) -> bool:
        """Whether the offset becomes another one."""
        return self.offset is not None and self.offset != self.committed

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "group": self.group, "topic": self.topic, "queue_id": self.queue_id,
            "committed_offset": self.committed, "new_offset": self.offset, "again_messages": self.again,
            "skipped_messages": self.skipped, "lag_messages": self.lag, "min_offset": self.min_offset,
            "max_offset": self.max_offset, "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """A plan, and what there is to say of it.

    Attributes:
        plan: the changes.
        request: what was asked for.
        resets: the offsets, by group, topic and queue.
        warnings: texts.
        last_ms: the store time of the log's last message; None without one, or a `since`.
        without: the groups that the store names and that have no offset afterwards: all if the offsets of
            all groups were lost, else those that were asked for.
        are_lost: whether they were lost.
        lines: how to set theirs: command lines, and which of the groups have none; of more than
            `_OTHERS` groups that were not asked for, only the line that lists these.
        refusals: why it would not be applied; none for a plan that is not needed.
        is_needed: whether applying it changes anything, including the guard of an interrupted run.
        earlier: what became of interrupted runs, when it was applied.
    """

    plan: Plan
    request: Request
    resets: tuple[Reset, ...]
    warnings: tuple[str, ...]
    last_ms: int | None
    without: tuple[str, ...]
    are_lost: bool
    lines: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    is_needed: bool
    earlier: plans.Earlier = _NO_EARLIER

    @property
    def left(self) -> list[Reset]:
        """The offsets that are not set, though they were asked for."""
        return [reset for reset in self.resets if reset.offset is None]


def plan(store: Store, request: Request) -> Planned:
    """The plan that `request` means for a store; nothing is changed.

    Raises:
        UsageError: it is not a store root, or no group has anything to reset.
        RefusedError: the offsets are kept where rmqtool writes none.
        UnreadableError: a part of the store cannot be read.
    """
    layout = store.layout
    _check(layout)
    assert layout.root is not None, "_check was called"
    folder, warnings, are_lost = layout.root / FOLDER, [], offsets_are_lost(store)
    try:
        loaded = read_config(folder, CONSUMER_OFFSETS)
        document = loaded.document
        if loaded.source == "bak":
            document = config_change.with_old_offsets(document, is_known=store.written_by.is_known)
    except FormatError as error:  # a broker loads neither the file nor its .bak: there is nothing to keep
        warnings.append(
            f"{FOLDER}/{CONSUMER_OFFSETS}: {error.message}; only the offsets of this plan are kept"
        )
        document, are_lost = {}, True
    committed = config_json.consumer_offsets(document)
    if behind := offsets_that_went_back(store):
        warnings.append(
            f"{what_went_back(behind)} (CF11): --apply replaces this file, and the backup keeps it"
        )
    queues = queues_by_topic(layout)
    known = known_groups(layout, queues)
    pairs = _pairs(store, request, committed, queues, known)
    if left := _retries_left(request, pairs):
        pairs = {pair: of_pair for pair, of_pair in pairs.items() if pair not in left}
        warnings.append(_left_text(left))
    warnings += [
        f"nothing in the store names the group {group}: it gets its first offsets"
        for group in sorted({group for _, group in pairs} - known)
    ]
    resets = tuple(
        _reset(store, request, (topic, group), queue_id, of_pair.get(queue_id), are_lost=are_lost)
        for (topic, group), of_pair in sorted(pairs.items(), key=lambda item: (item[0][1], item[0][0]))
        for queue_id in sorted(queues[topic] | of_pair.keys())
        if not request.queues or queue_id in request.queues
    )
    actions = tuple(_actions(store, folder, document, resets, are_lost=are_lost))
    have = {group for _, group in committed} | {each.group for each in resets if each.offset is not None}
    others = known - have if are_lost else set(filter(request.matches_group, known - have))
    without = tuple(sorted(others, key=by_length))
    lines = tuple(_lines_of_others(store, request, without))
    mark = plans.fingerprint(layout)
    last_ms = None if request.since is None else store.last_stored_ms()
    result = Plan(COMMAND, request.options(), actions, mark, {"offsets": [each.row() for each in resets]})
    is_needed = bool(actions) or layout.guard is not None
    cost = "truncate its log and queues, and offsets of this plan could be past their ends"
    refusals = tuple(plans.unready(layout, COMMAND, cost)) if is_needed else ()
    return Planned(
        result, request, resets, tuple(warnings), last_ms, without, are_lost, lines, refusals, is_needed
    )  # fmt: skip


def _retries_left(request: Request, pairs: Pairs) -> list[tuple[str, str]]:
    """The retry topics that a queue offset of `--from` does not set, unless topics are named.

    It is an offset in the topic that a group consumes: its retry topic has other ones.
    """
    if request.topics or not isinstance(request.position, int) or request.position < 0:
        return []
    return sorted(pair for pair in pairs if pair[0].startswith(RETRY_PREFIX))


def _left_text(left: Sequence[tuple[str, str]]) -> str:
    groups = listed(sorted({group for _, group in left}))
    return (
        f"the retry topics of {groups} stay as they are: a queue offset of one topic means nothing in"
        " another; to set one, name it with --topic"
    )


def _check(layout: StoreLayout) -> None:
    if layout.root is None or layout.kind != "store":
        raise UsageError(
            "only a whole store has committed offsets", hint="name the folder that holds commitlog"
        )
    layout.check_forms(log=True, queues=True)
    in_rocksdb = next((part.path for part in layout.unsupported if part.what == "config"), None)
    if layout.rocksdb_config is not None or in_rocksdb is not None:
        raise RefusedError(
            "the committed offsets are in RocksDB, which rmqtool does not write",
            path=in_rocksdb or layout.root / FOLDER,
            hint=_BY_BROKER,
        )
    light = layout.config.get(_LIGHT_FILE) or layout.config.get(f"{_LIGHT_FILE}.bak")
    if light is not None:
        raise RefusedError(
            "a broker with enableLmq keeps all committed offsets in this file, which rmqtool does not write",
            path=light,
            hint=_BY_BROKER,
        )
    for path, reason in layout.unreadable:
        raise RefusedError(f"cannot be read: {reason}", path=path)


def _pairs(
    store: Store, request: Request, committed: Offsets, queues: Mapping[str, set[int]], known: set[str]
) -> Pairs:
    """The committed offsets by queue id of each topic and group to reset; none where there are none yet.

    `known` are the groups that the store names.
    """
    for each in request.groups:
        if is_group_of_brokers(each):
            raise UsageError(
                f"{each} is a group of the broker itself: its offsets are never reset",
                hint="rmqtool recover sets those that are past the end of their queue",
            )
    chosen = request.selection()
    light = [topic for topic in request.topics if topic.startswith(LIGHT_PREFIX)]
    if light:
        raise UsageError(
            f"{light[0]}: offsets of light topics are in lmqConsumerOffset.json, which is not written"
        )
    found = {
        (topic, group): of_pair
        for (topic, group), of_pair in committed.items()
        if topic in queues and request.matches_group(group) and chosen.matches_topic(topic)
    }
    named = [each for each in request.groups if not is_glob(each)]
    lacking = sorted(topic for topic in chosen.topics if not is_glob(topic) and topic not in queues)
    if lacking and not found:
        raise UsageError(f"the store has no topic {lacking[0]}", hint="rmqtool info lists its topics")
    for group in named:
        if _GROUP.fullmatch(group) is None and all(group != other for _, other in committed):
            raise UsageError(f"{group!r} is not the name of a group")
        for topic in chosen.topics & queues.keys():
            found.setdefault((topic, group), {})
    groups = {group for _, group in found}
    without = sorted(set(named) - groups)
    if without or not found:
        _raise_unknown(store, request, without, committed, known)
    have = {group for _, group in committed}
    retry = {(f"{RETRY_PREFIX}{group}", group): group not in have for group in groups}
    excluded = Selection(exclude_topics=request.exclude_topics)
    # To name the topics of a group without offsets does not restrict them: its retry topic is one of them.
    return {
        pair: {}
        for pair, is_first in retry.items()
        if pair[0] in queues and (excluded if is_first else chosen).matches_topic(pair[0])
    } | found


def _raise_unknown(
    store: Store, request: Request, without: list[str], committed: Offsets, known: set[str]
) -> None:
    """Raise UsageError: of these groups, or of all, no offset is known that could be reset."""
    groups = sorted({group for _, group in committed if not is_group_of_brokers(group)})
    full = "name each group and its topics in full: --group GROUP --topic TOPIC"
    if offsets_are_lost(store) or not groups:
        meant = [group for group in known if request.matches_group(group)]
        stray = next((each for each in request.groups if not is_glob(each) and each not in known), None)
        if stray is not None or (known and not meant):
            text = f"nothing in the store names the group {stray}"
            if stray is None:
                text = f"no group of the store matches {request.groups[0]!r}"
            names = near_or_listed(stray or "", known, "groups that it names", sorted(known, key=by_length))
            raise UsageError(text, hint=f"{names}; for a first offset, {full}")
        lines = list(_first_lines(store, request, sorted(meant, key=by_length)))
        error = UsageError("no committed offset shows which topics a group consumes", hint=full)
        if any(line.startswith("rmqtool ") for line in lines):
            error.hint = f"retry messages show it of some groups: run their lines below; of others, {full}"
        last_ms = None if request.since is None else store.last_stored_ms()
        if last_ms is not None and request.since is not None and request.since > last_ms:
            newest = format_time(last_ms, UTC) or last_ms
            lines.append(f"no message is as new as --since: the last message was stored at {newest}")
        error.lines = lines
        raise error
    if not without:
        raise UsageError("no group has an offset to reset there", hint=f"groups: {listed(groups)}")
    its_topics = sorted(topic for topic, group in committed if group == without[0])
    if without[0] in known and not its_topics:
        text = f"the group {without[0]!r} has no offset that shows which topics it consumes"
        error = UsageError(text, hint=full)
        error.lines = list(_first_lines(store, request, without))
        raise error
    others = near_or_listed(without[0], groups, "groups that have")
    if its_topics:
        others = f"it has offsets in {listed(its_topics)}"
    raise UsageError(
        f"the group {without[0]!r} has no offsets there", hint=f"{others}; for a first one, {full}"
    )


def _lines_of_others(store: Store, request: Request, groups: Sequence[str]) -> Iterator[str]:
    """See `Planned.lines`."""
    if len(groups) <= _OTHERS or all(map(request.matches_group, groups)):
        yield from _first_lines(store, request, groups)
    else:
        line = command_on(store.layout, COMMAND, "--group", "*", *request.start())
        yield f"how each is set: {line}"


def _first_lines(store: Store, request: Request, groups: Iterable[str]) -> Iterator[str]:
    """The command line that plans the first offsets of each group; and which groups consume unknown topics.

    Each starts where `request` does. Only retry messages show what a group consumes.
    """
    topics = _topics_of_retries(store, groups)
    known = [group for group in topics if topics[group]]
    for group in known[:_LINES]:
        words = [word for topic in topics[group] for word in ("--topic", topic)]
        yield command_on(store.layout, COMMAND, "--group", group, *words, *request.start())
    if len(known) > _LINES:
        yield f"and {len(known) - _LINES} more groups with messages in a retry topic"
    unknown = [group for group in topics if not topics[group]]
    if unknown:
        yield (
            f"no message shows which topics these groups consume: {listed(unknown)}. Leave those that consume"
            " nothing: findings name them only until a broker has started and written the file"
        )


def _topics_of_retries(store: Store, groups: Iterable[str]) -> dict[str, list[str]]:
    """The topics from which the messages of each group's retry topic came: the group consumes them.

    All of them are read in one pass over the log, or by the queues.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqtool.read.messages import message_batches

    found: dict[str, set[str]] = {f"{RETRY_PREFIX}{group}": set() for group in groups}
    columns, chosen = ("topic", "properties"), Selection(topics=tuple(found))
    for batch in message_batches(store, chosen, columns=columns, crc=False) if found else ():
        came = pc.map_lookup(batch["properties"], properties.RETRY_TOPIC, "last")
        table = pa.table({"topic": batch["topic"].cast(pa.string()), "came": came}).drop_null()
        for row in table.group_by(["topic", "came"]).aggregate([]).to_pylist():
            if row["came"] and row["topic"] in found:
                found[row["topic"]].add(row["came"])
    return {topic.removeprefix(RETRY_PREFIX): sorted(names) for topic, names in found.items()}


def _reset(
    store: Store,
    request: Request,
    pair: tuple[str, str],
    queue_id: int,
    committed: int | None,
    *,
    are_lost: bool,
) -> Reset:
    (topic, group), low, high = pair, 0, 0
    offset: int | None = None
    reason = None
    queue = store.queue(topic, queue_id)
    try:
        if queue is not None:
            low = store.first_live(topic, queue_id)
            high = max(queue.max_offset(), 0)
            offset, reason = _offset(store, request, (topic, queue_id), low, high)
        elif (committed or 0) > 0:
            reason = "the group has consumed from this queue, but it has no files: rebuild it first"
        else:
            offset = 0  # of the first message, whenever it comes
    except UnreadableError as error:
        reason = f"cannot be read: {error.message}"
    is_lost = are_lost and committed is None
    return Reset(group, topic, queue_id, committed, offset, min(low, high), high, reason, is_lost)


def _offset(
    store: Store, request: Request, key: tuple[str, int], low: int, high: int
) -> tuple[int, str | None]:
    """The new offset in a queue, and why it is not the requested one."""
    if request.since is not None:
        return min(max(exact_offset_by_time(store, *key, request.since).queue_offset, low), high), None
    if request.position in ("earliest", "latest"):
        return (min(low, high) if request.position == "earliest" else high), None
    assert isinstance(request.position, int), "a position or a time is set"
    wanted = request.position if request.position >= 0 else high + request.position
    offset = min(max(wanted, low), high)
    if offset == wanted or request.position < 0:
        return offset, None
    return offset, f"the queue {'starts' if offset > wanted else 'ends'} at {offset}"


def _actions(
    store: Store, folder: Path, document: dict[str | int, Any], resets: tuple[Reset, ...], *, are_lost: bool
) -> Iterator[Action]:
    """The new file, and the .bak with the previous text if a broker could read that."""
    changes = [reset for reset in resets if reset.is_change]
    decided = {reset.group for reset in resets if reset.offset is not None}
    is_news = config_change.OFFSETS_OLD in document and not decided <= config_change.decided_since(document)
    if not (changes or is_news):
        return
    new: dict[tuple[str, str], dict[int, int]] = {}
    for reset in changes:
        assert reset.offset is not None, "it is a change"
        new.setdefault((reset.topic, reset.group), {})[reset.queue_id] = reset.offset
    dialect, is_known = store.profile.name, store.written_by.is_known
    changed = config_change.with_consumer_offsets(
        document, new, dialect, is_known=is_known, are_lost=are_lost, decided=decided
    )
    content = config_json.dump(changed, dialect)
    before = read_head(folder / CONSUMER_OFFSETS, READ_LIMIT)
    bak = read_head(folder / f"{CONSUMER_OFFSETS}.bak", READ_LIMIT)
    is_good = config_json.load_with_bak(CONSUMER_OFFSETS, before, None).source == "file"
    if before and before != bak and is_good:
        reason = "the previous offsets, as a broker keeps them"
        yield _action(f"{CONSUMER_OFFSETS}.bak", bak is not None, before, reason)
    count = f"{len(changes)} committed offset{'' if len(changes) == 1 else 's'} set"
    if not changes:
        count = "the offsets stay, and no longer count as old (CF13)"
    yield _action(CONSUMER_OFFSETS, before is not None, content, count)


def _action(name: str, exists: bool, content: bytes, reason: str) -> Action:
    kind: ActionKind = "replace" if exists else "create"
    return Action(kind, f"{FOLDER}/{name}", 0, len(content), reason, None, {}, content)


def reset_offsets(
    open_store: OpenStore,
    request: Request | None,
    *,
    plan_file: Path | None = None,
    backup_dir: Path | None = None,
    force: bool = False,
) -> tuple[Planned, Applied | None]:
    """Plan under the store's lock and do the plan; the changes of an interrupted run are undone first.

    Returns the plan, and what was done, None for nothing.

    Args:
        open_store: see `OpenStore`.
        request: which groups begin where; None if `plan_file` says it.
        plan_file: the plan has to agree with this one, and the store must not have changed since.
        backup_dir: a new folder; None: next to the store.
        force: do it although the store was not closed cleanly.

    Raises:
        StoreInUseError: a broker holds the lock.
        RefusedError: something stands against it, or the plan is for another state of the store.
        UnwritableError: the disk is full, or a permission is missing.
        UnreadableError, FormatError: the store or the plan file cannot be read or understood.
    """
    file = None if plan_file is None else plans.read_plan(plan_file, COMMAND)
    if file is not None:
        request = Request.of_options(file.options)
    if request is None:
        raise UsageError("neither a request nor a plan was given")

    def change(planned: Planned, store: Store, held: StoreLock, earlier: plans.Earlier) -> Applied:
        store.close()
        return plans.apply(planned.plan, store.layout, backup_dir=backup_dir, held=held)

    planned, earlier, applied = plans.carry_out(
        open_store,
        partial(plan, request=request),
        change,
        settle=partial(plans.settle_own, command=COMMAND),
        file=file,
        force=force,
    )
    if applied is None and earlier.finished is not None:
        applied = Applied(earlier.finished, 0, 0)
    return replace(planned, earlier=earlier), applied
