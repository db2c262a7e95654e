"""`recover` on stores with random damage, several kinds at once."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqtool.formats import index
from rmqtool.repair.recover import undo_recover
from tests.support.damage import damage_store, describe
from tests.support.recover_checks import codes, log_bytes, must_have_kept, opener, records, recovered
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE
from tests.support.trees import copy_tree, tree_rows
from tests.support.whole_store import keyed, write_whole

BASES = ("many files", "ok_540_small_ipv6", "ok_497_small_ipv6", "ok_540_small_propcrc")
# What random damage leaves that a broker and its consumers read, or that no rule mends.
STAYS = {"CL13", "CL15", "CL16", "CL17", "CF02", "CF07", "CF08", "CF09", "CF13", "CF15", "EP01"}
# And what a warning names: a queue whose records' numbers are damaged.
_LEFT = re.compile(r" stays as it is \(([A-Z0-9, ]+)\)")


@pytest.fixture(scope="module")
def base(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The stores that are damaged, by name; for reading only."""
    many = tmp_path_factory.mktemp("many") / "store"
    write_whole(many, keyed(150, queues=3, body=700), shape=index.Shape(50, 2000))
    yield {name: many if name == "many files" else cases.path(name) for name in BASES}


def rows_of(root: Path) -> list[object]:
    """Everything in a store; of folders not when they changed, for the guard was in one."""
    return [row if row[1] == "file" else row[:2] for row in tree_rows(root) if row[0] not in (".", "lock")]


@pytest.mark.sweep
@settings(max_examples=60 if IS_WHOLE else 6)
@example(name="many files", seed=8388608, abort=False)  # a copy of the last file beside it
@example(name="many files", seed=195, abort=False)  # a queue id below 0
@example(name="many files", seed=354711, abort=False)  # a queue offset of 0 in the middle
@example(name="ok_540_small_ipv6", seed=4294967295, abort=False)  # the largest queue offset
@example(name="many files", seed=429, abort=False)  # an empty consumerOffset.json, an older .bak
@example(name="ok_497_small_ipv6", seed=1184, abort=False)  # a config file that no command gives back
@given(name=st.sampled_from(BASES), seed=st.integers(0, 1 << 32), abort=st.booleans())
def test_random_damage_is_mended_and_given_back(
    base: dict[str, Path], name: str, seed: int, abort: bool
) -> None:
    """Sound; every valid record kept, none invented; a second run changes nothing; undo is exact."""
    above = Path(tempfile.mkdtemp())
    try:
        root = copy_tree(base[name], above / "store")
        said = describe(damage_store(root, seed))
        if abort:
            (root / "abort").write_text("")
        rows, before, log = rows_of(root), records(root), log_bytes(root)
        if not log:
            return  # without any file of the log it is refused: see test_recover.py
        # yes: a copy of another file looks like one that was renamed, of which it asks.
        outcome = recovered(root, backup=above / "backup", yes=True)
        warnings = outcome.recovery.plan.summary["warnings"]
        left = {code for text in warnings for each in _LEFT.findall(text) for code in each.split(", ")}
        assert codes(root) <= STAYS | left, said
        must_have_kept(before, log, records(root), outcome)
        again = tree_rows(root)
        assert not recovered(root, backup=above / "second").recovery.is_needed, said
        assert tree_rows(root) == again, said
        if outcome.backup is not None:
            undo_recover(opener(root), outcome.backup)
        assert rows_of(root) == rows, said
    finally:
        shutil.rmtree(above)
