"""Consumers and their groups: heartbeats, members, subscriptions, locks of queues.

Source: ClientManageProcessor#heartBeat, ConsumerManager, ConsumerGroupInfo#updateSubscription,
RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Protocol, TypeGuard

from rmqtool.errors import FormatError
from rmqtool.formats.remoting import Command
from rmqtool.lazy_dataclass import dataclass

GROUPS_LIMIT = 10_000
MEMBERS_LIMIT = 10_000  # of all groups
SUBSCRIPTIONS_LIMIT = 1_000  # of a group
LOCKS_LIMIT = 100_000
MEMBER_S = 120.0  # BrokerConfig channelExpiredTimeout: without a heartbeat for so long a member is gone
NAME_LIMIT = 4096  # characters of a group, client id or topic
SUBSCRIPTION_BYTES_LIMIT = 64 << 20  # of the texts of all groups
LOCK_S = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime

_OBJECT_BYTES = 1000
_SUBSCRIPTION_FIELDS = (
    "classFilterMode", "codeSet", "expressionType", "subString", "subVersion", "tagsSet", "topic",
)  # fmt: skip

QueueName = tuple[str, str, int]
"""Broker name, topic and queue id."""


class Peer(Protocol):
    """A connection, for those who answer requests."""

    address: str
    local_address: str

    @property
    def is_blocked(self) -> bool:
        """Whether it does not take what is sent to it."""

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
    size: int


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
    text_bytes: int = 0  # of all subscriptions

    def client_ids(self) -> list[str]:
        """The ids of the members: every member divides the queues by this list."""
        return sorted(self.members)


class Clients:
    """All groups, by name."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._locks: dict[tuple[str, QueueName], tuple[str, float]] = {}
        self._members = 0
        self._bytes = 0
        self._changed: set[str] = set()
        self._by_peer: dict[int, set[tuple[str, str]]] = {}  # group and client id

    @property
    def member_count(self) -> int:
        """The members of all groups."""
        return self._members

    @property
    def text_bytes(self) -> int:
        """About what the subscriptions of all groups take."""
        return self._bytes

    def heartbeat(self, request: Command, document: Any, peer: Peer, now: float) -> None:
        """Take a heartbeat.

        Raises:
            FormatError: not a heartbeat.
        """
        if not isinstance(document, dict) or not is_name(document.get("clientID")):
            raise FormatError("the heartbeat has no clientID")
        consumers = document.get("consumerDataSet") or []
        if not isinstance(consumers, list):
            raise FormatError("the heartbeat has no list of consumers")
        member = Member(document["clientID"], peer, request.version, request.language, now)
        for each in consumers:
            self._beat(each, member)

    def _beat(self, data: Any, member: Member) -> None:
        """One consumer of a heartbeat."""
        if not isinstance(data, dict) or not is_name(data.get("groupName")):
            raise FormatError("a consumer of the heartbeat has no groupName")
        name = data["groupName"]
        group = self.groups.get(name)
        known = None if group is None else group.members.get(member.client_id)
        if known is None and self._members >= MEMBERS_LIMIT:
            return
        if group is None:
            if len(self.groups) >= GROUPS_LIMIT:
                return
            group = self.groups[name] = Group(name)
        if known is None or known.peer is not member.peer:
            self._join(name, member, known)
        group.members[member.client_id] = member
        group.consume_type = str(data.get("consumeType", group.consume_type))[:NAME_LIMIT]
        group.message_model = str(data.get("messageModel", group.message_model))[:NAME_LIMIT]
        where = str(data.get("consumeFromWhere", group.consume_from_where))
        group.consume_from_where = where[:NAME_LIMIT]
        before, left = group.text_bytes, SUBSCRIPTION_BYTES_LIMIT - self._bytes
        try:
            changed = _subscribe(group, data.get("subscriptionDataSet") or [], left)
        finally:
            self._bytes += group.text_bytes - before
        if changed or known is None:
            self._changed.add(name)

    def _join(self, name: str, member: Member, known: Member | None) -> None:
        """A member comes, or comes by another connection."""
        if known is None:
            self._members += 1
        else:
            self._leave(name, known)
        self._by_peer.setdefault(id(member.peer), set()).add((name, member.client_id))

    def _leave(self, name: str, member: Member) -> None:
        own = self._by_peer[id(member.peer)]
        own.discard((name, member.client_id))
        if not own:
            del self._by_peer[id(member.peer)]

    def unregister(self, client_id: str, name: str) -> None:
        """Take a client out of a group."""
        group = self.groups.get(name)
        if group is not None and client_id in group.members:
            self._remove(group, client_id)

    def drop(self, peer: Peer) -> None:
        """Take the clients of a connection out of their groups."""
        for name, client_id in list(self._by_peer.get(id(peer), ())):
            self._remove(self.groups[name], client_id)

    def expire(self, now: float) -> None:
        """Take out clients that have been silent for too long."""
        self._locks = {key: lock for key, lock in self._locks.items() if now - lock[1] <= LOCK_S}
        for group in list(self.groups.values()):
            for name in [name for name, member in group.members.items() if now - member.seen > MEMBER_S]:
                self._remove(group, name)

    def _remove(self, group: Group, client_id: str) -> None:
        self._leave(group.name, group.members.pop(client_id))
        self._members -= 1
        self._changed.add(group.name)
        if not group.members:
            self.groups.pop(group.name, None)
            self._bytes -= group.text_bytes

    def take_changed(self) -> list[Group]:
        """The groups whose members or topics have changed since the last call."""
        changed, self._changed = self._changed, set()
        return [self.groups[name] for name in changed if name in self.groups]

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


def is_name(value: Any) -> TypeGuard[str]:
    """Whether this is a text that can be the name of a client, a group or a topic."""
    return isinstance(value, str) and len(value) <= NAME_LIMIT


def _subscribe(group: Group, found: Any, bytes_left: int) -> bool:
    """Take the subscriptions of a member; whether the topics of the group have changed.

    What does not fit into `bytes_left` is left out. Of several texts for a topic the one with the highest
    version counts: it is the newest.
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
            more = each.size - (0 if known is None else known.size)
            if more > bytes_left:
                continue
            bytes_left -= more
            group.text_bytes += more
            group.subscriptions[each.topic] = each
    for topic in before - topics:
        group.text_bytes -= group.subscriptions.pop(topic).size
    return before != set(group.subscriptions)


def _subscriptions(found: list[Any]) -> Iterator[TopicSubscription]:
    for each in found:
        if not isinstance(each, dict) or not is_name(each.get("topic")):
            raise FormatError("a subscription has no topic")
        version = each.get("subVersion", 0)
        document: dict[str | int, Any] = {name: each[name] for name in _SUBSCRIPTION_FIELDS if name in each}
        yield TopicSubscription(
            each["topic"],
            str(each.get("subString") or "*"),
            str(each.get("expressionType") or "TAG"),
            version if isinstance(version, int) else 0,
            document,
            _OBJECT_BYTES + 4 * len(str(document)),
        )
