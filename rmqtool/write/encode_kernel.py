"""The compiled half of `encode`: rows of columns into records.

Texts and bodies are read by their address: `encode` has shown that every (address, length) lies in a
buffer that it keeps alive. Format numbers come in as `Form`: numba would freeze constants of other
modules into its cache. Imports llvmlite: only `encode` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.crc import crc_of
from rmqtool.log.intrinsics import address_of
from rmqtool.log.store_intrinsics import copy_in, copy_short, put_8, put_16, put_32, put_64


class Form(NamedTuple):
    """The record format as constants for the kernels; made from formats.message by `encode._form`."""

    magic_v1: int
    magic_v2: int
    head: int
    born_host_v6: int
    store_host_v6: int
    host_v4: int
    host_v6: int
    transaction_mask: int
    prepared: int
    rollback: int
    crc_mask: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: int
    value_end: int
    name_end: int
    property_crc_size: int


class EncodeBounds(NamedTuple):
    """The output of records: from out[0] on, at most `limit` bytes; out[0] is at `physical_offset`."""

    limit: int
    physical_offset: int


class Crc(NamedTuple):
    """isal's CRC function, and whether records end with the property CRC."""

    address: int
    seals: bool


class Topics(NamedTuple):
    """The topics of a batch end to end, where each ends, and the record version of each."""

    data: Any
    stops: Any
    versions: Any


class Templates(NamedTuple):
    """Templates: the end of each in `parts`; the parts; the text of all parts."""

    stops: Any
    parts: Any
    texts: Any


class Values(NamedTuple):
    """The addresses and lengths of values in memory."""

    addresses: Any
    lengths: Any


@compiled
def measure_rows(rows: Any, topics: Topics, t: Templates, values: Values, seals: bool, f: Form) -> None:
    """Fill properties_length and size of all `rows`."""
    count = len(rows)
    for number in range(count):
        row = rows[number]
        length = np.int64(0)
        begin = t.stops[row.template - 1] if row.template else 0
        for k in range(begin, t.stops[row.template]):
            length += t.parts[k].text_length
            source = np.int64(t.parts[k].source)
            if source >= 0:
                length += values.lengths[source * count + number]
            elif source < -1:
                length += values.lengths[row.values_start - 2 - source]
        if seals:
            length += f.property_crc_size
        topic = row.topic
        size = f.head + np.int64(row.body_length) + topics.versions[topic] + 2 + length
        size += topics.stops[topic] - (topics.stops[topic - 1] if topic else 0)
        if row.sys_flag & f.born_host_v6:
            size += f.host_v6 - f.host_v4
        if row.sys_flag & f.store_host_v6:
            size += f.host_v6 - f.host_v4
        row.properties_length = length
        row.size = size


@inlined
def _put_seal(out: Any, start: int, position: int, crc_name: Any, crc: Crc, tables: Any, f: Form) -> None:
    """Append the property CRC of the record out[start:position] to it."""
    value = np.int64(crc_of(out, start, position - start, crc.address, tables)) & f.crc_mask
    for k in range(len(crc_name)):
        out[position + k] = crc_name[k]
    position += len(crc_name)
    out[position] = f.name_end
    last = f.property_crc_size - len(crc_name) - 1
    for k in range(1, last):
        out[position + k] = 0x30 + value % 10
        value //= 10
    out[position + last] = f.value_end


@inlined
def _put_head(
    out: Any, i: Any, row: Any, queue_offset: Any, physical_offset: Any, version: int, hosts_at: Any, f: Form
) -> Any:
    """Write the fixed part of a record at out[i]; where its body starts. The body's CRC is left out."""
    put_32(out, i, row.size)
    put_32(out, i + f.magic, f.magic_v1 if version == 1 else f.magic_v2)
    put_32(out, i + f.queue_id, row.queue_id)
    put_32(out, i + f.flag, row.flag)
    put_64(out, i + f.queue_offset, queue_offset)
    put_64(out, i + f.physical_offset, physical_offset)
    put_32(out, i + f.sys_flag, row.sys_flag)
    put_64(out, i + f.born_timestamp, row.born_timestamp)
    born = f.host_v6 if row.sys_flag & f.born_host_v6 else f.host_v4
    store = f.host_v6 if row.sys_flag & f.store_host_v6 else f.host_v4
    at = i + f.born_host
    copy_short(out, at, hosts_at + np.int64(row.born_host) * f.host_v6, born)
    at += born
    put_64(out, at, row.store_timestamp)
    copy_short(out, at + 8, hosts_at + np.int64(row.store_host) * f.host_v6, store)
    at += 8 + store
    put_32(out, at, row.reconsume_times)
    put_64(out, at + 4, row.prepared_transaction_offset)
    put_32(out, at + 12, row.body_length)
    return at + 16


@inlined
def _put_properties(
    out: Any, at: Any, number: int, count: int, row: Any, t: Templates, texts_at: Any, values: Values
) -> Any:
    """Write the property string of a row at out[at]; where it ends."""
    begin = t.stops[row.template - 1] if row.template else 0
    for k in range(begin, t.stops[row.template]):
        part = t.parts[k]
        length = np.int64(part.text_length)
        copy_short(out, at, texts_at + part.text_start, length)
        at += length
        source = np.int64(part.source)
        if source != -1:
            value = source * count + number if source >= 0 else row.values_start - 2 - source
            length = np.int64(values.lengths[value])
            copy_short(out, at, np.int64(values.addresses[value]), length)
            at += length
    return at


@compiled
def encode_rows(rows: Any, first: int, stop: int, topics: Topics, hosts: Any, t: Templates, values: Values,
                next_offsets: Any, place: EncodeBounds, crc: Crc, tables: Any, crc_name: Any, f: Form,
                out: Any, result: Any) -> Any:  # fmt: skip
    """Write the records of rows[first:stop] to `out` while they fit; the number of the row that did not.

    Takes queue offsets from `next_offsets`. `result[0]` is the number of bytes written.
    """
    count = len(rows)
    position: Any = 0
    limit = min(place.limit, len(out))
    topics_at = np.int64(address_of(topics.data, 0))
    texts_at = np.int64(address_of(t.texts, 0))
    hosts_at = np.int64(address_of(hosts, 0))
    number = first
    while number < stop:
        row = rows[number]
        if position + np.int64(row.size) > limit:
            break
        topic = row.topic
        version = topics.versions[topic]
        transaction = row.sys_flag & f.transaction_mask
        queue_offset = np.int64(0)
        if transaction != f.prepared and transaction != f.rollback:
            queue_offset = next_offsets[row.queue]
            next_offsets[row.queue] = queue_offset + 1
        row.queue_offset = queue_offset
        row.physical_offset = place.physical_offset + position
        at = _put_head(
            out, position, row, queue_offset, place.physical_offset + position, version, hosts_at, f
        )
        body: Any = np.int64(row.body_length)
        copy_in(out, at, np.int64(row.body_address), body)
        body_crc = np.int64(0)
        if body > 0:
            body_crc = np.int64(crc_of(out, at, body, crc.address, tables)) & f.crc_mask
        put_32(out, position + f.body_crc, body_crc)
        at += body
        begin = topics.stops[topic - 1] if topic else 0
        length = topics.stops[topic] - begin
        if version == 1:
            put_8(out, at, length)
        else:
            put_16(out, at, length)
        at += version
        copy_short(out, at, topics_at + begin, length)
        at += length
        put_16(out, at, row.properties_length)
        at = _put_properties(out, at + 2, number, count, row, t, texts_at, values)
        if crc.seals:
            _put_seal(out, position, at, crc_name, crc, tables, f)
        position += np.int64(row.size)
        number += 1
    result[0] = position
    return number
