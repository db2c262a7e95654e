"""Buffers of records that were just appended: when they may be filled again."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rmqtool.write.recent import ENOUGH, Part, Recent
from tests.support.programs import until


def never(_: float) -> bool:
    raise AssertionError("it waits")


def test_too_little_for_a_dispatch_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row that is not plain ends a part: to wait for each would take a tenth of a second a row."""
    recent, memory = Recent(), np.zeros(ENOUGH, np.uint8)
    monkeypatch.setattr(recent._changed, "wait", never)
    recent.offer(Part(0, memory[: ENOUGH - 1]))
    recent.reclaim(memory)
    with recent.reading(0) as part:
        assert part is None


def test_a_part_is_kept_for_the_dispatch_that_comes() -> None:
    recent, memory, second = Recent(), np.zeros(ENOUGH, np.uint8), np.zeros(1, np.uint8)
    recent.offer(Part(0, memory[: ENOUGH - 1]))
    recent.offer(Part(ENOUGH - 1, second[:]))
    reclaiming = threading.Thread(target=recent.reclaim, args=(memory,))
    with recent.reading(0) as part:
        reclaiming.start()
        until(lambda: recent._changed._waiters)  # type: ignore[attr-defined]
        assert part is not None and part.data.base is memory and reclaiming.is_alive()
    reclaiming.join()
    with recent.reading(ENOUGH - 1) as part:
        assert part is not None and part.start == ENOUGH - 1
