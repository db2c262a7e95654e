"""A Spark session that suits message stores: Java found, PYSPARK_PYTHON set, quiet, in UTC; and its progress.

What PySpark needs and does not set by itself, each measured:

    PYSPARK_PYTHON                in the environment before the context exists: the workers that plan a
                                  Python source are started with it, and the conf alone does not reach them
    filter push-down              off by default; a source that takes filters fails without it
    time zone UTC                 else times of a store are shown in the zone of the driver
  folder of tables              its own; else a query that looks for tables makes one in the working directory

The JVM's own lines (logs, warnings of its launcher) go to a file, for they are of no use to a reader of the
rows; the end of that file is the hint of the error when Spark does not start. Only that session is
stopped that was started here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from rmqtool.errors import InputError, UsageError
from rmqtool.lazy_pattern import pattern

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

INSTALL_PYSPARK = "pip install 'rmqtool[spark]'"
JAVA_MIN = 17
INSTALL_JAVA = "apt-get install openjdk-17-jre-headless (or set JAVA_HOME)"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
WAREHOUSE = "spark.sql.warehouse.dir"
DEFAULTS = {
    "spark.app.name": "rmqtool",
    PUSHDOWN: "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings that the user did not make; see the module."""

_JVM_FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
_VERSION = pattern(r'"?(?:1\.)?([0-9]+)[^"\n]*"?')
_MEMORY = pattern(r"[1-9][0-9]{0,12}[kmgt]?b?", re.IGNORECASE)
_LOG_TAIL_BYTES = 8192
_STOP_SECONDS = 20
_LOOK_SECONDS = 0.5
_CONNECT_SECONDS = 10.0
_PROBE = "import rmqtool.read.store, pyarrow"
_PROBE_SECONDS = 60.0
_QUIET_LEVELS = ("ERROR", "OFF", "FATAL")
_LEVELS = (*_QUIET_LEVELS, "ALL", "TRACE", "DEBUG", "INFO", "WARN")
_OF_EVERY_START = (
    "WARNING:", "Using Spark's default", "Error occurred during initialization of VM",
    "Error: Could not create the Java Virtual Machine", "Error: A fatal exception has occurred",
)  # fmt: skip
"""How lines of a JVM's log begin that do not say what went wrong."""
_PYTHON_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def require_spark() -> Path:
    """Check that Spark can be started; returns the home of its Java.

    Raises:
        InputError: pyspark or Java is missing; the hint says what to install.
    """
    if find_spec("pyspark") is None:
        raise InputError("Spark is not installed", hint=INSTALL_PYSPARK)
    return find_java()


def is_utf8(text: str) -> bool:
    """Whether Java can represent the text; the bytes of an argument may not be UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def parse_conf(settings: Sequence[str]) -> dict[str, str]:
    """Settings of Spark given as `name=value`.

    Raises:
        UsageError: a text without a name or without `=`, or an unknown log level.
    """
    values = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"{text!r} is not a Spark property (NAME=VALUE)", hint="use --conf spark.some.name=value"
            )
        if not is_utf8(text):
            raise UsageError(f"{text!r} is not UTF-8")
        values[name.strip()] = value
    level = values.get("spark.log.level", _LEVELS[0])
    if level.upper() not in _LEVELS:
        raise UsageError(f"spark.log.level cannot be {level!r}", hint=f"it is one of {', '.join(_LEVELS)}")
    return values


@contextmanager
def spark_session(
    *,
    master: str | None = None,
    conf: Sequence[str] = (),
    driver_memory: str | None = None,
    ship_package: bool = True,
) -> Iterator[SparkSession]:
    """A session with the source `rocketmq-store`, stopped at the end together with its JVM.

    Where a session is active already it is used, and left as it is.

    Args:
        master: where Spark runs; None is its own default, of spark-defaults.conf, else `local[*]`.
        conf: settings as `name=value`; they win over the defaults of this module.
        driver_memory: heap of the driver's JVM, as `4g`.
        ship_package: send this package to the executors of a cluster.

    Raises:
        InputError: pyspark or Java is missing, the Python of PYSPARK_PYTHON lacks rmqtool, the master cannot
            be reached, or Spark does not start.
        UsageError: an invalid setting or size of memory.
    """
    settings = parse_conf(conf)
    if driver_memory is not None and not _MEMORY.fullmatch(driver_memory):
        raise UsageError(
            f"{driver_memory!r} is not a valid size of the driver's memory", hint="use 512m or 4g"
        )
    java = require_spark()
    check_python()
    from pyspark.sql import SparkSession

    from rmqtool.spark.package import ship

    active = SparkSession.getActiveSession()
    if active is not None:
        _register(active)
        with _interrupts_first():
            yield active
        return
    values = {**DEFAULTS, **settings}
    if master is not None:
        values["spark.master"] = master
    if driver_memory is not None:
        values["spark.driver.memory"] = driver_memory
    check_master(values.get("spark.master", ""))
    set_environment(java)
    quiet = _quiet_loggers(values["spark.log.level"])
    with tempfile.TemporaryDirectory(prefix="rmqtool-spark-") as folder, quiet:
        values.setdefault(WAREHOUSE, Path(folder, "warehouse").as_uri())
        with Path(folder, "jvm.log").open("w+b") as log:
            session = _start(values, log)
        try:
            _register(session)
            context = session.sparkContext
            if ship_package and not str(context.master).startswith("local"):
                ship(context, Path(folder))
            with _interrupts_first():
                yield session
        finally:
            _stop(session)


def check_master(master: str) -> None:
    """Check that a master of a standalone cluster, `spark://host:port,host:port`, accepts connections.

    Spark itself tries for a minute and then says nothing that helps.

    Raises:
        InputError: no master answers.
    """
    if not master.startswith("spark://"):
        return
    why = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except ValueError:
            return  # Spark says what is wrong with it
        except (OSError, OverflowError) as error:
            why = why or f"{place}: {getattr(error, 'strerror', None) or error}"
        else:
            return
    raise InputError(f"the Spark master cannot be reached: {why}", hint="is it started?")


def check_python() -> None:
    """Where PYSPARK_PYTHON names another Python, which plans and reads: whether it has what that takes.

    Spark itself reports a data source that it cannot create with a long trace.

    Raises:
        InputError: it cannot be run, or cannot import rmqtool and what rmqtool needs.
    """
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    if python == sys.executable:
        return
    what = f"the Python of PYSPARK_PYTHON, {python}, cannot"
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(f"{what} be run: {reason}", hint="unset PYSPARK_PYTHON, or name another") from None
    if done.returncode:
        last = ([line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no reason given"])[
            -1
        ]
        hint = f"install rmqtool[spark] there, or set PYSPARK_PYTHON to {sys.executable}"
        raise InputError(f"{what} import rmqtool: {last}", hint=hint)


def set_environment(java: Path) -> None:
    """Set what the JVM and its workers read from the environment; the user's values stay."""
    if java_version(Path(os.environ.get("JAVA_HOME", "/nonexistent"))) != java_version(java):
        os.environ["JAVA_HOME"] = str(java)
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable


def _register(session: SparkSession) -> None:
    """Raises InputError where Spark cannot work with its settings: Spark checks some of them only now."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from rmqtool.spark import register

    try:
        register(session)
    except (PySparkException, Py4JError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), None)
        raise InputError("Spark does not work with these settings", hint=reason) from None


def _start(values: dict[str, str], log: IO[bytes]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    children = _children()
    builder = SparkSession.Builder()
    for name, value in values.items():
        builder = builder.config(name, value)
    try:
        with _own_interrupts(), _output_into(log if values["spark.log.level"] in _QUIET_LEVELS else None):
            session: SparkSession = builder.getOrCreate()
    except (PySparkRuntimeError, Py4JError, ConnectionError) as error:  # the last: the JVM has ended
        _end_jvm(children)
        raise InputError("Spark does not start", hint=_reason(log) or str(error).splitlines()[0]) from error
    except BaseException:
        _end_jvm(children)
        raise
    return session


def _children() -> set[int]:
    """The processes that this one has started and that still run, as far as the system says."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, path.read_text("ascii").split()))
    return found


@contextmanager
def _output_into(log: IO[bytes] | None) -> Iterator[None]:
    """While a JVM is started: what it writes goes to `log` for as long as it lives, not among our rows."""
    if log is None:
        yield
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    kept = [os.dup(number) for number in (1, 2)]
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """While a context is made: keeps the handler of SIGINT.

    PySpark's calls the JVM from within another call to it, which fails with a long trace.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if is_main else None
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _interrupts_first() -> Iterator[None]:
    """An interrupt stays one, whatever goes wrong because of it.

    Py4J closes all its connections when a call is interrupted, and PySpark makes more calls on its way out
    of the interrupted one: these fail, and their error would take the place of the interrupt.
    """
    try:
        yield
    except Exception as error:
        if any(isinstance(each, KeyboardInterrupt) for each in _chain(error)):
            raise KeyboardInterrupt from error
        raise


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from or that were being dealt with, the newest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _quiet_loggers(level: str) -> Iterator[None]:
    """PySpark and Py4J log what is in the exception too, and an interrupt with its whole trace."""
    root, nothing = logging.getLogger(), logging.NullHandler()
    is_quiet = level in _QUIET_LEVELS
    loggers = [each for each in map(logging.getLogger, _PYTHON_LOGGERS) if is_quiet and not each.disabled]
    if is_quiet:
        root.addHandler(nothing)  # without any handler a first one for stderr is made
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        root.removeHandler(nothing)
        for each in loggers:
            each.disabled = False


def _reason(log: IO[bytes]) -> str | None:
    """The line of the JVM's log that says what went wrong."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(size - _LOG_TAIL_BYTES, 0))
    written = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]
    lines = [line for line in written if not line.startswith(_OF_EVERY_START)]
    causes = (line for word in ("Exception: ", "Exception", "rror") for line in lines if word in line)
    return next(causes, None) or next(filter(None, lines), None)


def _stop(session: SparkSession) -> None:
    """Stop jobs, session and JVM; one that has died already, as on Ctrl-C in a group, is not an error.

    In a thread, which has a connection to the JVM of its own: this one's may wait for the answer to the
    call that was interrupted.
    """
    from py4j.protocol import Py4JError

    def stop() -> None:
        with suppress(Py4JError, OSError):
            session.sparkContext.cancelAllJobs()
        with suppress(Py4JError, OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that the JVM is not there any more
            session.stop()

    thread = threading.Thread(target=stop, name="rmqtool-spark-stop", daemon=True)
    thread.start()
    thread.join(_STOP_SECONDS)
    _end_jvm()


def _end_jvm(before: set[int] | None = None) -> None:
    """End the JVM that PySpark started: it would live until this process ends, and a little longer.

    PySpark has no public way to do so; it starts a new one when the next session is made. One that was
    interrupted while it started is not registered anywhere: `before` are the children that existed then.
    """
    from pyspark import SparkContext

    context: Any = SparkContext
    gateway, context._gateway, context._jvm = context._gateway, None, None
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        for child in set() if before is None else _children() - before:
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# Java


def find_java() -> Path:
    """The home of a Java that Spark runs on: JAVA_HOME, that of `java` on PATH, below /usr/lib/jvm.

    Of several below /usr/lib/jvm the oldest that will do.

    Raises:
        InputError: no Java of version 17 or later was found.
    """
    seen: list[int] = []
    for home in _java_homes():
        version = java_version(home)
        if version is not None and version >= JAVA_MIN:
            return home
        if version is not None:
            seen.append(version)
    found = f"only version {max(seen)} was found" if seen else "none was found"
    raise InputError(f"Spark needs Java {JAVA_MIN} or later, {found}", hint=INSTALL_JAVA)


def java_version(home: Path) -> int | None:
    """The feature version (8, 17, 21) of the Java in `home`; None where none runs."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    with suppress(OSError):
        for line in (home / "release").read_text("utf-8", "replace").splitlines():
            if line.startswith("JAVA_VERSION="):
                match = _VERSION.fullmatch(line.partition("=")[2].strip())
                return int(match[1]) if match is not None else None
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return int(match[1]) if match is not None else None


def _java_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    program = shutil.which("java")
    if program is not None:
        yield Path(program).resolve().parent.parent
    homes = [home for folder in _JVM_FOLDERS if folder.is_dir() for home in folder.iterdir()]
    homes += [home / "Contents" / "Home" for home in homes if (home / "Contents" / "Home").is_dir()]
    yield from sorted(homes, key=lambda home: (java_version(home) or 0, home))


# progress


class Bar(Protocol):
    """A progress bar; see `rmqtool.terminal.ProgressBar`."""

    def advance(self, count_bytes: int) -> None:
        """Add bytes that are done."""

    def describe(self, title: str) -> None:
        """Show what is being done."""


class JobProgress:
    """Adds up the tasks of all stages seen so far; never decreases."""

    def __init__(self, tracker: StatusTracker, bar: Bar, total_bytes: int) -> None:
        self._tracker = tracker
        self._bar = bar
        self._total_bytes = total_bytes
        self._shown_bytes = 0
        self._tasks: dict[int, tuple[int, int]] = {}

    def look(self) -> None:
        """Ask the tracker once, and advance the bar."""
        active: list[int] = []
        for job_id in self._tracker.getActiveJobsIds():
            job = self._tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None and stage.numTasks:
                    self._tasks[stage_id] = (stage.numCompletedTasks, stage.numTasks)
                    if stage.numActiveTasks:
                        active.append(stage_id)
        done, tasks = (sum(pair[side] for pair in self._tasks.values()) for side in (0, 1))
        if active:
            completed, of_stage = self._tasks[active[-1]]
            self._bar.describe(f"spark stage {active[-1]}, task {completed} of {of_stage}")
        now = self._total_bytes * done // tasks if tasks else 0
        self._bar.advance(max(now - self._shown_bytes, 0))
        self._shown_bytes = max(now, self._shown_bytes)


@contextmanager
def watched(context: SparkContext, bar: Bar, total_bytes: int) -> Iterator[None]:
    """While the block runs, a thread advances `bar` by the progress of its jobs."""
    from py4j.protocol import Py4JError

    progress, done = JobProgress(context.statusTracker(), bar, total_bytes), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            try:
                progress.look()
            except (Py4JError, OSError):  # the session has gone: the job itself reports why
                return

    thread = threading.Thread(target=watch, name="rmqtool-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
