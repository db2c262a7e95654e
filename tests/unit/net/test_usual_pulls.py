"""The usual pull is answered by compiled code: it gives what the way with every rule gives, on any bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.index import Shape
from rmqtool.formats.message import HEADS, MAGIC_V2
from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.net.context import Context, transfer_limits
from rmqtool.net.counters import Counters
from rmqtool.net.pulls import Pull, run_pull
from rmqtool.net.view import View
from rmqtool.net.whole_answer import WholeAnswer
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.store import Store
from rmqtool.report.tail.subscription import Subscription
from tests.support.stores import Library
from tests.support.sweep import in_sweeps
from tests.support.whole_store import keyed, write_whole

NOTHING = cast("Any", None)
CLIENTS = (395, 493)  # 4.9.4, which reads only records of version 1, and 5.3.0
MOST = ((1, 1 << 20), (32, 3000), (32, 100), (700, 1 << 20))
"""Messages and bytes of an answer."""


def pulls(view: View) -> Iterator[Pull]:
    """Pulls at places all over the ordinary queues, by old and new clients."""
    wanted = Subscription()
    for (topic, queue_id), queue in view.store.queues.items():
        if not isinstance(queue, ConsumeQueue):
            continue
        end = queue.end()
        for offset in range(queue.start, end + 1, 1 + (end - queue.start) // 6):
            for most, most_bytes in MOST:
                for version in CLIENTS:
                    request = Command(Request.PULL_MESSAGE, {}, version=version)
                    yield Pull(
                        request, NOTHING, "group", topic, queue_id, offset, most, most_bytes, 0, wanted
                    )  # fmt: skip


class Answers:
    """What the pulls of a store are answered, and how many of them the compiled code has answered."""

    def __init__(self, path: Path, whole: WholeAnswer) -> None:
        self.count = 0
        self.found: list[object] = []
        context = Context(
            NOTHING, NOTHING, NOTHING, Counters(lambda text: None), limits=transfer_limits(700), whole=whole
        )
        usual = whole.answer

        def counted(*arguments: Any, **options: Any) -> Any:
            answer = usual(*arguments, **options)
            self.count += answer is not None
            return answer

        whole.answer = counted  # type: ignore[method-assign]
        view = View(lambda: Store.open(path))
        try:
            for pull in pulls(view):
                outcome = run_pull(context, view, pull)
                answer = outcome.answer
                self.found.append((answer.code, answer.fields, b"".join(answer.pieces), outcome.may_wait))
        finally:
            view.close()
        self.found += [context.counters.messages, context.counters.left_out]


def compare(path: Path, *, least: int) -> Counter[int]:
    """Compare both ways; `least` pulls must be usual ones. Returns how often each code was the answer."""
    whole = WholeAnswer()
    whole.load()
    compiled, plain = Answers(path, whole), Answers(path, WholeAnswer())
    assert compiled.found == plain.found
    assert compiled.count >= least and not plain.count
    return Counter(each[0] for each in plain.found if isinstance(each, tuple))


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
def test_both_ways_give_the_same(name: str, cases: Library) -> None:
    assert len(compare(cases.path(name), least=50)) > 1


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [1, 2, *in_sweeps(range(3, 30))])
def test_damaged_bytes(seed: int, cases: Library, tmp_path: Path) -> None:
    """In records and units, so that some answers have none, one or several of them."""
    random = Random(seed)
    path = cases.copy("ok_497_clean" if seed % 2 else "ok_540_clean", tmp_path / "store")
    for file in [*path.glob("commitlog/0*"), *path.glob("consumequeue/*/*/0*")]:
        with file.open("r+b") as opened:
            for _ in range(30 if file.parent.name == "commitlog" else 2):
                opened.seek(random.randrange(1 << 20 if file.parent.name == "commitlog" else 2000))
                opened.write(random.randbytes(random.choice((1, 1, 1, 4, 60))))
    compare(path, least=20)


def test_misplaced_units_and_records_of_version_2(tmp_path: Path) -> None:
    """Only a topic with a long name has records of version 2, whichever kind they are of here."""
    random, path = Random(5), tmp_path / "store"
    plain = [keyed(80, topic=topic) for topic in ("T", "M", "L" * 200)]
    plain[1] = [replace(each, magic=MAGIC_V2, total_size=each.total_size + 1) for each in plain[1]]
    write_whole(path, [each for some in zip(*plain, strict=True) for each in some],
                log_file_size=1 << 20, shape=Shape(500, 2000))  # fmt: skip
    assert compare(path, least=150)[Response.SUCCESS] > 20
    for file in path.glob("consumequeue/*/0/0*"):
        with file.open("r+b") as opened:
            units = [opened.read(UNIT_SIZE) for _ in range(40)]
            for _ in range(4):
                units[random.randrange(40)] = units[random.randrange(40)]
            opened.seek(0)
            opened.write(b"".join(units))
    compare(path, least=20)


def test_bytes_of_a_live_store_are_not_kept(tmp_path: Path) -> None:
    """What is answered is what the file holds now: a recovery may have cut the log and filled it again."""
    path = tmp_path / "store"
    write_whole(path, keyed(40, topic="T"), log_file_size=1 << 20, shape=Shape(500, 2000))
    whole = WholeAnswer()
    whole.load()
    view = View(lambda: Store.open(path), live=True)
    log = next(path.glob("commitlog/0*"))
    try:
        queue = view.queue("T", 0)
        assert queue is not None and isinstance(queue.queue, ConsumeQueue)

        def answer() -> tuple[int, memoryview] | None:
            return whole.answer(view.log, queue.queue, "T", 0, 0, 8, most_bytes=1 << 20, version_1=False)

        found = answer()
        assert found is not None and found[0] == 8
        with log.open("r+b") as opened:
            opened.seek(HEADS[0].offsets["queue_offset"])
            opened.write(b"\1")
        assert answer() is None
    finally:
        view.close()
