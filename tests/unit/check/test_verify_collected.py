"""How many records are compared with their units together changes no finding."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import Report, queues, verify
from rmqtool.check.verify.log import LogCheck
from rmqtool.problems import Finding
from rmqtool.queue import units
from rmqtool.read.store import Store
from tests.support.damage import QUEUES, damage_store, describe
from tests.support.stores import Library, real_cases
from tests.support.sweep import sample

SEEDS = range(60)


def found_in(path: Path) -> tuple[list[Finding], dict[str, Any]]:
    report = Report()
    with Store.open(path) as store:
        findings = list(verify(store, passes=("files", "log", "queues"), jobs=1, report=report))
    return findings, asdict(report) | {"seconds": 0}


@pytest.mark.sweep
@pytest.mark.parametrize("seed", sample(SEEDS, 8))
def test_damaged_stores(seed: int, cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Window by window and with small first reads of queues, against all records of a file at once."""
    names = real_cases()
    root = cases.copy(names[seed % len(names)], tmp_path / "store")
    edits = damage_store(root, seed, parts=("commitlog", *QUEUES, *QUEUES))
    monkeypatch.setattr(LogCheck, "window", 16 << 10)
    at_once = found_in(root)
    monkeypatch.setattr(queues, "_RECORDS_MIN", 1)
    monkeypatch.setattr(queues, "_RECORDS_MAX", 1)
    monkeypatch.setattr(units, "_FEW_UNITS", 2)
    assert found_in(root) == at_once, describe(edits)
