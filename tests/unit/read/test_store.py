"""A store opened for reading: messages in every order and by each of their names."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rmqtool.errors import FormatError
from rmqtool.formats import message, message_id
from rmqtool.formats.consume_queue import Unit
from rmqtool.formats.message import Message
from rmqtool.log.events import BODY_CRC, OFFSET_MISMATCH, Blank, StoredMessage, TrailingZeros
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from tests.support.build_store import (
    file_name,
    log_path,
    messages,
    patch,
    placed,
    two_queues,
    write_log,
    write_queue,
    write_sparse,
    write_store,
)
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.trees import unchanged


@pytest.fixture
def stored(tmp_path: Path) -> list[Message]:
    return write_store(tmp_path / "store", two_queues(40))


@pytest.fixture
def store(tmp_path: Path, stored: list[Message]) -> Iterator[Store]:
    with unchanged(tmp_path), Store.open(tmp_path / "store") as opened:
        yield opened


class TestMessages:
    def test_forwards_and_backwards(self, store: Store, stored: list[Message]) -> None:
        assert messages(store.messages()) == stored
        assert messages(store.messages(reverse=True)) == stored[::-1]

    def test_events_name_blanks_zeros_and_files(self, store: Store, stored: list[Message]) -> None:
        events = list(store.events())
        blanks = [event for event in events if isinstance(event, Blank)]
        assert [blank.physical_offset + blank.size for blank in blanks] == [4096, 8192, 12288]
        assert isinstance(events[-1], TrailingZeros)
        assert events[-1].physical_offset == stored[-1].physical_offset + stored[-1].total_size
        assert {event.file for event in events} == {f"commitlog/{file_name(4096 * n)}" for n in range(4)}
        assert list(store.events(reverse=True)) == events[::-1]

    def test_bounds_are_half_open(self, store: Store, stored: list[Message]) -> None:
        low, high = stored[5].physical_offset, stored[30].physical_offset
        assert messages(store.events(low, high)) == stored[5:30]
        assert messages(store.events(low, high, reverse=True)) == stored[5:30][::-1]
        assert messages(store.events(low + 1, high + 1)) == stored[6:31]
        assert messages(store.events(low + 1, high + 1, reverse=True)) == stored[6:31][::-1]
        assert list(store.events(high, low)) == list(store.events(1 << 50)) == []

    def test_a_start_inside_a_record_is_found_without_queues(self, tmp_path: Path) -> None:
        stored = write_log(tmp_path / "commitlog", two_queues(40))
        with Store.open(tmp_path) as store:
            assert messages(store.events(stored[7].physical_offset + 90)) == stored[8:]

    def test_selection_and_limit(self, store: Store, stored: list[Message]) -> None:
        chosen = Selection(queues=frozenset({1}), limit=3)
        assert messages(store.messages(chosen)) == stored[1:6:2]
        assert messages(store.messages(chosen, reverse=True)) == stored[-1:-6:-2]
        bounds = Selection(from_offset=stored[3].physical_offset, since=STORE_TIMESTAMP + 8, limit=2)
        assert messages(store.messages(bounds)) == stored[8:10]
        assert list(store.messages(Selection(limit=0))) == []

    def test_many_records_backwards_in_pieces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rmqtool.log.commit_log._PLAIN_BYTES", 700)
        stored = write_log(tmp_path / "commitlog", two_queues(70))
        with Store.open(tmp_path) as store:
            assert list(store.events(reverse=True)) == list(store.events())[::-1]
            low, high = stored[9].physical_offset, stored[50].physical_offset
            assert messages(store.events(low, high, reverse=True)) == stored[9:50][::-1]

    def test_units_that_point_nowhere_do_not_mislead(self, tmp_path: Path, stored: list[Message]) -> None:
        lies = [
            Unit(offset, size, 0) for offset, size in [(3, 91), (400, 391), (5000, 1 << 30), (1 << 40, 9)]
        ]
        write_queue(tmp_path / "store/consumequeue/Lies/0", lies)
        with Store.open(tmp_path / "store") as store:
            assert messages(store.messages(reverse=True)) == stored[::-1]
            assert messages(store.events(stored[3].physical_offset + 1)) == stored[4:]

    def test_by_queue_offset_both_ways(self, store: Store, stored: list[Message]) -> None:
        assert messages(store.queue_messages("TopicTest", 1)) == stored[1::2]
        assert messages(store.queue_messages("TopicTest", 1, 3, 9, reverse=True)) == stored[7:19:2][::-1]
        assert list(store.queue_messages("TopicTest", 7)) == []


class TestGet:
    def test_one_message_by_each_of_its_names(self, store: Store, stored: list[Message]) -> None:
        wanted = stored[17]
        found = store.get(wanted.physical_offset)
        assert found is not None
        assert (found.message, found.status) == (wanted, 0)
        assert found.end == wanted.physical_offset + wanted.total_size
        assert found.file == f"commitlog/{found.path.name}"
        assert (
            store.get_by_id(message_id.offset_message_id(wanted.store_host, wanted.physical_offset)) == found
        )
        assert store.get_by_queue_offset("TopicTest", 1, 8) == found

    def test_nothing_there(self, store: Store, stored: list[Message]) -> None:
        blank = next(event for event in store.events() if isinstance(event, Blank))
        assert store.get(1 << 40) is store.get(-1) is store.get(blank.physical_offset) is None
        assert store.get_by_queue_offset("TopicTest", 1, 20) is None
        assert store.get_by_queue_offset("TopicTest", 1, -1) is None
        assert store.get_by_queue_offset("TopicTest", 9, 0) is None
        assert store.commit_log.read(blank.physical_offset) == blank
        with pytest.raises(FormatError, match="no file"):
            store.commit_log.read(1 << 40)

    @pytest.mark.parametrize("shift", [1, 4, 100])
    def test_not_the_start_of_a_record(self, store: Store, stored: list[Message], shift: int) -> None:
        offset = stored[3].physical_offset + shift
        with pytest.raises(FormatError, match="no record here") as caught:
            store.get(offset)
        assert (caught.value.path, caught.value.physical_offset) == (f"commitlog/{file_name(0)}", offset)

    def test_behind_the_end(self, store: Store) -> None:
        with pytest.raises(FormatError):
            store.get(store.end_offset())

    def test_a_damaged_body_is_shown_with_its_status(self, tmp_path: Path, stored: list[Message]) -> None:
        path, position = log_path(tmp_path / "store", stored[3].physical_offset)
        patch(path, position + 90, b"?")
        with Store.open(tmp_path / "store") as store:
            found = store.get(stored[3].physical_offset)
            assert found is not None and found.status == BODY_CRC

    def test_a_record_of_another_place(self, tmp_path: Path, stored: list[Message]) -> None:
        path, position = log_path(tmp_path / "store", stored[3].physical_offset)
        patch(path, position, message.encode(placed(stored[3], 12)))
        with Store.open(tmp_path / "store") as store:
            with pytest.raises(FormatError, match="stored for offset 12"):
                store.get(stored[3].physical_offset)
            found = store.commit_log.read(stored[3].physical_offset)
            assert isinstance(found, StoredMessage) and found.status == OFFSET_MISMATCH

    def test_a_long_record_is_read_whole(self, tmp_path: Path) -> None:
        records = [record(body=Random(7).randbytes(200_000)), record(body=b"next", queue_offset=1)]
        stored = write_store(tmp_path, records, file_size=1 << 20)
        with Store.open(tmp_path) as store:
            assert [store.get(one.physical_offset).message for one in stored] == stored  # type: ignore[union-attr]
            assert store.end_offset() == stored[1].physical_offset + stored[1].total_size

    def test_a_size_alone_is_not_believed(self, tmp_path: Path) -> None:
        head = message.encode(record(body=b"x"))[:88]
        huge = struct.pack(">i", 1 << 30) + head[4:]
        write_sparse(tmp_path / "commitlog" / file_name(0), 1 << 30, (0, huge))
        with Store.open(tmp_path) as store, pytest.raises(FormatError):
            store.get(0)


class TestOpen:
    def test_usable_after_close(self, store: Store, stored: list[Message]) -> None:
        store.close()
        assert messages(store.messages()) == stored
        assert store.get(0) is not None

    def test_single_files(self, tmp_path: Path, stored: list[Message]) -> None:
        with Store.open(tmp_path / "store/commitlog" / file_name(4096)) as store:
            inside = [one for one in stored if 4096 <= one.physical_offset < 8192]
            assert messages(store.messages()) == inside
            assert messages(store.messages(reverse=True)) == inside[::-1]
        with Store.open(tmp_path / "store/consumequeue/TopicTest/1") as store:
            assert store.max_offset("TopicTest", 1) == 20
            assert list(store.messages()) == []

    def test_six_lines(self, tmp_path: Path, stored: list[Message]) -> None:
        from rmqtool import Store as Exported

        with Exported.open(tmp_path / "store") as store:
            assert [found.message.topic for found in store.messages()] == ["TopicTest"] * 40

    def test_what_import_loads(self) -> None:
        code = (
            "import rmqtool.read.store, sys; print(*{'numpy', 'numba', 'typer', 'rich'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ""


def test_replaced_records_do_not_confuse_a_way_back(tmp_path: Path, stored: list[Message]) -> None:
    """A unit whose record now has another size is walked over, not trusted."""
    shorter = replace(
        record(body=b"y" * 100, queue_id=1, queue_offset=8), physical_offset=stored[17].physical_offset
    )
    path, position = log_path(tmp_path / "store", stored[17].physical_offset)
    patch(path, position, message.encode(shorter))
    with Store.open(tmp_path / "store") as store:
        assert messages(store.events(reverse=True)) == messages(store.events())[::-1]
        assert shorter in messages(store.events())
