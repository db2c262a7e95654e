"""Salvage over every damaged store of `fixtures/` whose log is damaged, done to a copy and verified."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.formats import message
from rmqtool.read.store import Store
from rmqtool.repair.salvage import Salvaged, salvage
from tests.support.mend import mend
from tests.support.records import is_filler
from tests.support.stores import VERSIONS, Bench, Library, case, case_names, real_case, variants
from tests.support.sweep import sample
from tests.support.trees import copy_tree, unchanged

pytestmark = pytest.mark.sweep

LEFT = {"CL13", "CL14", "CL15", "CL16", "CL17", "CL26"}
"""Problems of the log that no salvage mends: a broker reads the records, or there are none."""


def salvaged(root: Path, **arguments: Any) -> Salvaged:
    """The salvage of a store, which must stay as it is."""
    with unchanged(root), Store.open(root) as store:
        return salvage(store, jobs=2, **arguments)


def log_codes(root: Path) -> set[str]:
    """Problems above notes of the log and its files."""
    with Store.open(root) as store:
        found = verify(store, passes=("files", "log"), jobs=2)
        return {item.problem.code for item in found
                if item.problem.severity != "note" and item.problem.code.startswith("CL")}  # fmt: skip


def check_mended(root: Path, result: Salvaged) -> None:
    """Do the actions and see that the log is sound, and that a second salvage finds nothing to do."""
    mend(root, result.actions)
    assert log_codes(root) <= LEFT
    again = salvaged(root)
    assert again.actions == ()
    assert (again.end, again.kept) == (result.end, result.kept + result.fillers)


def damages_log(variant: dict[str, Any]) -> bool:
    return any(edit["path"].startswith("commitlog") for edit in variant["edits"]) and not variant["abortFile"]


@pytest.fixture(scope="module")
def benches(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Bench]:
    """The stores that variants start from, each once."""
    made: dict[tuple[str, str], Bench] = {}

    def bench(version: str, state: str) -> Bench:
        if (version, state) not in made:
            base = cases.path(real_case(version, state).name)
            made[version, state] = Bench(base, tmp_path_factory.mktemp("bench") / "store")
        return made[version, state]

    return bench


@pytest.mark.parametrize("version", VERSIONS)
def test_every_variant(version: str, benches: Callable[[str, str], Bench], tmp_path: Path) -> None:
    """The records of the store before the damage that are not named as lost are all there afterwards."""
    for number, variant in enumerate(sample(list(filter(damages_log, variants(version))), 8)):
        bench = benches(version, variant["base"])
        with bench.damaged(variant["edits"]) as damaged, Store.open(damaged) as store:
            result = salvage(store, jobs=2)
            copy = tmp_path / str(number)
            copy_log(damaged, copy)
        check_mended(copy, result)
        check_records(bench.base, copy, result, variant)


def copy_log(root: Path, target: Path) -> None:
    """The log alone: verify and salvage then need no more."""
    (target / "consumequeue").mkdir(parents=True)
    if (root / "commitlog").exists():
        copy_tree(root / "commitlog", target / "commitlog", linked=True)


def log_bytes(root: Path) -> dict[int, bytes]:
    """The log's files by their first offset."""
    return {int(path.name): path.read_bytes() for path in (root / "commitlog").glob("[0-9]*")}


def record_at(log: dict[int, bytes], offset: int, size: int) -> bytes:
    start = max((first for first in log if first <= offset), default=0)
    return log.get(start, b"")[offset - start : offset - start + size]


@cache
def places(base: Path) -> tuple[tuple[int, int], ...]:
    """(offset, size) of every record of an undamaged store."""
    with Store.open(base) as store:
        return tuple((head.physical_offset, head.total_size)
                     for head in store.commit_log.heads(store.commit_log.min_offset))  # fmt: skip


def check_records(base: Path, mended: Path, result: Salvaged, variant: dict[str, Any]) -> None:
    """Nothing is lost but what is told, and what is new are fillers."""
    before, after = log_bytes(base), log_bytes(mended)
    told = [(lost.physical_offset, lost.physical_offset + lost.size) for lost in result.lost]
    fillers = 0
    for offset, size in places(base):
        data = record_at(after, offset, size)
        if data == record_at(before, offset, size) or offset >= result.end or offset < min(after, default=0):
            continue
        if any(low <= offset < high for low, high in told):
            fillers += is_filler(message.decode(data))
        else:  # still a record, of which no CRC covers what was changed
            assert message.decode(data).physical_offset == offset, (variant, offset)
    assert fillers == result.fillers


@pytest.mark.parametrize("name", sample([name for name in case_names() if not case(name).as_user], 6))
def test_every_case(name: str, cases: Library, tmp_path: Path) -> None:
    """Damaged cases are mended; in stores that are well nothing is to do."""
    root = cases.copy(name, tmp_path / "store")
    result = salvaged(root)
    if not name.startswith(("bad_cl", "gap_cl", "torn_cl")):
        assert result.actions == ()
        assert result.lost == () or "torn" in name or "cq03" in name, result.lost
    check_mended(root, result)


def test_the_unit_of_a_filler_stays_right(cases: Library, tmp_path: Path) -> None:
    """A filler stands where the lost record stood, so that what points to it still does."""
    root = cases.copy("gap_cl08_zeroed_page", tmp_path / "store")
    result = salvaged(root)
    check_mended(root, result)
    assert len(result.lost) == 8 and all(lost.sure and lost.known_from == "unit" for lost in result.lost)
    with Store.open(root) as store:
        for lost in result.lost:
            assert lost.topic is not None and lost.queue_id is not None and lost.queue_offset is not None
            found = store.get_by_queue_offset(lost.topic, lost.queue_id, lost.queue_offset)
            assert found is not None and is_filler(found.message)
            assert (found.physical_offset, found.message.total_size) == (lost.physical_offset, lost.size)
            assert found.message.queue_offset == lost.queue_offset


def test_without_units_gaps_tell(cases: Library, tmp_path: Path) -> None:
    """The same records are known from the numbers that are missing in the log, and from what is left."""
    root = cases.copy("gap_cl08_zeroed_page", tmp_path / "store")
    with_units = {(lost.topic, lost.queue_id, lost.queue_offset) for lost in salvaged(root).lost}
    shutil.rmtree(root / "consumequeue")
    result = salvaged(root)
    assert {(lost.topic, lost.queue_id, lost.queue_offset) for lost in result.lost} == with_units
    assert all(lost.known_from in ("gap", "header", "end") and lost.sure for lost in result.lost)
    check_mended(root, result)
