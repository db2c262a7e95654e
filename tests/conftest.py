"""What all tests share: fixed surroundings, the stores of `fixtures/`, a guard against change."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import trees
from tests.stores import Library

SURROUNDINGS = {"COLUMNS": "100", "LINES": "40", "TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8",
                "NO_COLOR": "1", "TERM": "dumb", "PYTHONHASHSEED": "0",
                "PYTHONFAULTHANDLER": "1"}  # fmt: skip
FORGOTTEN = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")

os.environ.update(SURROUNDINGS)
# What the tests themselves are told.
_OF_TESTS = (
    "RMQTOOL_CRASH_SWEEP",
    "RMQTOOL_SWEEP",
    "RMQTOOL_BENCH_SMALL",
    "RMQTOOL_BENCH_GIB",
    "RMQTOOL_BENCH_DIR",
)
for _name in [name for name in os.environ if name.startswith("RMQTOOL_") or name in FORGOTTEN]:
    if _name not in _OF_TESTS:
        del os.environ[_name]
time.tzset()
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # started in the background: children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("default", max_examples=60, deadline=None, suppress_health_check=_SLOW)
settings.register_profile(
    "ci", max_examples=40, deadline=None, derandomize=True, print_blob=True, suppress_health_check=_SLOW
)
# In a process that checks every load, where all is slow.
settings.register_profile(
    "bounds", max_examples=15, deadline=None, derandomize=True, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """The stores of `fixtures/`, unpacked on demand, for reading only.

    At the end of the session every unpacked store must still be what it was.
    """
    library = Library(tmp_path_factory.mktemp("cases"))
    yield library
    library.check_untouched()


@pytest.fixture
def store_copy(cases: Library, tmp_path: Path) -> Callable[[str], Path]:
    """A function that gives a private copy of a case's store, free to be changed."""

    def copy(name: str) -> Path:
        return cases.copy(name, tmp_path / name)

    return copy


@pytest.fixture
def unchanged() -> Callable[[Path], AbstractContextManager[None]]:
    """Guard a folder: a `with` block over it fails when anything below it has changed afterwards."""
    return trees.unchanged


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--write-golden`: write every golden file anew in place of comparing with it."""
    parser.addoption("--write-golden", action="store_true", help="write the golden files anew")
