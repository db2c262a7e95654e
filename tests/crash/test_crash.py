"""A writer that ends at any moment: killed, without power, on a full disk. What was acknowledged stays.

By default a seeded sample of the moments; RMQTOOL_CRASH_SWEEP=N takes N of each kind, =all takes all.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from rmqtool.check.verify import verify
from rmqtool.errors import EXIT_INPUT, NotAStoreError, RefusedError
from rmqtool.read.kernels import load_kernels
from rmqtool.read.store import Store
from rmqtool.write.store_writer import StoreWriter
from tests.support.crash_check import (
    MENDED,
    POWER_LOST,
    Told,
    check_mended,
    check_store,
    codes,
    only_notes,
    recovery_start,
)
from tests.support.crash_child import ENDED, Scenario, Tell, in_child, message, number_of, work
from tests.support.disk_calls import HOWS, Call, How, Stop, watched
from tests.support.power_loss import MODES, SECTOR, Mode, rebuild
from tests.support.sweep import paired
from tests.support.trees import tree_rows, unchanged

pytestmark = pytest.mark.sweep

Way = TypeVar("Way", How, Mode)

SWEEP = os.environ.get("RMQTOOL_CRASH_SWEEP", "")
SCENARIOS = {
    "async": Scenario(1),
    "sync": Scenario(2, flush="sync"),
    "4.9": Scenario(3, profile="4.9", reserve=False),
    "5.3 sync": Scenario(4, profile="5.3", flush="sync"),
    "buffered": Scenario(5, write_buffer=True),
    "tables": Scenario(7, tables=True),
    "tables sync": Scenario(8, tables=True, flush="sync"),
    "threads": Scenario(9, threads=4, flush="sync"),
    "batch queues": Scenario(10, batch_queues=True),
    "wide": Scenario(6, topics=70, steps=80),
}
SAMPLE = int(SWEEP) if SWEEP.isdigit() else 1  # moments of one kind


def pairs(ways: Sequence[Way]) -> list[tuple[str, Way]]:
    """Scenarios and ways to end them: every scenario with one of the ways in turn, or all with all."""
    return list(product(SCENARIOS, ways)) if SWEEP else paired(SCENARIOS, ways)


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Compiled once, so that no child has to."""
    import pyarrow as pa

    assert pa.__version__
    load_kernels()


@contextmanager
def says(what: object) -> Iterator[None]:
    """Names the moment at which a check has failed."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at {what}")
        raise


def chosen(of: int, seed: str) -> list[int]:
    """Numbers of [1, of]: all of them, or a sample."""
    numbers = range(1, of + 1)
    return list(numbers) if SWEEP == "all" else sorted(Random(seed).sample(numbers, min(SAMPLE, of)))


Record = tuple[Path, list[Call]]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Record]:
    """A function: the calls of a whole run of a scenario, with what was told between them."""
    above = tmp_path_factory.mktemp("record")

    @cache
    def recorded(name: str) -> Record:
        folder = above / name
        folder.mkdir()
        root = folder / "store"

        def action(tell: Tell) -> None:
            with watched(folder) as calls:
                work(root, SCENARIOS[name], lambda row: calls.tell(row))
            (above / "calls").write_bytes(pickle.dumps(calls.done))

        assert in_child(action)[0] == 0
        return root, pickle.loads((above / "calls").read_bytes())

    return recorded


def told_before(calls: list[Call], cut: int) -> Told:
    return Told.of(call.told for call in calls[:cut] if call.name == "told")


@pytest.mark.parametrize("name", SCENARIOS)
class TestWhole:
    """Nothing happens to the writer: what the other tests build on."""

    def test_nothing_is_wrong(self, record: Any, name: str) -> None:
        root, calls = record(name)
        told = told_before(calls, len(calls))
        assert told.closed
        assert not (root / "abort").exists()
        check_store(root, told)

    def test_every_change_of_the_store_goes_through_disk(
        self, record: Any, name: str, tmp_path: Path
    ) -> None:
        """The calls done again give the same files: else there would be moments that no test stops at."""
        root, calls = record(name)
        (tmp_path / "empty").mkdir()
        rebuild(calls, len(calls), root.parent, tmp_path / "again", "everything", 0, tmp_path / "empty")
        rows = [[(name, kind, size, digest) for name, kind, size, _, digest in tree_rows(folder)]
                for folder in (tmp_path / "again" / "store", root)]  # fmt: skip
        assert rows[0] == rows[1]


@pytest.mark.parametrize(("name", "how"), pairs(HOWS))
def test_killed(record: Any, name: str, how: How, tmp_path: Path) -> None:
    """SIGKILL before, in the middle of, and after the n-th change of a file."""
    scenario = SCENARIOS[name]
    number_of_calls = sum(call.name != "told" for call in record(name)[1])
    for number in chosen(number_of_calls, f"{name} {how}"):
        root = tmp_path / str(number) / "store"
        root.parent.mkdir()
        stop = Stop(number, how)

        def action(tell: Tell, root: Path = root, stop: Stop = stop) -> None:
            with watched(root, stop=stop):
                work(root, scenario, tell)

        status, rows = in_child(action)
        with says(stop):
            assert status in (ENDED, 0)  # 0: with threads the number of calls is not always the same
            told = Told.of(rows)
            sure = told.flushed if scenario.write_buffer else None
            check_store(root, told, sure=sure)
            check_mended(root, told, scenario.options(), sure=sure)
            check_next_run(root, scenario)
        shutil.rmtree(root.parent)


def check_next_run(root: Path, scenario: Scenario) -> None:
    """The next run goes on, or says what happened and changes nothing."""
    options = scenario.options()
    if not root.exists():
        StoreWriter.create(root, scenario.profile, **options).close()
        return
    try:
        has_abort = Store.open(root).layout.abort is not None
    except NotAStoreError:
        with unchanged(root), pytest.raises(NotAStoreError):
            StoreWriter.open(root, **options)
        return
    if has_abort:
        with unchanged(root), pytest.raises(RefusedError, match="not closed cleanly") as caught:
            StoreWriter.open(root, **options)
        assert caught.value.hint is not None
        assert "rmqtool recover" in caught.value.hint
        return
    with StoreWriter.open(root, **options) as writer:
        writer.put(message(999))
    with Store.open(root) as store:
        assert only_notes(verify(store, jobs=1))


@pytest.mark.parametrize(("name", "mode"), pairs(MODES))
def test_power_lost(record: Any, name: str, mode: Mode, tmp_path: Path) -> None:
    """All that was acknowledged as flushed is there, whatever else the disk has kept."""
    root, calls = record(name)
    empty = tmp_path / "empty"
    empty.mkdir()
    for cut in chosen(len(calls), f"{name} {mode}"):
        target = tmp_path / str(cut)
        rebuild(calls, cut, root.parent, target, mode, cut, empty)
        with says((cut, calls[cut - 1].name, calls[cut - 1].path)):
            told = told_before(calls, cut)
            check_store(target / "store", told, sure=told.flushed, known=POWER_LOST)
            options = SCENARIOS[name].options()
            check_mended(target / "store", told, options, sure=told.flushed, known=MENDED)
        shutil.rmtree(target)


@pytest.mark.parametrize("name", SCENARIOS)
def test_disk_full(record: Any, name: str, tmp_path: Path) -> None:
    """From the n-th change on there is no space: an error that says so, and nothing acknowledged is lost."""
    scenario = SCENARIOS[name]
    number_of_calls = sum(call.name != "told" for call in record(name)[1])
    for number in chosen(number_of_calls, f"{name} full"):
        root = tmp_path / str(number) / "store"
        root.parent.mkdir()

        def action(tell: Tell, root: Path = root, number: int = number) -> None:
            with watched(root, full=number) as calls:
                try:
                    work(root, scenario, tell)
                finally:
                    tell(["refused", calls.refused])

        status, rows = in_child(action)
        refused = next(row[1] for row in rows if row[0] == "refused")
        with says(number):
            told = Told.of(row for row in rows if row[0] != "refused")
            assert status == (EXIT_INPUT if refused else 0), told.failed
            if refused:
                assert told.failed[0] == "UnwritableError"
                assert told.failed[1].endswith("No space left on device")
            check_store(root, told, sure=told.flushed if scenario.write_buffer else None)
        shutil.rmtree(root.parent)


def test_the_first_batch_queue_of_a_store_is_flushed_with_its_folder(tmp_path: Path) -> None:
    """A start after a crash dispatches only the newest log file again."""
    root = tmp_path / "store"
    empty = tmp_path / "empty"
    empty.mkdir()
    rows: list[list[Any]] = [["want", list(range(40))]]
    with watched(tmp_path) as calls:
        StoreWriter.create(root, **SCENARIOS["async"].options()).close()
        with StoreWriter.open(root, **SCENARIOS["async"].options()) as writer:
            writer.topics.add("Batch", 1, attributes={"queue.type": "BatchCQ"})
            for number in range(40):
                writer.put(replace(message(number), topic="Batch"))
            rows.append(["flushed", writer.flush()])
            cut = len(calls.done)
    rebuild(calls.done, cut, tmp_path, tmp_path / "lost", "nothing", 0, empty)
    with Store.open(tmp_path / "lost" / "store") as store:
        assert recovery_start(store) > 0
    check_store(tmp_path / "lost" / "store", Told.of(rows), known=POWER_LOST)


def test_a_message_whose_properties_end_in_a_lost_sector_is_kept(tmp_path: Path) -> None:
    """Its body is right and the log goes on: `recover` leaves CL13, never below what was flushed."""
    root, empty, options = tmp_path / "store", tmp_path / "empty", SCENARIOS["async"].options()
    empty.mkdir()
    with watched(tmp_path) as calls, StoreWriter.create(root, **options) as writer:
        results = [writer.put(message(number)) for number in range(60)]
        cut = len(calls.done)
    torn, told = [], Told.of([["want", list(range(60))]])
    for number, result in enumerate(results):
        stop = result.physical_offset + result.size
        sector = stop // SECTOR * SECTOR
        if stop - 40 < sector < stop and number < 40:
            torn.append((number, result.physical_offset, sector))
    assert torn
    for number, start, sector in torn:
        lost = tmp_path / str(sector) / "store"
        rebuild(calls.done, cut, tmp_path, lost.parent, "everything", 0, empty)
        place = sector % options["commit_log_file_size"]
        with (lost / "commitlog" / f"{sector - place:020}").open("r+b") as file:
            file.seek(place)
            file.write(bytes(SECTOR))
        with says(sector):
            check_store(lost, told, sure=0, known=POWER_LOST)
            check_mended(lost, told, options, sure=0, known=MENDED)
            assert ("CL13", start) in codes(lost.parent / "mended")
            with Store.open(lost.parent / "mended") as store:
                kept = store.find(start)
            assert kept is not None and number_of(kept.message.body) == number
