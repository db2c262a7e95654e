"""Seeded random damage of a store, several kinds at once, as edits for `tests.support.stores`.

`random_edits` only looks at a store. Its edits are done by `stores.damage` (a linked copy, for readers),
by `Bench.damaged` (again and again), or by `damage_store` here, in place. The same store, seed and parts
give the same edits. Every edit says in `why` what it is, and `describe` is for assertion messages:

    edits = damage_store(store, seed, parts=LOG)
    assert ..., describe(edits)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.support.damage_kinds import KINDS, Draft, Edit, Kind
from tests.support.stores import apply_edit

LOG = ("commitlog",)
QUEUES = ("consumequeue", "batchconsumequeue")
PARTS = (*LOG, *QUEUES, "index", "checkpoint", "config")
"""All parts that can be damaged; `abort` is left to the caller."""
_WEIGHTS = {
    "commitlog": 6,
    "consumequeue": 4,
    "batchconsumequeue": 1,
    "index": 2,
    "checkpoint": 2,
    "config": 1,
}


def random_edits(
    root: Path,
    seed: int,
    *,
    parts: Sequence[str] = PARTS,
    most: int = 4,
    without: Iterable[Kind] = (),
) -> list[Edit]:
    """One to `most` pieces of damage, drawn by `seed`; nothing is changed.

    Args:
        root: a store with small files: those that are drawn are read whole.
        seed: the same one gives the same edits for the same store.
        parts: what may be damaged; `LOG` for the commit log alone.
        most: the largest number of pieces; one may be several edits.
        without: kinds that are not drawn, e.g. `stray`.
    """
    sizes = {
        path.relative_to(root).as_posix(): path.stat().st_size
        for folder, _, names in os.walk(root)
        for path in (Path(folder) / name for name in names)
        if path.is_file() and not path.is_symlink()
    }
    draft, left_out = Draft(root, Random(seed), sizes), frozenset(without)
    pieces = draft.random.randint(1, most)
    for _ in range(50 * pieces):
        here = [part for part in parts if draft.files(part)]
        if not here or pieces == 0:
            break
        part = draft.random.choices(here, [_WEIGHTS[name] for name in here])[0]
        kinds = [kind for kind in KINDS[part] if kind not in left_out]
        before = len(draft.edits)
        draft.random.choice(kinds)(draft, _draw_file(draft, part))
        pieces -= len(draft.edits) > before
    return draft.edits


def _draw_file(draft: Draft, part: str) -> str:
    """Any file of the part, the last ones of a log more often than the others."""
    files = draft.files(part)
    if part == "commitlog" and draft.random.random() < 0.5:
        return files[-draft.random.randint(1, min(2, len(files)))]
    return draft.random.choice(files)


def apply_edits(root: Path, edits: Sequence[Edit]) -> None:
    """Do the edits below `root` in place: no file may be a link. Files keep their mtimes."""
    for edit in edits:
        path = root / edit["path"]
        before = path.stat() if path.is_file() else None
        apply_edit(root, edit)
        if before is not None and path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def damage_store(root: Path, seed: int, **options: Any) -> list[Edit]:
    """Damage a store in place by `random_edits`, whose options these are; returns the edits."""
    edits = random_edits(root, seed, **options)
    apply_edits(root, edits)
    return edits


def describe(edits: Iterable[Edit]) -> str:
    """One line per edit, for assertion messages."""
    rows = []
    for edit in edits:
        where = f"{edit['path']} at {edit['offset']}" if "offset" in edit else edit["path"]
        length = edit.get("length", len(edit.get("hex", "")) // 2)
        rows.append(f"{edit['op']} {where}, {length} bytes: {edit['why']}")
    return "\n".join(rows)
