"""What salvage keeps of sound log files: those that read it see what a walk of their own would show."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.broker.predict import predict_all
from rmqtool.errors import RefusedError
from rmqtool.formats import index
from rmqtool.log import scan_cache as packed
from rmqtool.log.dispatch import KEY, Dispatch, dispatch_columns
from rmqtool.log.frames import FRAME, Frames, walk
from rmqtool.log.scan_cache import ScanCache, pack
from rmqtool.read.store import Store
from rmqtool.repair.rebuild import plan_rebuild
from rmqtool.repair.salvage import salvage
from rmqtool.storage.layout import StoreFile, detect
from rmqtool.storage.source import open_source
from tests.support.damage import PARTS, random_edits
from tests.support.stores import Library, damage, real_cases
from tests.support.sweep import sample
from tests.support.trees import copy_tree
from tests.support.whole_store import keyed, write_whole

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several log files; for reading only."""
    root = tmp_path_factory.mktemp("many") / "store"
    write_whole(root, keyed(150, queues=3, body=700), shape=index.Shape(50, 2000))
    return root


def batches(file: StoreFile) -> Iterator[tuple[Frames, Dispatch]]:
    """The records of a log file."""
    with closing(open_source(file.path)) as source:
        for event in walk(source, file_from_offset=file.file_from_offset):
            if isinstance(event, Frames):
                yield event, dispatch_columns(event)


_SPREADS = (0, 1, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, 1 << 64)


def random_column(rng: random.Random, dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Values of one column: all alike, near each other at any place, or anything."""
    ends = np.iinfo(dtype)
    least = rng.choice((ends.min, 0, rng.randint(ends.min, ends.max)))
    most = min(least + rng.choice(_SPREADS), ends.max)
    return np.array([rng.choice((least, most, rng.randint(least, most))) for _ in range(count)], dtype)


@given(rng=st.randoms(use_true_random=False), count=st.integers(1, 5), key_count=st.integers(0, 5))
def test_any_columns_come_back(rng: random.Random, count: int, key_count: int) -> None:
    rows, keys = np.zeros(count, FRAME), np.zeros(key_count, KEY)
    for name in packed._ROWS:
        rows[name] = random_column(rng, FRAME[name], count)
    for name in KEY.names or ():
        keys[name] = random_column(rng, KEY[name], key_count)
    found = {name: random_column(rng, np.dtype(kind), count) for name, kind in packed._DISPATCH.items()}
    found["flags"] &= ~np.uint8(packed._EXPENSIVE)
    batch = pack(Frames(rows, [b"T"], np.zeros(0, np.uint8), 0, 0), Dispatch(**found, keys=keys))
    assert batch is not None
    unpacking = packed.Unpacking([batch])
    for name in FRAME.names or ():
        unpacking._rows.take()[name] = 1  # as a batch before has left it
    again, same = unpacking.of(batch)
    assert again.rows.tolist() == rows.tolist() and same.keys.tolist() == keys.tolist()
    for name, column in found.items():
        assert getattr(same, name).tolist() == column.tolist(), name


@pytest.mark.parametrize("name", sample(real_cases(), 3))
def test_batches_give_their_records_back(name: str, cases: Library) -> None:
    """All that dispatch needs of every record of a real store, and all keys."""
    count = 0
    for file in detect(cases.path(name)).commit_log:
        for frames, dispatch in batches(file):
            found = pack(frames, dispatch)
            if found is None:
                assert (dispatch.flags & packed._EXPENSIVE).any()
                continue
            again, same = packed.Unpacking([found]).of(found)
            count += len(again.rows)
            for column in packed._ROWS:
                assert np.array_equal(again.rows[column], frames.rows[column]), column
            for column in (*packed._DISPATCH, "keys"):
                assert np.array_equal(getattr(same, column), getattr(dispatch, column)), column
            assert (again.topics, again.file_from_offset) == (frames.topics, frames.file_from_offset)
            assert (found.start, found.last) == tuple(frames.rows["physical_offset"][[0, -1]].tolist())
    assert count


@pytest.mark.parametrize("seed", [0, *sample(range(1, 8), 3)])
def test_readers_see_what_they_would_have_walked(seed: int, many: Path, tmp_path: Path) -> None:
    """Damage in some files: what is kept of the others changes neither a prediction nor a plan."""
    root = damage(many, tmp_path / "store", random_edits(many, seed, parts=PARTS, most=3) if seed else [])
    with Store(detect(root)) as store:
        try:
            found = salvage(store)
        except RefusedError:
            return
        kept = [file.path for file in store.layout.commit_log if found.sound.find(file.path, file.size)]
        assert kept if seed else len(kept) == len(store.layout.commit_log)
        for abort in (False, True):
            assert predict_all(store, abort=abort, sound=found.sound) == predict_all(store, abort=abort)
        walked = plan_rebuild(store, log_actions=found.actions)
        seen = plan_rebuild(store, log_actions=found.actions, sound=found.sound)
        for name in ("actions", "tasks", "queue_ends", "log_end", "last_store_timestamp", "index_timestamp"):
            assert getattr(seen, name) == getattr(walked, name), name


def test_a_file_with_damage_is_not_kept(many: Path, tmp_path: Path) -> None:
    """Nor one that will be changed, or has another size by now."""
    root = copy_tree(many, tmp_path / "store")
    first, second, *_, last = detect(root).commit_log
    data = bytearray(first.path.read_bytes())
    data[100] ^= 1
    first.path.write_bytes(data)
    with Store(detect(root)) as store:
        sound = salvage(store).sound
    assert sound.find(first.path, first.size) is None
    assert sound.find(second.path, second.size - 1) is None
    assert sound.find(second.path, second.size) is not None
    assert sound.find(last.path, last.size) is not None


def test_no_more_is_kept_than_there_is_room_for(many: Path) -> None:
    """What fits stays; a file that is given up gives its room back."""
    files = detect(many).commit_log
    whole = [[pack(*batch) for batch in batches(file)] for file in files]
    sizes = [sum(batch.nbytes for batch in found if batch is not None) for found in whole]
    room = sizes[0] + sizes[1] - 1
    sound = ScanCache(_room=room)
    for file in files:
        keeping = sound.keep(file.path)
        for batch in batches(file):
            keeping.add(*batch)
        keeping.finish(file.size, None)
        if file is files[0]:
            given_up = sound.keep(files[1].path)
            for batch in batches(files[1]):
                given_up.add(*batch)
            given_up.drop()
    assert sound.find(files[0].path, files[0].size) is not None
    kept = [size for file, size in zip(files, sizes, strict=True) if sound.find(file.path, file.size)]
    assert len(kept) < len(files) and sum(kept) <= room
    assert sound._room == room - sum(kept)
