"""The ends of many queues, found together: those that a look at each of them finds."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.formats.consume_queue import PRE_BLANK, UNIT_SIZE, Unit, encode_unit
from rmqtool.queue import consume_queue, newest
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read import store as read_store
from rmqtool.read.store import Store
from rmqtool.storage.layout import QueueFiles, StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.profile import PROFILES
from tests.support.build_store import file_name, write_queue, write_sparse

SIZE = 20_000
UNITS = st.one_of(
    st.builds(Unit, st.integers(0, 1 << 50), st.integers(1, 1 << 20), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.sampled_from([PRE_BLANK, Unit(0, 0, 0), Unit(-1, 5, 0), Unit(5, -1, 0), Unit(7, 0, 9)]),
)


@st.composite
def queue_bytes(draw: st.DrawFn) -> bytes:
    """Sound units, then any ones; the rest of the file is zero."""
    sound = b"".join(
        encode_unit(Unit(100 * number, 100, number)) for number in range(draw(st.integers(0, 900)))
    )
    return (sound + b"".join(map(encode_unit, draw(st.lists(UNITS, max_size=20)))))[:SIZE]


@given(st.lists(st.tuples(queue_bytes(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=6))
def test_the_same_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, queues: list[tuple[bytes, bool, int]]
) -> None:
    root = tmp_path_factory.mktemp("queues")
    made = []
    for number, (data, is_sparse, first) in enumerate(queues):
        path = write_sparse(root / str(number) / file_name(first * SIZE), SIZE, (0, data))
        if not is_sparse:
            path.write_bytes(path.read_bytes())
        made.append(QueueFiles("T", number, path.parent, (StoreFile(path, first * SIZE, SIZE),)))
    with OpenFiles() as opened, pytest.MonkeyPatch.context() as patched:
        for tail in (3, 256):
            for module in (consume_queue, newest):
                patched.setattr(module, "WALK_LIMIT", 0)
                patched.setattr(module, "TAIL_UNITS", tail)
            found = newest.ends_of(made)
            for queue, (data, is_sparse, _) in zip(made, queues, strict=True):
                one = ConsumeQueue(queue, opened)
                if queue.key in found:
                    assert found[queue.key][:2] == one.end_and_last()
                    for start, profile in product(
                        (-1, 0, 99_900, 100_000, 150_000, 1 << 40), PROFILES.values()
                    ):
                        assert one.seen_span(found[queue.key], start, profile) == one.span(start, profile)
                sound = all(Unit(*values).is_present for values in consume_queue.decode_units(data))
                if is_sparse and sound and len(data) and tail > 4096 // UNIT_SIZE:
                    assert queue.key in found


def test_what_is_left_to_a_look_at_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = [Unit(100 * number, 100, 0) for number in range(45)]
    monkeypatch.setattr(newest, "WALK_LIMIT", 0)
    plain = write_sparse(tmp_path / "0" / file_name(0), SIZE, (0, b"".join(map(encode_unit, units))))
    file = StoreFile(plain, 0, SIZE)
    missing = StoreFile(tmp_path / "none", 0, SIZE)
    shorter = StoreFile(plain, 0, SIZE)
    queues: list[Any] = [
        QueueFiles("T", 0, tmp_path, (file,)), QueueFiles("T", 1, tmp_path, (missing,)),
        QueueFiles("T", 2, tmp_path, ()), QueueFiles("T", 3, tmp_path, (file, shorter)),
        QueueFiles("T", 4, tmp_path, (file,), (), 46),
    ]  # fmt: skip
    assert newest.ends_of(queues) == {("T", 0): (45, units[-1], 0)}
    assert newest.ends_of(queues[1:]) == {}


def test_a_store_with_many_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        write_queue(tmp_path / f"consumequeue/T/{number}", [Unit(100 * n, 100, 0) for n in range(number)])
    with Store.open(tmp_path) as store:
        expected, spans = store.newest_units(), list(store.spans())
        monkeypatch.setattr(read_store, "_MANY_QUEUES", 0)
        monkeypatch.setattr(newest, "WALK_LIMIT", 0)
        assert store.newest_units() == expected
        assert list(store.spans()) == spans
        assert dict(spans)["T", 7].max_offset == 7
