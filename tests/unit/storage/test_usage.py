"""`usage` counts what `du` counts, also where folders of queues hold other entries, links and holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqtool.read.store import Store
from rmqtool.storage.usage import Usage, usage
from tests.support.stores import Library

_FOLDER = "consumequeue"


def _taken(folder: Path) -> tuple[int, int]:
    """(bytes on the disk, number) of the files and links below a folder."""
    entries = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    sizes = [path.lstat().st_blocks * 512 for path in entries]
    return sum(sizes), len(sizes)


@pytest.mark.parametrize(
    "extra", ["nothing", "a stray", "a folder", "a link to a folder", "a hole", "a file less"]
)
def test_what_the_queues_take(extra: str, cases: Library, tmp_path: Path) -> None:
    root = cases.copy("ok_540_clean", tmp_path / "store")
    queue = next(path for path in (root / _FOLDER).glob("*/0") if any(path.iterdir()))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "large").write_bytes(b"x" * 100_000)
    if extra == "a stray":
        (queue / "notes.txt").write_bytes(b"x" * 50_000)
    elif extra == "a folder":
        (queue / "old").mkdir()
        (queue / "old" / f"{0:020}").write_bytes(b"x" * 50_000)
    elif extra == "a link to a folder":
        (queue.parent / "7").symlink_to(tmp_path / "elsewhere")
    elif extra == "a hole":
        os.truncate(next(queue.iterdir()), 50 << 20)
    with Store.open(root) as store:
        if extra == "a file less":  # a broker has deleted it since
            next(queue.iterdir()).unlink()
        failed: list[Path] = []
        found = {each.name: each for each in usage(store.layout, lambda path, _: failed.append(path))}
    assert found[_FOLDER] == Usage(_FOLDER, *_taken(root / _FOLDER))
    assert not failed
