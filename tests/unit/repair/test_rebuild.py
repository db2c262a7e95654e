"""Rebuild: queues and index from the log, held against those of real brokers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import index
from rmqtool.read.store import Store
from rmqtool.storage.layout import detect
from tests.support.damage import damage_store, describe
from tests.support.rebuild_checks import (
    QUEUES,
    conf_of,
    index_entries,
    inodes,
    planned,
    problems,
    queue_files,
    rebuilt,
    units,
    without,
)
from tests.support.stores import VERSIONS, Library, apply_edit, case_names, real_case, variant_id, variants
from tests.support.sweep import in_sweeps, paired, sample
from tests.support.trees import tree_rows

pytestmark = pytest.mark.sweep

OK = [name for name in case_names() if name.startswith("ok_")]


@pytest.mark.parametrize("name", sample(OK, 3))
def test_a_sound_store_gets_what_the_broker_wrote(
    name: str, cases: Library, store_copy: Callable[[str], Path]
) -> None:
    """Without queues and index; of an expired store what the log still has, at its numbers."""
    root, broker = store_copy(name), cases.path(name)
    conf, layout = conf_of(root, name), detect(root)
    shape = index.Shape(layout.index_slots, layout.index_entries)
    without(root, *QUEUES, "index")
    found = rebuilt(root, conf)
    assert not found.unmended
    start = detect(root).commit_log[0].file_from_offset
    mine, theirs = queue_files(root), queue_files(broker)
    if "expired" in name:
        live = {place: unit for place, unit in units(theirs).items() if unit.physical_offset >= start}
        assert units(mine) == live and live
    elif name.endswith("_ext"):
        # Without their units nothing tells whose the bits of filters were: those of ExtB are lost.
        mine, theirs = (
            {path: data for path, data in files.items() if "/ExtB/" not in path} for files in (mine, theirs)
        )
        assert mine == theirs and any(path.startswith("consumequeue_ext/") for path in mine)
    else:
        assert mine == theirs
    entries = [entry for entry in index_entries(broker, shape) if entry[0] >= start]
    assert index_entries(root, shape) == entries and entries
    assert not problems(root, conf)


@pytest.mark.parametrize("name", sample(OK, 3))
def test_what_is_right_is_not_touched(name: str, store_copy: Callable[[str], Path]) -> None:
    root = store_copy(name)
    before = tree_rows(root)
    found = planned(root, strays=True)
    assert (found.actions, found.tasks, found.index, found.unmended) == ((), (), None, ())
    assert tree_rows(root) == before


def test_one_wrong_queue_leaves_the_others(store_copy: Callable[[str], Path]) -> None:
    """One queue and one index file are wrong: these are replaced, under their names, with their times."""
    root = store_copy("ok_540_clean")
    conf, before, times = conf_of(root, "ok_540_clean"), queue_files(root), inodes(root)
    queue = "consumequeue/pubTopicOne/0/00000000000000000000"
    with (root / queue).open("r+b") as file:
        file.seek(400)
        file.write(bytes(20))
    last = sorted((root / "index").iterdir())[-1]
    content = last.read_bytes()
    with last.open("r+b") as file:
        file.truncate(40_000)
    for path in (root / queue, last):
        os.utime(path, ns=(times[path.relative_to(root).as_posix()][1],) * 2)
    found = rebuilt(root, conf)
    assert [action.problem for action in found.actions][0] == "CQ08"
    after = inodes(root)
    touched = {name for name in times if times[name][0] != after[name][0]}
    assert touched == {action.path for action in found.actions}
    assert {name.rpartition("/")[0] for name in touched} == {"consumequeue/pubTopicOne/0", "index"}
    assert {name: time for name, (_, time) in after.items()} == {
        name: time for name, (_, time) in times.items()
    }
    assert queue_files(root) == before
    assert last.read_bytes() == content
    assert not planned(root, conf).actions


def _of_queues_or_index(version: str) -> list[tuple[str, dict[str, Any]]]:
    """The variants of a sound store: all of 5.4.0, of the others a part, for their files differ little."""
    found = [
        (version, variant)
        for variant in variants(version)
        if variant["base"] == "clean" and not variant["abortFile"]
        and any(word in variant["variant"] for word in ("cq-", "index-"))
    ]  # fmt: skip
    return found if version == "5.4.0" else found[VERSIONS.index(version) :: 4]


CQ_AND_INDEX = sample([each for version in VERSIONS for each in _of_queues_or_index(version)], 6)


@pytest.mark.parametrize(
    ("version", "variant"), CQ_AND_INDEX, ids=[f"{v}:{variant_id(each)}" for v, each in CQ_AND_INDEX]
)
def test_every_damage_of_queues_and_index_is_mended(
    version: str, variant: dict[str, Any], cases: Library, tmp_path: Path
) -> None:
    name = real_case(version, "clean").name
    root = cases.copy(name, tmp_path / "store")
    conf = conf_of(root, name)
    for edit in variant["edits"]:
        apply_edit(root, edit)
    before = inodes(root)
    found = rebuilt(root, conf, strays=True)
    assert not found.unmended
    assert not problems(root, conf)
    assert queue_files(root) == queue_files(cases.path(name))
    changed = {action.path for action in found.actions}
    after = inodes(root)
    assert all(after[path] == before[path] for path in before.keys() & after.keys() - changed)
    assert not planned(root, conf, strays=True).actions


@pytest.mark.parametrize(("version", "state"), paired(VERSIONS, ["killed", "killed-burst"]))
def test_after_a_crash_queues_and_index_become_complete(
    version: str, state: str, store_copy: Callable[[str], Path]
) -> None:
    """What the next start would have dispatched is there, so that it need not; then nothing is wrong."""
    name = real_case(version, state).name
    root = store_copy(name)
    conf = conf_of(root, name)
    rebuilt(root, conf)
    (root / "abort").unlink()
    assert not problems(root, conf)
    with Store(detect(root, broker_conf=conf)) as store:
        assert store.dispatched_end() == store.end_offset()


@pytest.mark.parametrize(
    ("name", "seed"), paired([*in_sweeps(["ok_540_clean"]), "ok_533_expired", "ok_540_expired"], range(6))
)
def test_random_damage_is_mended(name: str, seed: int, store_copy: Callable[[str], Path]) -> None:
    """Several at once, of queues and index: afterwards nothing is wrong, and nothing is left to be done."""
    root = store_copy(name)
    conf = conf_of(root, name)
    edits = damage_store(root, seed, parts=("consumequeue", "batchconsumequeue", "index"))
    found = rebuilt(root, conf, strays=True)
    assert not found.unmended, describe(edits)
    assert not problems(root, conf), describe(edits)
    assert not planned(root, conf, strays=True).actions, describe(edits)
