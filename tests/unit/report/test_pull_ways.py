"""The usual pull has a way of its own through the units: it gives what the way with every rule gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.store import Store
from rmqtool.report.tail import get_message as module
from rmqtool.report.tail.get_message import GetMessageResult, TransferLimits, Window, answer_pull
from rmqtool.report.tail.subscription import Subscription
from tests.support.stores import Library
from tests.support.sweep import in_sweeps

LIMITS = (TransferLimits(), TransferLimits(900, 3, 500, 2), TransferLimits(1 << 20, 700, 1 << 20, 700))


def answers(path: Path) -> list[GetMessageResult]:
    """Pulls at all places of all queues, with several limits; records near the end count as in memory."""
    found = []
    with Store.open(path) as store:
        for key, queue in store.queues.items():
            if not isinstance(queue, ConsumeQueue):
                continue
            window = Window(store.min_offset(*key), store.max_offset(*key), queue.end())
            for offset in range(window.low - 1, window.high + 2, 1 + (window.high - window.low) // 20):
                for most, max_bytes, memory in ((1, 1 << 20, 0), (32, 2000, 1 << 40), (32, 1 << 20, 2 << 20)):
                    for limits in LIMITS:
                        pulled = answer_pull(
                            store,
                            queue,
                            window,
                            offset,
                            most,
                            Subscription(),
                            max_bytes=max_bytes,
                            memory_bytes=memory,
                            limits=limits,
                        )
                        found.append(pulled)
    return found


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name",
    [
        *in_sweeps(["ok_497_clean", "ok_540_clean"]),
        "bad_cl25_misnamed_file",
        "bad_cq08_invalid_unit",
        "bad_cq14_unit_without_record",
    ],
)
def test_both_ways_give_the_same(name: str, cases: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cases.path(name)
    plain = answers(path)
    monkeypatch.setattr(module._Pull, "run_plain", lambda *_: False)
    assert plain == answers(path)
    assert len({result.status for result in plain}) > 2
