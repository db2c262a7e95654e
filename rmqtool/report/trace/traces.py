"""The reports of clients about a message in trace records: who sent it, who consumed it, with which result.

Clients report only with tracing on, in batches and without guarantee: a missing report proves nothing.

Source: TraceDataEncoder, ConsumeReturnType (client 5.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rmqtool.errors import FormatError, InputError
from rmqtool.formats import body, trace
from rmqtool.formats.message_id import host_text
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import Row

CONSUME_RESULTS = ("success", "time_out", "exception", "return_null", "failed")
"""The names that stand for context_code (ConsumeReturnType#ordinal)."""


class Reports(NamedTuple):
    """`sent`, `consumed` and `ended` (ends of transactions) in order of time; `unreadable` is a count."""

    sent: list[Row]
    consumed: list[Row]
    ended: list[Row]
    unreadable: int


def reports(records: Iterable[StoredMessage], message_ids: Iterable[str]) -> Reports:
    """The reports in trace records about the messages with these ids (unique keys or offset message ids).

    A row of `sent`: timestamp_ms, group, client_host, store_host, cost_ms, success, msg_type, topic.
    A row of `consumed`: timestamp_ms, group, client_host, request_id, retry_times, cost_ms, success, result;
    if only one of the two reports of an attempt exists, the values of the other are None.
    """
    wanted = frozenset(message_ids)
    sent: list[Row] = []
    ended: list[Row] = []
    consumed: dict[tuple[Any, ...], Row] = {}
    unreadable = 0
    for record in records:
        client = host_text(record.message.born_host)
        try:
            found = trace.decode(body.decompress(record.message.body, record.message.sys_flag))
        except InputError:
            unreadable += 1
            continue
        for each in found:
            try:
                fields = each.fields()
            except FormatError:
                unreadable += 1
                continue
            if not {fields.get("msg_id"), fields.get("offset_msg_id")} & wanted:
                continue
            place = record.physical_offset
            if each.kind == "Pub":
                sent.append(_sent(fields, client, place))
            elif each.kind == "EndTransaction":
                ended.append(_ended(fields, client, place))
            elif each.kind in ("SubBefore", "SubAfter"):
                key = (fields.get("request_id"), fields.get("msg_id"), client)
                consumed.setdefault(key, dict(_NO_ATTEMPT)).update(
                    _consumed(each.kind, fields, client, place)
                )
    return Reports(_by_time(sent), _by_time(list(consumed.values())), _by_time(ended), unreadable)


_NO_ATTEMPT: Row = dict.fromkeys(
    ("timestamp_ms", "group", "client_host", "request_id", "retry_times", "cost_ms", "success", "result",
     "physical_offset")
)  # fmt: skip


def _sent(fields: Row, client: str, place: int) -> Row:
    return {
        "timestamp_ms": fields.get("timestamp"),
        "group": fields.get("group_name"),
        "client_host": fields.get("client_host") or client,
        "store_host": fields.get("store_host"),
        "cost_ms": fields.get("cost_time"),
        "success": fields.get("success"),
        "msg_type": fields.get("msg_type"),
        "topic": fields.get("topic"),
        "physical_offset": place,
    }


def _ended(fields: Row, client: str, place: int) -> Row:
    return {
        "timestamp_ms": fields.get("timestamp"),
        "group": fields.get("group_name"),
        "client_host": client,
        "state": fields.get("transaction_state"),
        "from_check": fields.get("from_transaction_check"),
        "physical_offset": place,
    }


def _consumed(kind: str, fields: Row, client: str, place: int) -> Row:
    """The fields from one of the two reports of an attempt; a group in the later report wins."""
    row: Row = {"client_host": client, "request_id": fields.get("request_id"), "physical_offset": place}
    if fields.get("group_name"):
        row["group"] = fields["group_name"]
    if kind == "SubBefore":
        return row | {"timestamp_ms": fields.get("timestamp"), "retry_times": fields.get("retry_times")}
    code = fields.get("context_code")
    known = isinstance(code, int) and 0 <= code < len(CONSUME_RESULTS)
    return row | {
        "cost_ms": fields.get("cost_time"),
        "success": fields.get("success"),
        "result": CONSUME_RESULTS[code] if known and isinstance(code, int) else code,
    }


def _by_time(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["timestamp_ms"] is None, row["timestamp_ms"] or 0))
