"""Reading a damaged or torn store, and where its log ends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import message
from rmqtool.formats.consume_queue import Unit
from rmqtool.formats.message import Message
from rmqtool.log import commit_log, log_heads
from rmqtool.log.damage import is_torn
from rmqtool.log.events import CorruptRange, Reason
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage import open_files
from tests.support.build_store import (
    file_name,
    log_path,
    messages,
    patch,
    placed,
    two_queues,
    write_log,
    write_queue,
    write_queues,
    write_sparse,
    write_store,
)
from tests.support.records import record
from tests.support.stores import VERSIONS, Library, variant_id, variants
from tests.support.sweep import sample

pytestmark = pytest.mark.sweep


@pytest.fixture
def stored(tmp_path: Path) -> list[Message]:
    return write_store(tmp_path / "store", two_queues(40))


class TestDamage:
    def test_in_the_middle_it_is_raised_or_skipped(self, tmp_path: Path, stored: list[Message]) -> None:
        bad = stored[20]
        path, position = log_path(tmp_path / "store", bad.physical_offset)
        patch(path, position, bytes(100))
        rest = stored[:20] + stored[21:]
        with Store.open(tmp_path / "store") as store:
            for reverse in (False, True):
                found: list[Message] = []
                with pytest.raises(FormatError, match="no sound record") as caught:
                    found.extend(one.message for one in store.messages(reverse=reverse))
                assert caught.value.physical_offset == bad.physical_offset
                skipping = store.messages(reverse=reverse, damage="skip")
                assert messages(skipping) == (rest[::-1] if reverse else rest)
            damage = [event for event in store.events() if isinstance(event, CorruptRange)]
            assert [(d.physical_offset, d.length, d.to_end) for d in damage] == [
                (bad.physical_offset, bad.total_size, False)
            ]

    def test_zeros_up_to_a_file_with_records_are_damage(self, tmp_path: Path, stored: list[Message]) -> None:
        patch(tmp_path / "store/commitlog" / file_name(4096), 2000, bytes(2096))
        with Store.open(tmp_path / "store") as store:
            for reverse in (False, True):
                with pytest.raises(FormatError):
                    list(store.messages(reverse=reverse))

    def test_torn_at_every_byte_of_the_last_record(self, tmp_path: Path) -> None:
        stored = write_log(tmp_path / "commitlog", two_queues(5, size=20))
        last, path = stored[-1], tmp_path / "commitlog" / file_name(0)
        whole = path.read_bytes()
        end = last.physical_offset + last.total_size
        for cut in range(last.physical_offset, end):
            patch(path, 0, whole[:cut] + bytes(len(whole) - cut))
            # Only the length of the properties is 0 anyway. Where a part of the topic's name is missing
            # brokers take the record for whole, so the log's end is theirs; messages leaves it out.
            count = 5 if cut >= end - 2 else 4
            broker_takes_it = cut >= end - 2 - len(last.topic_bytes)
            with Store.open(tmp_path) as store:
                found = list(store.messages())
                assert len([one for one in found if not one.status]) == count, cut
                assert messages(found)[:4] == stored[:4]
                assert list(store.messages(reverse=True)) == found[::-1], cut
                assert store.end_offset() == (end if broker_takes_it else last.physical_offset), cut

    def test_a_missing_file_is_stepped_over(self, tmp_path: Path, stored: list[Message]) -> None:
        (tmp_path / "store/commitlog" / file_name(4096)).unlink()
        left = [one for one in stored if not 4096 <= one.physical_offset < 8192]
        with Store.open(tmp_path / "store") as store:
            assert messages(store.messages()) == left
            assert messages(store.messages(reverse=True)) == left[::-1]
            assert store.get(5000) is None

    def test_a_torn_last_record_is_torn_also_where_the_walk_ends_with_it(
        self, tmp_path: Path, stored: list[Message]
    ) -> None:
        last = stored[-1]
        end = last.physical_offset + last.total_size
        path, position = log_path(tmp_path / "store", last.physical_offset)
        patch(path, position + last.total_size - 3, bytes(3))  # the end of the topic
        with Store.open(tmp_path / "store") as store:
            for stop in (None, end):
                (torn,) = (event for event in store.events(stop=stop) if isinstance(event, CorruptRange))
                assert (torn.physical_offset, torn.end, torn.to_end) == (last.physical_offset, end, True)
                assert is_torn(torn)
                assert messages(store.messages(Selection(to_offset=stop))) == stored[:-1]

    def test_files_that_vanish_are_events(self, tmp_path: Path, stored: list[Message]) -> None:
        with Store.open(tmp_path / "store") as store:
            shutil.rmtree(tmp_path / "store/consumequeue")
            (tmp_path / "store/commitlog" / file_name(0)).unlink()
            left = [one for one in stored if one.physical_offset >= 4096]
            first = next(store.events())
            assert isinstance(first, CorruptRange) and first.reason is Reason.UNREADABLE
            assert messages(store.messages(damage="skip")) == left
            assert messages(store.messages(damage="skip", reverse=True)) == left[::-1]
            assert store.end_offset() == stored[-1].physical_offset + stored[-1].total_size
            with pytest.raises(UnreadableError):
                list(store.messages())
            with pytest.raises(UnreadableError):
                store.get(0)
            with pytest.raises(UnreadableError):
                store.max_offset("TopicTest", 0)

    @given(data=st.data())
    def test_backwards_is_forwards_reversed(self, data: st.DataObject, tmp_path_factory: Any) -> None:
        root = tmp_path_factory.mktemp("mutated")
        write_store(root, two_queues(20, size=100), file_size=2048)
        paths = sorted(root.rglob("0*"))
        files = [path for path in paths if path.is_file()]
        for _ in range(data.draw(st.integers(1, 4))):
            path = data.draw(st.sampled_from(files))
            offset = data.draw(st.integers(0, path.stat().st_size - 1))
            patch(path, offset, data.draw(st.binary(min_size=1, max_size=12))[: path.stat().st_size - offset])
        with Store.open(root) as store:
            forwards = list(store.events())
            backwards = list(store.events(reverse=True))
            assert messages(backwards) == messages(forwards)[::-1]
            assert 0 <= store.end_offset() <= 8 * 2048
            for key in store.queues:
                store.min_offset(*key), store.max_offset(*key)

    @given(data=st.data())
    def test_with_the_compiled_walk_it_is_the_same(self, data: st.DataObject, tmp_path_factory: Any) -> None:
        """Places to walk from, and long runs of heads, are found by the compiled walk."""
        root = tmp_path_factory.mktemp("mutated")
        stored = write_store(root, two_queues(40, size=100), file_size=4096)
        if data.draw(st.booleans()):
            shutil.rmtree(root / "consumequeue")
        files = sorted((root / "commitlog").iterdir())
        for _ in range(data.draw(st.integers(0, 4))):
            path = data.draw(st.sampled_from(files))
            offset = data.draw(st.integers(0, path.stat().st_size - 1))
            length = data.draw(st.sampled_from((1, 4, 12, 700)))
            change = data.draw(st.sampled_from((bytes(length), b"?" * length)))
            patch(path, offset, change[: path.stat().st_size - offset])
        start = data.draw(st.none() | st.integers(0, stored[-1].physical_offset + 1000))
        stop = data.draw(st.none() | st.integers(0, stored[-1].physical_offset + 1000))
        head = data.draw(st.sampled_from(stored)).physical_offset

        def found() -> list[Any]:
            with Store.open(root) as store:
                return [
                    list(store.events(start, stop)),
                    list(store.events(start, stop, reverse=True)),
                    store.end_offset(),
                    store.commit_log.tail(),
                    list(store.commit_log.heads(head)),
                ]

        plain = found()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(commit_log, "_PLAIN_BYTES", 300)
            patched.setattr(log_heads, "_PLAIN_HEADS", data.draw(st.sampled_from((1, 2, 5))))
            compiled = found()
        assert compiled == plain

    @given(log=st.binary(max_size=300), queue=st.binary(max_size=200))
    def test_any_bytes(self, log: bytes, queue: bytes, tmp_path_factory: Any) -> None:
        root = tmp_path_factory.mktemp("noise")
        write_sparse(root / "commitlog" / file_name(0), len(log), (0, log))
        write_sparse(root / "consumequeue/T/0" / file_name(0), len(queue), (0, queue))
        write_sparse(root / "batchconsumequeue/B/0" / file_name(0), len(queue), (0, queue))
        with Store.open(root) as store:
            assert messages(store.events()) == messages(store.events(reverse=True))[::-1]
            assert 0 <= store.end_offset() <= len(log)
            for topic, queue_id in store.queues:
                assert store.max_offset(topic, queue_id) >= 0
                for offset in (0, 1, 1 << 40):
                    try:
                        store.get_by_queue_offset(topic, queue_id, offset)
                    except InputError:
                        continue


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_stores_are_read_both_ways(version: str, cases: Library, tmp_path: Path) -> None:
    """A sample of the variants whose bytes real brokers were given."""
    for variant in sample(variants(version)[::20], 9):
        root = cases.variant(
            f"{version}:{variant_id(variant)}", tmp_path / f"{variants(version).index(variant)}"
        )
        with Store.open(root) as store:
            forwards = list(store.events())
            assert messages(store.events(reverse=True)) == messages(forwards)[::-1]
            assert store.end_offset() <= store.commit_log.files[-1].end if store.commit_log.files else True
            for key in store.queues:
                assert store.min_offset(*key) <= max(store.max_offset(*key), 0) or store.profile.name == "4.9"


class TestEndOffset:
    def test_of_an_empty_log(self, tmp_path: Path) -> None:
        (tmp_path / "commitlog").mkdir()
        with Store.open(tmp_path) as store:
            assert (store.end_offset(), store.commit_log.min_offset) == (0, -1)
            assert list(store.messages()) == list(store.messages(reverse=True)) == []

    def test_behind_a_blank_is_the_next_file(self, tmp_path: Path) -> None:
        stored = write_log(tmp_path / "commitlog", two_queues(11))
        with Store.open(tmp_path) as store:
            assert store.end_offset() == stored[-1].physical_offset + stored[-1].total_size
        last = tmp_path / "commitlog" / file_name(4096)
        patch(last, 0, bytes(4096))  # allocated ahead
        with Store.open(tmp_path) as store:
            assert store.end_offset() == 4096
        last.unlink()  # no next file: the blank would be written again
        with Store.open(tmp_path) as store:
            assert store.end_offset() == stored[9].physical_offset + stored[9].total_size

    @pytest.mark.parametrize("behind", [0, 1, 12, 40])
    def test_from_queues_that_lag(self, tmp_path: Path, behind: int) -> None:
        stored = write_log(tmp_path / "commitlog", two_queues(40))
        write_queues(tmp_path, stored[: 40 - behind])
        write_queue(
            tmp_path / "consumequeue/Lies/0",
            [Unit(1 << 30, 500, 0), Unit(stored[-1].physical_offset + 8, 99, 0)],
        )
        with Store.open(tmp_path) as store:
            assert store.end_offset() == stored[-1].physical_offset + stored[-1].total_size

    def test_a_last_record_with_a_wrong_crc_does_not_count(
        self, tmp_path: Path, stored: list[Message]
    ) -> None:
        path, position = log_path(tmp_path / "store", stored[-1].physical_offset)
        patch(path, position + 95, bytes(5))
        with Store.open(tmp_path / "store") as store:
            assert store.end_offset() == stored[-1].physical_offset

    def test_of_a_sparse_store_of_100_gb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        size, last = 1 << 30, 99 << 30
        for number in range(100):
            base = number * size
            write_sparse(
                tmp_path / "commitlog" / file_name(base), size,
                (0, message.encode(placed(record(), base))),
                (size - 200, message.encode_blank(200)),
            )  # fmt: skip
        tail, position = [], last + 700_000_000
        for number in range(50):
            tail.append(placed(record(body=b"x" * 1000, queue_offset=number), position))
            position = position + tail[-1].total_size
        for one in tail:
            patch(tmp_path / "commitlog" / file_name(last), one.physical_offset - last, message.encode(one))
        write_queues(tmp_path, tail[:30], file_size=6_000_000)
        read = 0
        original = os.pread

        def counting(descriptor: int, length: int, offset: int) -> bytes:
            nonlocal read
            data = original(descriptor, length, offset)
            read += len(data)
            return data

        monkeypatch.setattr(open_files.os, "pread", counting)
        with Store.open(tmp_path) as store:
            assert store.layout.commit_log_file_size == size
            assert store.end_offset() == position
            assert store.max_offset("TopicTest", 0) == 30
            newest = next(store.messages(Selection(to_offset=position), reverse=True))
            assert newest.message == tail[-1]
        assert read < 1 << 20
