"""Salvage: what each kind of record and of hole becomes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmqtool.formats import filler, message, properties
from rmqtool.formats.consume_queue import Unit
from rmqtool.formats.message import Message
from rmqtool.repair.salvage import LostRecord, Salvaged
from tests.support.build_store import LOG_FILE_SIZE, file_name, patch, write_log, write_queue
from tests.support.records import STORE_TIMESTAMP, is_filler, record
from tests.support.recover_checks import codes, recovered
from tests.support.salvage_stores import found, identity, log_path, made, names, zero
from tests.support.whole_store import keyed, write_units
from tests.unit.repair.test_salvage import check_mended, salvaged


def stored_with(tmp_path: Path, special: Message) -> tuple[Path, Message]:
    """A store in which `special` lies between other records; what it is as stored."""
    records = keyed(30)
    stored = made(tmp_path / "store", [*records[:15], special, *records[15:]])
    return tmp_path / "store", stored[15]


class TestOwners:
    """What a filler says and carries, by the kind of record that was lost."""

    def lose(self, root: Path, lost: Message) -> tuple[LostRecord, Message]:
        zero(root, lost)
        result = salvaged(root)
        assert len(result.lost) == 1
        check_mended(root, result)
        made = found(root, lost.physical_offset)
        assert is_filler(made) and made.total_size == lost.total_size
        return result.lost[0], made

    def test_an_ordinary_one(self, tmp_path: Path) -> None:
        root, special = stored_with(tmp_path, record("Other", b"x" * 100, queue_id=3))
        lost, made = self.lose(root, special)
        assert identity([made]) == [("Other", 3, 0)] and made.transaction_type == 0
        assert properties.decode(made.properties_bytes) == {"TAGS": "RMQTOOL_FILLER"}
        assert (lost.after_ms, lost.before_ms) == (STORE_TIMESTAMP + 14, STORE_TIMESTAMP + 15)
        assert (lost.sure, lost.known_from, lost.fate, lost.count) == (True, "unit", "filled", 1)
        assert (lost.physical_offset, lost.size) == (special.physical_offset, special.total_size)

    def test_delayed(self, tmp_path: Path) -> None:
        """Without a real topic 4.x would block the level for ever."""
        special = record("SCHEDULE_TOPIC_XXXX", b"x" * 60, {"DELAY": "3"}, queue_id=2)
        _, made = self.lose(*stored_with(tmp_path, special))
        assert properties.decode(made.properties_bytes) == {
            "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0", "DELAY": "3",
        }  # fmt: skip

    def test_delayed_and_too_short_for_a_real_topic(self, tmp_path: Path) -> None:
        special = record("SCHEDULE_TOPIC_XXXX", b"x" * 10, {"DELAY": "3"}, queue_id=2)
        _, made = self.lose(*stored_with(tmp_path, special))
        assert made.transaction_type == message.TRANSACTION_ROLLBACK

    def test_a_long_topic(self, tmp_path: Path) -> None:
        topic = "%RETRY%" + "g" * 130
        _, made = self.lose(*stored_with(tmp_path, record(topic, b"x")))
        assert (made.version, made.topic) == (2, topic)

    def test_ipv6_hosts(self, tmp_path: Path) -> None:
        host = bytes(15) + b"\1" + (10911).to_bytes(4)
        flags = message.BORN_HOST_V6 | message.STORE_HOST_V6
        special = record("Six", b"x", sys_flag=flags, born_host=host, store_host=host)
        _, made = self.lose(*stored_with(tmp_path, special))
        assert (made.sys_flag, made.topic) == (0, "Six")

    def test_property_crc(self, tmp_path: Path) -> None:
        """A broker that checks them takes the log for ended at a record without one."""
        root = tmp_path / "store"
        records = keyed(30)
        stored = write_log(root / "commitlog", [replace_properties(one) for one in records])
        for one in stored:
            sealed = properties.seal_property_crc(message.encode(one))
            patch(log_path(root, one.physical_offset), one.physical_offset % LOG_FILE_SIZE, sealed)
        write_units(root, stored)
        _, made = self.lose(root, stored[10])
        assert properties.property_crc_ok(message.encode(made))

    def test_light_queues_keep_their_units(self, tmp_path: Path) -> None:
        light = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "0,0"}
        root, special = stored_with(tmp_path, record("Light", b"x" * 80, light))
        lost, made = self.lose(root, special)
        assert lost.topic == "Light"
        kept = properties.decode(made.properties_bytes)
        assert {name: kept[name] for name in light} == light

    def cut_short(self, root: Path, one: Message) -> Salvaged:
        """The last bytes of a record were never written, its body was."""
        at = one.physical_offset + one.total_size - 4
        patch(log_path(root, at), at % LOG_FILE_SIZE, bytes(4))
        result = salvaged(root)
        check_mended(root, result)
        return result

    def test_without_the_end_of_its_properties(self, tmp_path: Path) -> None:
        """The message is there: it stays, where others follow."""
        root, special = stored_with(tmp_path, record("Other", b"x" * 100, {"TAGS": "TagTagTag"}))
        result = self.cut_short(root, special)
        assert (result.actions, result.kept) == ((), 31)

    def test_delayed_without_the_end_of_its_properties(self, tmp_path: Path) -> None:
        special = record("SCHEDULE_TOPIC_XXXX", b"x" * 90, {"REAL_TOPIC": "TagTagTag"})
        root, stored = stored_with(tmp_path, special)
        assert names(self.cut_short(root, stored).lost) == identity([stored])

    def test_the_last_ones_without_the_end_of_their_properties(self, tmp_path: Path) -> None:
        stored = made(tmp_path / "store", keyed(30))
        at = stored[-2].physical_offset + stored[-2].total_size - 2
        patch(log_path(tmp_path / "store", at), at % LOG_FILE_SIZE, bytes(2))
        result = self.cut_short(tmp_path / "store", stored[-1])
        assert (result.end, result.kept) == (stored[-2].physical_offset, 28)
        assert sorted(names(result.lost)) == sorted(identity(stored[-2:]))
        assert {action.problem for action in result.actions} == {"CL01"}

    def test_no_queue_has_it(self, tmp_path: Path) -> None:
        root, special = stored_with(tmp_path, record("T", b"x" * 20, sys_flag=message.TRANSACTION_ROLLBACK))
        lost, made = self.lose(root, special)
        assert lost.topic is None and lost.known_from == "none" and lost.count == 0 and not lost.sure
        assert (made.topic, made.transaction_type) == ("RMQTOOL_FILLER", message.TRANSACTION_ROLLBACK)

    def test_a_head_that_is_left_tells(self, tmp_path: Path) -> None:
        """The unit is gone and its queue's order cannot tell, but the body alone is damaged."""
        root, special = stored_with(tmp_path, record("Other", b"x" * 100, queue_id=3))
        shutil.rmtree(root / "consumequeue" / "Other")
        patch(log_path(root, special.physical_offset), special.physical_offset % LOG_FILE_SIZE + 100, b"??")
        result = salvaged(root)
        assert names(result.lost) == [("Other", 3, 0)] and result.lost[0].known_from == "header"
        check_mended(root, result)


def replace_properties(one: Message) -> Message:
    stored = properties.reserve_property_crc(one.properties_bytes)
    more = len(stored) - one.properties_length
    return replace(
        one, properties_bytes=stored, properties_length=len(stored), total_size=one.total_size + more
    )


class TestHoles:
    """Where a hole lies and what can be written there."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> list[Message]:
        return made(tmp_path / "store", keyed(60))

    def test_gaps_tell_without_units(self, tmp_path: Path, stored: list[Message]) -> None:
        """Fillers share the hole evenly: where each record began is not known."""
        root = tmp_path / "store"
        shutil.rmtree(root / "consumequeue")
        for one in stored[5:8]:
            zero(root, one)
        result = salvaged(root)
        assert sorted(names(result.lost)) == sorted(identity(stored[5:8]))
        assert all(one.known_from == "gap" and one.sure for one in result.lost)
        assert max(one.size for one in result.lost) - min(one.size for one in result.lost) <= 2
        check_mended(root, result)

    def test_the_first_records_of_a_queue(self, tmp_path: Path, stored: list[Message]) -> None:
        """The log begins at 0, so what is missing there was in it."""
        root = tmp_path / "store"
        shutil.rmtree(root / "consumequeue")
        for one in stored[:4]:
            zero(root, one)
        assert sorted(names(salvaged(root).lost)) == sorted(identity(stored[:4]))

    def test_expired_records_are_not_lost(self, tmp_path: Path) -> None:
        stored = made(tmp_path / "store", keyed(60))
        root = tmp_path / "store"
        (root / "commitlog" / file_name(0)).unlink()
        shutil.rmtree(root / "consumequeue")
        second = [one for one in stored if one.physical_offset >= LOG_FILE_SIZE]
        zero(root, second[3])
        assert names(salvaged(root).lost) == identity(second[3:4])

    def test_a_wrong_queue_offset_makes_no_gap(self, tmp_path: Path, stored: list[Message]) -> None:
        """A jump of a million is no loss of a million in a hole of some bytes."""
        root = tmp_path / "store"
        shutil.rmtree(root / "consumequeue")
        zero(root, stored[5])
        at = stored[6].physical_offset + 20
        patch(log_path(root, at), at % LOG_FILE_SIZE, (1 << 40).to_bytes(8))
        result = salvaged(root)
        assert names(result.lost) == identity(stored[5:6])
        check_mended(root, result)

    def test_the_last_records_of_a_file(self, tmp_path: Path, stored: list[Message]) -> None:
        """Blank and records are gone: fillers, and a blank behind them."""
        root = tmp_path / "store"
        inside = [one for one in stored if one.physical_offset < LOG_FILE_SIZE]
        start = inside[-2].physical_offset
        patch(log_path(root, 0), start, bytes(LOG_FILE_SIZE - start))
        result = salvaged(root)
        assert names(result.lost) == identity(inside[-2:])
        check_mended(root, result)
        left = inside[-1].physical_offset + inside[-1].total_size
        assert log_path(root, 0).read_bytes()[left : left + 8] == message.encode_blank(LOG_FILE_SIZE - left)

    def test_a_file_with_nothing_in_it(self, tmp_path: Path, stored: list[Message]) -> None:
        root = tmp_path / "store"
        log_path(root, LOG_FILE_SIZE).write_bytes(bytes(LOG_FILE_SIZE))
        inside = [one for one in stored if LOG_FILE_SIZE <= one.physical_offset < 2 * LOG_FILE_SIZE]
        result = salvaged(root)
        assert names(result.lost) == identity(inside)
        check_mended(root, result)

    def test_a_file_of_which_nothing_is_known(self, tmp_path: Path, stored: list[Message]) -> None:
        """No unit tells, and no later record: a blank, and it is said that something may be lost."""
        root = tmp_path / "store"
        shutil.rmtree(root / "consumequeue")
        records = [*stored[:10], record("Z", b"z", store_timestamp=STORE_TIMESTAMP + 99)]
        shutil.rmtree(root / "commitlog")
        write_log(root / "commitlog", records[:-1])
        write_log(root / "commitlog", records[-1:], start=LOG_FILE_SIZE * 2)
        result = salvaged(root)
        assert [action.kind for action in result.actions] == ["fill", "create", "fill"]
        assert [(one.topic, one.physical_offset) for one in result.lost][-1] == (None, LOG_FILE_SIZE)
        check_mended(root, result)

    def small_hole(self, root: Path, first: Message, second: Message) -> None:
        """Two records become some bytes of nothing and one sound record behind them."""
        start, size = first.physical_offset, first.total_size + second.total_size
        new = record("New", b"", None, physical_offset=start + 60)
        body = b"n" * (size - 60 - new.total_size)
        made = record("New", body, None, physical_offset=start + 60, store_timestamp=first.store_timestamp)
        patch(log_path(root, start), start % LOG_FILE_SIZE, bytes(60) + message.encode(made))

    def test_too_small_takes_the_record_before_along(self, tmp_path: Path, stored: list[Message]) -> None:
        root = tmp_path / "store"
        self.small_hole(root, stored[3], stored[4])
        result = salvaged(root)
        taken = next(one for one in result.lost if one.fate == "taken")
        assert names([taken]) == identity(stored[2:3]) and result.given_up == 1
        assert taken.size == stored[2].total_size + 60
        assert found(root, stored[2].physical_offset) == stored[2]
        check_mended(root, result)
        assert found(root, stored[3].physical_offset + 60).topic == "New"

    def test_too_small_at_the_start_takes_the_record_behind(
        self, tmp_path: Path, stored: list[Message]
    ) -> None:
        root = tmp_path / "store"
        self.small_hole(root, stored[0], stored[1])
        result = salvaged(root)
        assert [(one.topic, one.fate) for one in result.lost] == [("New", "taken")]
        check_mended(root, result)
        assert found(root, stored[2].physical_offset) == stored[2]

    def test_two_units_for_one_place(self, tmp_path: Path, stored: list[Message]) -> None:
        """The unit that fits between its queue's neighbours wins over one that does not."""
        root = tmp_path / "store"
        one = stored[10]
        unit = one.physical_offset.to_bytes(8) + (one.total_size - 50).to_bytes(4) + bytes(8)
        other = root / "consumequeue" / "TopicTest" / "0" / file_name(0)
        patch(other, 0, unit)  # of queue offset 0, which is sound elsewhere
        for lost in stored[10:12]:
            zero(root, lost)
        result = salvaged(root)
        assert names(result.lost) == identity(stored[10:12])
        check_mended(root, result)

    def test_long_holes_get_several_fillers(
        self, tmp_path: Path, stored: list[Message], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(filler, "SIZE_MAX", 500)
        root = tmp_path / "store"
        shutil.rmtree(root / "consumequeue")
        inside = [one for one in stored if one.physical_offset < LOG_FILE_SIZE]
        for one in inside:
            zero(root, replace(one, topic_bytes=b"?"))
        shutil.rmtree(root / "commitlog")
        records = [record("A", b"a"), record("B", b"b" * 2000, sys_flag=12), record("C", b"c")]
        again = write_log(root / "commitlog", records)
        zero(root, again[1])
        result = salvaged(root)
        assert len(result.lost) == 5 and max(one.size for one in result.lost) <= 500
        check_mended(root, result)


class TestSwappedUnits:
    """Units in each other's slots: the numbers that are missing in the log tell what the lost records had."""

    def swap(self, root: Path, one: int, other: int) -> None:
        path = root / "consumequeue/TopicTest/0" / file_name(0)
        data = path.read_bytes()
        first, second = data[one * 20 : one * 20 + 20], data[other * 20 : other * 20 + 20]
        patch(path, one * 20, second)
        patch(path, other * 20, first)

    @pytest.mark.parametrize(("one", "other"), [(9, 10), (10, 14), (0, 10), (18, 19), (0, 2)])
    @pytest.mark.parametrize("both", [False, True])
    def test_units(self, tmp_path: Path, one: int, other: int, *, both: bool) -> None:
        """No number is given twice, and what is lost is named as it was."""
        root = tmp_path / "store"
        stored = made(root, keyed(40))
        queue = [message for message in stored if message.queue_id == 0]
        self.swap(root, one, other)
        lost = [queue[one], queue[other]] if both else [queue[other]]
        for message_ in lost:
            zero(root, message_)
        assert names(salvaged(root).lost) == identity(lost)
        recovered(root, backup=tmp_path / "backup")
        assert codes(root) == {"CF08"}  # a store in use without config has lost its offsets
        assert not recovered(root, backup=tmp_path / "again").recovery.is_needed


class TestFilesOfOtherQueues:
    """A queue file in another queue's folder: the records that its other units lead to tell whose it is."""

    def swap(self, root: Path, one: str, other: str) -> None:
        folder = root / "consumequeue"
        (folder / one).rename(folder / "swapped")
        (folder / other).rename(folder / one)
        (folder / "swapped").rename(folder / other)

    @pytest.mark.parametrize("lost", [0, 13, 14, 30, 38])
    def test_exchanged(self, tmp_path: Path, lost: int) -> None:
        """Each lost record gets its own queue back, also where the other one has the same numbers."""
        root = tmp_path / "store"
        stored = made(root, keyed(40))
        self.swap(root, "TopicTest/0", "TopicTest/1")
        zero(root, stored[lost])
        result = salvaged(root)
        assert names(result.lost) == identity([stored[lost]])
        assert [(one.sure, one.known_from) for one in result.lost] == [(True, "unit")]
        recovered(root, backup=tmp_path / "backup")
        assert identity([found(root, stored[lost].physical_offset)]) == identity([stored[lost]])
        assert codes(root) == {"CF08"}  # a store in use without config has lost its offsets

    def test_exchanged_with_another_topic(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        more = [record("Other", b"x" * 120, queue_id=0, queue_offset=n) for n in range(30)]
        stored = made(root, [one for pair in zip(keyed(30, queues=1), more, strict=True) for one in pair])
        self.swap(root, "TopicTest/0", "Other/0")
        for one in (stored[20], stored[31]):
            zero(root, one)
        assert names(salvaged(root).lost) == identity([stored[20], stored[31]])

    def test_renamed(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = made(root, keyed(40))
        (root / "consumequeue/TopicTest/0").rename(root / "consumequeue/TopicTest/7")
        zero(root, stored[20])
        assert names(salvaged(root).lost) == [("TopicTest", 0, 10)]

    def test_of_no_queue(self, tmp_path: Path) -> None:
        """Units of all queues in one file say nothing; a queue's gap still tells what it has lost."""
        root = tmp_path / "store"
        stored = made(root, keyed(40, queues=4))
        units = [Unit(one.physical_offset, one.total_size, 0) for one in stored]
        shutil.rmtree(root / "consumequeue")
        write_queue(root / "consumequeue/Else/0", units)
        zero(root, stored[20])
        (lost,) = salvaged(root).lost
        assert (lost.topic, lost.queue_id, lost.queue_offset) == ("TopicTest", 0, 5)
        assert lost.known_from == "gap"

    def test_a_damaged_neighbour_says_nothing(self, tmp_path: Path) -> None:
        """One record of the queue that names another one does not make the file that one's."""
        root = tmp_path / "store"
        stored = made(root, keyed(40))
        other = stored[18]
        at = other.physical_offset % LOG_FILE_SIZE + message.QUEUE_ID_OFFSET
        patch(log_path(root, other.physical_offset), at, (1).to_bytes(4))
        zero(root, stored[20])
        assert names(salvaged(root).lost) == [("TopicTest", 0, 10)]

    def test_light_queues_keep_theirs(self, tmp_path: Path) -> None:
        """Their units lead to records of other topics, which name them."""
        root = tmp_path / "store"
        light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"}
        stored = write_log(root / "commitlog", [
            record("Real", b"x" * 100, {**light, "INNER_MULTI_QUEUE_OFFSET": str(n)}, queue_offset=n)
            for n in range(30)
        ])  # fmt: skip
        units = [Unit(one.physical_offset, one.total_size, 0) for one in stored]
        for name in ("Real", "%LMQ%a"):
            write_queue(root / "consumequeue" / name / "0", units)
        zero(root, stored[10])
        result = salvaged(root)
        assert names(result.lost) == [("Real", 0, 10)]
        check_mended(root, result)
        filled = properties.decode(found(root, stored[10].physical_offset).properties_bytes)
        assert filled.get("INNER_MULTI_DISPATCH") in ("%LMQ%a", None)
