"""Columns to records: the kernel against plain Python, plain Python against the codec and golden bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqtool.formats import message, properties
from rmqtool.write import encode
from rmqtool.write.encode import NO_VALUE, Batch, Part, map_value
from tests.support.programs import PATIENCE_S, ROOT
from tests.support.sweep import IS_WHOLE

pytestmark = pytest.mark.sweep

BORN = bytes((192, 168, 0, 10)) + (54321).to_bytes(4, "big")
STORE = bytes((10, 0, 0, 1)) + (10911).to_bytes(4, "big")
LONG_HOST = bytes(range(16)) + (10911).to_bytes(4, "big")
HOSTS = [BORN, STORE, LONG_HOST]
TOPICS = [b"TopicTest", b"%RETRY%" + b"g" * 121, b"T"]
VERSIONS = np.array([1, 2, 1], np.int64)
TEMPLATES = [
    [Part(b"", 1)],
    [Part(b"UNIQ_KEY\x01", 0), Part(b"\x02TAGS\x01", 1), Part(b"\x02WAIT\x01true\x02")],
    [Part(b"a\x01", map_value(1)), Part(b"\x02b\x01", map_value(0)), Part(b"\x02", NO_VALUE)],
    [],
]  # fmt: skip


@dataclass
class Row:
    """A row of a batch; `values` are those of the two columns, `own` those of its map."""

    body: bytes = b"hello"
    values: tuple[bytes, bytes] = (b"U1", b"TagA")
    own: tuple[bytes, bytes] = (b"x", b"y")
    fields: dict[str, int] = field(default_factory=dict)


def batch_of(rows: list[Row], *, seals: bool = False) -> Batch:
    """An encoder batch, measured by plain Python."""
    texts = [row.values[0] for row in rows] + [row.values[1] for row in rows]
    texts += [value for row in rows for value in row.own]
    texts += [row.body for row in rows]
    data = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
    lengths = np.array([len(text) for text in texts], np.int32)
    addresses = data.ctypes.data + np.cumsum(lengths, dtype=np.int64) - lengths
    table = np.zeros(len(rows), encode.ROW)
    table["body_address"], table["body_length"] = addresses[4 * len(rows) :], lengths[4 * len(rows) :]
    table["values_start"] = 2 * len(rows) + 2 * np.arange(len(rows))
    for number, row in enumerate(rows):
        for name, value in row.fields.items():
            table[number][name] = value
    for name, bit in (("born_host", message.BORN_HOST_V6), ("store_host", message.STORE_HOST_V6)):
        table["sys_flag"] |= np.where(table[name] == HOSTS.index(LONG_HOST), bit, 0).astype(np.int32)
    made = Batch(
        table, TOPICS, VERSIONS, HOSTS, *encode.build_templates(TEMPLATES), addresses[: 4 * len(rows)],
        lengths[: 4 * len(rows)], seals=seals, owners=(data,),
    )  # fmt: skip
    encode.measure_rows(made, plain=True)
    return made


def encoded(
    batch: Batch, *, plain: bool, limit: int = 1 << 40, start: int = 0
) -> tuple[bytes, int, list[int]]:
    """(bytes, next row, next queue offsets), into a buffer filled with FF."""
    next_offsets = np.array([5, 0, 1 << 40, 7], np.int64)
    out = np.full(1 << 20, 0xFF, np.uint8)
    following, used = encode.encode_rows(
        batch, 0, len(batch.rows), next_offsets, start, limit, out, plain=plain
    )
    assert (out[used:] == 0xFF).all()
    return out[:used].tobytes(), following, next_offsets.tolist()


I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.one_of(st.binary(max_size=40), st.integers(0, 200).map(lambda size: b"v" * size))
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "queue_id": I32, "flag": I32, "reconsume_times": I32, "born_timestamp": I64, "store_timestamp": I64,
        "prepared_transaction_offset": I64, "queue": st.integers(0, 3), "template": st.integers(0, 3),
        "topic": st.integers(0, 2), "born_host": st.integers(0, 2), "store_host": st.integers(0, 2),
        "sys_flag": st.sampled_from([0, 1, 4, 8, 0xC, 0x80, 0x701, 0x7FFFFF00 & ~0x30]),
    },
)  # fmt: skip
BODY = st.one_of(
    st.binary(max_size=80), st.integers(0, 2000).map(lambda size: bytes(range(256)) * (size // 256 + 1))
)
ROWS = st.lists(
    st.builds(Row, BODY, st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT), FIELDS), min_size=1, max_size=12
)


@given(ROWS, st.booleans(), st.integers(0, 8000), st.integers(0, 1 << 62))
@example([Row(b"")], True, 8000, 0)
def test_the_kernel_writes_what_plain_python_writes(
    rows: list[Row], seals: bool, limit: int, start: int
) -> None:
    batch = batch_of(rows, seals=seals)
    sizes = batch.rows["size"].tolist(), batch.rows["properties_length"].tolist()
    encode.measure_rows(batch, plain=False)
    assert (batch.rows["size"].tolist(), batch.rows["properties_length"].tolist()) == sizes
    plain = encoded(batch, plain=True, limit=limit, start=start)
    assert encoded(batch, plain=False, limit=limit, start=start) == plain


@given(ROWS, st.booleans())
def test_records_hold_what_the_rows_say(rows: list[Row], seals: bool) -> None:
    data, following, _ = encoded(batch_of(rows, seals=seals), plain=False, start=1000)
    assert following == len(rows)
    position = 0
    for row in rows:
        found = message.decode(data, position)
        record = data[position : position + found.total_size]
        fields = row.fields
        assert found.physical_offset == 1000 + position
        assert (found.body, found.topic_bytes) == (row.body, TOPICS[fields.get("topic", 0)])
        assert found.body_crc == message.masked_crc(row.body)
        assert found.born_host == HOSTS[fields.get("born_host", 0)]
        assert found.store_host == HOSTS[fields.get("store_host", 0)]
        for name in ("queue_id", "flag", "reconsume_times", "born_timestamp", "store_timestamp",
                     "prepared_transaction_offset"):  # fmt: skip
            assert getattr(found, name) == fields.get(name, 0)
        stored = found.properties_bytes
        if seals:
            assert properties.property_crc_ok(record)
            stored = stored[: -message.PROPERTY_CRC_SIZE]
        uniq, tags = row.values
        if fields.get("template", 0) == 1:
            assert stored == b"UNIQ_KEY\x01" + uniq + b"\x02TAGS\x01" + tags + b"\x02WAIT\x01true\x02"
        elif fields.get("template", 0) == 2:
            assert stored == b"a\x01" + row.own[1] + b"\x02b\x01" + row.own[0] + b"\x02"
        position += found.total_size
    assert position == len(data)


@pytest.mark.parametrize("plain", [False, True])
def test_prepared_and_rolled_back_messages_take_no_queue_offset(plain: bool) -> None:
    kinds = [0, message.TRANSACTION_PREPARED, message.TRANSACTION_COMMIT, message.TRANSACTION_ROLLBACK, 0]
    batch = batch_of([Row(fields={"sys_flag": kind}) for kind in kinds])
    data, _, next_offsets = encoded(batch, plain=plain)
    size = len(data) // len(kinds)
    found = [message.decode(data, place).queue_offset for place in range(0, len(data), size)]
    assert found == [5, 0, 6, 0, 7]
    assert next_offsets == [8, 0, 1 << 40, 7]


@pytest.mark.parametrize("plain", [False, True])
def test_a_record_is_written_whole_or_not_at_all(plain: bool) -> None:
    batch = batch_of([Row(), Row()])
    size = int(batch.rows["size"][0])
    assert encoded(batch, plain=plain, limit=2 * size)[1] == 2
    data, following, next_offsets = encoded(batch, plain=plain, limit=2 * size - 1)
    assert (len(data), following, next_offsets[0]) == (size, 1, 6)
    assert encoded(batch, plain=plain, limit=size - 1) == (b"", 0, [5, 0, 1 << 40, 7])


@pytest.mark.parametrize("plain", [False, True])
def test_golden_bytes(plain: bool) -> None:
    """The record of spec 01 14.1."""
    fields = {
        "queue_id": 3, "queue": 3, "born_timestamp": 1_700_000_000_000, "born_host": 0, "store_host": 1,
        "store_timestamp": 1_700_000_000_123,
    }  # fmt: skip
    row = Row(values=(b"", b"KEYS\x01k1\x02TAGS\x01TagA"), fields=fields)
    data, _, _ = encoded(batch_of([row]), plain=plain, start=1024)
    assert data == bytes.fromhex(
        "0000007a daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000400 00000000"
        "0000018bcfe56800 c0a8000a0000d431 0000018bcfe5687b 0a00000100002a9f 00000000 0000000000000000"
        "00000005 68656c6c6f 09 546f70696354657374 0011 4b455953016b3102544147530154616741"
    )


@pytest.mark.parametrize("plain", [False, True])
def test_golden_property_crc(plain: bool) -> None:
    """The 5.x form of spec 01 14.1 with enabledAppendPropCRC."""
    fields = {
        "queue_id": 3, "queue": 3, "born_timestamp": 1_700_000_000_000, "born_host": 0, "store_host": 1,
        "store_timestamp": 1_700_000_000_123,
    }  # fmt: skip
    row = Row(values=(b"", b"TAGS\x01TagA\x02KEYS\x01k1\x02"), fields=fields)
    data, _, _ = encoded(batch_of([row], seals=True), plain=plain, start=1024)
    assert len(data) == 143
    assert data[-20:] == b"__CRC32#\x018736787821\x02"


def run(tmp_path: Path, code: str, **environment: str) -> str:
    """What a process prints that runs this code from a file."""
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not IS_WHOLE, reason="compiles all kernels anew: make sweep")
def test_the_kernels_stay_inside_their_buffers(tmp_path: Path) -> None:
    """Once with numba's own checks: every load and store is then checked against its array."""
    assert run(tmp_path, _CHECKED, NUMBA_BOUNDSCHECK="1") == "same\n"


_CHECKED = """
from tests.unit.write.test_encode import Row, batch_of, encoded
rows = [Row(bytes(size), (b"u" * size, b"t" * (size % 90)), fields={"template": size % 4, "topic": size % 3,
        "born_host": size % 3, "store_host": size // 3 % 3}) for size in range(200)]
for seals in (False, True):
    batch = batch_of(rows, seals=seals)
    assert encoded(batch, plain=False) == encoded(batch, plain=True)
    size = int(batch.rows["size"].sum())
    assert encoded(batch, plain=False, limit=size)[1] == len(rows)
print("same")
"""


def test_a_store_outside_of_its_array_is_found_by_the_checks(tmp_path: Path) -> None:
    """What the test above relies on."""
    assert run(tmp_path, _OUTSIDE, NUMBA_BOUNDSCHECK="1") == "found 5\n"


_OUTSIDE = """
import numpy as np
from rmqtool.log.compiled import compiled
from rmqtool.log.store_intrinsics import copy_in, copy_short, put_8, put_16, put_64
@compiled
def poke(out, what, source):
    if what == 0:
        put_64(out, 1, 0)
    elif what == 1:
        put_16(out, -1, 0)
    elif what == 2:
        put_8(out, 8, 0)
    elif what == 3:
        copy_in(out, 4, source, 5)
    elif what == 4:
        copy_short(out, 4, source, 5)
    else:
        put_64(out, 0, 0)
source = np.zeros(16, np.uint8)
found = 0
for what in range(6):
    try:
        poke(np.zeros(8, np.uint8), what, source.ctypes.data)
    except RuntimeError:
        found += 1
print("found", found)
"""


def test_small_batches_load_no_kernels(tmp_path: Path) -> None:
    assert run(tmp_path, _SMALL) == "False\n"


_SMALL = """
import sys
from tests.unit.write.test_encode import Row, batch_of, encoded
encoded(batch_of([Row()]), plain=True)
print("llvmlite" in sys.modules)
"""
