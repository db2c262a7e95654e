"""Queues of every sort against the log: light, batch, extension, made anew, of transactions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats import batch, index
from rmqtool.formats.consume_queue import (
    BATCH_UNIT_SIZE,
    UNIT,
    UNIT_SIZE,
    BatchUnit,
    ExtUnit,
    Unit,
    encode_ext_unit,
    encode_unit,
    ext_address,
)
from rmqtool.formats.java import tags_code
from rmqtool.formats.message import (
    BORN_HOST_V6,
    INNER_BATCH,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Message,
)
from rmqtool.problems import Finding
from tests.support.build_store import file_name, patch, write_log, write_queue
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.whole_store import (
    codes_of,
    findings_of,
    keyed,
    unit_of,
    write_config,
    write_keys,
    write_state,
    write_units,
    write_whole,
)


def at(number: int) -> int:
    """The store time of record `number`."""
    return STORE_TIMESTAMP + number


def unit_path(root: Path, queue: str) -> Path:
    return root / "consumequeue" / queue / file_name(0)


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


class TestLightQueues:
    """Records with INNER_MULTI_DISPATCH have one more unit in each light queue that they name."""

    def records(self) -> list[Message]:
        names = [["%LMQ%a"], ["%LMQ%a", "%LMQ%b"], [], ["%LMQ%b"], ["%LMQ%a"], ["%LMQ%b"]] * 4
        ends: dict[str, int] = {}
        made = []
        for number, light in enumerate(names):
            found = {"UNIQ_KEY": f"U{number}", "TAGS": "TagA"}
            if light:
                found["INNER_MULTI_DISPATCH"] = ",".join(light)
                found["INNER_MULTI_QUEUE_OFFSET"] = ",".join(str(ends.get(name, 0)) for name in light)
            for name in light:
                ends[name] = ends.get(name, 0) + 1
            made.append(record("Mqtt", b"x" * 40, found, queue_id=number % 2, queue_offset=number // 2,
                               store_timestamp=at(number)))  # fmt: skip
        return made

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        write_whole(tmp_path / "store", self.records())
        return tmp_path / "store"

    def test_their_units_are_explained(self, root: Path) -> None:
        assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["%LMQ%a", "%LMQ%b", "Mqtt"]
        assert codes_of(root) == []

    def test_units_are_explained_across_windows_and_files(self, tmp_path: Path) -> None:
        write_whole(tmp_path / "store", self.records(), log_file_size=1024)
        assert codes_of(tmp_path / "store") == []

    @pytest.mark.parametrize(
        ("field", "value"), [("physical_offset", (1 << 40).to_bytes(8)), ("size", (77).to_bytes(4))]
    )
    def test_a_wrong_unit_is_told(self, root: Path, field: str, value: bytes) -> None:
        patch(unit_path(root, "%LMQ%a/0"), 2 * UNIT_SIZE + UNIT.offsets[field], value)
        found = only(findings_of(root))
        assert found.problem.code == "CQ05"
        assert found.path == f"consumequeue/%LMQ%a/0/{file_name(0)}"
        assert (found.physical_offset, found.length) == (2 * UNIT_SIZE, UNIT_SIZE)

    def test_a_unit_of_another_record_names_no_owner(self, root: Path) -> None:
        patch(unit_path(root, "%LMQ%a/0"), 2 * UNIT_SIZE + UNIT.offsets["physical_offset"], bytes(8))
        assert "another queue" not in only(findings_of(root)).row()["message"]

    def test_a_wrong_tags_code_is_told(self, root: Path) -> None:
        patch(unit_path(root, "%LMQ%b/0"), UNIT_SIZE + UNIT.offsets["tags_code"], b"\1")
        assert only(findings_of(root)).problem.code == "CQ06"

    def test_a_unit_too_many_is_told(self, root: Path) -> None:
        """A unit that no record's property names, of a record that exists."""
        queue = unit_path(root, "%LMQ%a/0")
        first = queue.read_bytes()[:UNIT_SIZE]
        end = queue.read_bytes().index(bytes(UNIT_SIZE))
        patch(queue, end - end % UNIT_SIZE, first)
        found = only(findings_of(root))
        assert (found.problem.code, found.physical_offset) == ("CQ14", end - end % UNIT_SIZE)

    def test_a_missing_unit_is_told(self, root: Path) -> None:
        patch(unit_path(root, "%LMQ%a/0"), 3 * UNIT_SIZE, bytes(UNIT_SIZE))
        assert only(findings_of(root)).problem.code == "CQ08"

    def test_without_light_queues_nothing_is_missed(self, root: Path) -> None:
        """Multi-dispatch is a setting: with it off, no light queue is ever made."""
        for name in ("%LMQ%a", "%LMQ%b"):
            shutil.rmtree(root / "consumequeue" / name)
        assert codes_of(root) == []

    def test_a_name_without_the_prefix_keeps_the_queue_id(self, tmp_path: Path) -> None:
        """A queue of that name may have records of its own; both explain its units."""
        light = {"INNER_MULTI_DISPATCH": "Plain", "INNER_MULTI_QUEUE_OFFSET": "1", "UNIQ_KEY": "U"}
        records = [
            record("Plain", b"a", {"UNIQ_KEY": "V0"}, queue_id=1, queue_offset=0, store_timestamp=at(0)),
            record("Mqtt", b"b", light, queue_id=1, queue_offset=0, store_timestamp=at(1)),
            record("Plain", b"c", {"UNIQ_KEY": "V2"}, queue_id=1, queue_offset=2, store_timestamp=at(2)),
        ]
        write_whole(tmp_path / "store", records)
        assert [code for code in codes_of(tmp_path / "store") if code.startswith("CQ")] == []

    @pytest.mark.parametrize(
        ("names", "offsets"),
        [("%LMQ%a", ""), ("%LMQ%a,%LMQ%b", "0"), ("", "0"), ("%LMQ%a", "-1"), ("%LMQ%a", "9" * 30),
         ("%LMQ%a", "x"), (",,,", ",,,"), ("%LMQ%a", str((1 << 63) - 1)), ("/etc/passwd", "0")],
    )  # fmt: skip
    def test_senseless_properties_are_survived(self, root: Path, names: str, offsets: str) -> None:
        stored = write_log(root / "commitlog", self.records())
        end = stored[-1].physical_offset + stored[-1].total_size
        odd = record("Mqtt", b"z", {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets},
                     queue_offset=12, store_timestamp=at(50), physical_offset=end)  # fmt: skip
        write_log(root / "commitlog", [*self.records(), odd])
        assert set(codes_of(root)) <= {"CQ01", "CQ02", "CP07", "CQ08"}


class TestBatchQueues:
    """Topics with queue.type=BatchCQ: one unit of 46 bytes per record, for all messages in it."""

    COUNTS = (1, 4, 2, 1, 30, 3)

    def records(self) -> list[Message]:
        made, base = [], 0
        for number, count in enumerate(self.COUNTS):
            items = [batch.item(b"m%d" % n, b"") for n in range(count)]
            found = {"UNIQ_KEY": f"U{number}", "TAGS": "A", "INNER_BASE": str(base), "INNER_NUM": str(count)}
            made.append(record("Batch", batch.encode_items(items), found, sys_flag=INNER_BATCH,
                               queue_offset=base, store_timestamp=at(number)))  # fmt: skip
            base += count
        return made

    def units(self, stored: list[Message]) -> list[BatchUnit]:
        return [
            BatchUnit(item.physical_offset, item.total_size, tags_code("A"), item.store_timestamp,
                      item.queue_offset, count)
            for item, count in zip(stored, self.COUNTS, strict=True)
        ]  # fmt: skip

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "store"
        stored = write_log(root / "commitlog", self.records(), file_size=1 << 16)
        write_queue(root / "batchconsumequeue/Batch/0", self.units(stored), file_size=BATCH_UNIT_SIZE * 4)
        write_keys(root, stored)
        write_state(root, stored)
        ends = {"Batch@group": {"0": sum(self.COUNTS)}}
        write_config(root, "consumerOffset.json", {"offsetTable": ends})
        return root

    def test_sound(self, root: Path) -> None:
        assert codes_of(root) == []

    @pytest.mark.parametrize(
        ("change", "code"),
        [({"base_offset": 4}, "CQ05"), ({"batch_size": 1}, "CQ05"), ({"size": 5}, "CQ05"),
         ({"store_timestamp": 7}, "CQ05"), ({"tags_code": 9}, "CQ06")],
    )  # fmt: skip
    def test_a_wrong_unit_is_told(self, root: Path, change: dict[str, int], code: str) -> None:
        units = self.units(write_log(root / "commitlog", self.records(), file_size=1 << 16))
        units[2] = units[2]._replace(**change)
        shutil.rmtree(root / "batchconsumequeue")
        write_queue(root / "batchconsumequeue/Batch/0", units, file_size=BATCH_UNIT_SIZE * 4)
        found = findings_of(root)
        assert {item.problem.code for item in found} == {code}
        assert {item.path for item in found} == {"batchconsumequeue/Batch/0"}

    def test_a_unit_of_no_record_is_told(self, root: Path) -> None:
        units = self.units(write_log(root / "commitlog", self.records(), file_size=1 << 16))
        units.insert(3, units[3]._replace(physical_offset=units[3].physical_offset - 5))
        shutil.rmtree(root / "batchconsumequeue")
        write_queue(root / "batchconsumequeue/Batch/0", units, file_size=BATCH_UNIT_SIZE * 4)
        assert codes_of(root) == ["CQ14"]

    def test_a_unit_twice_is_told(self, root: Path) -> None:
        units = self.units(write_log(root / "commitlog", self.records(), file_size=1 << 16))
        units.insert(3, units[2])
        shutil.rmtree(root / "batchconsumequeue")
        write_queue(root / "batchconsumequeue/Batch/0", units, file_size=BATCH_UNIT_SIZE * 4)
        found = only(findings_of(root))
        assert (found.problem.code, found.detail["queue_offset"]) == ("CQ04", units[2].base_offset)

    def test_behind(self, root: Path) -> None:
        """Records without units at the end are a note, those in between are lost."""
        units = self.units(write_log(root / "commitlog", self.records(), file_size=1 << 16))
        shutil.rmtree(root / "batchconsumequeue")
        write_queue(root / "batchconsumequeue/Batch/0", units[:-2], file_size=BATCH_UNIT_SIZE * 4)
        write_config(root, "consumerOffset.json", {"offsetTable": {}})
        (root / "abort").touch()
        assert set(codes_of(root)) == {"CQ01", "CP04"}
        shutil.rmtree(root / "batchconsumequeue")
        write_queue(root / "batchconsumequeue/Batch/0", [*units[:2], *units[3:]],
                    file_size=BATCH_UNIT_SIZE * 4)  # fmt: skip
        assert "CQ02" in codes_of(root)


class TestExtension:
    """With enableConsumeQueueExt on, a unit holds the address of an extension unit for its tags code."""

    def root(self, tmp_path: Path, *, with_files: bool) -> Path:
        root = tmp_path / "store"
        stored = write_whole(root, keyed(12, queues=1))
        data, units = b"", []
        for item in stored:
            plain = unit_of(item)
            units.append(plain._replace(tags_code=ext_address(len(data))))
            data += encode_ext_unit(ExtUnit(28, plain.tags_code, item.store_timestamp, bytes(8)))
        shutil.rmtree(root / "consumequeue")
        write_queue(root / "consumequeue/TopicTest/0", units)
        if with_files:
            folder = root / "consumequeue_ext/TopicTest/0"
            folder.mkdir(parents=True)
            (folder / file_name(0)).write_bytes(data.ljust(4096, b"\0"))
        return root

    def test_addresses_are_no_wrong_tags_codes(self, tmp_path: Path) -> None:
        assert codes_of(self.root(tmp_path, with_files=True)) == []

    def test_addresses_without_extension_files(self, tmp_path: Path) -> None:
        found = only(findings_of(self.root(tmp_path, with_files=False)))
        assert (found.problem.code, found.detail["queue_offset"]) == ("CQ16", 0)
        assert found.detail["last_queue_offset"] == 11


class TestHistory:
    """What a store has been through."""

    def test_queue_made_anew(self, tmp_path: Path) -> None:
        """A topic deleted and made again: the log has both, the queue the new one only."""
        root = tmp_path / "store"
        old, new = keyed(10, queues=1), keyed(6, queues=1)
        new = [replace(item, store_timestamp=at(100 + n)) for n, item in enumerate(new)]
        stored = write_log(root / "commitlog", [*old, *new])
        write_units(root, stored[10:])
        write_keys(root, stored)
        write_state(root, stored)
        write_config(root, "consumerOffset.json", {"offsetTable": {"TopicTest@group": {"0": 6}}})
        found = only(findings_of(root))
        assert (found.problem.code, found.physical_offset) == ("CL16", stored[10].physical_offset)

    def test_topic_deleted(self, tmp_path: Path) -> None:
        """Its records are still in the log; that they have no queue is no damage."""
        root = tmp_path / "store"
        gone = [replace(item, topic_bytes=b"Gone") for item in keyed(6, topic="Gone", queues=1)]
        kept = [replace(item, store_timestamp=at(50 + n)) for n, item in enumerate(keyed(6))]
        stored = write_log(root / "commitlog", [*gone, *kept])
        write_units(root, stored[6:])
        write_keys(root, stored)
        write_state(root, stored[6:])
        found = only(findings_of(root))
        assert (found.problem.code, found.problem.severity) == ("CF12", "note")
        assert found.detail == {"topics": 1, "records": 6, "names": ["Gone"]}

    def test_zombie_tail(self, tmp_path: Path) -> None:
        """Behind the newest record lie older ones of the same queue, which a truncation left."""
        root = tmp_path / "store"
        old = keyed(20, queues=1)
        new = [replace(item, store_timestamp=at(1000 + n)) for n, item in enumerate(old[:12])]
        stored = write_log(root / "commitlog", [*new, *old[8:]], file_size=1 << 16)
        write_units(root, stored[:12])
        write_keys(root, stored[:12])
        write_state(root, stored[:12])
        found = only(findings_of(root))
        assert (found.problem.code, found.physical_offset) == ("CL07", stored[12].physical_offset)
        assert found.length == sum(item.total_size for item in stored[12:])

    def test_prepared_and_rolled_back_records_have_no_unit(self, tmp_path: Path) -> None:
        """Their queue offset is 0 and says nothing; a committed one is like any other."""
        kinds = [0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, TRANSACTION_PREPARED, 0]
        records, end = [], 0
        for number, kind in enumerate(kinds):
            has_unit = kind in (0, TRANSACTION_COMMIT)
            keys = {"UNIQ_KEY": f"U{number}", "KEYS": f"k{number}"}
            offset = end if has_unit else 0
            records.append(
                record("Pay", b"x", keys, sys_flag=kind, queue_offset=offset, store_timestamp=at(number))
            )
            end += has_unit
        write_whole(tmp_path / "store", records)
        assert codes_of(tmp_path / "store") == []

    def test_ipv6_beside_version_2_beside_ipv4(self, tmp_path: Path) -> None:
        """Neighbours whose heads have four different sizes, in one queue and in several."""
        host = bytes(range(16)) + (10911).to_bytes(4)
        v4 = record().born_host
        variants = [(0, v4, v4), (BORN_HOST_V6, host, v4), (STORE_HOST_V6, v4, host),
                    (BORN_HOST_V6 | STORE_HOST_V6, host, host)]  # fmt: skip
        records = []
        for number in range(48):
            flag, born, store = variants[number % 4]
            topic = "Short" if number % 3 else "L" * 180
            records.append(record(topic, b"y" * (number % 5), {"UNIQ_KEY": f"U{number}", "TAGS": "A"},
                                  sys_flag=flag, born_host=born, store_host=store,
                                  queue_offset=(number // 3 if not number % 3 else number - number // 3 - 1),
                                  store_timestamp=at(number)))  # fmt: skip
        write_whole(tmp_path / "store", records)
        assert codes_of(tmp_path / "store") == []

    def test_queue_that_starts_late(self, tmp_path: Path) -> None:
        """Its older files have expired with the log, and fillers stand below its first unit."""
        root = tmp_path / "store"
        stored = write_log(root / "commitlog", [replace(item, queue_offset=n + 47) for n, item in
                                                enumerate(keyed(10, queues=1))], start=8192)  # fmt: skip
        filler = Unit(0, 0x7FFFFFFF, 0)
        write_queue(root / "consumequeue/TopicTest/0", [filler] * 7 + [unit_of(item) for item in stored],
                    first=40)  # fmt: skip
        write_keys(root, stored)
        write_state(root, stored)
        assert codes_of(root) == []

    def test_units_of_expired_records(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        write_whole(root, keyed(60), shape=index.Shape(50, 400))
        for path in sorted((root / "commitlog").iterdir())[:2]:
            path.unlink()
        assert codes_of(root) == []


class TestCrossed:
    """Units that name the right bytes in the wrong place."""

    def test_two_units_exchanged(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = write_whole(root, keyed(20, queues=1))
        path = unit_path(root, "TopicTest/0")
        patch(path, 4 * UNIT_SIZE, encode_unit(unit_of(stored[9])))
        patch(path, 9 * UNIT_SIZE, encode_unit(unit_of(stored[4])))
        assert codes_of(root) == ["CQ04", "CQ04"]

    def test_one_unit_twice_moves_all_that_follow(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = write_whole(root, keyed(12, queues=1))
        units = [unit_of(item) for item in stored]
        shutil.rmtree(root / "consumequeue")
        write_queue(root / "consumequeue/TopicTest/0", [*units[:5], units[4], *units[5:]])
        found = findings_of(root)
        assert {item.problem.code for item in found} == {"CQ04"}
        assert min(item.detail["queue_offset"] for item in found) == 5

    def test_a_unit_of_another_queue(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = write_whole(root, keyed(20))
        patch(unit_path(root, "TopicTest/0"), 3 * UNIT_SIZE, encode_unit(unit_of(stored[7])))
        found = only(findings_of(root))
        assert (found.problem.code, found.physical_offset) == ("CQ05", 3 * UNIT_SIZE)
        assert found.detail["unit_physical_offset"] == stored[7].physical_offset
        assert (found.detail["unit_topic"], found.detail["unit_queue_id"]) == ("TopicTest", 1)
        assert found.message == "the unit points to a record of another queue: TopicTest queue 1"

    def test_files_of_two_queues_exchanged(self, tmp_path: Path) -> None:
        """Each finding says whose file it is."""
        root = tmp_path / "store"
        write_whole(root, keyed(20))
        queues = root / "consumequeue/TopicTest"
        for old, new in (("0", "x"), ("1", "0"), ("x", "1")):
            (queues / old).rename(queues / new)
        found = {item.detail["queue_id"]: item.message for item in findings_of(root)}
        start = "the units point to records of another queue: TopicTest queue"
        assert found == {0: f"{start} 1", 1: f"{start} 0"}

    def test_the_file_of_a_longer_queue(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """Its units behind the last message count too: they move the queue's end. Texts count messages."""
        root = tmp_path / "store"
        write_whole(root, keyed(21, queues=2))
        queues = root / "consumequeue/TopicTest"
        shutil.copytree(queues / "0", queues / "1", dirs_exist_ok=True)
        first, behind = findings_of(root)
        assert (first.problem.code, first.length) == ("CQ05", 10 * UNIT_SIZE)
        assert (behind.problem.code, behind.detail["queue_offset"]) == ("CQ14", 10)
        assert behind.message == (
            "the unit points to a record of another queue: TopicTest queue 0; the next message would get"
            " queue offset 11, and not 10"
        )
        assert main(["verify", str(root), "--pass", "queues"]) == 1
        out, err = capfd.readouterr()
        assert "/TopicTest/1/00000000000000000000, offset 0, 10 messages\n" in out
        assert "\naffected: consumers of TopicTest (10 messages)\n" in err
        shutil.rmtree(queues / "1")
        write_queue(queues / "1", [])
        main(["verify", str(root), "--pass", "queues"])
        assert "consumers of TopicTest (10 messages)" in capfd.readouterr().err
        main(["doctor", str(root), "--no-host", "--all"])
        assert "(messages: 10 of TopicTest)" in " ".join(capfd.readouterr().out.split())
