"""Replication and serving: `receive` beside a slave of Java, `serve` beside a broker, of the same master."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from rmqtool.formats import index
from rmqtool.read.store import Store
from rmqtool.storage.layout import DEFAULT_CONSUME_QUEUE_FILE_SIZE
from tests import ROOT
from tests.benchmarks import messages
from tests.benchmarks.harness import Call, Contender, Row, Sample, rmqtool, surroundings
from tests.benchmarks.java import VERSION, is_ready, java_line, remove_written
from tests.benchmarks.machine import BUILD, process_cpu_seconds, remove_store
from tests.benchmarks.pulling import Pulled, pull_all
from tests.benchmarks.scale import QUEUES, Bench
from tests.interop.brokers import Broker, wait_for_topic
from tests.support.programs import started
from tests.support.trees import copy_tree

LOG_FILE_BYTES = 1 << 30
"""One file holds all: an empty slave of Java gets the last file of its master only."""
CONSUMERS = (1, 4)
_SLAVE = f"Java {VERSION}, slave"
_BROKER = f"broker {VERSION}"
_WARM = ("-XX:TieredStopAtLevel=4",)  # programs of the lab do without the second compiler


def rows(bench: Bench) -> Iterator[Row]:
    """All of them: of one broker, which stays warm."""
    if not is_ready():
        return
    store, folder = bench.folder / "served", bench.folder / "broker"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (topic,) = messages.topic_names(1)
    messages.make_store(store, bench.scale.net_messages, log_file_bytes=LOG_FILE_BYTES)
    copy_tree(store, folder / "store")
    sizes = {
        "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
        "mappedFileSizeConsumeQueue": str(DEFAULT_CONSUME_QUEUE_FILE_SIZE),
        "maxHashSlotNum": str(index.DEFAULT_SHAPE.slots),
        "maxIndexNum": str(index.DEFAULT_SHAPE.entries),
    }
    try:
        with Broker(VERSION, folder, folder / "store", sizes, properties=_WARM) as broker:
            broker.start()
            with broker.client() as client:
                wait_for_topic(client, [topic])
            yield from _served(store, broker, topic)
            yield from _received(bench, store, broker, topic)
    finally:
        shutil.rmtree(folder)
        remove_store(store)


# receive


def _received(bench: Bench, store: Path, broker: Broker, topic: str) -> Iterator[Row]:
    """The log alone, and with queues and index, as a slave of Java has it."""
    end, count = messages.log_end(store), bench.scale.net_messages
    with _java_slave(bench.folder, broker, end, topic, count) as slave:
        for name, options in (("receive", ()), ("receive --dispatch", ("--dispatch",))):
            yield Row(
                name=name, unit="bytes", amount=end, goals={_SLAVE: 1}, cpu_goals={_SLAVE: 2},
                contenders=[_receive(bench.folder / "copy", broker, end, options), slave],
            )  # fmt: skip


def _receive(copy: Path, broker: Broker, end: int, options: tuple[str, ...]) -> Contender:
    def check() -> None:
        assert messages.log_end(copy) >= end
        if options:
            assert messages.stored_messages(copy) >= messages.stored_messages(broker.store)
        remove_store(copy)

    words = ("receive", f"127.0.0.1:{broker.port}", copy, "--once", *options)
    name = " ".join(("rmqtool receive", *options))
    shown = f"rmqtool receive HOST:PORT STORE --once {' '.join(options)}".strip()
    return rmqtool(*words, "--quiet", name=name, shown=shown, after=check)


@contextmanager
def _java_slave(folder: Path, broker: Broker, end: int, topic: str, count: int) -> Iterator[Contender]:
    """A JVM that receives into one store after the other, and stays warm."""
    root, home = folder / "java-slave", BUILD / "java-home"
    line = f"{root} 127.0.0.1:{broker.port + 1} {end} {topic} {QUEUES}\n"
    command = java_line("SlaveBench")
    with (home / "slave.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def work() -> Sample:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"SlaveBench ended, see {home}"
        told = json.loads(answer)
        assert told["dispatched"] == count, told
        return Sample(told["seconds"], told["cpu_seconds"])

    try:
        yield Call(
            name=_SLAVE, kind="java", work=work, after=partial(remove_written, root),
            shown="a slave of the store library in a warm JVM, from its first bytes until queues and index"
            " are level with the log; it checks and flushes nothing before it acknowledges",
        )  # fmt: skip
    finally:
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            process.communicate(timeout=120)
        process.kill()
        process.wait()


# serve


def _served(store: Path, broker: Broker, topic: str) -> Iterator[Row]:
    with Store.open(store) as opened:
        ends = {queue: opened.max_offset(topic, queue) for queue in range(QUEUES)}
    expected = Pulled(sum(ends.values()), messages.log_end(store))
    program = rmqtool("serve", store, "--port", 0, shown="rmqtool serve STORE")
    bare = [sys.executable, "-m", "tests.benchmarks.limits"]
    environment = surroundings()
    with (
        started(program.line, env=environment, text=True) as server,
        started([*bare, "answers", store, topic], env=environment, text=True, cwd=ROOT) as ready,
        started([*bare, "checks", store, topic], env=environment, text=True, cwd=ROOT) as checking,
    ):
        port = int(server.stderr.readline().split(",")[0].rpartition(":")[2])
        assert broker.process is not None
        servers = (
            (program.name, program.kind, program.shown, port, server.pid),
            (_BROKER, "java", "a warm broker; it checks nothing", broker.port, broker.process.process.pid),
            ("asyncio alone", "limit", "a server of asyncio that has all answers ready",
             int(ready.stderr.readline()), ready.pid),
            ("asyncio, reads and checks", "limit", "the same, each answer read and checked as by serve",
             int(checking.stderr.readline()), checking.pid),
        )  # fmt: skip
        for consumers in CONSUMERS:
            yield Row(
                name=f"serve, {consumers} consumer{'s' if consumers > 1 else ''}", unit="messages",
                amount=expected.messages, goals={_BROKER: 1}, cpu_goals={_BROKER: 3},
                contenders=[
                    Call(name=name, kind=kind, shown=shown, work=_pull(pid, expected, partial(
                        pull_all, ("127.0.0.1", port), topic, ends, consumers)))
                    for name, kind, shown, port, pid in servers
                ],
            )  # fmt: skip


def _pull(pid: int, expected: Pulled, pull: Callable[[], Pulled]) -> Callable[[], Sample]:
    """Pull everything; the sample has the processor time of the server."""

    def work() -> Sample:
        before, begin = process_cpu_seconds(pid), time.perf_counter()
        found = pull()
        seconds, after = time.perf_counter() - begin, process_cpu_seconds(pid)
        assert found == expected, (found, expected)
        return Sample(seconds, None if before is None or after is None else after - before)

    return work
