"""Units of queues in RocksDB: compiled and plain give the same, whatever was written, deleted and merged."""

from __future__ import annotations

import random
import struct
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Rdict

from rmqtool.errors import FormatError
from rmqtool.formats import rocksdb, rocksdb_queue
from rmqtool.formats.rocksdb_queue import EndKey, end_key, unit_key
from rmqtool.queue import rocksdb_units
from rmqtool.queue.units import UnitReader
from rmqtool.storage.layout import rocksdb_queue_files
from rmqtool.storage.rocksdb.queues import RocksdbQueues, UnitRange, after, read_units
from rmqtool.storage.rocksdb.table import split_key
from rmqtool.storage.rocksdb.writer import DatabaseWriter
from tests.support.rocksdb_databases import options, write_ahead_log, write_rows
from tests.support.sweep import sample

KEYS = [("TopicA", 0), ("TopicA", 1), ("TopicAB", 0), ("%LMQ%a/b", 0), ("名", 3)]


def value(number: int) -> bytes:
    return struct.pack(">qiqq", 100 * number, 99, number * 7 - 3, 1_700_000_000_000 + number)


def random_queues(folder: Path, rng: random.Random) -> None:
    """Queues with units that were written again, deleted one by one and by range, in many tables."""
    opts = options(
        compression=rng.choice(("none", "lz4", "zstd")), block_size=rng.choice((100, 1000, 4096)),
        hash_index=rng.random() < 0.5, compaction=False,
    )  # fmt: skip
    units = Rdict(str(folder), options=opts)
    ends = units.create_column_family("offset", options=opts)
    for key in KEYS:
        ends[end_key(EndKey(key[0], True, key[1]))] = struct.pack(">qq", 0, 399)
    for _ in range(rng.randrange(5, 30)):
        topic, queue_id = rng.choice(KEYS)
        start = rng.randrange(400)
        what = rng.random()
        if what < 0.6:
            for number in range(start, min(start + rng.randrange(200), 420)):
                units[unit_key(topic, queue_id, number)] = value(number + rng.randrange(2))
        elif what < 0.7:
            del units[unit_key(topic, queue_id, start)]
        elif what < 0.8:
            low, high = unit_key(topic, queue_id, start), unit_key(topic, queue_id, start + 50)
            high = rng.choice((high, high + b"x", high[:-1], high[:-3]))
            units.delete_range(*sorted((low, high)))
        elif what < 0.83:
            prefix = rocksdb_queue.queue_prefix(topic, queue_id)
            units.delete_range(prefix[:-1] + b"\0", after(prefix))  # the topic is deleted
        elif what < 0.86:
            units[unit_key(topic, queue_id, start)] = b"no unit"
        elif what < 0.95:
            units.flush()
        else:
            units.compact_range(None, None)
    ends.close()
    units.close()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [0, *sample(range(1, 12), 3)])
def test_compiled_and_plain_agree(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    random_queues(tmp_path / "db", rng)
    if seed % 3 == 0:
        log = write_ahead_log([(0, unit_key("TopicA", 0, 7), value(1)), (0, unit_key("TopicA", 0, 9), None)])
        (tmp_path / "db/000900.log").write_bytes(log)
    queues = RocksdbQueues(tmp_path / "db")
    assert sorted(queues.queues) == sorted(KEYS)
    some = 0
    for queue in queues.queues.values():
        for start, stop in ((0, 420), (100, 300), (7, 8), (rng.randrange(400), 410)):
            units = UnitRange(queues.database, queue.prefix, start, stop)
            plain = read_units(units)
            found = rocksdb_units.columns(units).values
            assert found.view(np.uint8).reshape(-1, 28)[:, :20].tobytes() == plain
            some += len(plain) - plain.count(0)
        numbers = np.arange(0, 400, 3)
        times = rocksdb_units.store_times(queues, (queue.topic, queue.queue_id), numbers)
        every = rocksdb_units.columns(UnitRange(queues.database, queue.prefix, 0, 400)).values
        assert (times == every["store_timestamp"][numbers]).all()
    assert some
    queues.close()


def test_a_queue_is_one_file_of_units(tmp_path: Path) -> None:
    """From the first unit to `max`; units above it are not in the file, zeros stand for those that lack."""
    numbers = [*range(500, 1500), *range(2500, 3001)]
    rows = {unit_key("A", 1, number): value(number) for number in numbers}
    ends = {end_key(EndKey("A", True, 1)): struct.pack(">qq", 299_900, 2999),
            end_key(EndKey("B", False, 0)): struct.pack(">qq", 0, 0)}  # fmt: skip
    write_rows(tmp_path / "db", {"default": rows, "offset": ends}, block_size=512)
    queues = RocksdbQueues(tmp_path / "db")
    (queue,) = queues.queues.values()
    assert (queue.first, queue.end) == (500, 3000)
    files = rocksdb_queue_files(queues, queue)
    assert files.files[0].path.read_bytes() == b"".join(
        value(number)[:20] if number in numbers else bytes(20) for number in range(500, 3000)
    )
    with UnitReader() as reader:
        blocks = list(reader.blocks(files.files[0], 20))
        assert [int(first) for first, _ in blocks] == [500]
        units = reader.read(files, 490, 20)
    assert not units[:10]["size"].any() and units[10:]["size"].all()
    file = queues.open(f"{queue.folder}/{queue.file}")
    assert file.data_from(1000 * 20) == 2000 * 20
    assert file.data_from(7) == 7 and file.data_from(2499 * 20 + 3) == 2499 * 20 + 3
    queues.close()


@given(data=st.data())
def test_any_block_gives_units_or_an_error(data: st.DataObject) -> None:
    """Mutated blocks: the kernel takes the same units as the plain decoder, or both refuse."""
    prefix = rocksdb_queue.queue_prefix("T", 0)
    block = bytearray()
    for number in range(4):
        key = prefix + number.to_bytes(8, "big") + rocksdb.KEY_TAIL.pack(number << 8 | 1)
        block += bytes((0, len(key), 28)) + key + value(number)
    for _ in range(data.draw(st.integers(0, 3))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    raw = np.zeros((4, 28), np.uint8)
    sequences = np.full(4, -1, np.int64)
    taken = rocksdb_units.units_of_block(
        np.frombuffer(bytes(block), np.uint8), len(block), np.frombuffer(prefix, np.uint8), 0,
        np.empty(rocksdb.NAMES_MAX, np.uint8), 28, rocksdb.PUT,
        np.array([rocksdb.DELETE, rocksdb.SINGLE_DELETE]), sequences, raw,
    )  # fmt: skip
    try:
        expected = _plain(bytes(block), prefix)
    except FormatError:
        assert taken < 0
    else:
        assert taken >= 0 and (raw == expected).all()


def _plain(block: bytes, prefix: bytes) -> np.ndarray:
    """The units of a block by the plain decoder."""
    expected = np.zeros((4, 28), np.uint8)
    newest = [-1] * 4
    for key, content in rocksdb.block_entries(block + bytes(4)):
        user_key, sequence, kind = split_key(key)
        number = int.from_bytes(user_key[len(prefix) :], "big", signed=True)
        if not user_key.startswith(prefix) or len(user_key) != len(prefix) + 8 or not 0 <= number < 4:
            continue
        if sequence <= newest[number]:
            continue
        if kind not in (rocksdb.DELETE, rocksdb.PUT, rocksdb.SINGLE_DELETE):
            raise FormatError("an unknown kind")
        newest[number] = sequence
        is_unit = kind == rocksdb.PUT and len(content) == 28
        expected[number] = np.frombuffer(content, np.uint8) if is_unit else 0
    return expected


@given(data=st.binary(max_size=2000))
def test_the_compiled_checksum(data: bytes) -> None:
    assert rocksdb_units.crc32c(data) == rocksdb.crc32c(data)


def test_compiled_code_is_faster(tmp_path: Path) -> None:
    """Measured: 7 million units per second of processor time with blocks as brokers write, on a busy machine.

    Here only the ratio to plain Python counts, which does not depend on the machine.
    """
    count, prefix = 60_000, rocksdb_queue.queue_prefix("TopicA", 0)
    with closing(DatabaseWriter(tmp_path / "db", (rocksdb_queue.UNITS, rocksdb_queue.ENDS))) as writer:
        writer.put(rocksdb_queue.UNITS, ((unit_key("TopicA", 0, n), value(n)) for n in range(count)))
        writer.finish()
    queues = RocksdbQueues(tmp_path / "db")
    rocksdb_units.use(queues)
    (table,) = queues.database.tables(rocksdb_queue.UNITS)
    assert len(table.block(0)) > 30_000  # a call for each of many small blocks would cost most
    units = UnitRange(queues.database, prefix, 0, count)
    spent = []
    for read in (rocksdb_units.read, rocksdb_units.read, read_units):  # the first may compile
        started = time.process_time()
        assert len(read(units)) == 20 * count
        spent.append(time.process_time() - started)
    assert 3 * spent[1] < spent[2], spent
    queues.close()
