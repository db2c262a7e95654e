"""What all tests share: fixed surroundings, the stores of `fixtures/`, a guard against change."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from rmqtool import output
from tests.support import places, trees
from tests.support.programs import PATIENCE_S, SIGNALS
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE

# What a process inherits: the tests mean the same whoever starts them.
SURROUNDINGS = {"COLUMNS": "100", "LINES": "40", "TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8",
                "NO_COLOR": "1", "TERM": "dumb", "PYTHONHASHSEED": "0",
                "PYTHONFAULTHANDLER": "1"}  # fmt: skip
FORGOTTEN = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LANGUAGE",
             "POSIXLY_CORRECT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "JAVA_TOOL_OPTIONS",
             "JDK_JAVA_OPTIONS", "NUMBA_DISABLE_JIT")  # fmt: skip
FORGOTTEN_STARTS = ("RMQTOOL_", "PYTHON", "LC_", "AWS_", "SPARK_", "PYSPARK_", "HADOOP_")
# What the tests themselves are told.
_OF_TESTS = (
    "RMQTOOL_CRASH_SWEEP",
    "RMQTOOL_SWEEP",
    "RMQTOOL_BENCH_SMALL",
    "RMQTOOL_BENCH_GIB",
    "RMQTOOL_BENCH_DIR",
)
for _name in list(os.environ):
    if (_name.upper() in FORGOTTEN or _name.startswith(FORGOTTEN_STARTS)) and _name not in _OF_TESTS:
        del os.environ[_name]
os.environ.update(SURROUNDINGS)
time.tzset()
places.choose_temporary_folder()
os.umask(0o022)
signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
for _number in set(SIGNALS) - {signal.SIGHUP, signal.SIGPIPE}:  # below nohup a run outlives its terminal
    if signal.getsignal(_number) == signal.SIG_IGN:
        is_interrupt = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)

_SLOW = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
_COUNT = 100 if IS_WHOLE else 20
settings.register_profile(
    "default", max_examples=_COUNT, deadline=None, print_blob=True, suppress_health_check=_SLOW
)
settings.register_profile(
    "ci",
    max_examples=_COUNT,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=_SLOW,
)
# In a process that checks every load, where all is slow.
settings.register_profile(
    "bounds", max_examples=15, deadline=None, derandomize=True, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session", autouse=True)
def patient_tables() -> None:
    """A table that is written here shows its rows together: on a busy machine one may come a second late."""
    output.FLUSH_SECONDS = PATIENCE_S


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """The stores of `fixtures/`, unpacked on demand, for reading only.

    At the end of the session every unpacked store must still be what it was.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    (folder / "cases").mkdir(exist_ok=True)
    library = Library(folder / "cases")
    yield library
    library.check_untouched()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """Like `tmp_path`, but never in memory."""
    folder = places.new_folder_on_disk()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def store_copy(cases: Library, tmp_path: Path) -> Callable[[str], Path]:
    """A function that gives a private copy of a case's store, free to be changed."""

    def copy(name: str) -> Path:
        return cases.copy(name, tmp_path / name)

    return copy


@pytest.fixture
def unbroken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is not broken into lines: a test looks for whole sentences."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture
def json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write rows as JSON lines, and objects as JSON, unless an option says otherwise."""
    monkeypatch.setenv("RMQTOOL_FORMAT", "jsonl")


@pytest.fixture
def unchanged() -> Callable[[Path], AbstractContextManager[None]]:
    """Guard a folder: a `with` block over it fails when anything below it has changed afterwards."""
    return trees.unchanged


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the tests."""
    parser.addoption("--write-golden", action="store_true", help="write the golden files anew")
    parser.addoption("--order-seed", type=int, help="a random order of the files, and of the tests in each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--order-seed` the order is random; the tests of a file stay together: they share stores.

    A sweep takes the tests of Hypothesis too, with more examples.
    """
    for item in items:
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
            item.add_marker(pytest.mark.sweep)
    if (seed := config.getoption("--order-seed")) is not None:
        order = random.Random(seed)
        files = {item.path: order.random() for item in items}
        items.sort(key=lambda item: (files[item.path], order.random()))


def pytest_collection_finish() -> None:
    """Keep the garbage collector off the thousands of tests: some files spent a third of their time there."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str | None:
    """The seed of the order."""
    seed = config.getoption("--order-seed")
    return None if seed is None else f"order seed: {seed}"
