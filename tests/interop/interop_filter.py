"""The filter language against the broker's own classes: random filters over random properties."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.interop.filter_cases import case, ours
from tests.interop.processes import Program

VERSIONS = ("4.9.7", "5.3.3", "5.4.0")
COUNT = int(os.environ.get("LAB_FILTERS", "20000"))
BLOCK = 500


@pytest.mark.parametrize("version", VERSIONS)
def test_random_filters(version: str, tmp_path: Path) -> None:
    """What is refused, what is thrown, true, false and null: all as there."""
    random = Random(11)
    seen: Counter[str] = Counter()
    with Program(version, "Filters", home=tmp_path / "filters") as program:
        for _ in range(COUNT // BLOCK):
            cases = [case(random) for _ in range(BLOCK)]
            for one, theirs in zip(cases, program.call("judge", cases=cases), strict=True):
                assert ours(one, version[:3]) == theirs, one["text"]
                seen.update(map(str, theirs if isinstance(theirs, list) else [theirs]))
    assert set(seen) == {"True", "False", "None", "thrown", "refused"} and min(seen.values()) > COUNT // 10
