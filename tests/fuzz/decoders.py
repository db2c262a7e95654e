"""Every decoder of `formats/` and every compiled kernel, over inputs whose last byte is a page's last one.

The page after it cannot be read: a decoder that reads one byte too many ends the process. Any bytes end in
values or in FormatError; what a kernel finds is what plain Python finds.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from rmqtool.errors import FormatError, UsageError
from rmqtool.formats import (
    batch,
    body,
    checkpoint,
    compaction,
    config_json,
    consume_queue,
    epoch,
    fastjson,
    index,
    java,
    ledger,
    markers,
    message,
    message_id,
    properties,
    remoting,
    replication,
    timer,
    trace,
)
from rmqtool.index.index_file import IndexFile
from rmqtool.log import properties as property_ranges
from rmqtool.log import string_ranges as texts
from rmqtool.log.dispatch import dispatch_columns
from rmqtool.log.frames import Frames, walk
from rmqtool.log.key_match import Names, judge
from rmqtool.log.python_scan import walk_reference
from rmqtool.log.scan_cache import Unpacking, pack
from rmqtool.queue.units import UnitReader, live, queue_offsets
from rmqtool.read.filter import parser
from rmqtool.storage.source import BytesSource
from tests.fuzz import databases
from tests.support.records import is_filler, record
from tests.support.scan_logs import HOST_V6, blank, file_end, log, values
from tests.support.scan_logs import entries as entry_log
from tests.unit.write.test_json_columns import check as check_json_lines

BASE = 1 << 30
_MOST = 1 << 18  # bytes of an input
_BODY_LIMIT = 1 << 20


class GuardedMemory:
    """Memory with a page after it that cannot be read; inputs are put at its end."""

    def __init__(self, size: int = _MOST) -> None:
        size += -size % mmap.PAGESIZE
        self._map = mmap.mmap(-1, size + mmap.PAGESIZE)
        self._all = np.frombuffer(self._map, np.uint8)
        self._end = size
        address = self._all.ctypes.data + size
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """`data` as a read-only array that ends where the page begins."""
        place = self._all[self._end - len(data) : self._end]
        place.flags.writeable = True
        place[:] = np.frombuffer(data, np.uint8)
        found = place.view()
        found.flags.writeable = False
        return found


Input = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Decoder:
    """One decoder: what it does with an input, and inputs that are sound."""

    run: Callable[[Input, Random], object]
    samples: Callable[[], tuple[bytes, ...]]


def check(name: str, data: bytes, memory: GuardedMemory) -> None:
    """Run a decoder; anything but values or FormatError is raised. What is drawn follows from the input."""
    random = Random(data)
    try:
        found = DECODERS[name].run(memory.put(data[:_MOST]), random)
        if isinstance(found, Iterator):
            for _ in found:
                pass
    except (FormatError, UsageError):
        pass


# -- samples -----------------------------------------------------------------------------------------


@cache
def _records() -> tuple[message.Message, ...]:
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "0,7"}
    return (
        record("TopicTest", b"first", {"UNIQ_KEY": "U1", "KEYS": "a b  c", "TAGS": "TagA", "DELAY": "3"}),
        record("", b""),
        record("x" * 200, b"second" * 30, {"TAGS": "\u6807\u7b7e", "KEYS": "\U0001f600 k"}),
        record("T", b"hosts", light, sys_flag=0x30, born_host=HOST_V6, store_host=HOST_V6),
        record("T", b"x", sys_flag=message.TRANSACTION_ROLLBACK),
        record("Batch", _items(), {"INNER_BASE": "5", "INNER_NUM": "2"}, sys_flag=message.INNER_BATCH),
        record("T", b"", body_length=-5),
        record("T", b"x", properties_length=-1),
        record("T", b"y", {"__CRC32#": "0123456789", "KEYS": "k"}),
    )


def _items() -> bytes:
    return batch.encode_items(
        [batch.item(b"a", b""), batch.item(b"b", properties.encode({"K": "v"}, dialect="5.4"))]
    )


@cache
def _logs() -> tuple[bytes, ...]:
    whole = log(*_records(), base=BASE)
    end = replace(_records()[0], physical_offset=BASE + len(whole))
    return whole, whole + blank(300), whole + bytes(300), whole + blank(300, message.encode(end)), whole[:-3]


@cache
def _ledgers() -> tuple[bytes, ...]:
    whole = entry_log(*_records(), base=BASE)
    return whole, whole + file_end(300), whole + bytes(300), whole + file_end(9, whole[:300]), whole[:-3]


def _record_bytes() -> tuple[bytes, ...]:
    return tuple(message.encode(each) for each in _records())


def _property_strings() -> tuple[bytes, ...]:
    return tuple(each.properties_bytes for each in _records())


@cache
def _index_files() -> tuple[bytes, ...]:
    found = []
    for slots, entries in ((5, 20), (1, 3), (50, 60)):
        header = index.encode_header(index.Header(1, 2, 3, 4, slots, entries // 2))
        rows = b"".join(
            index.encode_entry(index.Entry(number * 7, number * 90, number, max(number - slots, 0)))
            for number in range(entries)
        )
        table = b"".join(index.encode_slot(number % entries) for number in range(slots))
        found.append(header + table + rows)
    return tuple(found)


_UNITS = b"".join(
    consume_queue.encode_unit(consume_queue.Unit(number * 100, 91, number)) for number in range(20)
) + bytes(60)
_BATCH_UNITS = b"".join(
    consume_queue.encode_batch_unit(consume_queue.BatchUnit(number * 100, 91, 5, 7, number * 2, 2))
    for number in range(9)
)
_JSON = (
    b'{"dataVersion":{"counter":3,"timestamp":1,"stateVersion":0},"topicConfigTable":{"T":{"topicName":"T",'
    b'"readQueueNums":4,"writeQueueNums":4,"perm":6,"order":false,"attributes":{"queue.type":"BatchCQ"}}}}',
    b'{"offsetTable":{"T@g":{0:7,1:3},"%RETRY%g@g":{"0":1}}}',
    b'{"subscriptionGroupTable":{"g":{"groupName":"g","consumeEnable":true,"retryMaxTimes":16}}}',
    b'{"offsetTable":{1:4,2:9}, /* c */ "x":[{"$ref":"$.offsetTable"},"y",1.5e3,-0]}',
    b'{"offsetTable":{"1":4}}',
    b'{"filterDataByTopic":{"T":{"filterDataByGroup":{"g":{"consumerGroup":"g","expression":"a>1"}}}}}',
)
_JSON_LINES = (
    b'{"topic":"T","body":"x","keys":["a","b"],"properties":{"TAGS":"t"},"queue_id":3}\n{"topic":"U","body":"\\u00e9"}\n',
    b'\n {"topic" : "T" , "delay_level":-1,"wait":true,"physical_offset":90}\r\n',
)
_FILTERS = (
    b"a = 'red' AND size > 10",
    b"(x IS NULL OR y BETWEEN 1 AND 2.5) AND NOT z IN ('a','b')",
    b"a CONTAINS 'x'",
    b"1e3 <> -5",
    b"TRUE OR a STARTSWITH 'q'",
)


def _bodies() -> tuple[bytes, ...]:
    """The type bits of sys_flag as a byte, then the body."""
    plain = b"some text, some text, " * 40
    return tuple(
        bytes([body.compression_bits(kind) >> 8 & 7]) + body.compress(plain, kind) for kind in _KINDS
    )


def _traces() -> tuple[bytes, ...]:
    return (
        b"Pub\x011\x01DefaultRegion\x01g\x01T\x01id\x01tag\x01key\x01host\x015\x01100\x010\x01oid\x01true\x02",
    )


def _timer_logs() -> tuple[bytes, ...]:
    units = b"".join(
        timer.encode_log_unit(timer.LogUnit(timer.LOG_UNIT.size, 0, 1, 1 << 40, 60_000, number, 90, 1))
        for number in range(4)
    )
    return units, units + timer.encode_log_blank(30) + bytes(22), units + bytes(100)


def _timer_checks() -> tuple[bytes, ...]:
    return (timer.encode_check(timer.Check(1, 2, 3, 4, 5, 6, 7)),)


# -- what they do ------------------------------------------------------------------------------------


def _every_record(data: Input, random: Random) -> None:
    raw = data.tobytes()
    found = message.decode(memoryview(raw))
    if found.body_length >= 0 and found.properties_length >= 0:
        assert message.decode(message.encode(found)) == found
    is_filler(found)
    properties.property_crc_ok(raw[: found.total_size])


def _any_place(decode: Callable[[memoryview, int], object]) -> Callable[[Input, Random], None]:
    def run(data: Input, random: Random) -> None:
        for place in (0, max(len(data) - 20, 0), random.randrange(len(data) + 1)):
            try:
                decode(memoryview(data), place)
            except FormatError:
                pass

    return run


def _properties(data: Input, random: Random) -> None:
    raw = data.tobytes()
    found = properties.pairs(raw)
    assert properties.decode(raw) == {name: value for name, value in found if name and value}
    properties.sound(raw)
    properties.round_trips(raw)
    properties.keys_of(dict(found))
    properties.property_crc(raw)


def _walk(data: Input, random: Random) -> None:
    """Compiled = plain, at a window that is drawn; then every column of what was found."""
    options = {
        "file_from_offset": BASE,
        "crc": random.random() < 0.8,
        "check_stored_offset": random.random() < 0.8,
    }
    window = random.choice((1, 100, 333, 1000, 1 << 20))
    raw = data.tobytes()
    plain = values(walk_reference(BytesSource(raw), **options))
    assert values(walk(BytesSource(data), window=window, **options)) == plain
    for event in walk(BytesSource(data), window=window, **options):
        if isinstance(event, Frames):
            _columns(event)


def _entries(data: Input, random: Random) -> None:
    """As `_walk`, over a file of a DLedger log."""
    options = {
        "file_from_offset": BASE,
        "crc": random.random() < 0.8,
        "check_stored_offset": random.random() < 0.8,
        "entry_header": ledger.HEADER_SIZE,
        "check_entries": random.random() < 0.8,
    }
    window = random.choice((1, 100, 333, 1000, 1 << 20))
    plain = values(walk_reference(BytesSource(data.tobytes()), **options))
    assert values(walk(BytesSource(data), window=window, **options)) == plain
    for event in walk(BytesSource(data), window=window, **options):
        if isinstance(event, Frames):
            event.entry_headers()


def _ledger_state(data: bytes) -> Iterator[object]:
    for decode in (ledger.decode_ends, ledger.decode_term):
        with suppress(FormatError):
            yield decode(data)


def _columns(frames: Frames) -> None:
    dispatch = dispatch_columns(frames)
    packed = pack(frames, dispatch)
    if packed is not None:
        Unpacking([packed]).of(packed)
    stored = property_ranges.stored_properties(frames)
    pairs = property_ranges.read_pairs(frames)
    names, found = pairs.names, pairs.values
    for row in range(len(frames.rows)):
        data = stored.bytes_of(row) or b""
        first, stop = int(pairs.stops[row]), int(pairs.stops[row + 1])
        plain = properties.decode(data)
        compiled = {
            java.java_utf8_decode(names.bytes_of(place) or b""): java.java_utf8_decode(
                found.bytes_of(place) or b""
            )
            for place in range(first, stop)
        }
        assert compiled == plain, (data, compiled, plain)
        assert bool(pairs.sound[row]) == properties.sound(data)
    for name in ("KEYS", "UNIQ_KEY", "TAGS"):
        ranges = property_ranges.value_ranges(frames, name)
        texts.are_utf8(ranges)
        property_ranges.split_keys(ranges)
        texts.gather(ranges)
    property_ranges.status_of_ends(frames)
    texts.gather(texts.bodies(frames))
    texts.hosts(frames, born=True)
    texts.offset_message_ids(frames)


def _index(data: Input, random: Random) -> None:
    source = BytesSource(data)
    shapes = [index.Shape(random.choice((1, 5, 50)), random.choice((3, 20, 60)))]
    shapes += [shape for shape, _ in zip(index.shapes_of(len(data)), range(3), strict=False)]
    for shape in shapes:
        file = IndexFile(source, shape)
        count = file.used
        if count >= 2:
            file.check(count, grows=random.random() < 0.5)
        file.content_count()
        file.first_from(random.choice((0, 90, 1 << 60)), count)
        hashes = Names(["k", "\U0001f600", ""], ["T", "T", "T"]).hashes
        file.many([hashes, hashes[:1]])
        for key_hash in hashes.tolist():
            list(file.offsets(key_hash, lambda why, number: None))


def _judge(data: Input, random: Random) -> None:
    """Records that an index names, at offsets that need not be records."""
    names = Names(["a", "k", "U1"], ["TopicTest", "T", "TopicTest"])
    offsets = np.array(sorted(random.sample(range(-5, len(data) + 50), min(8, len(data) + 50))), np.int64)
    offsets = np.concatenate([offsets + BASE, np.array([BASE, 1 << 62, -(1 << 62)], np.int64)])
    keys = np.array([random.randrange(3) for _ in offsets], np.int32)
    inside = (offsets >= BASE) & (offsets < BASE + len(data))
    judge(BytesSource(data), BASE, names, keys[inside], offsets[inside])


def _queue(data: Input, random: Random) -> None:
    raw = data.tobytes()
    size = len(data)
    for unit_size in (consume_queue.UNIT_SIZE, consume_queue.BATCH_UNIT_SIZE):
        file = SimpleNamespace(path=Path("x"), file_from_offset=random.choice((0, 20, 40, 46)), size=size)
        with UnitReader(lambda path: BytesSource(data)) as reader:
            for _, units in reader.blocks(file, unit_size):
                live(units)
                queue_offsets(units, 7)
            queue = SimpleNamespace(files=[file], unit_size=unit_size)
            reader.read(queue, random.randrange(5), random.randrange(1, 40))
    for decode in (consume_queue.decode_units, consume_queue.decode_batch_units):
        try:
            list(decode(raw))
        except FormatError:
            pass


def _bodies_of(data: Input, random: Random) -> None:
    raw = data.tobytes()
    any_type = int.from_bytes(raw[:1]) << 8 | 1  # also types that no client writes
    for flags in (0, any_type, *map(body.compression_bits, _KINDS)):
        try:
            assert len(body.decompress(raw[1:], flags, limit=_BODY_LIMIT)) <= _BODY_LIMIT
        except FormatError:
            pass


_KINDS: tuple[body.Compression, ...] = ("zlib", "lz4", "zstd")


def _json(data: Input, random: Random) -> None:
    raw = data.tobytes()
    for name in ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "consumerFilter.json"):
        config_json.load_with_bak(name, raw, raw[::-1])
    document = fastjson.parse(raw)
    for read in (
        config_json.data_version,
        config_json.topics,
        config_json.subscription_groups,
        config_json.consumer_offsets,
        config_json.delay_offsets,
        config_json.filters,
        compaction.positions,
    ):
        try:
            read(document)
        except FormatError:
            pass
    fastjson.resolve(document)


def _texts(data: Input, random: Random) -> None:
    raw = data.tobytes()
    text = java.java_utf8_decode(raw)
    java.java_utf8_encode(text)
    java.string_hash(text)
    java.parse_integer(text, 1 << 31)
    for decode in (
        message_id.decode_unique_id,
        message_id.parse_host,
        message_id.address_bytes,
        message_id.OffsetMessageId.decode,
    ):
        try:
            decode(text)
        except FormatError:
            pass
    try:
        message_id.decode_host(raw)
    except FormatError:
        pass


def _filter(data: Input, random: Random) -> None:
    text = data.tobytes().decode("utf-8", "replace")
    for broker in ("4.9", "5.4"):
        try:
            parser.parse(text, broker=broker).matches({"a": "red", "size": "11", "x": "1e3"})
        except UsageError:
            pass


def _whole(decode: Callable[[Any], object]) -> Callable[[Input, Random], object]:
    return lambda data, random: decode(data.tobytes())


def _frames() -> tuple[bytes, ...]:
    command = remoting.Command(11, {"topic": "TopicTest", "queueId": "0"}, b"body", opaque=7, remark="why")
    return tuple(remoting.encode(replace(command, header_type=each)) for each in (0, 1))


def _answer(data: bytes) -> object:
    size, end = replication.decode_answer(data)
    head = replication.HANDSHAKE_ANSWER.size
    if len(data) - head < size:
        return None
    found = replication.decode_epochs(data[head : head + size])
    return epoch.is_ordered(found), epoch.common_end(found, end, found, end)


DECODERS: dict[str, Decoder] = {
    "record": Decoder(_every_record, _record_bytes),
    "walk": Decoder(_walk, _logs),
    "entries": Decoder(_entries, _ledgers),
    "ledger state": Decoder(
        _whole(_ledger_state), lambda: (b"committedIndex=9\nendIndex=9\n", b"currTerm=1\n")
    ),
    "judge": Decoder(_judge, _logs),
    "properties": Decoder(_properties, _property_strings),
    "batch items": Decoder(_whole(batch.decode_items), lambda: (_items(),)),
    "body": Decoder(_bodies_of, _bodies),
    "queue file": Decoder(_queue, lambda: (_UNITS, _BATCH_UNITS)),
    "extension unit": Decoder(
        _any_place(consume_queue.decode_ext_unit),
        lambda: (
            consume_queue.encode_ext_unit(consume_queue.ExtUnit(20, 7, 1, b"")) * 3,
            consume_queue.encode_ext_unit(consume_queue.ExtUnit(28, 7, 1, b"\xff" * 8)) * 2,
        ),
    ),
    "index file": Decoder(_index, _index_files),
    "index header": Decoder(_any_place(index.decode_header), _index_files),
    "index entry": Decoder(_any_place(index.decode_entry), _index_files),
    "checkpoint": Decoder(
        _whole(checkpoint.decode), lambda: (checkpoint.encode(checkpoint.Checkpoint(1, 2, 3, 4, 5))[:64],)
    ),
    "epoch": Decoder(
        _whole(epoch.decode),
        lambda: (epoch.encode([epoch.Entry(1, 0), epoch.Entry(2, 4096)]), b"1\n0\n1-0\n"),
    ),
    "abort": Decoder(_whole(markers.decode_abort), lambda: (b"", b"4711")),
    "timer slot": Decoder(
        _any_place(timer.decode_slot), lambda: (timer.encode_slot(timer.Slot(1, 2, 3, 4)) * 3,)
    ),
    "timer log": Decoder(_whole(timer.decode_log), _timer_logs),
    "timer check": Decoder(_whole(timer.decode_check), _timer_checks),
    "trace": Decoder(_whole(trace.decode), _traces),
    "config": Decoder(_json, lambda: _JSON),
    "JSON lines": Decoder(lambda data, random: check_json_lines(data.tobytes()), lambda: _JSON_LINES),
    "text": Decoder(
        _texts,
        lambda: (
            b"TopicTest",
            "\u6807\U0001f600".encode(),
            b"AC1100027C9C18B4AAC20000000000000000",
            b"0A00000100002A9F0000000000000400",
            b"[::1]:10911",
        ),
    ),
    "database table": Decoder(databases.read_table, databases.tables),
    "database log": Decoder(databases.read_log, databases.logs),
    "database record": Decoder(_whole(databases.read_record), databases.records),
    "database block": Decoder(databases.read_block, databases.blocks),
    "database entry": Decoder(_whole(databases.read_entry), databases.entries),
    "filter": Decoder(_filter, lambda: _FILTERS),
    "remoting": Decoder(_whole(lambda data: list(remoting.Frames().feed(data))), _frames),
    "HA frame": Decoder(
        _any_place(replication.decode_frame), lambda: (replication.FRAME.pack(4096, 80) * 3,)
    ),
    "HA transfer frame": Decoder(
        _any_place(replication.decode_transfer_frame),
        lambda: (replication.TRANSFER_FRAME.pack(2, 80, 4096, 3, 4000, 4096) * 2,),
    ),
    "HA answer": Decoder(
        _whole(_answer), lambda: (replication.encode_answer([epoch.Entry(1, 0), epoch.Entry(2, 4096)], 9999),)
    ),
}
