"""The damage that tests do to stores: the same for the same seed, of every kind, and inside the files."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.support.damage import LOG, PARTS, apply_edits, damage_store, describe, random_edits
from tests.support.damage_kinds import KINDS, Draft, Kind
from tests.support.sweep import IS_WHOLE
from tests.support.trees import copy_tree, tree_digest, unchanged
from tests.support.whole_store import keyed, write_whole


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "store"
    write_whole(root, keyed(40))
    (root / "batchconsumequeue/Batch/0").mkdir(parents=True)
    (root / "batchconsumequeue/Batch/0/00000000000000000000").write_bytes(bytes(range(1, 231)) + bytes(230))
    return root


def test_drawing_changes_nothing_and_a_seed_says_all(sound: Path) -> None:
    with unchanged(sound):
        drawn = [random_edits(sound, seed) for seed in range(30)]
        assert drawn == [random_edits(sound, seed) for seed in range(30)]
    assert all(drawn)
    assert len({describe(edits) for edits in drawn}) == 30


def test_only_the_parts_that_are_named_are_hit(sound: Path, tmp_path: Path) -> None:
    for seed in range(30):
        assert {edit["path"].split("/")[0] for edit in random_edits(sound, seed, parts=LOG)} == {"commitlog"}
    hit = {edit["path"].split("/")[0] for seed in range(200) for edit in random_edits(sound, seed)}
    assert hit == set(PARTS)


def test_damage_keeps_the_times_of_files(sound: Path, tmp_path: Path) -> None:
    for seed in range(30):
        root = copy_tree(sound, tmp_path / str(seed))
        for path in root.rglob("*"):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        made = {root / (edit.get("to") or edit["path"]) for edit in damage_store(root, seed)
                if edit["op"] in ("create", "copy")}  # fmt: skip
        times = {path.stat().st_mtime for path in root.rglob("*") if path.is_file() and path not in made}
        assert times <= {1_000_000_000}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("part", "kind"), sorted({(part, kind) for part, kinds in KINDS.items() for kind in kinds}, key=str)
)
def test_every_kind_does_damage(part: str, kind: Kind, sound: Path, tmp_path: Path) -> None:
    """Of a few drafts at least one changes the store, and none fails."""
    before = tree_digest(sound)
    changed = 0
    for seed in range(10 if IS_WHOLE else 4):
        root = copy_tree(sound, tmp_path / str(seed))
        sizes = {
            path.relative_to(root).as_posix(): path.stat().st_size
            for path in root.rglob("*")
            if path.is_file()
        }
        draft = Draft(root, Random(seed), sizes)
        kind(draft, draft.random.choice(draft.files(part)))
        apply_edits(root, draft.edits)
        changed += tree_digest(root) != before
    assert changed
