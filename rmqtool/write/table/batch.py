"""A batch of rows made ready for the encoder: which rows it can take, and how.

How the property string of a new message is put together is learned from `prepare` itself, which gets a sample
for every set of property names. Where its values stand in the string that comes back, later rows have theirs;
the rest is what client and broker add. So the order of names, the separators and everything that depends on
the broker's version are those of `prepare`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.errors import IllegalMessageError
from rmqtool.formats import message as form
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.properties import MAX_SIZE
from rmqtool.storage.buffers import Array
from rmqtool.write import encode
from rmqtool.write.encode import Batch, Part, map_value
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import prepare, unique_ids
from rmqtool.write.records.tables import SPECIAL_NAMES, tables_for
from rmqtool.write.records.unique_id import IDS_PER_MS
from rmqtool.write.table.columns import Columns, Maps, Texts
from rmqtool.write.table.queues import Queues

if TYPE_CHECKING:
    from rmqtool.write.store_writer import StoreWriter


# The columns of values in a batch, by their place
UNIQ_KEY, TAGS, KEYS, STORED = range(4)
VALUE_COLUMNS = 4

STORED_TEMPLATE = (Part(b"", STORED),)
"""A row whose property string is given as it is stored."""

_TOPIC = "TopicTest"
_LENGTH_SIZE = 2  # of the properties' length
_NAMES_LIMIT = 512  # rows with more properties take the careful path
_HOST_BITS = form.BORN_HOST_V6 | form.STORE_HOST_V6
# In a property string that is kept as stored these names mean queue offsets, or a CRC.
_MEANT_IN_STORED = (b"INNER_", form.PROPERTY_CRC_NAME.encode())


@cache
def _hex_digits() -> Array:
    """The digits of 0 to FFFF, shape (65536, 4)."""
    text = "".join([f"{number:04X}" for number in range(1 << 16)])
    return np.frombuffer(text.encode(), np.uint8).reshape(-1, 4)


def _new_ids(host: bytes, now_ms: int, count: int) -> Array:
    """`count` unique ids for messages of one host, shape (count, length)."""
    reserved = unique_ids.reserve(count, host, now_ms)
    prefix = np.frombuffer(reserved.prefix.encode(), np.uint8)
    numbers = (reserved.month_ms * IDS_PER_MS + reserved.first) + np.arange(count)
    digits = [_hex_digits()[(numbers >> shift) & 0xFFFF] for shift in (32, 16, 0)]
    return np.hstack([np.broadcast_to(prefix, (count, len(prefix))), *digits])


class Made(NamedTuple):
    """A batch, and per row its topic's number in `Queues.topics`."""

    batch: Batch
    topics: Array


class BatchBuilder:
    """Makes encoder batches of columns."""

    def __init__(self, writer: StoreWriter, queues: Queues) -> None:
        self._writer = writer
        self._queues = queues
        self._templates = Templates(writer.options)
        self._record_limit = tables_for(writer.options).record_limit

    def build(self, columns: Columns, now_ms: int, *, plain: bool) -> Made:
        """The batch of all rows, measured; rows that the encoder must not take are marked slow.

        Queues are left to `place`.
        """
        count, slow = columns.count, columns.slow
        rows = np.zeros(count, encode.ROW)
        stored = columns.stored
        slow.mark(stored & ~columns.has_queue_id, "queue_id")
        names, versions, topics = self._put_topics(rows, columns)
        hosts = self._put_hosts(rows, columns)
        for field in ("flag", "reconsume_times", "prepared_transaction_offset"):
            if field in columns.numbers:
                rows[field] = columns.numbers[field]
        for field in ("born_timestamp", "store_timestamp"):
            rows[field] = columns.numbers.get(f"{field}_ms", now_ms)
            if f"{field}_ms" in columns.absent:
                rows[field][columns.absent[f"{field}_ms"]] = now_ms
        slow.mark(rows["store_timestamp"] < 1, "store_timestamp_ms")
        owners: list[object] = []
        if columns.body is not None:
            body = columns.body
            slow.mark(body.lengths > self._writer.options.body_limit, "body")
            rows["body_address"] = body.addresses
            rows["body_length"] = np.where(slow.columns == 0, body.lengths, 0)
            owners.append(body.owner)
        if columns.properties_bytes is not None:
            self._check_stored(columns, columns.properties_bytes)
        templates, (addresses, lengths) = self._put_properties(rows, columns, now_ms, hosts, owners)
        batch = Batch(
            rows, names, versions, hosts, *encode.build_templates(templates), addresses, lengths,
            seals=self._writer.options.property_crc, owners=owners,
        )  # fmt: skip
        encode.measure_rows(batch, plain=plain)
        slow.mark(rows["properties_length"] > MAX_SIZE, "properties")
        slow.mark(rows["size"] > self._record_limit, "body")
        return Made(batch, topics)

    def place(self, made: Made, columns: Columns, first: int, stop: int) -> int:
        """Fill `queue_id` and `queue` of rows [first, stop), none of them slow.

        A row that names no queue gets the topic's next one.

        Returns:
            `stop`, or the first row whose queue takes no plain messages: it is slow then, and rows
            after it have changed nothing.
        """
        topics, stored = made.topics[first:stop], columns.stored[first:stop]
        queue_ids, named = columns.queue_ids[first:stop], columns.has_queue_id[first:stop]
        count, column = stop - first, "queue_id"
        if not named.all():
            places = np.flatnonzero(named)
            valid = len(self._queues.numbers(topics[places], queue_ids[places], stored[places]))
            if valid < len(places):
                count = int(places[valid])
            queue_ids = queue_ids.copy()
            in_turn = self._in_turn(topics[:count], queue_ids[:count], ~named[:count])
            if in_turn < count:
                count, column = in_turn, "topic"
        numbers = self._queues.numbers(topics[:count], queue_ids[:count], stored[:count])
        reached = first + len(numbers)
        made.batch.rows["queue"][first:reached] = numbers
        made.batch.rows["queue_id"][first:reached] = queue_ids[: len(numbers)]
        if reached < stop:
            columns.slow.mark(np.array([reached]), column)
        return reached

    def _in_turn(self, topics: Array, queue_ids: Array, chosen: Array) -> int:
        """Fill `queue_ids` of the chosen rows; stops at the first whose topic wants a closer look."""
        names, targets = self._queues.topics.names, self._writer.targets
        places = np.flatnonzero(chosen)
        used, first_places = np.unique(topics[places], return_index=True)
        queues: dict[int, int] = {}
        count = len(topics)
        for order in np.argsort(first_places).tolist():
            topic = int(used[order])
            topic_queues = targets.plain_queues(names[topic])
            if not topic_queues:
                count = int(places[first_places[order]])
                break
            queues[topic] = topic_queues
        places = places[places < count]
        places = places[np.argsort(topics[places], kind="stable")]  # by topic, rows in their order
        of_topic, starts = np.unique(topics[places], return_index=True)
        for topic, rows in zip(of_topic.tolist(), np.split(places, starts[1:]), strict=False):
            turn = targets.choose_queues(names[topic], len(rows))
            queue_ids[rows] = (turn + np.arange(len(rows))) % queues[topic]
        return count

    def _put_topics(self, rows: Array, columns: Columns) -> tuple[list[bytes], Array, Array]:
        """Fill `topic`: (topics, versions) of the batch, new rows' first; and per row the topic's number."""
        topics = self._queues.topics
        numbers = topics.numbers(columns.topic_values)
        places = np.maximum(columns.topics, 0)
        data = [topics.data[number] for number in numbers.tolist()]
        versions = topics.versions[0, numbers]
        rows["topic"] = places
        if columns.stored.any():
            rows["topic"] += (len(data) * columns.stored).astype(np.int32)
            versions = np.concatenate([versions, topics.versions[1, numbers]])
            data = data + data
        if not len(numbers):
            return [b""], np.zeros(1, np.int64), np.zeros(columns.count, np.int64)
        if not versions.all():
            columns.slow.mark(versions[rows["topic"]] == 0, "topic")
        return data, versions, numbers[places]

    def _put_hosts(self, rows: Array, columns: Columns) -> list[bytes]:
        """Fill `born_host`, `store_host` and `sys_flag`; the hosts of the batch."""
        born, store = columns.born_host_values, columns.store_host_values
        hosts = [self._writer.options.store_host, *born, *store]
        if columns.born_hosts is not None:
            rows["born_host"] = columns.born_hosts + 1
        if columns.store_hosts is not None:
            rows["store_host"] = np.where(columns.store_hosts < 0, 0, columns.store_hosts + 1 + len(born))
        if "sys_flag" in columns.numbers:
            sys_flag = columns.numbers["sys_flag"]
            ruled = form.INNER_BATCH | np.where(columns.stored, 0, form.TRANSACTION_MASK)
            columns.slow.mark(sys_flag & ruled != 0, "sys_flag")
            rows["sys_flag"] = sys_flag & ~_HOST_BITS
        long = np.array([len(host) == form.HOST_V6_SIZE for host in hosts])
        if long.any():
            rows["sys_flag"] |= np.where(long[rows["born_host"]], form.BORN_HOST_V6, 0).astype(np.int32)
            rows["sys_flag"] |= np.where(long[rows["store_host"]], form.STORE_HOST_V6, 0).astype(np.int32)
        return hosts

    def _check_stored(self, columns: Columns, stored: Texts) -> None:
        """Mark rows whose stored string means more than itself, or that say the same in other columns."""
        others: tuple[Texts | None, ...] = (columns.tags, columns.keys, columns.uniq_key)
        for texts in others:
            if texts is not None:
                columns.slow.mark(stored.present & texts.present, "properties_bytes")
        if columns.properties is not None:
            columns.slow.mark(stored.present & (columns.properties.counts > 0), "properties_bytes")
        if self._writer.options.property_crc:
            columns.slow.mark(stored.present, "properties_bytes")
        for name in _MEANT_IN_STORED:
            columns.slow.mark(stored.holding(name), "properties_bytes")

    def _put_properties(
        self,
        rows: Array,
        columns: Columns,
        now_ms: int,
        hosts: list[bytes],
        owners: list[object],
    ) -> tuple[list[tuple[Part, ...]], tuple[Array, Array]]:
        """Fill `template` and `values_start`; the templates, and (addresses, lengths) of the values."""
        count, slow = columns.count, columns.slow
        maps = columns.properties
        entries = 0 if maps is None else len(maps.values.lengths)
        addresses = np.zeros(VALUE_COLUMNS * count + entries, np.int64)
        lengths = np.zeros(len(addresses), np.int64)
        given = {UNIQ_KEY: columns.uniq_key, TAGS: columns.tags, KEYS: columns.keys,
                 STORED: columns.properties_bytes}  # fmt: skip
        for column, texts in given.items():
            if texts is not None:
                part = slice(column * count, (column + 1) * count)
                addresses[part], lengths[part] = texts.addresses, texts.lengths
                owners.append(texts.owner)
        if maps is not None:
            addresses[VALUE_COLUMNS * count :] = maps.values.addresses
            lengths[VALUE_COLUMNS * count :] = maps.values.lengths
            rows["values_start"] = VALUE_COLUMNS * count + maps.starts
            owners.append(maps.values.owner)
            slow.mark(maps.counts > _NAMES_LIMIT, "properties")
        # Values longer than all properties may be are left to the check of their row; sums stay small.
        np.minimum(lengths, MAX_SIZE + 1, out=lengths)
        self._make_ids(rows, columns, ~columns.stored, now_ms, hosts, addresses, lengths, owners)
        templates = self._assign_templates(rows, columns, lengths)
        return templates, (addresses, lengths.astype(np.int32))

    def _make_ids(
        self, rows: Array, columns: Columns, new: Array, now_ms: int, hosts: list[bytes], addresses: Array,
        lengths: Array, owners: list[object],
    ) -> None:  # fmt: skip
        """Unique ids for new rows that have none."""
        if columns.uniq_key is not None:
            new = new & ~columns.uniq_key.present
        new &= columns.slow.columns == 0
        for host in np.unique(rows["born_host"][new]).tolist():
            chosen = np.flatnonzero(new & (rows["born_host"] == host))
            ids = _new_ids(hosts[host], now_ms, len(chosen))
            width = ids.shape[1]
            addresses[UNIQ_KEY * columns.count + chosen] = ids.ctypes.data + width * np.arange(len(chosen))
            lengths[UNIQ_KEY * columns.count + chosen] = width
            owners.append(ids)

    def _assign_templates(self, rows: Array, columns: Columns, lengths: Array) -> list[tuple[Part, ...]]:
        """Fill `template`; the templates. Number 0 is that of records as stored."""
        count = columns.count
        wait = np.ones(count, bool) if columns.wait is None else columns.wait
        has_tags = lengths[TAGS * count : (TAGS + 1) * count] > 0
        has_keys = lengths[KEYS * count : (KEYS + 1) * count] > 0
        codes = has_tags + 2 * has_keys + 4 * wait.astype(np.int64)
        name_lists: list[tuple[str, ...]] = [()]
        if columns.properties is not None:
            name_numbers, name_lists = _name_lists(columns.properties, columns.slow.columns == 0)
            codes += 8 * name_numbers
        plain = (columns.slow.columns == 0) & ~columns.stored
        templates: list[tuple[Part, ...]] = [STORED_TEMPLATE]
        numbers = np.zeros(8 * len(name_lists), np.int32)
        for code in np.flatnonzero(np.bincount(codes[plain], minlength=1)).tolist():
            signature = Signature(bool(code & 1), bool(code & 2), bool(code & 4), name_lists[code >> 3])
            template = self._templates.of(signature)
            if template is None:
                columns.slow.mark(plain & (codes == code), "properties")
            else:
                numbers[code] = len(templates)
                templates.append(template)
        rows["template"] = np.where(plain, numbers[codes], 0)
        return templates


def _name_lists(maps: Maps, chosen: Array) -> tuple[Array, list[tuple[str, ...]]]:
    """Per row the number of its list of names, and the lists; number 0, no names, where not `chosen`."""
    numbers = np.zeros(len(maps.counts), np.int64)
    lists: list[tuple[str, ...]] = [()]
    for count in np.flatnonzero(np.bincount(maps.counts[chosen], minlength=1)).tolist():
        if count == 0:
            continue
        rows = np.flatnonzero(chosen & (maps.counts == count))
        names = maps.name_numbers[maps.starts[rows][:, None] + np.arange(count)]
        if (names == names[0]).all():
            distinct, inverse = names[:1], np.zeros(len(rows), np.int64)
        else:
            distinct, inverse = np.unique(names, axis=0, return_inverse=True)
        numbers[rows] = len(lists) + inverse.reshape(-1)
        lists += [tuple(maps.known[number] for number in each) for each in distinct.tolist()]
    return numbers, lists


class Signature(NamedTuple):
    """Which properties a new message has: those of columns, the answer to `wait`, the names of its map."""

    has_tags: bool
    has_keys: bool
    wait: bool
    names: tuple[str, ...]


class Templates:
    """The templates of one writer, each learned once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._known: dict[Signature, tuple[Part, ...] | None] = {}

    def of(self, signature: Signature) -> tuple[Part, ...] | None:
        """The template of rows with these properties; None where each row needs a look of its own."""
        if signature not in self._known:
            self._known[signature] = self._learn(signature)
        return self._known[signature]

    def _learn(self, signature: Signature) -> tuple[Part, ...] | None:
        names = signature.names
        if not SPECIAL_NAMES.isdisjoint(names) or len(set(names)) != len(names):
            return None
        sources = {_mark(UNIQ_KEY): UNIQ_KEY}
        sources |= {_mark(TAGS): TAGS} if signature.has_tags else {}
        sources |= {_mark(KEYS): KEYS} if signature.has_keys else {}
        found: dict[str, str] = {}
        for number, name in enumerate(signature.names):
            found[name] = _mark(VALUE_COLUMNS + number)
            sources[found[name]] = map_value(number)
        sample = NewMessage(
            _TOPIC,
            tags=_mark(TAGS) if signature.has_tags else None,
            keys=(_mark(KEYS),) if signature.has_keys else (),
            properties=found,
            uniq_key=_mark(UNIQ_KEY),
            wait=signature.wait,
            queue_id=0,
        )
        try:
            stored = prepare(sample, self._options, 0, 0).properties_bytes[_LENGTH_SIZE:]
        except IllegalMessageError:
            return None
        by_bytes = {java_utf8_encode(mark): source for mark, source in sources.items()}
        pieces = re.split(b"(" + b"|".join(map(re.escape, by_bytes)) + b")", stored)
        if sorted(pieces[1::2]) != sorted(by_bytes):
            return None
        parts = [Part(text, by_bytes[mark]) for text, mark in zip(pieces[:-1:2], pieces[1::2], strict=True)]
        return (*parts, Part(pieces[-1])) if pieces[-1] else tuple(parts)


def _mark(number: int) -> str:
    """A value that stands for another; characters for private use, all of one length."""
    return f"\ue000{number:05d}\ue001"
