"""Every folder of `fixtures/`: `verify` finds what its `case.toml` says, and changes nothing.

A new case needs no code. `pytest tests/fixtures_run --write-golden` writes every `verify.json`.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import PASSES, verify
from rmqtool.problems import BY_CODE, PROBLEMS
from rmqtool.read.store import Store
from tests.support.programs import PATIENCE_S
from tests.support.stores import FIXTURES, Library, case, case_names
from tests.support.sweep import IS_WHOLE, sample
from tests.support.trees import unchanged

pytestmark = pytest.mark.sweep

ROOT = FIXTURES.parent
PREFIXES = ("ok_", "torn_", "bad_", "gap_", "old_", "kind_")
LIMIT = 1 << 20  # bytes of a case
LIMIT_ALL = 20 << 20
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2

Row = dict[str, Any]


def rows_of(store: Path) -> list[Row]:
    """The findings as rows, as they come out of JSON."""
    with Store.open(store) as opened:
        rows: list[Row] = json.loads(json.dumps([finding.row() for finding in verify(opened, passes=PASSES)]))
    return rows


def drop_privileges() -> None:
    """Give up root's right to read and write everything: files obey their modes, as for a user."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def rows_as_user(*stores: Path) -> list[list[Row]]:
    """The findings of an ordinary user: a child process, without root's rights where it is root."""
    code = (
        "import sys; from tests.fixtures_run.test_fixtures import *; "
        "print(json.dumps([rows_of(Path(store)) for store in sys.argv[1:]]))"
    )
    drop: Callable[[], None] | None = drop_privileges if os.geteuid() == 0 else None
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603, PLW1509
        [sys.executable, "-c", code, *map(str, stores)],
        check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment, preexec_fn=drop, timeout=PATIENCE_S,
    )  # fmt: skip
    rows: list[list[Row]] = json.loads(done.stdout)
    return rows


@pytest.fixture(scope="module")
def found_by_user(cases: Library) -> Callable[[str], list[Row]]:
    """The findings of an ordinary user in a case that is for one: all are looked at together."""
    names = [name for name in case_names() if case(name).as_user]
    found: dict[str, list[Row]] = {}

    def of(name: str) -> list[Row]:
        if not found:
            found.update(zip(names, rows_as_user(*map(cases.path, names)), strict=True))
        return found[name]

    return of


def golden_text(rows: list[Row]) -> str:
    """One row per line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"[\n{lines}\n]\n"


@pytest.mark.parametrize("name", case_names())
def test_verify_finds_what_the_case_says(
    name: str, cases: Library, found_by_user: Callable[[str], list[Row]], request: pytest.FixtureRequest
) -> None:
    """The codes, and the rows of `verify.json`; nothing changes, for which `cases` looks too, at the end."""
    this, store = case(name), cases.path(name)
    guard: AbstractContextManager[None] = unchanged(store) if IS_WHOLE else nullcontext()
    with guard:
        rows = found_by_user(name) if this.as_user else rows_of(store)
    golden = this.folder / "verify.json"
    if request.config.getoption("--write-golden"):
        golden.write_text(golden_text(rows), "utf-8")
    assert sorted({row["problem"] for row in rows}) == list(this.codes or ())
    assert golden_text(rows) == golden.read_text("utf-8")


def test_verify_needs_no_right_to_write(store_copy: Callable[[str], Path]) -> None:
    """A store whose files and folders are all read-only is read by an ordinary user as by root."""
    store = store_copy("ok_540_small_propcrc")
    for path in (store, *store.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with unchanged(store):
        assert rows_as_user(store) == [rows_of(store)]


@pytest.mark.parametrize("name", sample([name for name in case_names() if not case(name).as_user], 12))
def test_a_second_verify_says_the_same(name: str, cases: Library) -> None:
    """In the same process, whatever the first has kept."""
    assert rows_of(cases.path(name)) == rows_of(cases.path(name))


def test_every_problem_has_a_case_that_shows_it() -> None:
    """A damaged case named after the code, or a real store that has it."""
    for problem in PROBLEMS:
        showing = [name for name in case_names() if problem.code in (case(name).codes or ())]
        named = [name for name in showing if problem.code.lower() in name.split("_")]
        assert named or any(case(name).state for name in showing), (problem.code, showing)


@pytest.mark.parametrize("name", case_names())
def test_case_is_well_formed(name: str) -> None:
    """Prefix, size, known codes; a damaged case is named after a code that it shows."""
    this = case(name)
    assert name.startswith(PREFIXES)
    assert this.says and this.origin and this.profile in ("4.9", "5.3", "5.4")
    assert sum(path.stat().st_size for path in this.folder.iterdir()) <= LIMIT
    assert this.codes is not None and set(this.codes) <= set(BY_CODE)
    assert list(this.codes) == sorted(this.codes)
    if this.edits:
        assert any(code.lower() in name.split("_") for code in this.codes)
    if name.startswith("ok_"):
        assert all(BY_CODE[code].severity == "note" for code in this.codes)


def test_unpacked_stores_keep_their_holes(cases: Library) -> None:
    """The timer wheel of 38 MB takes next to no room, in the cache and in a copy of it."""
    store = cases.path("ok_540_small_ipv6")
    assert (store / "timerwheel").stat().st_size == 38_707_200
    assert sum(path.stat().st_blocks * 512 for path in store.rglob("*")) < 2 << 20


def test_fixtures_stay_small() -> None:
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) <= LIMIT_ALL
