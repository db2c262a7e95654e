"""Look-ups as the Java store answers them, and those that miss nothing, on every real store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqtool import NewMessage, lookup, lookup_columns, query_message
from rmqtool.formats import batch, body, properties
from rmqtool.formats.index import ENTRY_SIZE, HEADER_SIZE, Shape, decode_entry, key_text
from rmqtool.formats.java import index_key_hash
from rmqtool.index.index_file import open_index_files
from rmqtool.read.by_position import find_by_msg_id, find_by_offset, find_by_queue_offset
from rmqtool.read.by_time import exact_offset_by_time, offset_by_time
from rmqtool.read.hits import SearchReport
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.open_files import OpenFiles
from rmqtool.write.store_writer import StoreWriter
from tests.support.lookups import held_keys, queries_of, times_of
from tests.support.stores import Library, case, real_cases
from tests.support.sweep import IS_WHOLE, in_sweeps, sample

pytestmark = pytest.mark.sweep

# Whose index is far behind the log: a broker's start indexes the rest before it answers.
BEHIND = [name for name in real_cases() if case(name).state == "killed-burst"]
LEVEL = [name for name in real_cases() if name not in BEHIND]
CLEAN = "ok_540_clean"
THREE: dict[str, Any] = {"index_slots": 50, "index_entries": 41}


@pytest.mark.parametrize("name", LEVEL)
def test_queries_are_answered_as_java_does(name: str, cases: Library) -> None:
    """Every offset, in order, capped and with the collisions; and how far the index is."""
    with Store.open(cases.path(name)) as store:
        for query in queries_of(name):
            result = query_message(store, *query[:5])
            assert list(result.physical_offsets) == query.offsets, query
            last = (result.last_update_timestamp, result.last_update_offset)
            assert last == (query.last_update_timestamp, query.last_update_offset)


@pytest.mark.parametrize("name", BEHIND)
def test_what_java_finds_after_a_start_is_found_before_it(name: str, cases: Library) -> None:
    """The part of the log that is not indexed is scanned."""
    with Store.open(cases.path(name)) as store:
        queries = [query for query in queries_of(name) if query.offsets and query.end == (1 << 63) - 1][:3]
        for query in queries:
            looked = SearchReport()
            found = {
                hit.stored.physical_offset
                for hit in lookup(store, query.key, Selection(topics=[query.topic]), looked=looked)
            }
            held = held_by(store, query.key, query.topic, query.offsets)
            assert held <= found
            assert looked.gaps


def held_by(store: Store, key: str, topic: str, offsets: list[int]) -> set[int]:
    """Those of `offsets` whose record really has the key: Java's answer holds collisions too."""
    found = set()
    for offset in offsets:
        stored = store.get(offset)
        if stored is not None and stored.message.topic == topic:
            decoded = properties.decode(stored.message.properties_bytes)
            if key in (*properties.keys_of(decoded), decoded.get(properties.UNIQ_KEY)):
                found.add(offset)
    return found


@pytest.mark.parametrize("name", LEVEL)
def test_times_are_answered_as_java_does(name: str, cases: Library) -> None:
    """4.x by the times of files, 5.x by those of messages, with both bounds."""
    with Store.open(cases.path(name)) as store:
        assert store.profile.name == str(case(name).version)[:3]
        queries = times_of(name)
        batches = [query for query in queries if "BatchCQ" in query.topic]
        share = 3 if IS_WHOLE else 24
        for query in (*queries[LEVEL.index(name) % share :: share], *batches):
            place = (store, *query[:3])
            assert offset_by_time(*place) == query.offset, query
            assert query.upper is None or offset_by_time(*place, "upper") == query.upper, query


@pytest.mark.parametrize("name", ["ok_497_expired", "ok_533_expired", CLEAN])
def test_the_exact_offset_is_what_a_walk_finds(name: str, cases: Library) -> None:
    """In queues whose times rise: the first message at or behind a time, the last at or before it."""
    with Store.open(cases.path(name)) as store:
        for topic, queue_id in list(store.queues)[::5]:
            messages = list(store.queue_messages(topic, queue_id))
            times = [each.message.store_timestamp for each in messages]
            if times != sorted(times) or topic in {each for each, _ in store.layout.batch_queues}:
                continue
            for time in dict.fromkeys(near for each in times[::11] for near in (each - 1, each, each + 1)):
                lower = exact_offset_by_time(store, topic, queue_id, time)
                wanted = next((each for each in messages if each.message.store_timestamp >= time), None)
                end = store.max_offset(topic, queue_id)
                assert lower.queue_offset == (end if wanted is None else wanted.message.queue_offset)
                upper = exact_offset_by_time(store, topic, queue_id, time, "upper")
                before = [each for each in messages if each.message.store_timestamp <= time]
                if before:
                    assert upper.queue_offset == before[-1].message.queue_offset
                    assert upper.physical_offset == before[-1].physical_offset


@pytest.mark.parametrize(
    "name",
    [
        "ok_497_expired",
        "ok_533_expired",
        "ok_540_small_ipv6",
        *in_sweeps(["ok_497_clean", "torn_540_killed"]),
    ],
)
def test_keys_are_found_as_a_walk_finds_them(name: str, cases: Library) -> None:
    """With and without the topic, none more and none less, all through the index."""
    with Store.open(cases.path(name)) as store:
        held = held_keys(store)
        for key in list(held)[:: max(len(held) // (60 if IS_WHOLE else 12), 1)]:
            looked = SearchReport()
            hits = list(lookup(store, key, looked=looked))
            assert [hit.stored.physical_offset for hit in hits] == [
                each.physical_offset for each in held[key]
            ]
            assert [hit.found_by == "batch" for hit in hits] == [each.inside for each in held[key]]
            assert {hit.found_by for hit in hits} <= {"index", "batch"}
            assert all(hit.names == (key,) for hit in hits)
            assert not looked.gaps
            topic = held[key][0].topic
            narrow = lookup(store, key, Selection(topics=[topic]))
            wanted = [each.physical_offset for each in held[key] if each.topic == topic]
            assert [hit.stored.physical_offset for hit in narrow] == wanted


@pytest.mark.parametrize(
    "name", ["ok_540_small_ipv6", *in_sweeps(["ok_497_clean", "ok_540_clean", "torn_533_killed_burst"])]
)
def test_columns_are_what_a_walk_finds(name: str, cases: Library) -> None:
    """All keys of a store in one call: place of the key, physical offset, size."""
    with Store.open(cases.path(name)) as store:
        held = held_keys(store)
        keys = [*held, "there is no such key"]
        found = lookup_columns(store, keys)
        wanted = [
            (n, each.physical_offset, each.size)
            for n, key in enumerate(keys)
            for each in sorted(held.get(key, ()))
        ]
        columns = (found.key.tolist(), found.physical_offset.tolist(), found.size.tolist())
        assert list(zip(*columns, strict=True)) == wanted
        pairs = [(key, topic) for key in held for topic in dict.fromkeys(each.topic for each in held[key])]
        narrow = lookup_columns(store, [key for key, _ in pairs], [topic for _, topic in pairs])
        assert narrow.physical_offset.tolist() == [
            each.physical_offset for key, topic in pairs for each in sorted(held[key]) if each.topic == topic
        ]
        assert found.to_arrow().num_rows == len(wanted)


def without_index(store_copy: Callable[[str], Path], name: str, *left: int) -> Path:
    """A copy of a store that keeps only the index files with these numbers."""
    root = store_copy(name)
    files = sorted((root / "index").iterdir())
    for number, path in enumerate(files):
        if number not in left:
            path.unlink()
    return root


@pytest.mark.parametrize(
    ("left", "reason"),
    sample([((), "there are no index files"), ((1, 2), "older than the index"),
            ((0, 2), "between two index files"), ((0, 1), "newer than the index")], 2),
)  # fmt: skip
def test_what_the_index_lacks_is_scanned(
    left: tuple[int, ...], reason: str, store_copy: Callable[[str], Path]
) -> None:
    """Nothing is missed, whichever index file is gone; `never` finds what is left."""
    with Store.open(without_index(store_copy, CLEAN, *left)) as store:
        held = held_keys(store)
        for key in list(held)[:: len(held) // 2]:
            looked = SearchReport()
            hits = list(lookup(store, key, looked=looked))
            assert [hit.stored.physical_offset for hit in hits] == [
                each.physical_offset for each in held[key]
            ]
            assert reason in "; ".join(gap.reason for gap in looked.gaps)
            never = [hit.stored.physical_offset for hit in lookup(store, key, scan="never")]
            assert never == [hit.stored.physical_offset for hit in hits if hit.found_by == "index"]
        columns = lookup_columns(store, list(held))
        wanted = [each.physical_offset for key in held for each in sorted(held[key])]
        assert columns.physical_offset.tolist() == wanted


def test_a_damaged_chain_is_told_and_its_records_scanned(store_copy: Callable[[str], Path]) -> None:
    """A slot that names an entry behind the file's end."""
    root = store_copy(CLEAN)
    with Store.open(root) as store:
        held = held_keys(store)
    for path in (root / "index").iterdir():
        data = bytearray(path.read_bytes())
        slots = memoryview(data)[40 : 40 + 4 * 1000]
        for slot in range(1000):
            slots[4 * slot : 4 * slot + 4] = (1 << 30).to_bytes(4)
        del slots
        path.write_bytes(data)
    with Store.open(root, file_sizes={"index_slots": 1000, "index_entries": 4000}) as store:
        key = next(key for key in held if len(held[key]) > 2)
        looked = SearchReport()
        hits = [hit.stored.physical_offset for hit in lookup(store, key, looked=looked)]
        assert hits == [each.physical_offset for each in held[key]]
        assert looked.broken
        assert lookup_columns(store, [key]).physical_offset.tolist() == hits


@pytest.mark.parametrize("name", [CLEAN, "ok_533_clean"])
def test_tags_are_found_with_and_without_an_index_of_them(name: str, cases: Library) -> None:
    """5.4 indexes tags; in stores of 5.3 the queues or the log are read."""
    with Store.open(cases.path(name)) as store:
        held: dict[tuple[str, str], list[int]] = {}
        for each in store.messages():
            tags = properties.decode(each.message.properties_bytes).get(properties.TAGS)
            if tags:
                held.setdefault((each.message.topic, tags), []).append(each.physical_offset)
        for topic, tags in list(held)[:: len(held) // 6]:
            hits = list(lookup(store, tags, Selection(topics=[topic]), kind="tag"))
            assert [hit.stored.physical_offset for hit in hits] == held[topic, tags]
            assert {hit.found_by for hit in hits} == {"index" if name == CLEAN else "scan"}


def test_messages_inside_of_batches_are_found(cases: Library) -> None:
    """No broker indexes them: their records are opened, whatever else was found."""
    with Store.open(cases.path(CLEAN)) as store:
        record = next(store.queue_messages("pubBatchCQ", 0))
        items = list(batch.decode_items(body.decompress(record.message.body, record.message.sys_flag)))
        inside = properties.decode(items[1].properties_bytes)
        key = inside[properties.UNIQ_KEY]
        held = held_keys(store)
        assert [each.inside for each in held[key]] == [True]
        (hit,) = lookup(store, key)
        assert (hit.found_by, hit.stored.physical_offset) == ("batch", record.physical_offset)
        assert not list(lookup(store, key, scan="never"))
        both = next(key for key in held if {each.inside for each in held[key]} == {True, False})
        for scan in ("auto", "always"):
            found = [hit.stored.physical_offset for hit in lookup(store, [both, key], scan=scan)]
            assert sorted(found) == sorted({each.physical_offset for each in (*held[both], *held[key])})


@pytest.mark.parametrize("damage", ["off", "slots"])
def test_what_the_index_should_know_and_does_not(damage: str, tmp_path: Path) -> None:
    """The index was off for some messages in the middle of a file; slots were lost. `never` finds less."""
    root = tmp_path / "store"
    keys = [f"k{number}" for number in range(15)]
    sizes = {"index_slots": 1000, "index_entries": 4000}
    options = {"auto_create_queues": 1, **sizes}
    StoreWriter.create(root, commit_log_file_size=1 << 20, **options).close()
    for start in (0, 5, 10):
        with StoreWriter.open(root, index=damage == "slots" or start != 5, **options) as writer:
            for key in keys[start : start + 5]:
                writer.put(NewMessage("T", b"x", keys=[key]))
    lost = keys[5:10]
    if damage == "slots":
        (path,) = (root / "index").iterdir()
        with path.open("r+b") as file:
            file.seek(HEADER_SIZE)
            file.write(bytes(4 * 1000))
        lost = keys
    with Store.open(root, file_sizes=sizes) as store:
        held = held_keys(store)
        for asked in (keys, lost[:1], keys[:6], [*lost, "nothing"]):
            hits = list(lookup(store, asked))
            assert sorted(name for hit in hits for name in hit.names) == sorted(set(asked) & set(keys))
            assert all(hit.found_by == ("scan" if set(hit.names) & set(lost) else "index") for hit in hits)
            never = lookup(store, asked, scan="never")
            assert {name for hit in never for name in hit.names} == set(asked) - set(lost) - {"nothing"}
            columns = lookup_columns(store, asked)
            assert columns.physical_offset.tolist() == [
                each.physical_offset for key in asked for each in held.get(key, ())
            ]


@pytest.mark.parametrize("count", [40, *in_sweeps([4000])])
def test_a_lost_page_of_slots_hides_no_message(count: int, tmp_path: Path) -> None:
    """The newer index file has the keys too: what the older one holds of them is found all the same."""
    root, shape = tmp_path / "store", Shape(5000, 2 * count)
    sizes = {"index_slots": shape.slots, "index_entries": shape.entries}
    offsets: dict[str, list[int]] = {}
    with StoreWriter.create(root, commit_log_file_size=4 << 20, auto_create_queues=1, **sizes) as writer:
        for number in range(count):
            key = f"k{number % 20}"
            put = writer.put(NewMessage("T", b"x", keys=[key, f"other{number}"]))
            offsets.setdefault(key, []).append(put.physical_offset)
    first, _ = sorted((root / "index").iterdir())
    with first.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(shape.entry_offset(0) - 4096))
    with Store.open(root, file_sizes=sizes) as store:
        for key, wanted in offsets.items():
            slot = index_key_hash(key_text("T", key)) % shape.slots
            is_hidden = shape.slot_offset(slot) >= 4096
            for scan in ("auto", "never"):
                looked = SearchReport()
                hits = list(lookup(store, key, scan=scan, looked=looked))
                found = [hit.stored.physical_offset for hit in hits]
                assert looked.broken == (
                    [(f"index/{first.name}", "has lost its slot", slot)] if is_hidden else []
                )
                assert (found == wanted) == (scan == "auto" or not is_hidden)
        columns = lookup_columns(store, list(offsets))
        assert columns.physical_offset.tolist() == [each for wanted in offsets.values() for each in wanted]


@pytest.fixture
def three_files(tmp_path: Path) -> tuple[Path, dict[str, list[int]]]:
    """A store with three index files, and where the messages with key `k` are, by topic."""
    root, offsets = tmp_path / "store", {"T": [], "U": []}
    with StoreWriter.create(root, commit_log_file_size=1 << 20, auto_create_queues=1, **THREE) as writer:
        for number in range(60):
            topic = "TU"[number % 2]
            put = writer.put(NewMessage(topic, b"x", keys=["k" if number % 5 < 2 else f"other{number}"]))
            if number % 5 < 2:
                offsets[topic].append(put.physical_offset)
    assert len(list((root / "index").iterdir())) == 3
    return root, offsets


def found_everywhere(root: Path, **options: Any) -> list[list[int]]:
    """What both ways find of key `k`."""
    with Store.open(root, file_sizes=THREE) as store:
        hits = [hit.stored.physical_offset for hit in lookup(store, "k", **options)]
        return [sorted(hits), sorted(lookup_columns(store, ["k"], **options).physical_offset.tolist())]


@pytest.mark.parametrize("leads_to", ["a record", "no record"])
def test_an_entry_that_names_another_record_hides_no_message(
    leads_to: str, three_files: tuple[Path, dict[str, list[int]]]
) -> None:
    """Its record has no name of its hash, so it is no collision: what its file covers is scanned."""
    root, offsets = three_files
    wanted = sorted(each for of_topic in offsets.values() for each in of_topic)
    with Store.open(root, file_sizes=THREE) as store:
        third = list(store.messages())[2].physical_offset  # which has another key
    path = sorted((root / "index").iterdir())[1]
    data, shape = bytearray(path.read_bytes()), Shape(50, 41)
    for number in range(1, 41):
        at = shape.entry_offset(number)
        entry = decode_entry(bytes(data[at : at + ENTRY_SIZE]))
        if entry.key_hash == index_key_hash(key_text("T", "k")):
            place = third if leads_to == "a record" else entry.physical_offset + 1
            data[at + 4 : at + 12] = place.to_bytes(8)
            break
    path.write_bytes(data)
    assert found_everywhere(root) == [wanted, wanted]
    lost = [each for each in wanted if each != entry.physical_offset]
    assert found_everywhere(root, scan="never") == [lost, lost]


@pytest.mark.parametrize("damage", ["slot", "previous"])
def test_a_chain_that_leaves_entries_out_hides_no_message(
    damage: str, three_files: tuple[Path, dict[str, list[int]]]
) -> None:
    """The slot names the oldest of its entries; the newest entry names none before it."""
    root, offsets = three_files
    wanted = sorted(each for of_topic in offsets.values() for each in of_topic)
    path = sorted((root / "index").iterdir())[1]
    data, shape = bytearray(path.read_bytes()), Shape(50, 41)
    key_hash = index_key_hash(key_text("T", "k"))
    numbers = [
        number for number in range(1, 41) if data[shape.entry_offset(number) :][:4] == key_hash.to_bytes(4)
    ]
    assert len(numbers) > 2
    if damage == "slot":
        at = shape.slot_offset(key_hash % 50)
        data[at : at + 4] = numbers[0].to_bytes(4)
    else:
        at = shape.entry_offset(numbers[-1]) + 16
        data[at : at + 4] = bytes(4)
    path.write_bytes(data)
    assert found_everywhere(root) == [wanted, wanted]
    assert len(found_everywhere(root, scan="never")[0]) < len(wanted)


def test_a_topic_whose_queues_are_lost_is_looked_for_too(
    three_files: tuple[Path, dict[str, list[int]]],
) -> None:
    """Also where the key was found in another topic: topics.json names it."""
    root, offsets = three_files
    wanted = sorted([*offsets["T"], *offsets["U"]])
    shutil.rmtree(root / "consumequeue" / "T")
    assert found_everywhere(root, scan="never") == [wanted, wanted]
    with min((root / "index").iterdir()).open("r+b") as file:
        file.seek(Shape(50, 41).slot_offset(index_key_hash(key_text("T", "k")) % 50))
        file.write(bytes(4))
    assert found_everywhere(root) == [wanted, wanted]


@pytest.mark.parametrize("key", ["k7", "k8"])
def test_a_lost_sector_of_slots_hides_no_message(key: str, tmp_path: Path) -> None:
    """Of a file too large to be searched, and of slots that are so many in use that none is a sign."""
    root, shape = tmp_path / "store", Shape(20_000, 14_001)
    sizes = {"index_slots": shape.slots, "index_entries": shape.entries}
    with StoreWriter.create(root, commit_log_file_size=8 << 20, auto_create_queues=1, **sizes) as writer:
        for number in range(10_000):
            writer.put(NewMessage("T", b"", keys=[f"k{number % 2000}"]))
    first = min((root / "index").iterdir())
    at = shape.slot_offset(index_key_hash(key_text("T", key)) % shape.slots)
    with first.open("r+b") as file:
        file.seek(max(at - at % 512, HEADER_SIZE))
        file.write(bytes(512 if at >= 512 else 512 - HEADER_SIZE))
    with Store.open(root, file_sizes=sizes) as store:
        assert len(list(lookup(store, key))) == 5


def test_a_misplaced_file_hides_nothing(cases: Library) -> None:
    """Its name puts it over records of another file, which is the one that holds them."""
    with Store.open(cases.path("bad_cl25_misnamed_file")) as store:
        files = store.commit_log.files
        misplaced = next(file for file in files if file.file_from_offset % file.size)
        hidden = [
            each.physical_offset for each in store.messages()
            if misplaced.file_from_offset <= each.physical_offset < misplaced.end
        ]  # fmt: skip
        assert hidden and all(store.find(offset) is not None for offset in hidden)


def test_places(cases: Library) -> None:
    """By offset, by queue offset, by id: also of another host, and a unique key given as an id."""
    with Store.open(cases.path(CLEAN)) as store:
        stored = next(each for each in store.messages() if each.message.topic == "pubBatch")
        at, queue_offset = stored.physical_offset, stored.message.queue_offset
        assert [hit.stored for hit in find_by_offset(store, at)] == [stored]
        (hit,) = find_by_queue_offset(store, "pubBatch", stored.message.queue_id, queue_offset)
        assert hit.stored == stored
        own = "7F000001" + (20911).to_bytes(4).hex().upper() + f"{at:016X}"
        notes: list[str] = []
        for msg_id in (own, own.lower(), "0A0A0A0A" + own[8:], "00" * 20 + f"{at:016x}"):
            (hit,) = find_by_msg_id(store, msg_id, note=notes.append)
            assert (hit.found_by, hit.stored) == ("id", stored)
        assert len(notes) == 2
        unique = next(key for key in held_keys(store) if len(key) in (32, 56))
        assert {hit.found_by for hit in find_by_msg_id(store, unique)} == {"index"}
        assert not list(find_by_offset(store, at + 1, notes.append))
        assert f"inside the record at {at}" in notes[-1]
        assert not list(find_by_offset(store, 1 << 50, notes.append))
        assert not list(find_by_msg_id(store, "nonsense"))


def test_a_bare_commit_log_is_scanned(cases: Library, tmp_path: Path) -> None:
    """Without queues no topic is known, without index files nothing but the log is."""
    folder = tmp_path / "commitlog"
    shutil.copytree(cases.path("ok_540_small_ipv6") / "commitlog", folder)
    with Store.open(folder) as store:
        held = held_keys(store)
        key = next(iter(held))
        hits = list(lookup(store, key))
        assert [hit.stored.physical_offset for hit in hits] == [each.physical_offset for each in held[key]]
        assert {hit.found_by for hit in hits} == {"scan"}


def note(broken: list[str], why: str, number: int) -> None:
    broken.append(f"{why} ({number})")


@pytest.mark.parametrize(
    "name",
    [*in_sweeps(["ok_540_clean", "ok_497_clean"]), "ok_540_expired", "ok_497_expired",
     "torn_ix09_index_header_behind", "bad_ix02_chain_loop", "bad_ix04_entry_without_record",
     "bad_ix07_stray_entry", "gap_ix03_key_not_found"],
)  # fmt: skip
def test_one_chain_and_many_chains_give_the_same_entries(name: str, cases: Library) -> None:
    """`offsets` and `many` of an index file, for every hash that an entry has, and some that none has."""
    with Store.open(cases.path(name)) as store, OpenFiles() as files:
        views = [view for view in open_index_files(store.layout, files) if not view.is_empty]
        assert views
        for view in views:
            with view.scanning() as whole:
                entries = whole.entries(1, view.used)
                hashes = np.unique(np.concatenate([entries["key_hash"], np.arange(9, dtype=np.int32)]))
                [found], is_broken = whole.many([hashes])
            broken: list[str] = []
            by_hash = [sorted(view.offsets(each, partial(note, broken))) for each in hashes.tolist()]
            assert is_broken or not broken  # `many` looks at the whole file
            assert not (is_broken and name.startswith("ok_"))
            for number, offsets in enumerate(by_hash):
                if number not in found.broken:
                    assert sorted(found.offsets[found.keys == number].tolist()) == offsets
            if not is_broken:
                assert len(found.offsets) == view.header.next_entry - 1
