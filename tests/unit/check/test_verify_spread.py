"""A verification whose reading is done elsewhere finds what one in threads finds."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import PASSES, Report, verify
from rmqtool.check.verify.distributed import (
    LogResult,
    LogWork,
    QueueResult,
    QueueWork,
    Task,
    queue_tasks,
    take_log,
    take_queue,
)
from rmqtool.check.verify.log import LogCheck
from rmqtool.check.verify.log_findings import ScannedFile
from rmqtool.check.verify.unit_check import UnitCheck
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from tests.support.stores import Library, case_names, variant_id, variants
from tests.support.sweep import sample

pytestmark = pytest.mark.sweep


def over_there(value: Any) -> Any:
    """What another process gets."""
    return pickle.loads(pickle.dumps(value))


class Elsewhere:
    """Work and results travel as they would to another machine; every piece of work arrives anew."""

    def scan_files(self, check: LogCheck, tasks: Sequence[Task]) -> Generator[ScannedFile]:
        for task in tasks:
            result: LogResult = over_there(over_there(LogWork.of(check)).scan(over_there(task)))
            yield take_log(check, result)

    def read_queues(self, check: UnitCheck) -> Iterator[Finding]:
        for task in queue_tasks(check):
            results: list[QueueResult] = over_there(
                list(over_there(QueueWork.of(check)).read([over_there(task)]))
            )
            for result in results:
                yield from take_queue(check, result)


def both(path: Path) -> tuple[tuple[list[Finding], dict[str, Any]], ...]:
    """(findings, report) of both ways."""
    found = []
    for spread in (None, Elsewhere()):
        report = Report()
        with Store.open(path) as store:
            findings = list(verify(store, passes=PASSES, jobs=2, report=report, spread=spread))
        found.append((findings, {**asdict(report), "seconds": 0}))
    return tuple(found)


# Of damage that only the driver looks at one case each is enough.
NAMES = [
    name for name in case_names() if not name.startswith(("bad_cf", "bad_cp", "bad_tm", "bad_ep", "bad_cc"))
]


@pytest.mark.parametrize("name", ["kind_tiered_540/tiered", "kind_compaction_540/compaction"])
def test_queue_logs(name: str, cases: Library) -> None:
    """They travel as the place of their files."""
    folder, _, inner = name.partition("/")
    there, here = both(cases.path(folder) / inner)
    assert there == here


@pytest.mark.parametrize("name", sample(NAMES, 12))
def test_cases(name: str, cases: Library) -> None:
    """Stores of the fixtures, with the summary."""
    here, there = both(cases.path(name))
    assert there == here


@pytest.mark.parametrize("version", ["4.9.7", "5.4.0"])
def test_damaged_stores(version: str, cases: Library, tmp_path: Path) -> None:
    """A part of the damage of the lab."""
    for number, variant in enumerate(variants(version)[::90]):
        path = cases.variant(f"{version}:{variant_id(variant)}", tmp_path / str(number))
        here, there = both(path)
        assert there == here, variant_id(variant)
