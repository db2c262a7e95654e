"""Consumers and their groups: heartbeats, members, subscriptions, locks of queues.

Source: ClientManageProcessor#heartBeat, ConsumerManager, ConsumerGroupInfo#updateSubscription,
RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Protocol

from rmqtool.errors import FormatError
from rmqtool.formats.remoting import Command
from rmqtool.lazy_dataclass import dataclass

GROUPS_LIMIT = 10_000
MEMBERS_LIMIT = 10_000  # of all groups
SUBSCRIPTIONS_LIMIT = 1_000  # of a group
LOCKS_LIMIT = 100_000
MEMBER_S = 120.0  # BrokerConfig channelExpiredTimeout: without a heartbeat for so long a member is gone
LOCK_S = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime

QueueName = tuple[str, str, int]
"""Broker name, topic and queue id."""


class Peer(Protocol):
    """A connection, for those who answer requests."""

    address: str
    local_address: str

    def send(self, command: Command) -> None:
        """Send a command, unless the connection is closed."""


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """What a group wants of a topic; the text is tags or an SQL92 expression."""

    topic: str
    text: str
    expression_type: str
    version: int
    document: Mapping[str | int, Any]


@dataclass(slots=True)
class Member:
    """One client of a group."""

    client_id: str
    peer: Peer
    version: int
    language: str
    seen: float


@dataclass(slots=True)
class Group:
    """One consumer group with the members that are connected."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: dict[str, TopicSubscription] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        """The ids of the members: every member divides the queues by this list."""
        return sorted(self.members)


class Clients:
    """All groups, by name."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._locks: dict[tuple[str, QueueName], tuple[str, float]] = {}
        self._members = 0

    @property
    def member_count(self) -> int:
        """The members of all groups."""
        return self._members

    def heartbeat(self, request: Command, document: Any, peer: Peer, now: float) -> list[Group]:
        """Take a heartbeat; returns the groups whose members or topics have changed.

        Raises:
            FormatError: not a heartbeat.
        """
        if not isinstance(document, dict) or not isinstance(document.get("clientID"), str):
            raise FormatError("the heartbeat has no clientID")
        consumers = document.get("consumerDataSet") or []
        if not isinstance(consumers, list):
            raise FormatError("the heartbeat has no list of consumers")
        member = Member(document["clientID"], peer, request.version, request.language, now)
        return [group for each in consumers if (group := self._beat(each, member)) is not None]

    def _beat(self, data: Any, member: Member) -> Group | None:
        """One consumer of a heartbeat; the group, where something has changed."""
        if not isinstance(data, dict) or not isinstance(data.get("groupName"), str):
            raise FormatError("a consumer of the heartbeat has no groupName")
        name = data["groupName"]
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= GROUPS_LIMIT:
                return None
            group = self.groups[name] = Group(name)
        known = group.members.get(member.client_id)
        if known is None:
            if self._members >= MEMBERS_LIMIT:
                return None
            self._members += 1
        group.members[member.client_id] = member
        group.consume_type = str(data.get("consumeType", group.consume_type))
        group.message_model = str(data.get("messageModel", group.message_model))
        group.consume_from_where = str(data.get("consumeFromWhere", group.consume_from_where))
        changed = _subscribe(group, data.get("subscriptionDataSet") or [])
        return group if changed or known is None else None

    def unregister(self, client_id: str, name: str) -> Group | None:
        """Take a client out of a group; the group, if it was in it."""
        group = self.groups.get(name)
        if group is None or client_id not in group.members:
            return None
        self._remove(group, client_id)
        return group

    def drop(self, peer: Peer) -> list[Group]:
        """Take the clients of a connection out of their groups; returns these groups."""
        return self._drop(lambda member: member.peer is peer)

    def expire(self, now: float) -> list[Group]:
        """Take out clients that have been silent for too long; returns their groups."""
        self._locks = {key: lock for key, lock in self._locks.items() if now - lock[1] <= LOCK_S}
        return self._drop(lambda member: now - member.seen > MEMBER_S)

    def _drop(self, is_gone: Any) -> list[Group]:
        changed = []
        for group in list(self.groups.values()):
            gone = [name for name, member in group.members.items() if is_gone(member)]
            for name in gone:
                self._remove(group, name)
            if gone:
                changed.append(group)
        return changed

    def _remove(self, group: Group, client_id: str) -> None:
        del group.members[client_id]
        self._members -= 1
        if not group.members:
            self.groups.pop(group.name, None)

    # locks

    def lock(self, name: str, client_id: str, queues: Iterable[QueueName], now: float) -> list[QueueName]:
        """Lock queues for a client of a group; returns those that are locked for it."""
        granted = []
        for queue in queues:
            key = name, queue
            holder = self._locks.get(key)
            if holder is None and len(self._locks) >= LOCKS_LIMIT:
                continue
            if holder is None or holder[0] == client_id or now - holder[1] > LOCK_S:
                self._locks[key] = client_id, now
                granted.append(queue)
        return granted

    def unlock(self, name: str, client_id: str, queues: Iterable[QueueName]) -> None:
        """Give queues free that are locked for a client."""
        for queue in queues:
            if self._locks.get((name, queue), ("",))[0] == client_id:
                del self._locks[name, queue]


def _subscribe(group: Group, found: Any) -> bool:
    """Take the subscriptions of a member; whether the topics of the group have changed.

    Of several texts for a topic the one with the highest version counts: it is the newest.
    """
    if not isinstance(found, list):
        raise FormatError("a consumer of the heartbeat has no list of subscriptions")
    topics = set()
    before = set(group.subscriptions)
    for each in _subscriptions(found):
        topics.add(each.topic)
        known = group.subscriptions.get(each.topic)
        if known is None and len(group.subscriptions) >= SUBSCRIPTIONS_LIMIT:
            continue
        if known is None or each.version > known.version:
            group.subscriptions[each.topic] = each
    for topic in before - topics:
        del group.subscriptions[topic]
    return before != set(group.subscriptions)


def _subscriptions(found: list[Any]) -> Iterator[TopicSubscription]:
    for each in found:
        if not isinstance(each, dict) or not isinstance(each.get("topic"), str):
            raise FormatError("a subscription has no topic")
        version = each.get("subVersion", 0)
        yield TopicSubscription(
            each["topic"],
            str(each.get("subString") or "*"),
            str(each.get("expressionType") or "TAG"),
            version if isinstance(version, int) else 0,
            each,
        )
