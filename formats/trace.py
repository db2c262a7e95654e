"""The bodies of RMQ_SYS_TRACE_TOPIC: what clients report about sending and consuming.

    value 0x01 value 0x01 ... value 0x02      one trace, the first value is its kind; traces follow each other

Values are UTF-8 text; Java's null is the text `null`. `KINDS` names the values of each kind.
Older clients leave out values: a Pub of 13 has no offset_msg_id, a SubAfter may end early.

Source: TraceDataEncoder (client 5.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats.java import java_utf8_decode, java_utf8_encode
from rmqtool.formats.parts import GreedyRange, GreedyString, NullTerminated, Struct

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
BODY = Struct(
    "traces"
    / GreedyRange(NullTerminated(GreedyString("utf-8"), term=b"\x02"))
    * "each ended by 0x02: its kind (Pub, SubBefore, SubAfter, EndTransaction or Recall) and its values,"
    " separated by 0x01",
)
TEXT = "The body of a record of RMQ_SYS_TRACE_TOPIC: a client's report about sending and consuming."
MESSAGE_TYPES = ("Normal_Msg", "Trans_Msg_Half", "Trans_msg_Commit", "Delay_Msg", "Order_Msg")
"""The names that stand for the numbers in msg_type (MessageType#ordinal)."""

_START = ("timestamp", "region_id", "group_name")
_MESSAGE = ("topic", "msg_id", "tags", "keys", "store_host")
_SENT = ("body_length", "cost_time", "msg_type", "offset_msg_id", "success", "client_host")
_CONSUMED = ("msg_id", "cost_time", "success", "keys", "context_code", "timestamp", "group_name")
KINDS: dict[str, tuple[str, ...]] = {
    "Pub": (*_START, *_MESSAGE, *_SENT),
    "SubBefore": (*_START, "request_id", "msg_id", "retry_times", "keys"),
    "SubAfter": ("request_id", *_CONSUMED),
    "EndTransaction": (
        *_START, *_MESSAGE, "msg_type", "transaction_id", "transaction_state", "from_transaction_check",
    ),
    "Recall": (*_START, "topic", "msg_id", "success"),
}  # fmt: skip
"""The names of the values after the kind. Times are ms since 1970, cost_time is ms."""

_OLD_PUB = tuple(name for name in KINDS["Pub"] if name not in ("offset_msg_id", "client_host"))
_INTEGERS = frozenset({"timestamp", "body_length", "cost_time", "msg_type", "retry_times", "context_code"})
_BOOLEANS = frozenset({"success", "from_transaction_check"})
_VALUE_END = "\x01"
_TRACE_END = "\x02"
_INTEGER_LENGTH = 20


class Trace(NamedTuple):
    """One trace: its kind and the values after it, as stored."""

    kind: str
    values: tuple[str, ...]

    def fields(self) -> dict[str, str | int | bool | None]:
        """The values by name; nothing for an unknown kind. `null` is None, msg_type is its name.

        Raises:
            FormatError: a numeric field does not hold a number, or msg_type is unknown.
        """
        names = KINDS.get(self.kind, ())
        if self.kind == "Pub" and len(self.values) == len(_OLD_PUB):
            names = _OLD_PUB
        return {name: _typed(name, value) for name, value in zip(names, self.values, strict=False)}


def decode(body: bytes) -> list[Trace]:
    """The traces in a body, after decompression. Any bytes can be read; see `Trace.fields`."""
    traces = java_utf8_decode(body).split(_TRACE_END)
    if traces[-1] == "":
        traces.pop()
    found = []
    for trace in traces:
        kind, *values = trace.split(_VALUE_END)
        found.append(Trace(kind, tuple(values)))
    return found


def encode(traces: Iterable[Trace]) -> bytes:
    """The body that holds `traces`."""
    text = "".join(_VALUE_END.join((trace.kind, *trace.values)) + _TRACE_END for trace in traces)
    return java_utf8_encode(text)


def _typed(name: str, value: str) -> str | int | bool | None:
    if name in _BOOLEANS:
        return value.lower() == "true"
    if value == "null":
        return None
    if name not in _INTEGERS:
        return value
    if value == "":  # a SubAfter of the cloud access channel ends here
        return None
    if len(value) > _INTEGER_LENGTH or not value.isascii() or not value.removeprefix("-").isdigit():
        raise FormatError(f"trace: {name} {value[:40]!r} is not a number")
    number = int(value)
    if name == "msg_type":
        if not 0 <= number < len(MESSAGE_TYPES):
            raise FormatError(f"trace: message type {number} is unknown")
        return MESSAGE_TYPES[number]
    return number
