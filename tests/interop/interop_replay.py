"""Replay: the messages of a real broker's store, put again, give the broker's own files.

With their times, hosts and property strings, every record comes to its old place, so log, queues and
index must be the broker's byte for byte, up to where the broker had come. What a state's own history
adds is written out in `History`. Then the Java library opens what we wrote, and the original, and must
answer the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import index, properties
from rmqtool.log.events import Blank
from rmqtool.read.store import Store
from tests.interop.brokers import store_settings
from tests.interop.processes import Program, store_library
from tests.interop.replay import Group, groups, new_store, put_again
from tests.support.stores import VERSIONS, Case, Library, case, real_case, real_cases
from tests.support.trees import copy_tree

UNIT_SIZES = {"consumequeue": 20, "batchconsumequeue": 46}
Entries = list[tuple[int, int]]


@dataclass(frozen=True)
class History:
    """What happened to a store beside the appends.

    Attributes:
        lags: it was killed while queues and index were behind the log: they are a beginning of ours.
        dispatched_twice: the index file that was not full was deleted and dispatch went on with the last
            record of the one before, whose entries are there again.
        expired: the log's oldest files, and what led to them, were deleted.
    """

    lags: bool = False
    dispatched_twice: bool = False
    expired: bool = False


HISTORIES = {
    "killed-burst": History(lags=True),
    "killed-after-recovery": History(dispatched_twice=True),
    "killed-burst-after-recovery": History(dispatched_twice=True),
    "expired": History(expired=True),
}


def history(this: Case) -> History:
    """The history of a case's state."""
    return HISTORIES.get(this.state or "", History())


def appended(this: Case, cases: Library) -> Iterator[Group]:
    """All groups of the store's log, those that expired taken from the store that they were in."""
    with Store.open(cases.path(this.name)) as store:
        first = store.commit_log.min_offset
        if first:
            with Store.open(cases.path(real_case(str(this.version), "clean").name)) as whole:
                yield from (group for group in groups(whole) if group[0].physical_offset < first)
        yield from groups(store)


class Replay:
    """One real store and ours; every case is put again once for all tests of this module."""

    def __init__(self, name: str, cases: Library, target: Path) -> None:
        self.case = case(name)
        self.theirs = cases.path(name)
        self.ours = target
        with new_store(self.case, self.theirs / "config" / "topics.json", target) as writer:
            self.count = put_again(writer, appended(self.case, cases))


@pytest.fixture(scope="module")
def replays(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that gives the replay of a case."""
    made: dict[str, Replay] = {}
    folder = tmp_path_factory.mktemp("replays")

    def get(name: str) -> Replay:
        if name not in made:
            made[name] = Replay(name, cases, folder / name)
        return made[name]

    return get


def files_below(folder: Path) -> list[Path]:
    """All files below a folder, relative to it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", real_cases())
def test_log_is_the_brokers_byte_for_byte(name: str, replays: Any) -> None:
    """Every file up to the blank's head or the log's end; behind the end ours holds nothing."""
    replay = replays(name)
    with Store.open(replay.theirs) as store:
        end = store.end_offset()
        blanks = [event.physical_offset for event in store.events() if isinstance(event, Blank)]
    with Store.open(replay.ours) as store:
        assert store.end_offset() == end
        assert replay.count == sum(1 for _ in store.messages())
    compared = 0
    for path in sorted((replay.theirs / "commitlog").iterdir()):
        theirs, base = path.read_bytes(), int(path.name)
        stop = next((offset - base + 8 for offset in blanks if 0 <= offset - base < len(theirs)), end - base)
        if stop <= 0:  # made ahead by the broker
            continue
        ours = (replay.ours / "commitlog" / path.name).read_bytes()
        assert len(ours) == len(theirs)
        assert ours[:stop] == theirs[:stop]
        assert not any(ours[stop:])
        compared += stop
    assert compared > 100_000


@pytest.mark.parametrize("name", real_cases())
@pytest.mark.parametrize("kind", UNIT_SIZES)
def test_queues_are_the_brokers_byte_for_byte(name: str, kind: str, replays: Any) -> None:
    """Every file, its zeros too; where the broker's queues lag, up to their end."""
    replay = replays(name)
    lags, size = history(replay.case).lags, UNIT_SIZES[kind]
    theirs, ours = replay.theirs / kind, replay.ours / kind
    for path in files_below(theirs):
        written = (theirs / path).read_bytes()
        if not any(written) and not (ours / path).exists():  # a queue that a broker made and never used
            continue
        found = (ours / path).read_bytes()
        assert len(found) == len(written)
        stop = -(-len(written.rstrip(b"\0")) // size) * size if lags else len(written)
        assert found[:stop] == written[:stop], path
    if not lags and not history(replay.case).expired:
        assert files_below(ours) == [
            path
            for path in files_below(theirs)
            if any((theirs / path).read_bytes()) or (ours / path).exists()
        ]


def index_files(root: Path) -> list[bytes]:
    """The index files' bytes, oldest first."""
    found = [path.read_bytes() for path in (root / "index").iterdir()]
    return sorted(found, key=lambda data: index.decode_header(data).begin_physical_offset)


def entries_of(files: list[bytes], slots: int) -> Entries:
    """(key hash, physical offset) of every entry of all files, in order."""
    result = []
    for data in files:
        start = index.HEADER_SIZE + 4 * slots
        for number in range(1, index.decode_header(data).index_count):
            entry = index.decode_entry(data, start + index.ENTRY_SIZE * number)
            result.append((entry.key_hash, entry.physical_offset))
    return result


def once(entries: Entries, counts: Counter[int]) -> tuple[Entries, list[int]]:
    """`entries` without what a recovery put twice, and the records that it put again.

    Such a record's entries fill up a file as far as they fit; then all of them come again.
    """
    result: Entries = []
    repeated = []
    for offset, run in groupby(entries, key=lambda entry: entry[1]):
        found = list(run)
        more = max(len(found) - counts[offset], 0)
        if more and found[:more] == found[more : 2 * more]:
            repeated.append(offset)
            found = found[more:]
        result += found
    return result, repeated


@pytest.mark.parametrize("name", real_cases())
def test_index_is_the_brokers(name: str, replays: Any) -> None:
    """Whole files where nothing but appends happened, else every entry; see `History`."""
    replay = replays(name)
    story, slots = history(replay.case), replay.case.settings["maxHashSlotNum"]
    theirs, ours = index_files(replay.theirs), index_files(replay.ours)
    if story == History():
        assert ours == theirs
        return
    if story.expired:
        assert ours[-len(theirs) :] == theirs
        return
    expected, found = entries_of(theirs, slots), entries_of(ours, slots)
    if story.lags:
        same = found[: len(expected)] == expected
        assert same and len(expected) > 1000
        limit = replay.case.settings["maxIndexNum"]
        full = [data for data in theirs if index.decode_header(data).index_count == limit]
        assert ours[: len(full)] == full != []
        return
    counts = Counter(offset for _, offset in found)
    expected, repeated = once(expected, counts)
    same = found == expected
    assert same and len(repeated) == 1


def asked(library: Program, store: Path, version: str, keys: list[tuple[str, str]]) -> dict[str, Any]:
    """What a version's library says of a store: ends, queues, queries, messages by queue and by time."""
    settings = store_settings(version) | {"brokerRole": "SLAVE"}  # else 4.x delivers delayed messages
    assert library.call("load", store=str(store), settings=settings) is True
    library.call("start")
    offsets = library.call("offsets")
    queues = library.call("queues")
    ranges = {"begin": 0, "end": (1 << 63) - 1}
    answers = [library.call("query", topic=topic, key=key, max=32, **ranges) for topic, key in keys]
    reads = [
        library.call("get", topic=topic, queue_id=int(queue_id), offset=offset, max=16)
        for topic, ids in queues.items()
        for queue_id, queue in ids.items()
        for offset in range(queue["min"], queue["max"] + 1, max((queue["max"] - queue["min"]) // 3, 1))
    ]
    return {"offsets": offsets, "queues": queues, "queries": answers, "reads": reads}


@pytest.mark.parametrize("version", VERSIONS)
def test_java_answers_the_same_over_ours(version: str, replays: Any, tmp_path: Path) -> None:
    """The library of the version, over the broker's store and over ours: queues, keys, messages."""
    replay = replays(real_case(version, "clean").name)
    with Store.open(replay.theirs) as store:
        records = [found.message for found in store.messages()]
    keys = [
        (record.topic, key)
        for record in records[::20]
        for key in properties.keys_of(properties.decode(record.properties_bytes))
    ]
    answers = []
    for number, root in enumerate((replay.theirs, replay.ours)):
        copy = copy_tree(root, tmp_path / f"store-{number}")
        with store_library(version, tmp_path / f"home-{number}") as library:
            answers.append(asked(library, copy, version, keys))
    assert answers[0] == answers[1]
    assert sum(map(len, answers[0]["queries"])) >= len(keys) > 50
    for row in replay.case.queues:
        queue = answers[1]["queues"].get(row["topic"], {}).get(str(row["queueId"]), {"min": 0, "max": 0})
        assert (queue["min"], queue["max"]) == (row["minOffset"], row["maxOffset"]), row
