"""The least that the machine needs for a piece of work: `python -m tests.benchmarks.limits WORK ARGUMENT...`.

    read FILE...              every byte of the files into one buffer
    write PLAN FOLDER         as many bytes into as many new files as a store has, flushed; see `write_plan`
    partitions FILE FOLDER    the bodies of an Arrow file, each to the end of the file of its queue
    parquet FILE TARGET       an Arrow file as Parquet, compressed as `export` does
    json FILE                 json.loads of every line
    jsoncolumns FILE          the lines as columns, by pyarrow
    inflate FILE TEXT         zlib.decompress of every body of an Arrow file, and a search for the text
    places PLAN               the used part of index files, and some bytes at each of many places of a log
    answers STORE TOPIC       a server of asyncio that has the answers to all pulls ready, until it is killed
    checks STORE TOPIC        the same, but it reads and checks the records of each answer
    flush FILE N              N times 16 records of 1 KiB, each time flushed to the device

Only what a piece of work needs is imported.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import resource
import struct
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_BUFFER_BYTES = 4 << 20
_FEW_FILES = 1_000
_SPARE_FILES = 100
_GROUP_BYTES = 16 * 1024
_RECORD_BYTES = 512
_PULLED = 32  # messages of an answer
_ANSWER_BYTES = 256 << 10  # most of an answer


def read(paths: Sequence[str | Path]) -> int:
    """Read every byte of the files; their number."""
    buffer, total = memoryview(bytearray(_BUFFER_BYTES)), 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            while count := file.readinto(buffer):
                total += count
    return total


def read_and_sum(path: str | Path) -> int:
    """Read every byte of a file and add up its 64-bit words: the least that looking at each byte takes."""
    import numpy as np

    words, total = np.empty(_BUFFER_BYTES // 8, np.uint64), 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while count := file.readinto(words.data.cast("B")):
            total += int(words[: count // 8].sum())
    return total


def read_and_crc(path: str | Path) -> int:
    """Read every byte of a file, and the CRC-32 of each buffer: what checking each byte takes."""
    from isal.isal_zlib import crc32

    buffer, crc = memoryview(bytearray(_BUFFER_BYTES)), 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while count := file.readinto(buffer):
            crc ^= crc32(buffer[:count])
    return crc


def write_plan(store: Path, log_end: int, target: Path) -> None:
    """Note the files of a store: path in the store, bytes of data, size. The log's data end at `log_end`."""
    files = []
    for path in sorted(store.rglob("*")):
        if path.is_file():
            status = path.stat()
            data_bytes = min(status.st_size, status.st_blocks * 512)
            if path.parent.name == "commitlog":
                data_bytes = min(max(log_end - int(path.name), 0), data_bytes)
            files.append((str(path.relative_to(store)), data_bytes, status.st_size))
    target.write_text(json.dumps(files), "utf-8")


def write(plan: str, folder: str) -> None:
    """Write the files of a plan, one after the other, and flush them as a command has to before it ends."""
    root, buffer = Path(folder), memoryview(os.urandom(_BUFFER_BYTES))
    files = json.loads(Path(plan).read_text("utf-8"))
    for relative, data_bytes, size in files:
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", buffering=0) as file:  # noqa: PTH123
            for start in range(0, data_bytes, _BUFFER_BYTES):
                file.write(buffer[: min(_BUFFER_BYTES, data_bytes - start)])
            if size > data_bytes:
                file.truncate(size)
            if len(files) <= _FEW_FILES:
                os.fdatasync(file.fileno())
    if len(files) > _FEW_FILES:
        os.sync()


def partitions(table: str, folder: str) -> None:
    """One file per queue: each body to the end of the file of its queue, as brokers store partitions.

    As many files stay open as the process may have.
    """
    import pyarrow as pa

    root = Path(folder)
    root.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = (hard if hard != resource.RLIM_INFINITY else 1 << 20) - _SPARE_FILES
    files: OrderedDict[tuple[str, int], int] = OrderedDict()
    with pa.memory_map(table) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            columns = (batch[name].to_pylist() for name in ("topic", "queue_id", "body"))
            for topic, queue_id, body in zip(*columns, strict=True):
                descriptor = files.get((topic, queue_id))
                if descriptor is None:
                    if len(files) >= limit:
                        os.close(files.popitem(last=False)[1])
                    name = root / f"{topic}-{queue_id}"
                    descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                    files[topic, queue_id] = descriptor
                else:
                    files.move_to_end((topic, queue_id))
                os.write(descriptor, body)
    if len(files) <= _FEW_FILES:
        for descriptor in files.values():
            os.fdatasync(descriptor)
    else:
        os.sync()
    for descriptor in files.values():
        os.close(descriptor)


def parquet(table: str, target: str) -> None:
    """What pyarrow alone needs to compress and write columns that are in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.memory_map(table) as source, pa.ipc.open_file(source) as reader:
        with pq.ParquetWriter(target, reader.schema, compression="zstd") as writer:
            for number in range(reader.num_record_batches):
                writer.write_batch(reader.get_batch(number))


def json_lines(path: str) -> int:
    """Decode every line of a file; their number."""
    count = 0
    with open(path, "rb") as file:  # noqa: PTH123
        for line in file:
            json.loads(line)
            count += 1
    return count


def json_columns(path: str) -> int:
    """Parse a file of JSON lines into columns, in as many threads as there are processors; the rows."""
    import pyarrow.json as pj

    count: int = pj.read_json(path, read_options=pj.ReadOptions(block_size=_BUFFER_BYTES)).num_rows
    return count


def inflate(table: str, text: str) -> int:
    """Decompress every body of a table with zlib and look for a text in it; how many have it."""
    import pyarrow as pa

    wanted, count = text.encode(), 0
    with pa.memory_map(table) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            bodies = reader.get_batch(number).column("body").to_pylist()
            count += sum(wanted in zlib.decompress(body) for body in bodies)
    return count


def places(plan: str) -> int:
    """Read what a look-up of many keys has to read: as many reads as records, of 512 bytes; their number."""
    given = json.loads(Path(plan).read_text("ascii"))
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    for path, used_bytes in given["index"]:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            for start in range(0, used_bytes, _BUFFER_BYTES):
                file.readinto(buffer[: min(_BUFFER_BYTES, used_bytes - start)])
    count = 0
    for path, starts in given["log"]:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            descriptor = file.fileno()
            for start in starts:
                os.pread(descriptor, _RECORD_BYTES, start)
            count += len(starts)
    return count


def answers(store: str, topic: str) -> None:
    """Send records of a topic as a broker does, 32 to a pull; nothing is read, parsed or checked.

    The port is printed.
    """
    ready = _ready_answers(Path(store), topic)
    _serve(lambda queue_id, offset: ready[queue_id, offset])


def checks(store: str, topic: str) -> None:
    """As `answers`, but the records are read for each pull, and checked by the code of `serve`."""
    from rmqtool.net.view import View
    from rmqtool.net.whole_answer import WholeAnswer
    from rmqtool.read.store import Store

    whole, view = WholeAnswer(), View(lambda: Store.open(store))
    whole.load()
    queues = {number: view.queue(topic, number) for number in range(view.topics[topic].queues)}

    def answer(queue_id: int, offset: int) -> tuple[int, memoryview]:
        queue: Any = queues[queue_id]
        stop = min(offset + _PULLED, queue.window.high)
        found = whole.answer(
            view.log, queue.queue, topic, queue_id, offset, stop, most_bytes=_ANSWER_BYTES, version_1=False
        )
        assert found is not None
        return offset + found[0], found[1]

    _serve(answer)


def _serve(answer: Callable[[int, int], tuple[int, bytes | memoryview]]) -> None:
    """Answer pulls; `answer` gets queue id and offset, and returns the following offset and the records."""
    import asyncio
    import re

    wanted = re.compile(rb'"queueId":"(\d+)","queueOffset":"(\d+)".*"opaque":(\d+)', re.DOTALL)

    class Pulls(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.data, self.transport = bytearray(), transport

        def data_received(self, data: bytes) -> None:
            self.data += data
            while len(self.data) >= 4 and len(self.data) >= (size := 4 + int.from_bytes(self.data[:4])):
                found = wanted.search(self.data, 0, size)
                assert found is not None
                queue_id, offset, opaque = map(int, found.groups())
                del found, self.data[:size]
                following, body = answer(queue_id, offset)
                head = b'{"code":0,"extFields":{"nextBeginOffset":"%d"},"flag":1,"opaque":%d}' % (
                    following,
                    opaque,
                )
                marks = struct.pack(">ii", 4 + len(head) + len(body), len(head))
                self.transport.write(b"".join((marks, head, body)))  # type: ignore[attr-defined]

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Pulls, "127.0.0.1", 0)
        sys.stderr.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stderr.flush()
        await server.serve_forever()

    asyncio.run(main())


def _ready_answers(store: Path, topic: str) -> dict[tuple[int, int], tuple[int, bytes]]:
    """By queue id and offset: the following offset, and the bytes of the records."""
    import numpy as np

    from rmqtool.queue.units import UnitReader
    from rmqtool.read.store import Store

    found = {}
    with Store.open(store) as opened, UnitReader() as reader:
        logs = {file.file_from_offset: np.memmap(file.path, mode="r") for file in opened.layout.commit_log}
        for (name, queue_id), queue in opened.queues.items():
            if name != topic:
                continue
            blocks = [units for _, units in reader.live_between(queue, 0, queue.max_offset())]
            places = [(int(unit["physical_offset"]), int(unit["size"])) for units in blocks for unit in units]
            for first in range(0, len(places), _PULLED):
                records = []
                for place, size in places[first : first + _PULLED]:
                    start = max(each for each in logs if each <= place)
                    records.append(logs[start][place - start : place - start + size].tobytes())
                found[queue_id, first] = first + len(records), b"".join(records)
    return found


def flush(path: str, times: int) -> None:
    """Append as many bytes as 16 records have and flush them, again and again: an ideal group commit."""
    data = os.urandom(_GROUP_BYTES)
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        for _ in range(times):
            file.write(data)
            os.fdatasync(file.fileno())


def zlib_walk(data: memoryview, records: int) -> int:
    """What one writes with `struct` and zlib: walk records of version 1; how many bodies match their CRC."""
    from rmqtool.formats import message

    head, body = struct.Struct(">iii"), struct.Struct(">i")
    body_at, start = message.HEADS[0].offsets["body_length"], message.HEAD_SIZE_V4
    crc32, position, good = zlib.crc32, 0, 0
    for _ in range(records):
        size, _, crc = head.unpack_from(data, position)
        (length,) = body.unpack_from(data, position + body_at)
        begin = position + start
        good += crc32(data[begin : begin + length]) & message.CRC_MASK == crc
        position += size
    return good


def construct_walk(data: memoryview, records: int) -> int:
    """The same with a declaration of `construct` that names every field, as a parser in Python has it."""
    import construct as c

    record = c.Struct(
        "total_size" / c.Int32sb, "magic" / c.Int32ub, "body_crc" / c.Int32sb, "queue_id" / c.Int32sb,
        "flag" / c.Int32sb, "queue_offset" / c.Int64sb, "physical_offset" / c.Int64sb,
        "sys_flag" / c.Int32sb, "born_timestamp" / c.Int64sb, "born_host" / c.Bytes(8),
        "store_timestamp" / c.Int64sb, "store_host" / c.Bytes(8), "reconsume_times" / c.Int32sb,
        "prepared_transaction_offset" / c.Int64sb, "body" / c.Prefixed(c.Int32sb, c.GreedyBytes),
        "topic" / c.PascalString(c.Int8ub, "utf-8"), "properties" / c.Prefixed(c.Int16sb, c.GreedyBytes),
    )  # fmt: skip
    stream, good = io.BytesIO(data), 0
    for _ in range(records):
        parsed = record.parse_stream(stream)
        good += zlib.crc32(parsed.body) & 0x7FFFFFFF == parsed.body_crc
    return good


def put_loop(path: Path, messages: Sequence[tuple[int, str, bytes, bytes]]) -> float:
    """Seconds of a bare Python loop that packs records into mapped memory, and checks nothing.

    Each message is its queue, topic, body and properties.
    """
    from rmqtool.formats import message

    head = struct.Struct(">iIiiiqqiq8sq8siqi")
    host, magic, room, position = bytes(8), message.MAGIC_V1 & 0xFFFFFFFF, 0, 0
    offsets: dict[tuple[str, int], int] = {}
    for _, topic, body, properties in messages:
        room += head.size + len(body) + 1 + len(topic) + 2 + len(properties)
    with path.open("w+b") as file:
        file.truncate(room)
        with mmap.mmap(file.fileno(), room) as area:
            begin = time.perf_counter()
            for queue_id, topic, body, properties in messages:
                name = topic.encode()
                size = head.size + len(body) + 1 + len(name) + 2 + len(properties)
                number = offsets.get((topic, queue_id), 0)
                offsets[topic, queue_id] = number + 1
                now = time.time_ns() // 1_000_000
                crc = zlib.crc32(body) & 0x7FFFFFFF
                area[position : position + size] = b"".join((
                    head.pack(size, magic, crc, queue_id, 0, number, position, 0, now, host, now, host, 0, 0,
                              len(body)),
                    body, bytes((len(name),)), name, len(properties).to_bytes(2, "big"), properties,
                ))  # fmt: skip
                position += size
            return time.perf_counter() - begin


def pwrite_loop(path: Path, messages: Sequence[tuple[int, str, bytes, bytes]]) -> float:
    """As `put_loop`, but each record is written with pwrite, in a lock, and there is a result of each."""
    from rmqtool.formats import message

    head = struct.Struct(">iIiiiqqiq8sq8siqi")
    host, magic, position = bytes(8), message.MAGIC_V1 & 0xFFFFFFFF, 0
    offsets: dict[tuple[str, int], int] = {}
    lock, write, results = threading.RLock(), os.pwrite, []
    with path.open("w+b") as file:
        descriptor = file.fileno()
        begin = time.perf_counter()
        for queue_id, topic, body, properties in messages:
            name = topic.encode()
            size = head.size + len(body) + 1 + len(name) + 2 + len(properties)
            crc = zlib.crc32(body) & 0x7FFFFFFF
            with lock:
                number = offsets.get((topic, queue_id), 0)
                offsets[topic, queue_id] = number + 1
                now = time.time_ns() // 1_000_000
                write(descriptor, b"".join((
                    head.pack(size, magic, crc, queue_id, 0, number, position, 0, now, host, now, host, 0, 0,
                              len(body)),
                    body, bytes((len(name),)), name, len(properties).to_bytes(2, "big"), properties,
                )), position)  # fmt: skip
            results.append((position, number, size, topic, queue_id, now))
            position += size
        return time.perf_counter() - begin


def flushed_loop(path: Path, messages: Sequence[tuple[int, str, bytes, bytes]], *, threads: int) -> float:
    """As `pwrite_loop` in some threads; each continues when its record is on the device.

    A further thread flushes for all that wait: the least that Python needs to pass them on.
    """
    from rmqtool.formats import message

    head = struct.Struct(">iIiiiqqiq8sq8siqi")
    host, magic, end = bytes(8), message.MAGIC_V1 & 0xFFFFFFFF, 0
    lock, asked, write = threading.Lock(), threading.Semaphore(0), os.pwrite
    waiting: list[threading.Lock] = []
    running = True

    def put(some: Sequence[tuple[int, str, bytes, bytes]]) -> None:
        nonlocal end
        for queue_id, topic, body, properties in some:
            gate = threading.Lock()
            gate.acquire()
            name = topic.encode()
            size = head.size + len(body) + 1 + len(name) + 2 + len(properties)
            crc = zlib.crc32(body) & 0x7FFFFFFF
            with lock:
                now = time.time_ns() // 1_000_000
                write(descriptor, b"".join((
                    head.pack(size, magic, crc, queue_id, 0, 0, end, 0, now, host, now, host, 0, 0,
                              len(body)),
                    body, bytes((len(name),)), name, len(properties).to_bytes(2, "big"), properties,
                )), end)  # fmt: skip
                end += size
                waiting.append(gate)
                is_first = len(waiting) == 1
            if is_first:
                asked.release()
            gate.acquire()

    def flush() -> None:
        nonlocal waiting
        while asked.acquire() and running:
            with lock:
                group, waiting = waiting, []
            os.fdatasync(descriptor)
            for gate in group:
                gate.release()

    with path.open("w+b") as file:
        descriptor = file.fileno()
        flushing = threading.Thread(target=flush)
        putting = [threading.Thread(target=put, args=(messages[n::threads],)) for n in range(threads)]
        flushing.start()
        begin = time.perf_counter()
        for thread in putting:
            thread.start()
        for thread in putting:
            thread.join()
        seconds = time.perf_counter() - begin
        running = False
        asked.release()
        flushing.join()
        return seconds


def main(arguments: Sequence[str]) -> None:
    """Run the work that the first argument names."""
    work, *given = arguments
    if work == "read":
        read(given)
    elif work == "write":
        write(*given)
    elif work == "partitions":
        partitions(*given)
    elif work == "parquet":
        parquet(*given)
    elif work == "json":
        json_lines(*given)
    elif work == "jsoncolumns":
        json_columns(*given)
    elif work == "inflate":
        inflate(*given)
    elif work == "places":
        places(*given)
    elif work == "answers":
        answers(*given)
    elif work == "checks":
        checks(*given)
    elif work == "flush":
        flush(given[0], int(given[1]))
    else:
        raise SystemExit(f"no such work: {work}")


if __name__ == "__main__":
    main(sys.argv[1:])
