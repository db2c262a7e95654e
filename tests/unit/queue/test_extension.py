"""Extension units (enableConsumeQueueExt): real stores of 4.9.7 and 5.4.0, read, written, checked, mended.

ExtB has the bits of a filter in most of its units, which only a broker computes; ExtDelayed went through
delay levels of an own table. What Java answers to pulls by tags over these stores is in `test_tail.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqtool.broker.predict import predict
from rmqtool.errors import FormatError
from rmqtool.formats import java, properties
from rmqtool.formats.consume_queue import (
    EXT_END,
    EXT_HEAD,
    ExtUnit,
    Unit,
    encode_ext_unit,
    encode_unit,
    ext_address,
    ext_offset,
    is_ext_address,
)
from rmqtool.formats.message import Message
from rmqtool.message.system_topics import SCHEDULE_TOPIC, parse_delay_levels
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.queue.extension import Extension, Run
from rmqtool.read.due_times import due_of
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump.queues import queue_rows
from rmqtool.report.stats.pending import delayed
from rmqtool.storage.layout import StoreFile, detect
from rmqtool.storage.open_files import OpenFiles
from rmqtool.write import dispatcher as dispatcher_module
from rmqtool.write.records.message import NewMessage
from rmqtool.write.schedule import plan
from rmqtool.write.store_writer import StoreWriter
from tests.fixtures_run.test_fixtures import rows_of
from tests.interop.replay import groups, new_store, put_again
from tests.support.extension_damage import DAMAGE, KINDS, damaged, key_of, predicted, verdicts
from tests.support.rebuild_checks import conf_of, problems, queue_files, rebuilt
from tests.support.recover_checks import recovered
from tests.support.stores import Library, case

REAL = ("ok_497_ext", "ok_540_ext")
FILE_SIZE = 1000


def extension_of(folder: Path, *files: bytes, size: int = 100) -> Extension:
    """Files of `size` bytes with the given beginnings."""
    found = []
    for number, data in enumerate(files):
        path = folder / f"{number * size:020}"
        path.write_bytes(data.ljust(size, b"\0"))
        found.append(StoreFile(path, number * size, size))
    return Extension(found, OpenFiles().read)


def unit(code: int, bits: bytes = b"") -> ExtUnit:
    return ExtUnit(EXT_HEAD.size + len(bits), code, 1_700_000_000_000 + code, bits)


# reading


def test_units_are_found_across_files_alone_and_many_at_once(tmp_path: Path) -> None:
    first = [unit(1), unit(2, b"\1" * 14)]
    extension = extension_of(
        tmp_path, b"".join(map(encode_ext_unit, first)) + EXT_END, encode_ext_unit(unit(3))
    )
    places = {
        0: first[0],
        20: first[1],
        100: unit(3),
        54: None,
        60: None,
        120: None,
        200: None,
        1 << 62: None,
    }
    addresses = np.array([ext_address(place) for place in places], np.int64)[::-1]
    many = extension.units(addresses)
    for row, (place, expected) in enumerate(reversed(places.items())):
        assert extension.unit(ext_address(place)) == expected, place
        assert bool(many.there[row]) == (expected is not None), place
        if expected is not None:
            found = many.tags_code[row], many.store_timestamp[row], many.size[row]
            assert found == (expected.tags_code, expected.store_timestamp, expected.size)
    codes, known = extension.tags_codes(np.array([-7, ext_address(20), ext_address(60)]))
    assert (codes[:2].tolist(), known.tolist()) == ([-7, 2], [True, True, False])
    assert [extension.tags_code(code) for code in (-7, ext_address(20), ext_address(60))] == [-7, 2, None]


def test_units_far_apart_and_at_the_end_of_a_cut_file(tmp_path: Path) -> None:
    """Nothing that an address says makes a large read; a head that the file cuts is not there."""
    path = tmp_path / f"{0:020}"
    with path.open("wb") as file:
        file.write(encode_ext_unit(unit(1)))
        file.seek(3_000_000)
        file.write(encode_ext_unit(unit(2)) + encode_ext_unit(unit(3))[:10])
    asked: list[int] = []

    def read(path: Path, offset: int, length: int) -> bytes:
        asked.append(length)
        return path.read_bytes()[offset : offset + length]

    extension = Extension([StoreFile(path, 0, path.stat().st_size)], read)
    found = extension.units(np.array([ext_address(place) for place in (3_000_020, 0, 3_000_000)], np.int64))
    assert found.there.tolist() == [False, True, True]
    assert found.tags_code[1:].tolist() == [1, 2]
    assert max(asked) < 1000


def test_a_unit_whose_sizes_differ_or_whose_bits_leave_its_file_is_none(tmp_path: Path) -> None:
    wrong = EXT_HEAD.pack(24, 1, 2, 3)
    leaves = EXT_HEAD.pack(90, 1, 2, 70)
    extension = extension_of(tmp_path, wrong.ljust(30, b"\0") + leaves)
    addresses = [ext_address(0), ext_address(30)]
    assert [extension.unit(address) for address in addresses] == [None, None]
    assert not extension.units(np.array(addresses, np.int64)).there.any()


def test_runs_go_on_to_the_first_unit_without_a_size(tmp_path: Path) -> None:
    small, large = encode_ext_unit(unit(1)), encode_ext_unit(unit(2, b"12345678901234"))
    data = 2 * small + large + small
    extension = extension_of(tmp_path, data + EXT_END)
    assert list(extension.runs(extension.files[0])) == [Run(0, 20, 2), Run(40, 34, 1), Run(74, 20, 1)]
    assert extension.end(None) == len(data)
    assert extension.end(ext_address(20)) == 40
    assert extension.end(ext_address(95)) == len(data)  # nothing is there: a broker leaves the end as it is


def test_many_units_are_gone_through_in_windows(tmp_path: Path) -> None:
    count = 120_000
    data = encode_ext_unit(unit(5)) * count
    extension = extension_of(tmp_path, data, size=len(data) + 40)
    assert extension.end(None) == len(data)
    assert sum(run.units for run in extension.runs(extension.files[0])) == count


@pytest.mark.parametrize("data", [EXT_HEAD.pack(101, 0, 0, 81), b"\0\x14" * 50, b"\0\1" * 50])
def test_a_size_that_leads_out_of_the_file_is_an_error(data: bytes, tmp_path: Path) -> None:
    extension = extension_of(tmp_path, data)
    if data[1] == 0x14:
        data = b""  # five units to the file's end, where Java finds no room for a size
    with pytest.raises(FormatError):
        extension.end(None)


@pytest.mark.parametrize("name", REAL)
def test_every_unit_of_a_real_store_stands_for_its_record(name: str, cases: Library) -> None:
    delays = parse_delay_levels(case(name).settings["messageDelayLevel"])
    bits = plain = 0
    with Store.open(cases.path(name)) as store:
        for (topic, _), queue in store.queues.items():
            assert isinstance(queue, ConsumeQueue)
            for _, each in queue.units():
                assert is_ext_address(each.tags_code)
                found, stored = queue.extension.unit(each.tags_code), store.get(each.physical_offset)
                assert found is not None and stored is not None
                record, told = stored.message, properties.decode(stored.message.properties_bytes)
                code = java.tags_code(told.get(properties.TAGS))
                if topic == SCHEDULE_TOPIC:
                    code = record.store_timestamp + delays[int(told["DELAY"]) - 1]
                assert (found.tags_code, found.store_timestamp) == (code, record.store_timestamp)
                assert queue.tags_code(each) == code
                bits += bool(found.bit_map)
                plain += not found.bit_map
    assert bits > 50 and plain > 100


@pytest.mark.parametrize("name", REAL)
def test_times_of_delivery_come_from_the_extension(name: str, cases: Library) -> None:
    """Stats --delayed, deliver, and the due time of a record: the same, by the broker's own table."""
    delays = parse_delay_levels(case(name).settings["messageDelayLevel"])
    with Store.open(cases.path(name)) as store:
        waiting = {each.level: each.due.tolist() for each in delayed(store)}
        assert set(waiting) == {3, 4}
        due_time = due_of(store)
        for level, times in waiting.items():
            queue = store.queue(SCHEDULE_TOPIC, level - 1)
            assert isinstance(queue, ConsumeQueue)
            records: list[Message] = []
            for _, each in queue.units():
                stored = store.get(each.physical_offset)
                assert stored is not None
                records.append(stored.message)
            assert times == [record.store_timestamp + delays[level - 1] for record in records]
            assert times == [due_time(record, level) for record in records]
        now = max(max(times) for times in waiting.values())
        deliveries = list(plan(store, now))
        assert sorted(each.due_timestamp for each in deliveries) == sorted(sum(waiting.values(), []))
        assert {each.state for each in deliveries} == {"due"}


def test_waiting_messages_whose_extension_is_lost_have_no_known_time(
    store_copy: Callable[[str], Path],
) -> None:
    """They wait all the same; deliver works the time out anew, as a broker does."""
    root = store_copy("ok_497_ext")
    (root / "consumequeue_ext/SCHEDULE_TOPIC_XXXX/2" / f"{0:020}").unlink()
    with Store.open(root) as store:
        waiting = {each.level: each.due.tolist() for each in delayed(store)}
        assert waiting[3] == [0, 0] and min(waiting[4]) > 0
        assert list(delayed(store, 1)) == []
        levels = parse_delay_levels(case("ok_497_ext").settings["messageDelayLevel"])
        times = [each.due_timestamp for each in plan(store, 1 << 50, levels) if each.level == 3]
        queue = store.queue(SCHEDULE_TOPIC, 2)
        assert isinstance(queue, ConsumeQueue)
        stored = [store.head(each.physical_offset) for _, each in queue.units()]
        assert times == [head.store_timestamp + levels[2] for head in stored if head is not None]


@pytest.mark.parametrize("name", REAL)
def test_dump_selects_units_by_tag_and_tells_the_time_of_delivery(name: str, cases: Library) -> None:
    layout = detect(cases.path(name))
    with Store.open(cases.path(name)) as store:
        tagged = {
            found.physical_offset
            for found in store.messages()
            if found.message.topic in ("ExtA", "ExtB")
            and properties.decode(found.message.properties_bytes).get(properties.TAGS) == "TagA"
        }
    rows = queue_rows(layout, Selection(topics=("ExtA", "ExtB"), tags=("TagA",)), lambda finding: None)
    assert {row["physical_offset"] for row in rows} == tagged != set()
    times = [row["deliver_timestamp_ms"] for row in queue_rows(
        layout, Selection(topics=(SCHEDULE_TOPIC,)), lambda finding: None)]  # fmt: skip
    assert times and min(times) > 1_700_000_000_000


# writing


@pytest.fixture(params=["plain", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of dispatch."""
    if request.param == "compiled":
        monkeypatch.setattr(dispatcher_module, "_COLD_BYTES", 0)
        monkeypatch.setattr(dispatcher_module, "_WARM_BYTES", 0)
    return str(request.param)


@pytest.mark.parametrize("name", REAL)
def test_the_same_messages_give_the_brokers_bytes(
    name: str, way: str, cases: Library, tmp_path: Path
) -> None:
    """Queues and extension files byte for byte, but for the queues of ExtB: only a broker computes bits."""
    root, this = cases.path(name), case(name)
    with new_store(this, root / "config" / "topics.json", tmp_path / "store") as writer:
        with Store.open(root) as store:
            put_again(writer, groups(store))
    mine, theirs = (
        {path: data for path, data in queue_files(each).items() if "/ExtB/" not in path}
        for each in (tmp_path / "store", root)
    )
    assert mine == theirs
    assert "consumequeue_ext/ExtA/0/00000000000000001000" in mine
    assert mine["consumequeue_ext/ExtA/0/00000000000000000000"][980:982] == EXT_END
    codes = [row["problem"] for row in rows_of(tmp_path / "store")]
    assert [code for code in codes if not code.startswith("CF")] == []  # no group has consumed here


@pytest.mark.parametrize("name", REAL)
def test_a_real_store_goes_on(name: str, way: str, store_copy: Callable[[str], Path]) -> None:
    """The next unit stands behind the last one; nothing of the old files changes."""
    root = store_copy(name)
    before = queue_files(root)
    with StoreWriter.open(root) as writer:
        assert writer.options.ext_queues and writer.options.ext_queue_file_size == FILE_SIZE
        for number in range(120):
            writer.put(NewMessage("ExtA", b"more", tags=f"Tag{number}", queue_id=number % 2))
        writer.put(NewMessage("ExtTx", b"x", tags="New", delay_level=1))
    after = queue_files(root)
    for path, data in before.items():
        end = len(data.rstrip(b"\0"))
        assert after[path][:end] == data[:end], path
    assert rows_of(root) == []
    with Store.open(root) as store:
        queue = store.queue("ExtA", 1)
        assert isinstance(queue, ConsumeQueue)
        last = queue.last_unit()
        assert last is not None and is_ext_address(last.tags_code)
        assert queue.tags_code(last) == java.tags_code("Tag119")


def test_whether_units_are_extended_is_what_broker_conf_says_or_the_store_shows(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root, conf = store_copy("ok_540_ext"), tmp_path / "broker.conf"
    assert detect(root).writes_extensions
    conf.write_text("enableConsumeQueueExt=false\n")
    with StoreWriter.open(root, broker_conf=conf) as writer:
        writer.put(NewMessage("ExtA", b"plain", tags="TagA", queue_id=0))
    with Store.open(root) as store:
        queue = store.queue("ExtA", 0)
        assert queue is not None
        last = queue.last_unit()
        assert last is not None and last.tags_code == java.tags_code("TagA")
    assert rows_of(root) == []  # both kinds of units may stand in one queue
    conf.write_text("enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=4096\n")
    with StoreWriter.create(tmp_path / "new", "5.4", broker_conf=conf, auto_create_queues=4) as writer:
        writer.put(NewMessage("New", b"x", tags="TagA"))
    files = [path for path in (tmp_path / "new/consumequeue_ext/New").rglob("0*") if path.is_file()]
    assert [path.stat().st_size for path in files] == [4096]


def named_end(root: Path, topic: str, queue_id: int) -> int:
    with Store.open(root) as store:
        queue = store.queue(topic, queue_id)
        assert isinstance(queue, ConsumeQueue)
        last = queue.last_unit()
        assert last is not None
        found = queue.extension.unit(last.tags_code)
        return -1 if found is None else ext_offset(last.tags_code) + found.size


def test_units_that_nobody_names_are_written_over_and_cleared(store_copy: Callable[[str], Path]) -> None:
    """A recovery dispatches records again, and leaves their second units behind the last that is named."""
    root = store_copy("ok_497_ext")
    end, folder = named_end(root, "ExtA", 0), root / "consumequeue_ext/ExtA/0"
    last = folder / f"{end - end % FILE_SIZE:020}"
    data = bytearray(last.read_bytes())
    stale = encode_ext_unit(unit(77, b"stale bits 1234"))
    data[end % FILE_SIZE : end % FILE_SIZE + 3 * len(stale)] = 3 * stale
    last.write_bytes(data)
    (folder / f"{end - end % FILE_SIZE + FILE_SIZE:020}").write_bytes(stale.ljust(FILE_SIZE, b"\0"))
    assert rows_of(root) == []  # a broker leaves such
    with StoreWriter.open(root) as writer:
        writer.put(NewMessage("ExtA", b"more", tags="More", queue_id=0))
    assert named_end(root, "ExtA", 0) == end + EXT_HEAD.size
    assert sorted(path.name for path in folder.iterdir())[-1] == last.name
    assert not any(last.read_bytes()[end % FILE_SIZE + EXT_HEAD.size :])


def test_no_address_is_given_out_twice_where_the_files_are_gone(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("ok_540_ext")
    with Store.open(root) as store:
        queue = store.queue("ExtA", 1)
        assert queue is not None
        before = queue.last_unit()
    for path in (root / "consumequeue_ext/ExtA/1").iterdir():
        path.unlink()
    with StoreWriter.open(root) as writer:
        writer.put(NewMessage("ExtA", b"more", tags="More", queue_id=1))
    with Store.open(root) as store:
        queue = store.queue("ExtA", 1)
        assert isinstance(queue, ConsumeQueue) and before is not None
        last = queue.last_unit()
        assert last is not None
        assert ext_offset(last.tags_code) > ext_offset(before.tags_code)
        assert ext_offset(last.tags_code) % FILE_SIZE == 0
        assert queue.tags_code(last) == java.tags_code("More")


# starts


@pytest.mark.parametrize("key", sorted(verdicts()))
def test_a_start_is_predicted_as_the_real_library_did_it(key: str, store_copy: Callable[[str], Path]) -> None:
    """Load, and every queue and extension file that is made, deleted or changed."""
    name, damage, crash = key.split(":")
    root = damaged(store_copy(name), damage, abort=crash == "abort")
    assert predicted(root, name) == verdicts()[key]


def test_the_real_starts_hold_every_kind_of_outcome() -> None:
    """Starts that fail, and extension files that are made, deleted and changed by the others."""
    assert {verdict["load"] for verdict in verdicts().values()} == {False, True}
    for kind in KINDS:
        lists = [verdict.get(kind, ()) for verdict in verdicts().values()]
        assert any(path.startswith("consumequeue_ext/") for paths in lists for path in paths), kind
    assert set(verdicts()) == {
        key_of(name, damage, abort=abort) for name in REAL for damage in DAMAGE for abort in (False, True)
    }


def test_a_broker_without_extensions_leaves_their_files_alone(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root, conf = store_copy("ok_540_ext"), tmp_path / "broker.conf"
    (root / "consumequeue_ext/ExtA/0" / f"{0:020}").write_bytes(b"short")
    (root / "abort").write_bytes(b"")
    conf.write_text("enableConsumeQueueExt=false\n")
    for path, loads in ((None, False), (conf, True)):
        with Store.open(root, broker_conf=path) as store:
            said = predict(store, "5.4")
        assert said.loads is loads
    assert not [path for path in (*said.files_made, *said.files_changed) if "_ext/" in path]


# checking and mending


def test_a_delivery_time_in_the_extension_that_is_a_hash_is_told(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("ok_497_ext")
    path = root / "consumequeue_ext/SCHEDULE_TOPIC_XXXX/2" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[2:10] = (java.tags_code("TagA") & (1 << 64) - 1).to_bytes(8, "big")
    path.write_bytes(data)
    assert [row["problem"] for row in rows_of(root)] == ["CQ07"]


def test_a_wrong_tags_code_in_the_extension_is_told(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("ok_540_ext")
    path = root / "consumequeue_ext/ExtA/0" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    assert [row["problem"] for row in rows_of(root)] == ["CQ06"]


DAMAGED = [
    "bad_cq16_extension_gone", "bad_cq16_extension_of_another", "bad_cq17_extension_file",
    "bad_cq17_extension_zeroed",
]  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("command", ["rebuild", "recover"])
def test_what_is_mended_is_what_the_broker_wrote(
    name: str, command: str, cases: Library, store_copy: Callable[[str], Path]
) -> None:
    """Queue and extension byte for byte, where broker.conf tells the table of delays."""
    root, sound = store_copy(name), case(name).base
    assert sound is not None
    conf = conf_of(root, sound)
    if command == "rebuild":
        rebuilt(root, conf)
    else:
        recovered(root, conf=conf)
    assert queue_files(root) == queue_files(cases.path(sound))
    assert not problems(root, conf)


@pytest.mark.parametrize("name", REAL)
def test_bits_of_filters_are_kept_where_a_queue_is_written_anew(
    name: str, cases: Library, store_copy: Callable[[str], Path]
) -> None:
    """One unit has lost its extension unit: it gets one without bits, all others keep theirs."""
    root = store_copy(name)
    path = root / "consumequeue/ExtB/0" / f"{0:020}"
    units = [Unit(*each) for each in _units(path)]
    with Store.open(root) as store:
        queue = store.queue("ExtB", 0)
        assert isinstance(queue, ConsumeQueue)
        before = [queue.extension.unit(each.tags_code) for each in units]
    wrong = units[40]._replace(tags_code=ext_address(7))
    data = bytearray(path.read_bytes())
    data[800:820] = encode_unit(wrong)
    path.write_bytes(data)
    assert [row["problem"] for row in rows_of(root)] == ["CQ16"]
    rebuilt(root, conf_of(root, name))
    assert rows_of(root) == []
    with Store.open(root) as store:
        queue = store.queue("ExtB", 0)
        assert isinstance(queue, ConsumeQueue)
        after = [queue.extension.unit(each.tags_code) for _, each in queue.units()]
    lost = before[40]
    assert lost is not None and lost.bit_map
    before[40] = lost._replace(size=EXT_HEAD.size, bit_map=b"")
    assert after == before


def _units(path: Path) -> list[Any]:
    with Store.open(path) as store:
        queue = next(iter(store.queues.values()))
        assert isinstance(queue, ConsumeQueue)
        return [tuple(each) for _, each in queue.units()]


@pytest.mark.parametrize("name", REAL)
def test_sound_queues_stay_as_they_are(name: str, store_copy: Callable[[str], Path]) -> None:
    root = store_copy(name)
    before = queue_files(root)
    assert not rebuilt(root).actions
    assert not recovered(root).recovery.plan.actions
    assert queue_files(root) == before


def test_an_info_names_the_size_of_extension_files(cases: Library) -> None:
    from rmqtool.report.info import store_info

    with Store.open(cases.path("ok_540_ext")) as store:
        found = json.loads(json.dumps(store_info(store)))
    assert found["sizes"]["ext_queue_file_size"] == {"value": FILE_SIZE, "from": "detected"}
