"""What the tests of `diff` share: pairs of stores, compared without being changed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.diff import Difference
from rmqtool.check.diff import diff as compare
from rmqtool.cli import main
from rmqtool.errors import EXIT_OK
from rmqtool.formats import properties
from rmqtool.formats.index import Shape
from rmqtool.read.store import Store
from tests.support.trees import copy_tree, unchanged
from tests.support.whole_store import keyed, write_whole

Pair = tuple[Path, Path]


def make_pair(folder: Path, count: int = 100) -> Pair:
    """A store of two queues in many log files, and a copy of it."""
    write_whole(folder / "a", keyed(count), log_file_size=8192, shape=Shape(50, 6 * count))
    return folder / "a", copy_tree(folder / "a", folder / "b")


def diff_of(a: Path, b: Path, **arguments: Any) -> Difference:
    """The comparison of two stores, which must be as they were afterwards."""
    with unchanged(a), unchanged(b), Store.open(a) as one, Store.open(b) as other:
        return compare(one, other, **arguments)


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    """The command's exit code and its JSON."""
    capfd.readouterr()
    code = main(["diff", *map(str, arguments), "--format", "json"])
    return code, json.loads(capfd.readouterr().out)


def carry(line: str, rows: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Run a line `dump ... | append ... --input -`."""
    dump, _, append = line.partition(" | ")
    assert main(shlex.split(dump)[1:]) == EXIT_OK
    rows.write_text(capfd.readouterr().out)
    assert shlex.split(append)[-2:] == ["--input", "-"]
    assert main([*shlex.split(append)[1:-1], str(rows)]) == EXIT_OK
    capfd.readouterr()


def keys(root: Path) -> set[str | None]:
    """The unique keys of the messages of a store."""
    with Store.open(root) as store:
        found = (each.message.properties_bytes for each in store.messages())
        return {properties.decode(each).get(properties.UNIQ_KEY) for each in found}
