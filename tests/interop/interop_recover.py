"""Damaged stores, real brokers, and us: what we say that a start will do, and what we make of the store.

Fresh stores with seeded random damage are opened by the real store library of each version, with and
without `abort`, and by `predict`: both must come to the same. Then `recover`, `rebuild` and `expire` mend
stores, and libraries and whole brokers go on with them. LAB_SEEDS=200 takes more seeds than the default.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from rmqtool.broker.predict import predict
from rmqtool.broker.prediction import Prediction
from rmqtool.errors import EXIT_REFUSED
from rmqtool.read.store import Store
from tests.interop.after_repair import (
    NO_CRC,
    check_broker,
    check_library,
    conf_of,
    intact,
    records,
    run,
    verify_finds,
)
from tests.interop.brokers import BROKER_VERSIONS
from tests.interop.lab_stores import MANY, LabStore, Shelf
from tests.interop.processes import LabError
from tests.interop.verdicts import Library, libraries
from tests.support.damage import LOG, PARTS, QUEUES, damage_store, describe
from tests.support.stores import VERSIONS
from tests.support.stores import Library as Cases
from tests.support.trees import copy_tree
from tests.support.verdicts import differences

SEEDS = int(os.environ.get("LAB_SEEDS", "10"))
WORKERS = 4
STATES = {
    "4.9.7": ("clean", MANY, "killed-burst", "expired"),
    "5.3.3": ("clean", MANY, "killed-burst", "expired", "small-propcrc"),
    "5.4.0": ("clean", MANY, "killed-burst", "expired", "small-propcrc"),
}
"""The states that are damaged, by turns."""
WITHOUT_CONFIG = (*LOG, *QUEUES, "index", "checkpoint")
"""The library alone does not read the configuration as a broker does."""


@pytest.fixture(scope="module")
def shelf(cases: Cases, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(cases, tmp_path_factory.mktemp("sound"))


def set_abort(root: Path, version: str, there: bool) -> None:
    """The store after a crash, or after a clean stop."""
    (root / "abort").unlink(missing_ok=True)
    if there:
        (root / "abort").write_text("" if version.startswith("4.") else "4711", "ascii")


@dataclass
class Damaged:
    """A damaged store of a seed."""

    seed: int
    sound: LabStore
    root: Path
    abort: bool
    text: str

    @property
    def left(self) -> frozenset[str]:
        """What `verify` may go on to find."""
        return NO_CRC if "commitlog/" in self.text else frozenset()

    def __str__(self) -> str:
        """What was done, for assertion messages."""
        return f"{self.sound.version} {self.sound.state}, seed {self.seed}, abort {self.abort}\n{self.text}"


def damaged(
    shelf: Shelf, version: str, folder: Path, *, parts: tuple[str, ...], abort: tuple[bool, ...] | None
) -> Iterator[Damaged]:
    """Damaged stores of a version, as many as SEEDS; each with and without abort, or as the seed says."""
    for seed in range(SEEDS):
        sound = shelf.get(version, STATES[version][seed % len(STATES[version])])
        for there in abort or (Random(seed).random() < 0.5,):
            root = sound.copy(folder / f"{version}-{seed}-{there}")
            text = describe(damage_store(root, seed, parts=parts))
            set_abort(root, version, there)
            yield Damaged(seed, sound, root, there, text)


# -- what a start would do -------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_prediction_is_what_the_library_does(version: str, shelf: Shelf, tmp_path: Path) -> None:
    """Offsets, queues, index headers and files of fresh random damage; what fails and what hangs."""

    def predicted() -> Iterator[tuple[Damaged, Prediction]]:
        for store in damaged(shelf, version, tmp_path, parts=WITHOUT_CONFIG, abort=(False, True)):
            conf = conf_of(store.root, store.sound.settings)
            with Store.open(store.root, broker_conf=conf) as opened:
                yield store, predict(opened, store.sound.profile)

    def judge(library: Library, item: tuple[Damaged, Prediction]) -> str:
        store, prediction = item
        before = copy_tree(store.root, store.root.with_name(f"{store.root.name}-before"))
        verdict = library.judge(store.root, store.sound.settings)
        found = differences(prediction, verdict, before)
        return "\n".join((str(store), *found)) if found else ""

    with libraries(version, tmp_path, WORKERS) as pool:
        wrong = [text for text in pool.each(judge, predicted()) if text]
    assert not wrong, "\n\n".join([f"{len(wrong)} of {2 * SEEDS}", *wrong])


# -- what we make of it ----------------------------------------------------------------------------


def mend(store: Damaged, command: str, *options: str) -> None:
    """Run a command with --apply; afterwards `verify` is clean and a second run has nothing to do."""
    backup, conf = (
        store.root.with_name(f"{store.root.name}.backup"),
        conf_of(store.root, store.sound.settings),
    )
    arguments: list[str | Path] = [command, store.root, "--broker-conf", conf, "--quiet", *options]
    assert run(*arguments, "--apply", "--backup-dir", backup) == 0, store
    assert verify_finds(store.root, conf, but=store.left) == [], store
    again = backup.with_suffix(".again")
    assert run(*arguments, "--apply", "--backup-dir", again) == 0, store
    assert not again.exists(), store


def check_each(
    version: str, folder: Path, stores: Iterator[Damaged], check: Callable[[Library, Damaged], None]
) -> None:
    """Run the check of each store side by side; all that fail are told."""

    def run_check(library: Library, store: Damaged) -> str:
        try:
            check(library, store)
        except (AssertionError, LabError):
            library.close()
            return f"{store}\n{traceback.format_exc(limit=-1)}"
        return ""

    with libraries(version, folder, WORKERS) as pool:
        wrong = [text for text in pool.each(run_check, stores) if text]
    assert not wrong, "\n\n".join([f"{len(wrong)} stores", *wrong])


@pytest.mark.parametrize("fill", ["records", "none"])
@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_library_serves_all_that_recover_kept(version: str, fill: str, shelf: Shelf, tmp_path: Path) -> None:
    """Records that damage has not touched are there afterwards, at their offsets, and are served.

    Without fillers the log ends before the first lost one. Nothing is undone once a broker has written.
    """

    def recovered() -> Iterator[Damaged]:
        for store in damaged(shelf, version, tmp_path, parts=PARTS, abort=None):
            whole = intact(records(store.sound.root), store.root)
            mend(store, "recover", "--yes", "--fill", fill)
            assert fill == "none" or whole.items() <= records(store.root).items(), store
            yield store

    def check(library: Library, store: Damaged) -> None:
        check_library(library, store.root, store.sound.settings, but=store.left)
        backup = store.root.with_name(f"{store.root.name}.backup")
        assert run("recover", store.root, "--undo", backup) == EXIT_REFUSED or not backup.exists()

    check_each(version, tmp_path, recovered(), check)


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_library_serves_all_after_rebuild(version: str, shelf: Shelf, tmp_path: Path) -> None:
    """The log is sound; queues and index are made anew from it."""

    def rebuilt() -> Iterator[Damaged]:
        for store in damaged(shelf, version, tmp_path, parts=(*QUEUES, "index"), abort=(False,)):
            mend(store, "rebuild")
            yield store

    def check(library: Library, store: Damaged) -> None:
        check_library(library, store.root, store.sound.settings, but=store.left)

    check_each(version, tmp_path, rebuilt(), check)


def expire_first_file(store: Damaged) -> None:
    """Let the oldest log file go, as too old."""
    oldest = min((store.root / "commitlog").iterdir())
    os.utime(oldest, (1_600_000_000, 1_600_000_000))
    rules = {"deleteWhen": ";".join(map(str, range(24))), "fileReservedTime": "72"}
    conf = conf_of(store.root, store.sound.settings | rules)
    assert run("expire", store.root, "--broker-conf", conf, "--apply", "--force", "--quiet") == 0
    assert not oldest.exists()


def test_brokers_serve_what_we_mended(shelf: Shelf, tmp_path: Path) -> None:
    """Whole brokers of both versions with ordinary clients, side by side.

    One store of each is recovered from much damage; of the other the queues are rebuilt, and its oldest
    file expires.
    """
    stores = []
    for version in BROKER_VERSIONS:
        for seed, state, parts in ((1001, "clean", PARTS), (1002, MANY, (*QUEUES, "index"))):
            sound = shelf.get(version, state)
            root = sound.copy(tmp_path / f"{version}-{seed}")
            text = describe(damage_store(root, seed, parts=parts, most=6))
            set_abort(root, version, there=parts is PARTS)
            stores.append(Damaged(seed, sound, root, parts is PARTS, text))
            if parts is PARTS:
                mend(stores[-1], "recover", "--yes")
            else:
                mend(stores[-1], "rebuild")
                expire_first_file(stores[-1])
    with ThreadPoolExecutor(len(stores)) as pool:
        for done in [
            pool.submit(
                check_broker, store.sound.version, tmp_path / f"lab-{n}", store.root, store.sound.settings,
                but=store.left,
            )
            for n, store in enumerate(stores)
        ]:  # fmt: skip
            done.result()
