"""A plan is made of one state of the store: a writer that passes by meanwhile is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_IN_USE, EXIT_OK, StoreInUseError, UnreadableError
from rmqtool.read.store import Store
from rmqtool.repair.plan import steady
from rmqtool.repair.recover import assemble
from rmqtool.storage import lock
from tests.support.recover_checks import opener, recovered
from tests.support.stores import Library
from tests.support.trees import copy_tree


@pytest.fixture
def root(cases: Library, tmp_path: Path) -> Path:
    copy = copy_tree(cases.path("gap_cl02_zero_hole"), tmp_path / "store")
    recovered(copy, backup=tmp_path / "backup")
    return copy


def grow(path: Path) -> None:
    with path.open("ab") as opened:
        opened.write(b"\0")


def test_it_is_looked_at_again(root: Path) -> None:
    """Once more after each change, and what the last look finds counts."""
    looks: list[bool] = []

    def look(store: Store) -> bool:
        looks.append(store.layout.abort is not None)
        if len(looks) == 1:
            (root / "abort").touch()
        return looks[-1]

    assert steady(opener(root), look) is True
    assert looks == [False, True]


def test_one_that_does_not_come_to_rest(root: Path) -> None:
    with pytest.raises(StoreInUseError, match="in use: something writes to it"):
        steady(opener(root), lambda store: grow(root / "checkpoint"))


def test_one_whose_lock_is_held(root: Path) -> None:
    looks: list[None] = []

    def look(store: Store) -> None:
        looks.append(grow(root / "checkpoint"))

    held = lock.acquire(root / "lock")
    try:
        with pytest.raises(StoreInUseError, match="in use"):
            steady(opener(root), look)
    finally:
        held.release()
    assert len(looks) == 1


def test_config_files_count_where_a_look_failed(root: Path) -> None:
    """A broker that has nothing to do writes them every few seconds."""
    path = root / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)

    def look(store: Store) -> None:
        grow(path)

    def failed(store: Store) -> None:
        grow(path)
        raise UnreadableError("gone", path=path)

    steady(opener(root), look)
    with pytest.raises(StoreInUseError):
        steady(opener(root), failed)


def test_a_failure_of_its_own(root: Path) -> None:
    def failed(store: Store) -> None:
        raise UnreadableError("gone")

    with pytest.raises(UnreadableError):
        steady(opener(root), failed)


@pytest.mark.parametrize("again", [False, True], ids=["once", "again and again"])
def test_recover_where_abort_goes(
    root: Path, again: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when an append ends in the middle of the look: it took abort away."""
    before = assemble.closing_actions
    abort = root / "abort"
    abort.touch()

    def closing(*arguments: object) -> object:
        if again and not abort.exists():
            abort.touch()
        elif abort.exists():
            abort.unlink()
        return before(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(assemble, "closing_actions", closing)
    code = main(["recover", str(root)])
    assert code == (EXIT_IN_USE if again else EXIT_OK) != EXIT_FINDINGS
    assert ("the store is in use" in capsys.readouterr().err) is again
