"""A list of messages as the columns of a table, without Arrow: a pass over the list for each attribute.

What only `put` can judge (a value of another type than `NewMessage` names, a delayed or compressed message)
is marked as slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rmqtool.formats import message as form
from rmqtool.formats.properties import KEY_SEPARATOR, VALUE_END
from rmqtool.storage.buffers import Array
from rmqtool.write.records.message import NewMessage
from rmqtool.write.table.columns import Columns, Maps, SlowRows, Texts, stored_host

_NONE = type(None)
_NUMBERS = ("flag", "sys_flag", "reconsume_times", "prepared_transaction_offset")
_TIMES = ("born_timestamp", "store_timestamp")
_join_keys = KEY_SEPARATOR.join
_KEYS_TYPES = {list, tuple, str}
_VALUE_END = ord(VALUE_END)
_DATA_AT = bytes.__basicsize__ - 1  # PyBytesObject ends with the first byte of the data, and its final zero
_I64_MIN, _I64_MAX = -(1 << 63), (1 << 63) - 1


class _Joined(Texts):
    """Texts that lie end to end in one `bytes`."""

    def holding(self, piece: bytes) -> Array:
        """A mask of the rows that hold `piece`."""
        data: Any = self.owner
        stops = np.cumsum(self.lengths).tolist()
        if piece not in data:
            return np.zeros(len(stops), bool)
        return np.array([data.find(piece, start, stop) >= 0
                         for start, stop in zip([0, *stops], stops, strict=False)], bool)  # fmt: skip


def columns_of(messages: Sequence[NewMessage]) -> Columns:
    """The columns of at least one message.

    Raises:
        TypeError and others of Python's: a value of a type that no column can have; `put` says what is
            wrong with its message.
    """
    count = len(messages)
    slow = SlowRows(count)
    topics = [each.topic for each in messages]
    known = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    if set(map(type, known)) != {str}:
        raise TypeError("a topic is not text")
    own: list[Any] = [each.properties for each in messages]
    stored = None
    if set(map(type, own)) != {dict}:
        stored, own = _stored_of(own, slow)
    queue_ids = [each.queue_id for each in messages]
    has_queue_id = np.ones(count, bool)
    if None in queue_ids:
        has_queue_id = np.fromiter([each is not None for each in queue_ids], bool, count)
    numbers, absent, born, store = _others(messages, slow)
    wait = [each.wait for each in messages]
    return Columns(
        count=count,
        slow=slow,
        stored=np.zeros(count, bool) if stored is None else stored.present,
        topics=np.zeros(count, np.int64)
        if len(known) == 1
        else _int64(map(known.__getitem__, topics), count),
        topic_values=list(known),
        queue_ids=_whole(queue_ids, "queue_id", 64, slow),
        has_queue_id=has_queue_id,
        body=_bytes_of([each.body for each in messages], "body", slow),
        tags=_texts_of([each.tags for each in messages], "tags", slow),
        keys=_keys_of([each.keys for each in messages], slow),
        uniq_key=_texts_of([each.uniq_key for each in messages], "uniq_key", slow),
        properties=_maps_of(own, slow) if any(own) else None,
        properties_bytes=stored,
        numbers=numbers,
        absent=absent,
        born_hosts=born[0],
        born_host_values=born[1],
        store_hosts=store[0],
        store_host_values=store[1],
        wait=None if wait.count(True) == count else np.fromiter(map(bool, wait), bool, count),
    )


def _int64(values: Iterable[int], count: int) -> Array:
    return np.fromiter(values, np.int64, count)


def _whole(values: Sequence[int | None], column: str, bits: int, slow: SlowRows) -> Array:
    """Whole numbers, 0 for None; rows of other values, and of those that do not fit, are marked."""
    if not set(map(type, values)) <= {int, _NONE}:
        wrong = [row for row, value in enumerate(values) if type(value) not in (int, _NONE)]
        slow.mark(np.array(wrong), column)
        values = [value if type(value) is int else None for value in values]
    if None in values:
        values = [value or 0 for value in values]
    try:
        numbers = np.array(values, np.int64)
    except OverflowError:
        wrong = [row for row, value in enumerate(values) if not _I64_MIN <= (value or 0) <= _I64_MAX]
        slow.mark(np.array(wrong), column)
        numbers = np.array([min(max(value or 0, _I64_MIN), _I64_MAX) for value in values], np.int64)
    if bits == 32:
        fits = numbers == numbers.astype(np.int32)
        if not fits.all():
            slow.mark(~fits, column)
            numbers[~fits] = 0
    return numbers


def _bytes_of(values: list[bytes], column: str, slow: SlowRows) -> Texts:
    if set(map(type, values)) != {bytes}:
        slow.mark(np.array([row for row, value in enumerate(values) if type(value) is not bytes]), column)
        values = [value if type(value) is bytes else b"" for value in values]
    lengths = _int64(map(len, values), len(values))
    return _Joined(_int64(map(id, values), len(values)) + _DATA_AT, lengths, lengths > 0, values)


def _joined(data: bytes, lengths: Array, present: Array | None = None) -> Texts:
    address = np.frombuffer(data or b"\0", np.uint8).ctypes.data
    starts = np.cumsum(lengths) - lengths + address
    return _Joined(starts, lengths, lengths > 0 if present is None else present, data)


def _texts_of(
    given: Sequence[str | None], column: str, slow: SlowRows, parents: Array | None = None
) -> Texts | None:
    """Texts; those that hold 0x01 or 0x02, or that are not Unicode, are marked; None if all are empty.

    `parents` are the rows of the values, where those are not the same.
    """
    values: Any = [each or "" for each in given] if None in given else given
    text = "".join(values)
    if not text:
        return None
    wrong = np.zeros(len(values), bool)
    if text.isascii():
        data, lengths = text.encode(), _int64(map(len, values), len(values))
    else:
        pieces = [each.encode(errors="replace") for each in values]
        data, lengths = b"".join(pieces), _int64(map(len, pieces), len(pieces))
        wrong = np.fromiter((not _is_unicode(each) for each in values), bool, len(values))
    found = np.frombuffer(data, np.uint8)
    if found.min() <= _VALUE_END:
        places = np.flatnonzero(found <= _VALUE_END)
        wrong[np.searchsorted(np.cumsum(lengths), places, "right")] = True
    if wrong.any():
        rows = np.flatnonzero(wrong)
        slow.mark(rows if parents is None else np.unique(parents[rows]), column)
    return _joined(data, lengths)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _keys_of(given: list[Any], slow: SlowRows) -> Texts | None:
    """KEYS as stored; rows whose keys are not a list, or are given but empty together, are marked."""
    if not set(map(type, given)) <= _KEYS_TYPES:  # an iterator gives its keys only once: to `put`
        other = [row for row, keys in enumerate(given) if type(keys) not in _KEYS_TYPES]
        slow.mark(np.array(other, np.int64), "keys")
        given = [keys if type(keys) in _KEYS_TYPES else () for keys in given]
    try:
        texts = [key for (key,) in given]  # one key each: several times as fast
    except ValueError:
        texts = [keys if type(keys) is str else _join_keys(keys) for keys in given]
    if "" in texts:
        empty = [row for row, (keys, text) in enumerate(zip(given, texts, strict=True)) if keys and not text]
        slow.mark(np.array(empty, np.int64), "keys")
    return _texts_of(texts, "keys", slow)


def _stored_of(given: list[Any], slow: SlowRows) -> tuple[Texts | None, list[Any]]:
    """The strings of properties that are kept as stored, None without any; and the other properties."""
    kinds = list(map(type, given))
    other = [row for row, kind in enumerate(kinds) if kind not in (dict, bytes)]
    slow.mark(np.array(other, np.int64), "properties")
    own = [each if kind is dict else {} for each, kind in zip(given, kinds, strict=True)]
    if bytes not in kinds:
        return None, own
    strings = [each if kind is bytes else b"" for each, kind in zip(given, kinds, strict=True)]
    present = np.fromiter((kind is bytes for kind in kinds), bool, len(kinds))
    return _joined(b"".join(strings), _int64(map(len, strings), len(strings)), present), own


def _maps_of(own: list[dict[str, str]], slow: SlowRows) -> Maps:
    """Maps of properties; rows with an empty value are marked. Names are not checked."""
    counts = _int64(map(len, own), len(own))
    names = list(chain.from_iterable(own))
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    if set(map(type, known)) != {str}:
        raise TypeError("a name is not text")
    items = list(chain.from_iterable(each.values() for each in own))
    parents = np.repeat(np.arange(len(own)), counts)
    values = _texts_of(items, "properties", slow, parents)
    if values is None or "" in items:
        slow.mark(np.unique(parents[[not each for each in items]]), "properties")
    if values is None:
        values = _joined(b"", np.zeros(len(items), np.int64))
    starts = np.cumsum(counts) - counts
    return Maps(starts, counts, _int64(map(known.__getitem__, names), len(names)), list(known), values)


_Hosts = tuple[Array | None, list[bytes]]


def _others(
    messages: Sequence[NewMessage], slow: SlowRows
) -> tuple[dict[str, Array], dict[str, Array], _Hosts, _Hosts]:
    """The columns that few messages give: numbers, masks of their absent values, born and store hosts."""
    for each in messages:
        if (
            each.flag or each.sys_flag or each.delay_level or each.reconsume_times
            or each.prepared_transaction_offset or each.compression != "none"
            or each.born_host is not None or each.store_host is not None
            or each.born_timestamp is not None or each.store_timestamp is not None
        ):  # fmt: skip
            break
    else:
        return {}, {}, (None, []), (None, [])
    numbers: dict[str, Array] = {}
    absent: dict[str, Array] = {}
    for name in _NUMBERS:
        bits = 64 if name == "prepared_transaction_offset" else 32
        numbers[name] = _whole([getattr(each, name) for each in messages], name, bits, slow)
    for name in _TIMES:
        column = f"{name}_ms"
        values = [getattr(each, name) for each in messages]
        numbers[column] = _whole(values, column, 64, slow)
        absent[column] = np.fromiter((value is None for value in values), bool, len(values))
    slow.mark(np.array([bool(each.delay_level) for each in messages]), "delay_level")
    slow.mark(np.array([each.compression != "none" for each in messages]), "body_compression")
    born = _hosts_of([each.born_host for each in messages], "born_host", slow)
    store = _hosts_of([each.store_host for each in messages], "store_host", slow)
    return numbers, absent, born, store


def _hosts_of(given: list[Any], column: str, slow: SlowRows) -> _Hosts:
    distinct = [host for host in dict.fromkeys(given) if host is not None]
    known = {host: number for number, host in enumerate(distinct)}
    numbers = _int64((known.get(host, -1) for host in given), len(given))
    hosts: list[bytes] = []
    for host in distinct:
        stored = stored_host(host) if type(host) is bytes else None
        if stored is None:
            slow.mark(np.flatnonzero(numbers == len(hosts)), column)
        hosts.append(stored or bytes(form.HOST_V4_SIZE))
    return (numbers, hosts) if hosts else (None, [])
