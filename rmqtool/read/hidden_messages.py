"""Messages that consumers do not get although log and queues are sound: topics or groups are set so.

A broker tells consumers of the queues below readQueueNums of a topic whose perm has the bit for reading, and
refuses pulls from others. An operator who makes a topic smaller lowers writeQueueNums first, and
readQueueNums once the queues are drained. So a queue hides messages only if a group is not at its end that
has read it, or if none has. Built-in topics are left out, and so are those of dead letters, which brokers
create unreadable.

Source: PullMessageProcessor#processRequest, MQClientInstance#topicRouteData2TopicSubscribeInfo,
AbstractSendMessageProcessor#consumerSendMsgBack; spec 05, decision order of PULL_MESSAGE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rmqtool.errors import InputError
from rmqtool.formats import config_json
from rmqtool.formats.config_json import TopicConfig
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import DLQ_PREFIX
from rmqtool.near_names import listed
from rmqtool.problems import Finding, finding
from rmqtool.read.lost_config import CONSUMER_OFFSETS, has_config, is_group_of_brokers, needs_entry
from rmqtool.sizes import QUEUE_ID_MAX, cut_name, largest_counts
from rmqtool.storage.config_files import FOLDER, GROUPS_FILE, TOPICS, read_config
from rmqtool.storage.layout import StoreLayout

Key = tuple[str, int]
RangeOf = Callable[[Key], tuple[int, int] | None]
"""The half-open queue offsets of the messages of a queue; None if it is not there or cannot be read."""
_Offsets = dict[tuple[str, str], dict[int, int]]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_NAMED = 3  # topics or groups that a finding names
_LISTED = 100  # in its detail
_ALLOW = "mqadmin updateTopicPerm (-t TOPIC -p 6) lets consumers read the topic again, once the broker runs"
_RAISE = "mqadmin updateTopic (-t TOPIC -r QUEUES -w QUEUES) raises readQueueNums, once the broker runs"


@dataclass(frozen=True, slots=True)
class HiddenQueues:
    """The queues of a topic that consumers are not told of, though they have unread messages.

    Attributes:
        topic: its name.
        config: its entry in topics.json.
        queues: their ids, in order.
        messages: how many they have.
        unread: how many of these each group has not read that has an offset there.
    """

    topic: str
    config: TopicConfig
    queues: list[int]
    messages: int
    unread: dict[str, int]

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "topic": self.topic, "perm": self.config.perm, "read_queues": self.config.read_queue_nums,
            "queues": self.queues, "messages": self.messages, "unread": self.unread,
        }  # fmt: skip

    def text(self) -> str:
        """The topic, how many messages are hidden, and by which setting."""
        if not self.config.is_readable:
            return f"{cut_name(self.topic)} ({self.messages}, perm {self.config.perm})"
        first, last = self.queues[0], self.queues[-1]
        where = f"queue {first}" if first == last else f"queues {first} to {last}"
        limit = self.config.read_queue_nums
        return f"{cut_name(self.topic)} ({self.messages} in {where}, readQueueNums {limit})"


def hidden_messages(layout: StoreLayout, queues: Iterable[Key], range_of: RangeOf) -> Iterator[Finding]:
    """CF15 to CF17: messages that consumers do not get, now or once they are sent.

    Args:
        layout: of a store.
        queues: of the store.
        range_of: asked about those that need a look.
    """
    topics, offsets = _topics(layout), _offsets(layout)
    hidden = _hidden(topics, offsets, queues, range_of)
    yield from hidden_finding(layout, hidden)
    yield from _unread_from_now_on(topics, {each.topic for each in hidden})
    yield from _restricted_groups(layout, offsets, range_of)


def hidden_queues(layout: StoreLayout, queues: Iterable[Key], range_of: RangeOf) -> list[HiddenQueues]:
    """The topics with hidden messages, those with the most first."""
    topics = _topics(layout)
    return _hidden(topics, _offsets(layout) if topics else {}, queues, range_of)


def _hidden(
    topics: Mapping[str, TopicConfig], offsets: _Offsets, queues: Iterable[Key], range_of: RangeOf
) -> list[HiddenQueues]:
    found: dict[str, list[tuple[int, int, dict[str, int]]]] = {}
    committed: dict[str, dict[str, dict[int, int]]] = {}
    for (topic, group), of_queues in offsets.items():
        committed.setdefault(topic, {})[group] = of_queues
    for topic, queue_id in sorted(queues):
        config = topics.get(topic)
        if config is None or queue_id > QUEUE_ID_MAX:
            continue
        if config.is_readable and queue_id < config.read_queue_nums:
            continue
        low, high = range_of((topic, queue_id)) or (0, 0)
        readers = {
            group: max(high - max(of_queues[queue_id], low), 0)
            for group, of_queues in committed.get(topic, {}).items()
            if queue_id in of_queues
        }
        if low >= high or (readers and not any(readers.values())):
            continue
        found.setdefault(topic, []).append((queue_id, high - low, readers))
    hidden = [_of_topic(topic, topics[topic], rows) for topic, rows in found.items()]
    return sorted(hidden, key=lambda each: (-each.messages, each.topic))


def _of_topic(
    topic: str, config: TopicConfig, queues: Sequence[tuple[int, int, dict[str, int]]]
) -> HiddenQueues:
    """The sum over queues: (id, messages, by group how many of these it has not read)."""
    unread: dict[str, int] = {}
    for _, _, readers in queues:
        for group, count in readers.items():
            if count:
                unread[group] = unread.get(group, 0) + count
    return HiddenQueues(topic, config, [each[0] for each in queues], sum(each[1] for each in queues), unread)


def queues_to_read(hidden: Iterable[HiddenQueues]) -> dict[str, int]:
    """By topic the least readQueueNums with which consumers get the hidden messages."""
    return {each.topic: each.queues[-1] + 1 for each in hidden}


def hidden_finding(layout: StoreLayout, hidden: Sequence[HiddenQueues]) -> Iterator[Finding]:
    """CF15 for the result of `hidden_queues`, if there is any."""
    if not hidden:
        return
    total = sum(each.messages for each in hidden)
    made = finding(
        "CF15", f"{FOLDER}/{TOPICS}", topics=len(hidden), records=total,
        hidden=[each.row() for each in hidden[:_LISTED]],
    )  # fmt: skip
    have = "1 topic has" if len(hidden) == 1 else f"{len(hidden)} topics have"
    named = listed([each.text() for each in hidden], _NAMED)
    text = f"{have} {total} message{'s'[total == 1 :]} that {TOPICS} hides from consumers: {named}"
    unread: dict[str, int] = {}
    for each in hidden:
        for group, count in each.unread.items():
            unread[group] = unread.get(group, 0) + count
    if unread:
        text += f"; groups have not read {', '.join(largest_counts(unread, 'group'))}"
    cures = []
    if any(each.config.is_readable for each in hidden):
        cures.append(_RAISE if layout.rocksdb_config is not None else made.problem.repair or "")
    if not all(each.config.is_readable for each in hidden):
        cures.append(_ALLOW)
    yield replace(made, message=text, problem=replace(made.problem, repair="; ".join(cures)))


def _unread_from_now_on(topics: Mapping[str, TopicConfig], known: set[str]) -> Iterator[Finding]:
    """CF16: topics with queues for writing that consumers are not told of; not `known` ones without perm."""
    texts = []
    for name, config in sorted(topics.items()):
        if not config.is_writable or (not config.is_readable and name in known):
            continue
        if not config.is_readable:
            texts.append(f"{cut_name(name)} (perm {config.perm})")
        elif config.write_queue_nums > config.read_queue_nums:
            numbers = f"writeQueueNums {config.write_queue_nums}, readQueueNums {config.read_queue_nums}"
            texts.append(f"{cut_name(name)} ({numbers})")
    if texts:
        made = finding("CF16", f"{FOLDER}/{TOPICS}", topics=len(texts))
        take = "1 topic takes" if len(texts) == 1 else f"{len(texts)} topics take"
        text = f"{take} new messages into queues that consumers do not read: {listed(texts, _NAMED)}"
        yield replace(made, message=text)


def _restricted_groups(layout: StoreLayout, committed: _Offsets, range_of: RangeOf) -> Iterator[Finding]:
    """CF17: groups with unread messages that may not consume, or not a second time."""
    restricted = {
        name: "consumeEnable false" if not group.consume_enable else f"retryMaxTimes {group.retry_max_times}"
        for name, group in _read(layout, GROUPS_FILE, config_json.subscription_groups).items()
        if not is_group_of_brokers(name) and (not group.consume_enable or group.retry_max_times <= 0)
    }
    unread: dict[str, int] = {}
    for (topic, group), offsets in committed.items():
        for queue_id, offset in offsets.items() if group in restricted else ():
            low, high = range_of((topic, queue_id)) or (0, 0)
            unread[group] = unread.get(group, 0) + max(high - max(offset, low), 0)
    names = sorted((name for name, count in unread.items() if count), key=lambda name: (-unread[name], name))
    if names:
        made = finding("CF17", f"{FOLDER}/{GROUPS_FILE}", groups=len(names), names=names)
        have = "1 group has" if len(names) == 1 else f"{len(names)} groups have"
        named = listed([f"{cut_name(name)} ({unread[name]}, {restricted[name]})" for name in names], _NAMED)
        text = f"{have} unread messages, and a setting that keeps them from being consumed: {named}"
        yield replace(made, message=text)


def _topics(layout: StoreLayout) -> dict[str, TopicConfig]:
    return {
        name: config
        for name, config in _read(layout, TOPICS, config_json.topics).items()
        if needs_entry(name) and not name.startswith(DLQ_PREFIX)
    }


def _offsets(layout: StoreLayout) -> _Offsets:
    offsets = _read(layout, CONSUMER_OFFSETS, config_json.consumer_offsets)
    return {key: of_queues for key, of_queues in offsets.items() if not is_group_of_brokers(key[1])}


def _read(
    layout: StoreLayout, name: str, values_of: Callable[[Any], dict[_Key, _Value]]
) -> dict[_Key, _Value]:
    """What a config file says; nothing if it cannot be read, which is a finding of its own."""
    folder = layout.config_folder
    if folder is None or not has_config(layout):
        return {}
    try:
        return values_of(read_config(folder, name).document)
    except InputError:
        return {}
