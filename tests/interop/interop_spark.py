"""Spark beside the real things: a store on HDFS, and a stream of a store that a broker is writing.

HDFS is a name node and a data node in one process, from the published artifacts (hdfs/pom.xml); it is read
through WebHDFS, as on a cluster whose nodes have no Hadoop client.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.read.store import Store
from rmqtool.spark.session import spark_session
from tests.interop.brokers import Broker
from tests.interop.ledger import command, text_message
from tests.interop.processes import BUILD, JAVA, Program, wait_until
from tests.support.stores import Library

SOURCE = Path(__file__).with_name("hdfs") / "Mini.java"
JARS = BUILD / "hdfs" / "lib"
REAL, DAMAGED = "ok_540_clean", "bad_cl04_wrong_length"
TOPIC = "Streamed"
CONF = (
    "spark.ui.enabled=false",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
)
_TRIES = 5
_SENT = (600, 1500, 2500)  # acknowledged messages before each part of the stream


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session(master="local[2]", conf=CONF, driver_memory="512m") as session:
        yield session


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of WebHDFS. The program ends when its stdin does."""
    assert JARS.is_dir(), "no jars of Hadoop: run `make interop`"
    folder = tmp_path_factory.mktemp("hdfs")
    line = [JAVA, "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{JARS}/*", str(SOURCE), str(folder / "dfs")]
    with (folder / "hdfs.log").open("wb") as log:
        process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None and process.stdin is not None
        ports = process.stdout.readline().split()
        assert len(ports) == 2, (folder / "hdfs.log").read_text("utf-8", "replace")[-3000:]
        yield f"127.0.0.1:{int(ports[1])}"
        process.stdin.close()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def upload(hdfs: str, cases: Library) -> Callable[[str], str]:
    """A function that puts a case's store into HDFS and gives its URL."""
    import fsspec

    host, _, port = hdfs.partition(":")
    files = fsspec.filesystem("webhdfs", host=host, port=int(port), user="lab")

    def put(name: str) -> str:
        root = cases.path(name)
        for path in sorted(root.rglob("*")):
            target = f"/{name}/{path.relative_to(root).as_posix()}"
            files.makedirs(target, exist_ok=True) if path.is_dir() else files.put_file(str(path), target)
        return f"webhdfs://lab@{hdfs}/{name}"

    return put


def test_store_on_hdfs(
    spark: Any, upload: Callable[[str], str], cases: Library, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Rows through Spark, counts by the command, findings: all as of the local copy."""
    url, damaged = upload(REAL), upload(DAMAGED)
    with Store.open(cases.path(REAL)) as store:
        expected = [
            (each.physical_offset, each.message.topic, each.message.body) for each in store.messages()
        ]
    frame = spark.read.format("rocketmq-store").option("columns", "physicalOffset,topic,body,bodyLength")
    rows = frame.option("decompress", "false").load(url).orderBy("physicalOffset").collect()
    assert [(row[0], row[1], bytes(row[2])) for row in rows] == expected
    capfdbinary.readouterr()
    assert main(["spark-scan", url, "--count", "--format", "jsonl"]) == 0
    assert json.loads(capfdbinary.readouterr().out) == {"count": len(expected)}
    assert main(["spark-scan", damaged, "--verify", "--format", "jsonl"]) == 1
    found = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    with Store.open(cases.path(DAMAGED)) as store:
        rows = [each.row() for each in verify(store)]
    assert [row | {"repair": None} for row in found] == [row | {"repair": None} for row in rows]
    assert found[0]["repair"].startswith(
        "rmqtool recover LOCAL_COPY: "
    )  # a command changes no store at a URL


class Stream:
    """The same query again and again, from one checkpoint into one folder of files."""

    def __init__(self, spark: Any, store: Path, folder: Path) -> None:
        self._spark = spark
        self._store = store
        self.rows = folder / "rows"
        self._checkpoint = folder / "checkpoint"

    def start(self, **trigger: Any) -> Any:
        """A query that goes on from where the one before it was."""
        read = self._spark.readStream.format("rocketmq-store").option("subscribe", TOPIC)
        read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "400")
        read = read.option("columns", "queueId,queueOffset,physicalOffset,body")
        write = read.load(str(self._store)).writeStream.format("parquet").trigger(**trigger)
        return write.option("checkpointLocation", str(self._checkpoint)).start(str(self.rows))

    def begin(self, **trigger: Any) -> Any:
        """The same, once it works: Spark gives a Python worker ten seconds to start: few in a busy lab."""
        for _ in range(_TRIES):
            query = self.start(**trigger)
            wait_until(lambda query=query: query.recentProgress or not query.isActive, "the stream works")
            error = query.exception()
            if error is None or "failed to connect back" not in str(error):
                return query
        raise AssertionError(f"no Python worker started in {_TRIES} tries")

    def catch_up(self) -> None:
        """Read all that is there now, and end."""
        query = self.begin(availableNow=True)
        assert query.awaitTermination(180), "the stream did not end"
        assert query.exception() is None

    def offsets(self) -> list[tuple[int, int, int]]:
        """(physical offset, queue id, queue offset) of every row that was written, sorted."""
        rows = self._spark.read.parquet(str(self.rows)).select("physicalOffset", "queueId", "queueOffset")
        return sorted(tuple(row) for row in rows.collect())


class Sender(threading.Thread):
    """Sends one message after the other, some hundred a second; `sent` are those that were acknowledged."""

    def __init__(self, client: Program) -> None:
        super().__init__(name="sender")
        self._client = client
        self._stopped = threading.Event()
        self.sent: list[tuple[int, int]] = []
        """(queue id, queue offset)."""

    def run(self) -> None:
        """Until it is told to stop."""
        while not self._stopped.wait(0.002):
            number = len(self.sent)
            told = self._client.call(
                "send", **command(text_message(TOPIC, f"key-{number}", number % 900 + 1))
            )
            self.sent.append((told["queueId"], told["queueOffset"]))

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()
        self.join()


def test_stream_beside_a_broker(spark: Any, tmp_path: Path) -> None:
    """Every message once, over restarts from the checkpoint, while the broker goes on writing."""
    store = tmp_path / "store"
    stream = Stream(spark, store, tmp_path)
    with Broker("5.4.0", tmp_path, store) as broker:
        broker.start()
        with broker.client() as client:
            sender = Sender(client)
            sender.start()
            try:
                for number, count in enumerate(_SENT):
                    wait_until(lambda count=count: len(sender.sent) >= count, f"{count} messages are sent")
                    if number != 1:
                        stream.catch_up()
                        continue
                    query = stream.begin(processingTime="200 milliseconds")
                    wait_until(
                        lambda query=query: len(query.recentProgress) >= 3, "three batches of the stream"
                    )
                    query.stop()
            finally:
                sender.stop()
        broker.stop()
        stream.catch_up()
    with Store.open(store) as opened:
        expected = sorted(
            (each.physical_offset, each.message.queue_id, each.message.queue_offset)
            for each in opened.messages()
            if each.message.topic == TOPIC
        )
    assert stream.offsets() == expected
    assert sorted(sender.sent) == sorted((queue_id, offset) for _, queue_id, offset in expected)
