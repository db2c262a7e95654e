"""`rmqtool spark-scan` before a session is started: options, what is missing, the package as a zip."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import InputError, RefusedError, UsageError
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.spark import errors, scan_job, session
from rmqtool.spark.package import write_package
from rmqtool.spark.scan_job_groups import group_fields, parse_groups
from rmqtool.spark.scan_job_output import output_names, output_place, partition_names
from rmqtool.spark.scan_job_verify import rebuild_rows
from tests.spark.conftest import ROOT
from tests.support.programs import PATIENCE_S, started, until
from tests.support.stores import Library

REAL = "ok_540_small_propcrc"


@pytest.fixture
def store(cases: Library) -> Path:
    return cases.path(REAL)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--count", "--stats"), "exclude each other"),
        (("--partition-by", "topic"), "--partition-by needs --output"),
        (("--output-format", "orc", "--count"), "--output-format needs --output"),
        (("--count", "--limit", "3"), "--limit and --count exclude each other"),
        (("--verify", "--limit", "0"), "--limit and --verify exclude each other"),
        (("--verify", "--topic", "a"), "--verify checks whole stores"),
        (("--group-by", "colour"), "no column 'colour'"),
        (("--group-by", "body"), "not counted by body"),
        (("--group-by", "topic,topic"), "the same twice"),
        (("--count", "--conf", "spark.x"), "is not a Spark property"),
        (("--count", "--conf", "spark.x=\udcff"), "is not UTF-8"),
        (("--fields", "nope"), "unknown field"),
        (("--since", "soon"), "soon"),
        (("--output", "x", "--partition-by", "body"), "not parted by body"),
        (("--output", ""), "--output is empty"),
        (("--sql", ""), "--sql is empty"),
        (("--group-by", ""), "--group-by is empty"),
        (("--explain", "--sql", "SELECT 1"), "--explain and --sql exclude each other"),
        (("--count", "--driver-memory", "much"), "is not a valid size of the driver's memory"),
        (("--count", "--conf", "spark.log.level=LOUD"), "spark.log.level cannot be 'LOUD'"),
        (("--filter", "a ="), "the filter cannot be read"),
        (("--filter", "a = '\udcff'"), "the bytes there are not UTF-8"),
        (("--sql", "SELECT '\udcff'"), "--sql is not UTF-8"),
        (("--sql", "SELECT 1", "--body", "none"), "--body none and --sql exclude each other"),
        (("--count", "--body", "base64"), "--body base64 and --count exclude each other"),
        (("--output", "x", "--body", "hex"), "--body hex and --output exclude each other"),
    ],
)
def test_wrong_use(
    store: Path, arguments: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One clear line, and nothing is started."""
    assert main(["spark-scan", str(store), *arguments]) == 2
    assert told in capfd.readouterr().err


def test_stores_that_are_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No STORE at all; a folder that is no store; RMQTOOL_STORE is named."""
    assert main(["spark-scan"]) == 2
    assert "missing argument STORE" in capfd.readouterr().err
    assert main(["spark", str(tmp_path), "--count"]) == 3
    assert "Traceback" not in capfd.readouterr().err


def test_store_of_the_environment(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named on stderr."""
    monkeypatch.setenv("RMQTOOL_STORE", str(store))
    assert main(["spark-scan", "--explain", "--format", "jsonl"]) == 0
    captured = capfd.readouterr()
    assert f"using the store of RMQTOOL_STORE: {store}" in captured.err
    assert '"access":"log"' in captured.out


def test_missing_pyspark(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says which pip command installs it."""
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "pyspark" else find_spec(name))
    assert main(["spark-scan", str(store), "--count"]) == 3
    assert capfd.readouterr().err.splitlines() == [
        "rmqtool: Spark is not installed",
        "  pip install 'rmqtool[spark]'",
    ]


def fake_java(home: Path, version: str) -> Path:
    """A folder that looks like a Java of some version."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME first, where it is new enough; then PATH; then the oldest that will do."""
    old = fake_java(tmp_path / "old", "1.8.0_292")
    fake_java(tmp_path / "jvm" / "java-25", "25.0.1")
    wanted = fake_java(tmp_path / "jvm" / "java-21", "21.0.2")
    monkeypatch.setattr(session, "_JVM_FOLDERS", (tmp_path / "jvm",))
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [session.java_version(home) for home in (old, wanted, tmp_path)] == [8, 21, None]
    assert session.find_java() == wanted
    own = fake_java(tmp_path / "own", "17.0.9")
    monkeypatch.setenv("PATH", str(own / "bin"))
    assert session.find_java() == own
    newer = fake_java(tmp_path / "newer", "26-ea")
    monkeypatch.setenv("JAVA_HOME", str(newer))
    assert session.find_java() == newer


def test_missing_java(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says what to install, and that what is there is too old."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(session, "_JVM_FOLDERS", ())
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["spark-scan", str(store), "--count"]) == 3
    told = capfd.readouterr().err.splitlines()
    assert told[0] == "rmqtool: Spark needs Java 17 or later, only version 11 was found"
    assert "apt-get install openjdk-17-jre-headless" in told[1]


def test_help_loads_no_spark() -> None:
    """The help of the command, and of its other name, is as light as any."""
    for name in ("spark-scan", "spark"):
        code = (
            "import sys; from rmqtool.cli import main; code = main(sys.argv[1:]); "
            "sys.exit(code or bool({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, name, "--help"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "--group-by" in done.stdout


def test_options_of_a_selection() -> None:
    """Every field travels; times of birth are a filter."""
    selection = Selection(topics=("a*",), keys=("k,1",), queues=(3, 1), since=5, to_offset=9)
    found = scan_job.ScanRequest(("/a", "s3://b/c"), selection).options()
    assert found == {
        "path": '["/a", "s3://b/c"]',
        "topics": '["a*"]',
        "queueId": "1,3",
        "keys": '["k,1"]',
        "startingTimestamp": "5",
        "endingPhysicalOffset": "9",
    }
    born = scan_job.ScanRequest(("/a",), Selection(since=5, time_field="born")).options()
    assert born == {"path": '["/a"]'}


def test_offsets_that_no_log_has_are_bounds(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As with dump, however large they are."""
    for name, is_read in (("--from-offset", False), ("--to-offset", True)):
        assert main(["spark-scan", str(store), "--explain", name, "9" * 23, "--format", "jsonl"]) == 0
        row = json.loads(capfd.readouterr().out)
        assert bool(row["bytes_read"]) == is_read


def test_names_of_columns() -> None:
    """Either name does; what cannot be grouped or parted by is refused."""
    assert [scan_job.spark_name(name) for name in ("queue_id", "QUEUEID", "broker_name")] == [
        "queueId",
        "queueId",
        "brokerName",
    ]
    assert group_fields(parse_groups("queue,hour"))[:3] == ("queue_id", "hour_timestamp_ms", "hour_time")
    assert partition_names("date, topic") == ("date", "topic")
    assert output_names(("queueId", "tags")) == ("queue_id", "tags")
    with pytest.raises(UsageError):
        parse_groups(" , ")


def test_output_is_never_put_into_a_store(store: Path) -> None:
    """Nor where something is."""
    for target in (store, store / "new", store / "commitlog" / ".." / "x"):
        for prefix in ("", "file:", "file://", "FILE://localhost"):
            with pytest.raises(RefusedError, match="lie in the store"):
                output_place(f"{prefix}{target}", [str(store)])
    with pytest.raises(RefusedError, match="lie in the store"):
        output_place(f"file://{store.parent}/%2e/{store.name}/x", [str(store)])
    with pytest.raises(RefusedError, match="lie in the store"):
        output_place(str(store / "new"), [str(store / "commitlog")])
    with pytest.raises(RefusedError, match="would lie in the store s3://bucket/st"):
        output_place("s3a://user:pass@bucket//st/x/", ["s3://bucket/st?region=x"])
    assert output_place("s3://bucket/st2", ["s3://bucket/st"]) == "s3://bucket/st2"
    assert output_place("s3a://bucket/x", [str(store)]) == "s3a://bucket/x"
    assert output_place("file:///no/a%20b", [str(store)]) == "file:///no/a b"
    with pytest.raises(RefusedError, match="something already exists"):
        output_place(str(store.parent), [])


def test_a_master_that_does_not_answer() -> None:
    """One of several is enough; what is no address is left to Spark."""
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        port, closed = there.getsockname()[1], gone.getsockname()[1]
        gone.close()
        with pytest.raises(InputError, match=f"master cannot be reached: 127.0.0.1:{closed}: "):
            session.check_master(f"spark://127.0.0.1:{closed}")
        for master in (f"spark://127.0.0.1:{closed},127.0.0.1:{port}", "local[2]", "yarn", "spark://nowhere"):
            session.check_master(master)


def test_errors_of_spark_are_ours() -> None:
    """What a worker raised keeps its words; else the cause is looked for."""
    pytest.importorskip("pyspark")
    from pyspark.errors import AnalysisException, PySparkRuntimeError

    with pytest.raises(UsageError, match="option mode: bad"), errors.spark_errors():
        raise AnalysisException("x\n  rmqtool.errors.UsageError: option mode: bad\n at y")
    with pytest.raises(UsageError, match="^no table$"), errors.spark_errors():
        raise AnalysisException("no table SQLSTATE: 42P01; line 1")
    no_connector = 'calling o1.save.\n: org.a.UnsupportedFileSystemException: No FileSystem for scheme "s3"'
    with pytest.raises(InputError, match="No FileSystem") as found, errors.spark_errors():
        raise PySparkRuntimeError(no_connector)
    assert "hadoop-aws" in (found.value.hint or "")
    trace = "Job aborted\nCaused by: java.io.IOException: disk gone\n\tat x"
    with pytest.raises(InputError, match="disk gone"), errors.spark_errors():
        raise PySparkRuntimeError(trace)


def test_an_interrupt_stays_one() -> None:
    """Whatever fails because of it; other errors are what they are."""
    from py4j.protocol import Py4JNetworkError

    def fail() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise Py4JNetworkError("the connection is closed")

    with pytest.raises(KeyboardInterrupt), session._interrupts_first():
        fail()
    with pytest.raises(KeyboardInterrupt), session._interrupts_first(), errors.spark_errors():
        fail()
    with pytest.raises(InputError), session._interrupts_first(), errors.spark_errors():
        raise Py4JNetworkError("the connection is closed")


@pytest.mark.skipif(sys.platform != "linux", reason="children are asked of /proc")
def test_an_interrupt_while_spark_starts_leaves_no_jvm(store: Path, spark_installed: None) -> None:
    command = [sys.executable, "-m", "rmqtool", "spark-scan", str(store), "--count"]
    with started(command) as scan:
        children = Path(f"/proc/{scan.pid}/task/{scan.pid}/children")
        until(lambda: children.read_text() or scan.poll() is not None)
        jvm = children.read_text()
        time.sleep(0.5)  # Spark starts; whenever the signal comes, the same has to happen
        scan.send_signal(signal.SIGINT)
        out, err = scan.communicate(timeout=PATIENCE_S)
        assert (scan.returncode, out) == (130, b""), err
        assert b"Traceback" not in err
        assert not Path("/proc", jvm.split()[0]).exists()


def test_package_in_a_zip(tmp_path: Path) -> None:
    """It can be imported from there, with commands and formats; the same sources give the same bytes."""
    first, second = write_package(tmp_path / "a.zip"), write_package(tmp_path / "b.zip")
    assert first.read_bytes() == second.read_bytes()
    code = (
        "import rmqtool.formats.message, rmqtool.read.store; "
        "import rmqtool.commands.spark_scan as command; print(command.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(first)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    assert done.stdout.startswith(str(first))


class Tracker:
    """A status tracker with one job of two stages; `done` tasks of the first have ended."""

    def __init__(self) -> None:
        self.done = 0

    def getActiveJobsIds(self) -> list[int]:
        return [1]

    def getJobInfo(self, job_id: int) -> Any:
        return type("Job", (), {"stageIds": [1, 2]})

    def getStageInfo(self, stage_id: int) -> Any:
        if stage_id == 2:
            return None
        values = {"numTasks": 4, "numCompletedTasks": self.done, "numActiveTasks": 2}
        return type("Stage", (), values)


class Bar:
    def __init__(self) -> None:
        self.bytes = 0
        self.title = ""

    def advance(self, count_bytes: int) -> None:
        assert count_bytes >= 0
        self.bytes += count_bytes

    def describe(self, title: str) -> None:
        self.title = title


def test_progress_follows_the_tracker() -> None:
    """Bytes by the share of tasks; never back."""
    tracker, bar = Tracker(), Bar()
    progress = session.JobProgress(tracker, bar, 1000)  # type: ignore[arg-type]
    for done, known in ((0, 0), (1, 250), (3, 750), (2, 750), (4, 1000)):
        tracker.done = done
        progress.look()
        assert bar.bytes == known
    assert bar.title == "spark stage 1, task 4 of 4"


def test_rebuild_report_of_findings(cases: Library) -> None:
    """A row for each queue and index file that rebuild mends, and nothing for the rest."""
    with Store.open(cases.path("bad_cq05_wrong_unit")) as store:
        rows = list(rebuild_rows(verify(store)))
    assert [row["part"] for row in rows] == ["queues"]
    assert rows[0]["units"] >= 1
    with Store.open(cases.path("bad_cl04_wrong_length")) as store:
        assert all(row["part"] != "log" for row in rebuild_rows(verify(store)))
