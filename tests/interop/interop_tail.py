"""`tail --follow` of a store that a real broker writes: every message once and in order, and it keeps up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqtool.read.store import Store
from tests import ROOT
from tests.interop.brokers import BROKER_VERSIONS, Broker
from tests.interop.processes import Program, wait_until

RATE = int(os.environ.get("LAB_TAIL_RATE", "20000"))  # messages per second
SECONDS = int(os.environ.get("LAB_TAIL_SECONDS", "6"))
TOPIC = "Steady"


class Reader:
    """`rmqtool tail --follow` with what it has printed so far."""

    def __init__(self, store: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rmqtool", "tail", str(store), "--follow", "--json", *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def cpu_seconds(self) -> float:
        """Processor time that it has taken so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> tuple[int, str]:
        """SIGTERM; the exit code and what it said on stderr."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._thread.join()
        assert self.process.stderr is not None
        return code, self.process.stderr.read()

    def close(self) -> None:
        """Kill it, if it still runs, and close its pipes."""
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def reading(store: Path, *arguments: str) -> Iterator[Reader]:
    """A reader that is gone at the end."""
    reader = Reader(store, *arguments)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def steady(broker: Broker) -> Iterator[Program]:
    """The producer, connected."""
    with Program(broker.version, "Steady", home=broker.folder / "steady") as program:
        program.call("connect", name_server=broker.name_server)
        yield program


def is_quiet(said: str) -> bool:
    """Nothing was said, but that the topic was not there yet."""
    return all("the store has no topic Steady" in line for line in said.splitlines())


def check(rows: list[dict[str, Any]], store: Path, count: int) -> None:
    """Every message of the topic once, in the order of its queue, the same that the log holds."""
    ends: dict[int, int] = {}
    for row in rows:
        assert row["queue_offset"] == ends.get(row["queue_id"], 0), row
        ends[row["queue_id"]] = row["queue_offset"] + 1
    assert len(rows) == count and len({tuple(row["keys"]) for row in rows}) == count
    with Store.open(store) as opened:
        for queue_id, end in ends.items():
            assert opened.max_offset(TOPIC, queue_id) == end


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_it_keeps_up_with_a_broker(version: str, tmp_path: Path) -> None:
    """All columns as JSON lines, with files of a megabyte that roll several times a second."""
    count = RATE * SECONDS
    with Broker(version, tmp_path, tmp_path / "store") as broker:
        broker.start()
        with (
            steady(broker) as producer,
            reading(broker.store, "--topic", TOPIC, "--from", "earliest") as reader,
        ):
            told = producer.call("send", topic=TOPIC, rate=RATE, count=count, threads=4)
            behind, ended = count - len(reader.lines), time.monotonic()
            wait_until(lambda: len(reader.lines) >= count or reader.process.poll() is not None, "all rows")
            late, busy = time.monotonic() - ended, reader.cpu_seconds()
            code, said = reader.end()
        rate = told["sent"] * 1000 // told["ms"]
        text = (
            f"{version}: {rate:,} messages/s sent, {behind:,} behind at the end, there {late:.2f} s later,"
            f" {busy * 1e6 / count:.1f} us of processor a message"
        )
        print(text)  # noqa: T201
        broker.stop()
    assert code == 0 and is_quiet(said), said
    check([json.loads(line) for line in reader.lines], broker.store, count)


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_a_broker_that_is_killed_and_started_again(version: str, tmp_path: Path) -> None:
    """The reader goes on across the recovery: what the store holds at the end has been shown once."""
    with Broker(version, tmp_path, tmp_path / "store") as broker:
        broker.start()
        names = "queue_id,queue_offset,keys"
        with reading(broker.store, "--topic", TOPIC, "--from", "earliest", "--fields", names) as reader:
            with steady(broker) as producer:
                producer.call("send", topic=TOPIC, rate=5000, count=10_000, threads=2)
                wait_until(lambda: len(reader.lines) == 10_000, "the first rows")
            broker.kill()
            broker.start()
            with steady(broker) as producer:
                producer.call("send", topic=f"{TOPIC}2", rate=5000, count=100, threads=1)
            with steady(broker) as producer:
                producer.call("send", topic=TOPIC, rate=5000, count=10_000, threads=2)
            wait_until(lambda: len(reader.lines) >= 20_000, "the rows after the recovery")
            code, said = reader.end()
        broker.stop()
    assert code == 0 and is_quiet(said), said
    rows = [json.loads(line) for line in reader.lines]
    ends: dict[int, int] = {}
    for row in rows:
        assert row["queue_offset"] == ends.get(row["queue_id"], 0), row
        ends[row["queue_id"]] = row["queue_offset"] + 1
    assert len(rows) == 20_000
