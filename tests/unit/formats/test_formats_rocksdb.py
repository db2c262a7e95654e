"""RocksDB codecs: golden bytes of brokers 5.4.0, what must be refused, any bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import pop_record, rocksdb, rocksdb_config, rocksdb_queue, rocksdb_timer
from rmqtool.formats.pop_record import PopRecord
from rmqtool.formats.rocksdb import Change, Footer, Handle, TableFile, VersionEdit
from rmqtool.formats.rocksdb_queue import EndKey
from rmqtool.formats.rocksdb_timer import TimerEntry

GOLDEN: list[tuple[str, str, Callable[[bytes], Any], Any]] = [
    ("footer of a table of units",
     "01 d11c51fd143b 0000000000000000000000000000000000000000000000000000000000000000 0000"
     "05000000 f7cff485b741e288",
     rocksdb.footer, Footer(True, Handle(3665, 81), Handle(2685, 59))),
    ("the column family offset is added",
     "01 1a 6c6576656c64622e4279746577697365436f6d70617261746f72 0204 0306 0400 c801 01 c901 06 6f6666736574",
     rocksdb.version_edit,
     VersionEdit(1, "leveldb.BytewiseComparator", 4, 0, "offset", False, [], [], 6)),
    ("a table of units is added",
     "0204 0900 030c 04de0a 67 000bdc1d"
     "21 0000000601546f706963410100000000010000000000000000 010e000000000000"
     "36 0000001b01524d515f5359535f5452414e535f4f505f48414c465f544f504943010000000001 0000000000000001"
     "2101000000000000 0ede0a 0505e9c48fd806 060591c58fd806 0d0101 07000807556e6b6e6f776e"
     "0c1022c5c5f034276e046b095cfb78b1e174 0f02a90a 01",
     rocksdb.version_edit, None),
    ("a batch of a WAL: two puts",
     "0100000000000000 02000000"
     "01 0b 546f7069634140706f7067 1d 7b226f66667365745461626c65223a7b2230223a302c2231223a307d7d"
     "01 0a 546f7069634140636731 1e 7b226f66667365745461626c65223a7b2230223a33302c2231223a317d7d",
     lambda data: list(rocksdb.changes(data)),
     [Change(0, 1, rocksdb.PUT, b"TopicA@popg", b'{"offsetTable":{"0":0,"1":0}}'),
      Change(0, 2, rocksdb.PUT, b"TopicA@cg1", b'{"offsetTable":{"0":30,"1":1}}')]),
    ("a batch of a WAL: a delete in another column family",
     "0900000000000000 01000000 04 01 21 000001a20735994e 706f7067 40 546f70696341"
     "40 00000000 40 0000000000000000",
     lambda data: list(rocksdb.changes(data)),
     [Change(1, 9, rocksdb.DELETE, b"\0\0\1\xa2\7\x35\x99Npopg@TopicA@\0\0\0\0@" + bytes(8), b"")]),
    ("key of a unit", "00000006 01 546f70696341 01 00000000 01 0000000000000005",
     rocksdb_queue.decode_unit_key, ("TopicA", 0, 5)),
    ("key of an end", "00000002 01 6230 01 6d696e 01 00000000",
     rocksdb_queue.decode_end_key, EndKey("b0", False, 0)),
    ("an end", "0000000000006d1e 000000000000001d", rocksdb_queue.decode_end, (27934, 29)),
    ("a timer message: its value", "0000015c 0000000000006ae2",
     lambda data: rocksdb_timer.decode(bytes.fromhex("000001a2072f3500") + b"KEY", data),
     TimerEntry(1_795_416_864_000, b"KEY", 348, 27362)),
    ("the time of delivery", "000001a2072f40b8", rocksdb_timer.decode_number, 1_795_416_867_000),
    ("the checkpoint", "0000000000008aa2", rocksdb_queue.decode_checkpoint, 35490),
    ("the last edit of an atomic group", "0900 030c 0a04 04de0a ac0200", rocksdb.version_edit,
     VersionEdit(0, None, None, 1374, None, False, [], [], 12, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "decode", "expected"), GOLDEN, ids=[each[0] for each in GOLDEN])
def test_golden_bytes(name: str, data: str, decode: Callable[[bytes], Any], expected: Any) -> None:
    """Each decodes to its values; cut anywhere it is a FormatError, or fewer values."""
    raw = bytes.fromhex(data.replace(" ", ""))
    if expected is not None:
        assert decode(raw) == expected
    for length in range(len(raw)):
        try:
            found = decode(raw[:length])
        except FormatError:
            continue
        assert found != expected


def test_a_table_in_the_manifest() -> None:
    """Level, number, size and the keys of its ends, which are a topic's first and another's last unit."""
    raw = bytes.fromhex(GOLDEN[2][1].replace(" ", ""))
    ((level, file),) = rocksdb.version_edit(raw).new_files
    assert (level, file.number, file.size) == (0, 11, 3804)
    assert rocksdb_queue.decode_unit_key(file.smallest[:-8]) == ("TopicA", 0, 0)
    assert rocksdb_queue.decode_unit_key(file.largest[:-8]) == ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 1)
    assert not file.ends_before_largest
    end = TableFile(1, 2, b"", b"k" + bytes.fromhex("0fffffffffffffff"))
    assert end.ends_before_largest


POP_KEY = bytes.fromhex("000001a20735994e") + b"popg@TopicA@" + bytes(4) + b"@" + bytes(7) + b"\1"
POP_VALUE = (
    b'{"popTime":1795416682894,"groupId":"popg","topicId":"TopicA","queueId":0,"retryFlag":0,'
    b'"invisibleTime":600000,"offset":1,"attemptTimes":0}'
)


def test_a_pop_record() -> None:
    found = pop_record.decode(POP_KEY, POP_VALUE)
    assert found == PopRecord("popg", "TopicA", 0, 1, 1_795_416_682_894, 600_000, 0, 0, None)
    assert found.due_ms == 1_795_417_282_894 and pop_record.key_of(found) == POP_KEY
    with_id = POP_VALUE[:-1] + b',"attemptId":"x"}'
    assert pop_record.decode(POP_KEY, with_id).attempt_id == "x"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [(b'"queueId":0', b'"queueId":1', "another key"), (b'"offset":1', b'"offset":"1"', "offset"),
     (b'"groupId":"popg"', b'"groupId":5', "groupId"), (b'"popTime":', b'"popTim":', "popTime"),
     (b'"queueId":0', b'"queueId":99999999999', "out of its range"), (POP_VALUE, b"[]", "not a JSON object"),
     (POP_VALUE, b"{", "JSON")],
)  # fmt: skip
def test_a_pop_record_that_is_refused(old: bytes, new: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        pop_record.decode(POP_KEY, POP_VALUE.replace(old, new))


def test_config_v2_rows() -> None:
    """Keys of config/rdb: a topic, a committed offset, a data version; a pull offset is in no file."""
    offset = b"\1\0\1\2\0\3cg1\1\0\6TopicA\1" + bytes(4)
    rows = [
        (b"\1\0\3\2\0\6TopicA", b'\1{"topicName":"TopicA","perm":6}'),
        (offset, (30).to_bytes(8, "big")),
        (offset.replace(b"\0\1\2", b"\0\2\2", 1), (7).to_bytes(8, "big")),
        (b"\1\0\1\1data_version", b"".join(each.to_bytes(8, "big") for each in (1, 1795, 9))),
    ]
    found = rocksdb_config.documents_v2(rows)
    assert found["topics.json"]["topicConfigTable"] == {"TopicA": {"topicName": "TopicA", "perm": 6}}
    assert found["consumerOffset.json"] == {
        "offsetTable": {"TopicA@cg1": {0: 30}},
        "dataVersion": {"counter": 9, "stateVersion": 1, "timestamp": 1795},
    }
    for key, value in rows:
        for bad in ((key[:-1], value), (b"\2" + key[1:], value), (key, value[:-1])):
            if bad[0][:3] == b"\1\0\2":
                continue  # pull offsets are not looked at
            with pytest.raises(FormatError):
                rocksdb_config.documents_v2([bad])


@given(key=st.binary(max_size=60), value=st.binary(max_size=60))
def test_any_bytes_give_values_or_a_format_error(key: bytes, value: bytes) -> None:
    for decode in (
        lambda: pop_record.decode(key, value),
        lambda: pop_record.decode(key, POP_VALUE),
        lambda: rocksdb_timer.decode(key, value),
        lambda: rocksdb_timer.decode_number(value),
        lambda: rocksdb_config.documents_v2([(b"\1\0\1\2" + key, value)]),
        lambda: rocksdb_config.document_v1("topics.json", [(key, value)], value),
        lambda: rocksdb_queue.decode_unit_key(key),
        lambda: rocksdb_queue.decode_end_key(key),
    ):
        try:
            decode()
        except FormatError:
            continue
