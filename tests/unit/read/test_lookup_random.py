"""Look-ups in random stores: through the index, in part by scan, as columns, they find what a walk finds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool import lookup, lookup_columns, query_message
from rmqtool.formats import index, properties
from rmqtool.formats.message import Message
from rmqtool.read.hits import Hit, SearchReport
from rmqtool.read.lookup_request import Request
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from tests.support.build_store import write_index, write_store
from tests.support.records import record

TOPICS = ("T", "AaAa", "BBBB", "%RETRY%组")
# Some of these have the same hash, in the same topic and in others.
KEYS = ("AaAa", "BBBB", "AaBB", "k", "k1", "订单", "", "a=b", "0")
TAGS = ("", "TagA", "AaAa", "BBBB")
SHAPE = index.Shape(5, 400)


def message(topic: str, keys: list[str], uniq: str, tags: str, number: int) -> Message:
    found = {"KEYS": " ".join(keys), "UNIQ_KEY": uniq, "TAGS": tags}
    body = b"x" * (number % 40)
    return record(topic, body, {name: value for name, value in found.items() if value}, queue_offset=number)


MESSAGES = st.lists(
    st.builds(
        message,
        st.sampled_from(TOPICS),
        st.lists(st.sampled_from(KEYS), max_size=3),
        st.sampled_from((*KEYS, "U1", "U2")),
        st.sampled_from(TAGS),
        st.integers(0, 0),
    ),
    min_size=1,
    max_size=40,
)


def texts(each: Message) -> list[str]:
    found = properties.decode(each.properties_bytes)
    names = (found.get(name) for name in (properties.UNIQ_KEY, properties.KEYS, properties.TAGS))
    return [text for _, text in index.texts_of(each.topic, *names)]


def build(root: Path, messages: list[Message], parts: list[tuple[int, int]]) -> list[Message]:
    """A store whose index files hold the records [low, high) of each part."""
    counts: dict[str, int] = {}
    numbered = []
    for each in messages:
        counts[each.topic] = counts.get(each.topic, -1) + 1
        numbered.append(record(each.topic, each.body, each.properties_bytes, queue_offset=counts[each.topic]))
    stored = write_store(root, numbered)
    for number, (low, high) in enumerate(parts):
        entries = [(text, each.physical_offset) for each in stored[low:high] for text in texts(each)]
        if entries:
            write_index(root / "index" / f"2026010100000000{number}", SHAPE, entries)
    return stored


def has(each: Message, name: str, kind: str) -> bool:
    found = properties.decode(each.properties_bytes)
    if kind == "tag":
        return found.get(properties.TAGS) == name
    return found.get(properties.UNIQ_KEY) == name or (kind == "key" and name in properties.keys_of(found))


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 40), min_size=2, max_size=4), data=st.data())
def test_a_lookup_finds_what_a_walk_finds(messages: list[Message], cuts: list[int], data: Any) -> None:
    """Whatever part of the log the index covers, in one file or two."""
    cuts.sort()
    parts = list(zip(cuts[::2], cuts[1::2], strict=False))
    with tempfile.TemporaryDirectory() as folder:
        stored = build(Path(folder), messages, parts)
        sizes = {"index_slots": SHAPE.slots, "index_entries": SHAPE.entries}
        with Store.open(folder, file_sizes=sizes) as store:
            kind = data.draw(st.sampled_from(("key", "uniq_key", "tag")))
            topic = data.draw(st.sampled_from((None, *TOPICS)))
            selection = Selection(topics=() if topic is None else [topic])
            for name in filter(None, (*KEYS, "U1", "TagA", "nothing")):
                wanted = [
                    each.physical_offset
                    for each in stored
                    if has(each, name, kind) and topic in (None, each.topic)
                ]
                looked = SearchReport()
                hits = list(lookup(store, name, selection, kind=kind, looked=looked))
                assert [hit.stored.physical_offset for hit in hits] == wanted, (name, kind, topic, parts)
                always = lookup(store, name, selection, kind=kind, scan="always")
                assert [hit.stored.physical_offset for hit in always] == wanted
                known = [hit.stored.physical_offset for hit in hits if hit.found_by == "index"]
                never = lookup(store, name, selection, kind=kind, scan="never")
                assert [hit.stored.physical_offset for hit in never] == known


@given(
    messages=MESSAGES,
    cuts=st.lists(st.integers(0, 40), min_size=2, max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
    data=st.data(),
)
def test_batches_of_hits_are_single_hits(
    messages: list[Message], cuts: list[int], damage: list[tuple[int, int]], data: Any
) -> None:
    """The same records, names and counts, in the same order, also in a damaged log."""
    cuts.sort()
    parts = list(zip(cuts[::2], cuts[1::2], strict=False))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        build(Path(folder), messages, parts)
        for path in Path(folder, "commitlog").iterdir():
            content = bytearray(path.read_bytes())
            for offset, value in damage:
                content[offset % len(content)] = value
            path.write_bytes(content)
        sizes = {"index_slots": SHAPE.slots, "index_entries": SHAPE.entries}
        kind = data.draw(st.sampled_from(("key", "uniq_key", "tag")))
        names = data.draw(
            st.lists(st.sampled_from((*KEYS, "U1", "TagA", "nothing")), min_size=1, unique=True)
        )
        tags = data.draw(st.sampled_from(((), ("TagA",))))
        selection = Selection(topics=data.draw(st.sampled_from(((), ("T",)))), tags=tags)
        request = Request(kind, names=tuple(names), selection=selection)
        found = []
        # so few bytes and rows that records are read again, and batches learn their size
        patch.setattr("rmqtool.log.point_read._TAIL_STEP", data.draw(st.sampled_from((8, 120, 512))))
        patch.setattr("rmqtool.log.point_read._FIRST_ROWS", data.draw(st.sampled_from((3, 256))))
        for many in (1 << 40, 1):
            patch.setattr("rmqtool.read.by_key._MANY", many)
            looked = SearchReport()
            hits: list[tuple[Any, ...]] = []
            with Store.open(folder, file_sizes=sizes) as store:
                for each in request.hits_and_batches(store, looked):
                    if isinstance(each, Hit):
                        hits.append((each.stored.physical_offset, each.found_by, each.names))
                        continue
                    assert many == 1
                    for row, offset in enumerate(each.frames.rows["physical_offset"].tolist()):
                        asked = tuple(each.names[each.stops[row] : each.stops[row + 1]])
                        hits.append((offset, "index", asked))
                        assert each.hit(store, offset).names == asked
                        assert each.hit(store, offset).stored.status == 0
            counts = {name: value for name, value in vars(looked).items() if name != "broken"}
            found.append((hits, counts, {name for name, _, _ in looked.broken}))
        assert found[0] == found[1]


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 40), min_size=2, max_size=2))
def test_columns_are_what_single_lookups_find(messages: list[Message], cuts: list[int]) -> None:
    """Keys with equal hashes, keys that are asked for twice, keys that nothing has."""
    cuts.sort()
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), messages, [(cuts[0], cuts[1])])
        sizes = {"index_slots": SHAPE.slots, "index_entries": SHAPE.entries}
        with Store.open(folder, file_sizes=sizes) as store:
            keys = [*filter(None, KEYS), "U1", "k", "nothing"]
            for topics in (None, "AaAa", [TOPICS[n % len(TOPICS)] for n in range(len(keys))]):
                found = lookup_columns(store, keys, topics)
                wanted = []
                for place, key in enumerate(keys):
                    topic = topics if topics is None or isinstance(topics, str) else topics[place]
                    selection = Selection(topics=() if topic is None else [topic])
                    for hit in lookup(store, key, selection):
                        wanted.append((place, hit.stored.physical_offset, hit.stored.message.total_size))
                columns = (found.key.tolist(), found.physical_offset.tolist(), found.size.tolist())
                assert list(zip(*columns, strict=True)) == wanted


@given(
    messages=MESSAGES,
    damage=st.lists(st.tuples(st.integers(0, SHAPE.size - 1), st.integers(0, 255)), min_size=1, max_size=12),
)
def test_damaged_index_files_end_in_sound_answers(
    messages: list[Message], damage: list[tuple[int, int]]
) -> None:
    """Loops, chains to nowhere, wild headers: every look-up ends, and what it gives is really there."""
    with tempfile.TemporaryDirectory() as folder:
        stored = build(Path(folder), messages, [(0, len(messages))])
        for path in Path(folder, "index").glob("*"):
            data = bytearray(path.read_bytes())
            for offset, value in damage:
                data[offset] = value
            path.write_bytes(data)
        sizes = {"index_slots": SHAPE.slots, "index_entries": SHAPE.entries}
        with Store.open(folder, file_sizes=sizes) as store:
            keys = list(filter(None, KEYS))
            held = {key: {each.physical_offset for each in stored if has(each, key, "key")} for key in keys}
            for key in keys:
                assert {hit.stored.physical_offset for hit in lookup(store, key)} <= held[key]
                query_message(store, "T", key)
            found = lookup_columns(store, keys)
            for place, offset in zip(found.key.tolist(), found.physical_offset.tolist(), strict=True):
                assert offset in held[keys[place]]
