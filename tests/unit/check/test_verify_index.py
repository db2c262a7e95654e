"""Index files under `verify`: what a crash leaves of the newest one, and which file a finding names."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool import NewMessage, Store
from rmqtool.check.verify import verify
from rmqtool.formats.index import ENTRY, ENTRY_SIZE, HEADER, HEADER_SIZE, Header, Shape
from rmqtool.index.index_file import holds
from rmqtool.log.dispatch import KEY, KIND_TAG
from rmqtool.log.frames import FRAME
from rmqtool.problems import Finding
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import patch
from tests.support.dumps import Dump

SHAPE = Shape(16, 96)  # long chains: next to every slot changes
OFFSET_FIELD = ENTRY.offsets["physical_offset"]


def found_in(root: Path) -> list[Finding]:
    """All findings."""
    with Store.open(root) as store:
        assert (store.layout.index_slots, store.layout.index_entries) == SHAPE
        return list(verify(store, jobs=1))


@dataclass(frozen=True)
class Crashed:
    """A store that was not closed, and its newest index file at an earlier flush and at the end."""

    root: Path
    newest: Path
    early: bytes
    late: bytes

    @property
    def parts(self) -> list[tuple[int, bytes]]:
        """What was written between the two, in the writer's order: entries, slots."""
        first = SHAPE.entry_offset(Header(*HEADER.unpack(self.early[:HEADER_SIZE])).next_entry)
        stop = SHAPE.entry_offset(Header(*HEADER.unpack(self.late[:HEADER_SIZE])).next_entry)
        slots = self.late[HEADER_SIZE : SHAPE.entry_offset(0)]
        assert first < stop and slots != self.early[HEADER_SIZE : SHAPE.entry_offset(0)]
        return [(first, self.late[first:stop]), (HEADER_SIZE, slots)]

    def write(self, length: int) -> None:
        """The state after the first `length` bytes of that."""
        self.newest.write_bytes(self.early)
        for offset, data in self.parts:
            patch(self.newest, offset, data[:length])
            length = max(length - len(data), 0)

    def problems(self) -> list[Finding]:
        """Findings that are no notes."""
        return [item for item in found_in(self.root) if item.problem.severity != "note"]


@pytest.fixture(scope="module", params=["first", "third"])
def crashed_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """A store whose newest index file is its first, or its third."""
    root = tmp_path_factory.mktemp("crashed") / "store"
    counts = {"first": (10, 20), "third": (70, 20)}[request.param]
    with StoreWriter.create(
        root, "5.4", auto_create_queues=1, commit_log_file_size=64 << 10, consume_queue_file_size=2000,
        index_slots=SHAPE.slots, index_entries=SHAPE.entries,
    ) as writer:  # fmt: skip
        states, clock = [], itertools.count(1_700_000_000_000)
        for count in counts:
            for number in range(count):
                key = f"key-{count}-{number}"
                writer.put(NewMessage("T", b"x", tags="A", keys=[key], store_timestamp=next(clock)))
            writer.flush()
            newest = max((root / "index").iterdir())
            states.append(newest.read_bytes())
        shutil.copytree(root, root.with_name("killed"))
    killed = root.with_name("killed")
    assert (killed / "abort").exists()
    (killed / "lock").write_bytes(b"")
    return Crashed(killed, killed / "index" / newest.name, *states)


@pytest.fixture
def crashed(crashed_once: Crashed, tmp_path: Path) -> Crashed:
    """A copy of it."""
    root = shutil.copytree(crashed_once.root, tmp_path / "store")
    return Crashed(root, root / "index" / crashed_once.newest.name, crashed_once.early, crashed_once.late)


def test_entries_and_slots_ahead_of_the_header(crashed: Crashed) -> None:
    """A kill at any byte between two headers leaves nothing but notes: the next start mends it."""
    entries, slots = (len(data) for _, data in crashed.parts)
    for length in (0, 1, 10, ENTRY_SIZE, entries - 3, entries, entries + 4, entries + 32, entries + slots):
        crashed.write(length)
        assert crashed.problems() == [], length
        codes = {item.problem.code for item in found_in(crashed.root)}
        assert {"IX08", "IX09"} <= codes, length


def test_dump_shows_what_the_header_counts(
    crashed: Crashed, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Chains that begin with entries beyond it hold the others still, and nothing is told."""
    crashed.write(sum(len(data) for _, data in crashed.parts))
    dump, args = Dump(capfdbinary), ("--what", "index", "--fields", "file,entry", "--format", "jsonl")
    entries, chains = (dump(crashed.root, *args, "--part", part) for part in ("entries", "chains"))
    assert (entries.code, entries.err, chains.code, chains.err) == (0, "", 0, "")
    shown = sorted((row["file"], row["entry"]) for row in chains.rows)
    assert shown == sorted((row["file"], row["entry"]) for row in entries.rows)
    count = Header(*HEADER.unpack(crashed.early[:HEADER_SIZE])).index_count
    assert shown[-1][1] == count - 1 > 0
    (crashed.root / "abort").unlink()
    assert dump(crashed.root, *args, "--part", "chains").code == 1


def test_the_same_without_a_crash_is_damage(crashed: Crashed) -> None:
    entries, slots = (len(data) for _, data in crashed.parts)
    (crashed.root / "abort").unlink()
    crashed.write(entries + slots)
    assert {item.problem.code for item in crashed.problems()} == {"IX01"}
    crashed.write(entries)
    assert {item.problem.code for item in crashed.problems()} == {"IX01", "IX02"}


@pytest.mark.parametrize(
    ("what", "code"),
    [("entry", "IX02"), ("slot", "IX02"), ("count", "IX01"), ("begin", "IX01"), ("record", "IX04")],
)
def test_what_no_crash_explains(crashed: Crashed, what: str, code: str) -> None:
    """Damage below the header's count is told, and names the newest file."""
    crashed.write(0)
    count = Header(*HEADER.unpack(crashed.early[:HEADER_SIZE])).index_count
    offset, data = {
        "entry": (SHAPE.entry_offset(6) - 4, (9).to_bytes(4)),
        "slot": (SHAPE.slot_offset(3), (-1 & 0xFFFFFFFF).to_bytes(4)),
        "count": (HEADER.offsets["index_count"], (count + 1).to_bytes(4)),
        "begin": (HEADER.offsets["begin_physical_offset"], (1).to_bytes(8)),
        "record": (SHAPE.entry_offset(2) + OFFSET_FIELD, None),
    }[what]
    if data is None:  # one byte behind its record's start
        record = int.from_bytes(crashed.early[offset : offset + 8])
        data = (record + 1).to_bytes(8)
    patch(crashed.newest, offset, data)
    told = {item.problem.code: item.path for item in crashed.problems()}
    assert told.get(code) == f"index/{crashed.newest.name}"


def test_another_than_the_newest_file_is_whole_after_a_crash(crashed: Crashed) -> None:
    files = sorted((crashed.root / "index").iterdir())
    if len(files) == 1:
        return
    patch(files[0], HEADER.offsets["index_count"], (5).to_bytes(4))
    told = {item.problem.code: item.path for item in crashed.problems()}
    assert told["IX01"] == f"index/{files[0].name}"


def test_an_entry_without_record_names_its_file(store_copy: Callable[[str], Path]) -> None:
    """Also where another file's entries cover that offset: a wrong offset makes its own file's range wide."""
    root = store_copy("ok_540_clean")
    files = sorted((root / "index").iterdir())
    assert len(files) > 2
    with Store.open(root) as store:
        shape = Shape(store.layout.index_slots, store.layout.index_entries)
    for number, offset in ((2, 1), (1, 2)):  # 1 and 2: no record starts there
        patch(files[number], shape.entry_offset(7) + OFFSET_FIELD, offset.to_bytes(8))
    with Store.open(root) as store:
        findings = [item for item in verify(store) if item.problem.code == "IX04"]
    assert [item.path for item in findings] == [f"index/{files[number].name}" for number in (1, 2)]
    assert [item.detail["records"] for item in findings] == [[2], [1]]


@given(data=st.data())
def test_entries_that_equal_keys_one_by_one(data: st.DataObject) -> None:
    """Where the kernel says so, the sets are equal, with tags or without; where they are, mostly it does."""
    count = data.draw(st.integers(1, 4))
    rows = np.zeros(count, FRAME)
    steps = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    rows["physical_offset"] = np.cumsum(steps)
    drawn = st.tuples(st.integers(0, count - 1), st.integers(0, 2), st.sampled_from([0, 1, KIND_TAG]))
    keys = np.array(sorted(data.draw(st.lists(drawn, max_size=6)), key=lambda key: key[0]), KEY)
    entries = np.zeros(len(keys), ENTRY.dtype)
    entries["key_hash"], entries["physical_offset"] = keys["key_hash"], rows["physical_offset"][keys["row"]]
    tagged = keys["kind"] == KIND_TAG
    change = data.draw(st.sampled_from(["none", "tags", "hash", "place", "less"]))
    if change == "tags":
        entries = entries[~tagged]
    elif len(entries) and change == "less":
        entries = entries[:-1]
    elif len(entries) and change in ("hash", "place"):
        name = "key_hash" if change == "hash" else "physical_offset"
        entries[name][data.draw(st.integers(0, len(entries) - 1))] += 1

    def pairs(some: np.ndarray) -> list[tuple[int, int]]:
        places = rows["physical_offset"][some["row"]].tolist()
        return list(zip(places, some["key_hash"].tolist(), strict=True))

    there = list(zip(entries["physical_offset"].tolist(), entries["key_hash"].tolist(), strict=True))
    assert holds(entries, rows, keys) == (there == pairs(keys))
    if holds(entries, rows, keys, KIND_TAG):
        assert there == pairs(keys[~tagged])
    elif there == pairs(keys[~tagged]):
        every = pairs(keys)  # a tag with the hash of a key before it
        assert any(tagged[place] and every[place] in every[:place] for place in range(len(keys)))
