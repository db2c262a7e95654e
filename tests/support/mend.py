"""The actions of a plan done to a copy of a store, as plainly as can be: what `apply` is held against."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from rmqtool.repair.plan import Action
from tests.support.trees import make_private


def mend(root: Path, actions: Iterable[Action]) -> None:
    """Do `actions` below `root`, whose files may be links."""
    for action in actions:
        path = root / action.path
        if action.kind == "delete":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif action.kind in ("create", "replace"):
            assert action.zeros or action.content is not None
            path.unlink(missing_ok=True)
            path.write_bytes(action.content or bytes(action.length))
        else:
            make_private(path)
            with path.open("r+b") as file:
                file.seek(action.offset)
                file.write(action.content if action.content is not None else bytes(action.length))
