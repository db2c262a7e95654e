"""Op records, and the half messages that they finish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats.message import Message
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS
from rmqtool.read import op_records
from rmqtool.read.op_records import op_of
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.transactions import commit, half, op, rollback
from rmqtool.write.store_writer import StoreWriter

PROFILES = ("4.9", "5.3", "5.4")
Ways = pytest.mark.parametrize("near", [512, 3, 0])


def small(path: Path, profile: str = "5.4") -> StoreWriter:
    """A writer of a store of small files, so that ops lie in many of them."""
    return StoreWriter.create(
        path, profile, auto_create_queues=2, commit_log_file_size=4096, consume_queue_file_size=200,
        index_slots=10, index_entries=40, reserve=False,
    )  # fmt: skip


def put_half(writer: StoreWriter, number: int) -> Message:
    """A half message, as stored."""
    place = writer.put(half(NewMessage("T", b"%d" % number, queue_id=1), "G")).physical_offset
    with writer.read() as opened:
        return opened.commit_log.read(place).message  # type: ignore[union-attr]


@Ways
@pytest.mark.parametrize("profile", PROFILES)
def test_the_op_of_each_half(
    tmp_path: Path, profile: str, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed, rolled back, still open: whether its op is the next record or lies files behind."""
    monkeypatch.setattr(op_records, "NEAR", near)
    named: dict[int, int] = {}
    with small(tmp_path / "s", profile) as writer:
        halves = [put_half(writer, number) for number in range(24)]
        for place, each in enumerate(halves[::2]):
            ends = (commit, rollback)[place % 2](each, writer.options, 0)
            named[each.queue_offset] = [writer.put(end) for end in ends][-1].physical_offset
        writer.flush()
        with writer.read() as opened:
            for each in halves:
                found = op_of(opened, each)
                assert (found and found.physical_offset) == named.get(each.queue_offset)
            other = replace(halves[0], queue_id=1)  # its op queue is another one
            assert op_of(opened, other) is None


@Ways
def test_ops_that_name_many_or_make_no_sense(
    tmp_path: Path, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of 5.x; bodies that are no list; a number that only begins like it."""
    monkeypatch.setattr(op_records, "NEAR", near)
    with small(tmp_path / "s") as writer:
        halves = [put_half(writer, number) for number in range(16)]
        writer.put(op([10, 12, 15], 0, writer.options, 0))
        for body in (b"", b"1x", b",,", b"111", b"-3", b"x,11"):
            writer.put(replace(op([1], 0, writer.options, 0), body=body))
        last = writer.put(op([13, 10], 0, writer.options, 0)).physical_offset
        with writer.read() as opened:
            found = {each.queue_offset: op_of(opened, each) for each in halves}
    finished = [offset for offset, record in found.items() if record is not None]
    assert finished == [10, 11, 12, 13, 15]
    assert found[13] is not None and found[13].physical_offset == last
    assert found[10] is not None and found[10].physical_offset < last


def test_ops_before_the_half_are_of_others(tmp_path: Path) -> None:
    """As after a truncation of the log: queue offsets start again, physical offsets do not."""
    with small(tmp_path / "s") as writer:
        writer.put(op([0, 1, 2], 0, writer.options, 0))
        first = put_half(writer, 0)
        with writer.read() as opened:
            assert op_of(opened, first) is None


@pytest.mark.parametrize(
    ("first", "then"), [("commit", "commit"), ("rollback", "commit"), ("commit", "rollback")]
)
def test_a_half_message_is_finished_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], first: str, then: str
) -> None:
    with small(tmp_path / "s") as writer:
        place = put_half(writer, 0).physical_offset
        other = put_half(writer, 1).physical_offset

    def run(*what: object) -> int:
        return main(["append", str(tmp_path / "s"), *map(str, what)])

    assert run(f"--{first}", place) == 0
    end = Store.open(tmp_path / "s").end_offset()
    capfd.readouterr()
    assert run(f"--{then}", place) == 4
    assert "is finished already: the op record at" in capfd.readouterr().err
    assert Store.open(tmp_path / "s").end_offset() == end
    assert run(f"--{then}", other) == 0


def test_real_stores(store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broker wrote: each op finishes the half messages that it names, whichever way it is read."""
    for name in ("ok_497_clean", "ok_533_clean", "ok_540_clean"):
        with Store.open(store_copy(name)) as opened:
            halves = [each.message for each in opened.messages() if each.message.topic == HALF_TOPICS[0]]
            assert halves and (OP_TOPICS[0], 0) in opened.queues
            found = [[op_of(opened, each) for each in halves]]
            monkeypatch.setattr(op_records, "NEAR", 0)
            found.append([op_of(opened, each) for each in halves])
            monkeypatch.undo()
        places = [[each and each.physical_offset for each in one] for one in found]
        assert places[0] == places[1] and any(places[0])
