"""What answers to requests are made of: the server's names and state, and the fields of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import fastjson
from rmqtool.formats.java import java_utf8_encode, parse_integer
from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Response
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import RETRY_PREFIX
from rmqtool.net.clients import Clients, Peer
from rmqtool.net.counters import Counters
from rmqtool.net.offsets import CommittedOffsets
from rmqtool.net.view import Topic, View
from rmqtool.net.whole_answer import WholeAnswer
from rmqtool.report.tail.get_message import BROKER_LIMITS, TransferLimits

Start = Literal["earliest", "latest", "broker"]
STARTS: tuple[Start, ...] = ("earliest", "latest", "broker")

READ_ONLY = "this store is served read-only"
PERM_READ = 4
_DOCUMENT_LIMIT = 1 << 20  # a heartbeat with 2,000 topics has half of it
_INT, _LONG = 1 << 31, 1 << 63


class Refusal(Exception):
    """A request that is answered with a code other than success."""

    def __init__(self, code: Response, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


@dataclass(frozen=True, slots=True)
class Names:
    """What the server calls itself; `version` is the number of the store's version (MQVersion)."""

    cluster: str
    broker: str
    version: int
    is_5: bool
    advertised: str | None = None

    def address(self, peer: Peer) -> str:
        """The address that routes name: the one that is given, else the one that the client has reached."""
        return self.advertised or peer.local_address


def transfer_limits(max_messages: int) -> TransferLimits:
    """The limits of an answer to a pull, the same for records in memory and on disk."""
    size = max(BROKER_LIMITS.memory_bytes, BROKER_LIMITS.disk_bytes // 8 * max_messages)
    return TransferLimits(size, max_messages, size, max_messages)


@dataclass(slots=True)
class Context:
    """The state of a server; `limits`: see `transfer_limits`."""

    names: Names
    offsets: CommittedOffsets
    clients: Clients
    counters: Counters
    start: Start = "earliest"
    limits: TransferLimits = transfer_limits(BROKER_LIMITS.memory_count)
    started_ms: int = 0
    whole: WholeAnswer = field(default_factory=WholeAnswer)

    def topic(self, view: View, name: str) -> Topic | None:
        """A topic that has a route.

        Besides the store's own: the retry topics of groups, which a broker makes at the first heartbeat, and
        those that are named like the cluster and the broker.
        """
        found = view.topic(name)
        if found is not None:
            return found
        group = name.removeprefix(RETRY_PREFIX)
        is_retry = group != name and (group in self.clients.groups or group in self.offsets.groups())
        if is_retry or name in (self.names.cluster, self.names.broker):
            return Topic(name, 1)
        return None

    def topic_names(self, view: View) -> list[str]:
        """The topics that lists show: the store's own, and the retry topics of groups, as at a broker."""
        groups = self.clients.groups.keys() | self.offsets.groups()
        return sorted(view.topics.keys() | {f"{RETRY_PREFIX}{group}" for group in groups})

    def needed_topic(self, view: View, name: str) -> Topic:
        """As `topic`. Raises Refusal for a topic that has no route."""
        found = self.topic(view, name)
        if found is None:
            raise Refusal(Response.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return found

    def queue_name(self, topic: str, queue_id: int) -> dict[str, Any]:
        """A MessageQueue."""
        return {"brokerName": self.names.broker, "queueId": queue_id, "topic": topic}


Handler = Callable[[Context, View, Command, Peer], Command]
"""Answers a request."""


class Table(NamedTuple):
    """A map whose keys are objects, as fastjson writes it: `{{"topic":"t"}:1}`. That is not JSON."""

    rows: Sequence[tuple[Any, Any]]


def body_of(value: Any) -> bytes:
    """The text of a document as clients read it."""
    return java_utf8_encode("".join(_parts(value)))


def _parts(value: Any) -> list[str]:
    if isinstance(value, Table):
        rows = [f"{''.join(_parts(key))}:{''.join(_parts(each))}" for key, each in value.rows]
        return ["{", ",".join(rows), "}"]
    if isinstance(value, dict):
        rows = [
            f"{json.dumps(str(key), ensure_ascii=False)}:{''.join(_parts(each))}"
            for key, each in value.items()
        ]
        return ["{", ",".join(rows), "}"]
    if isinstance(value, list | tuple):
        return ["[", ",".join("".join(_parts(each)) for each in value), "]"]
    return [json.dumps(value, ensure_ascii=False)]


def success(
    request: Command, document: Any = None, fields: dict[str, str] | None = None, remark: str | None = None
) -> Command:
    """The answer of a request that was carried out."""
    return request.answer(Response.SUCCESS, remark, fields, b"" if document is None else body_of(document))


def document_of(request: Command) -> Any:
    """The JSON in the body of a request. Raises FormatError."""
    if len(request.body) > _DOCUMENT_LIMIT:
        raise FormatError(f"a document of {len(request.body)} bytes; the most is {_DOCUMENT_LIMIT}")
    return fastjson.parse(request.body)


def text_of(request: Command, name: str, default: str | None = None) -> str:
    """A field of a request. Raises FormatError where it is missing and has no default."""
    value = request.fields.get(name, default)
    if value is None:
        raise FormatError(f"the request has no field {name}")
    return value


def int_of(request: Command, name: str, default: int | None = None) -> int:
    """As `text_of`, a 32-bit number."""
    return _number(request, name, default, _INT)


def long_of(request: Command, name: str, default: int | None = None) -> int:
    """As `text_of`, a 64-bit number."""
    return _number(request, name, default, _LONG)


def _number(request: Command, name: str, default: int | None, limit: int) -> int:
    value = request.fields.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise FormatError(f"the request has no field {name}")
    number = parse_integer(value, limit)
    if number is None:
        raise FormatError(f"the field {name} is not a number")
    return number
