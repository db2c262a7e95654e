"""Plan files: `--write-plan` writes them, and `--apply --plan` requires the same plan again.

The file is not what is done. The command makes its plan again from the file's options, under the
store's lock, and `agree` refuses unless both are the same: so a file that somebody has changed can
only make the command refuse.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rmqtool.errors import InputError, RefusedError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.repair.plan.action import Plan
from rmqtool.repair.plan.documents import convert, fingerprint_row, read_fingerprint, read_json
from rmqtool.repair.plan.fingerprint import Fingerprint, again
from rmqtool.repair.plan.guard import INTERRUPTED, unfinished_hint
from rmqtool.repair.plan.paths import Places
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.output_guard import keep_out

VERSION = 1


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file; only its form is checked.

    Attributes:
        command: whose plan it is.
        options: what the plan was made with.
        actions: rows as of `Action.row`.
        fingerprint: of the store that it was made for.
        path: of the file.
    """

    command: str
    options: dict[str, Any]
    actions: tuple[dict[str, Any], ...]
    fingerprint: Fingerprint
    path: Path


def write_plan(plan: Plan, layout: StoreLayout, path: Path) -> None:
    """Write a plan for the store of `layout` to a file; a former plan file is replaced.

    Raises:
        UsageError: the path names no file.
        RefusedError: it lies in the store, or something else than a plan has its name; or the store is in
            between, which it no longer is when a plan is done.
        UnwritableError: it cannot be written; what was there still is.
    """
    if not path.name or path.is_dir():
        raise UsageError(f"{str(path)!r} is not a valid name for a plan file")
    keep_out(layout, path, "a plan")
    if layout.guard is not None:
        raise RefusedError(INTERRUPTED, path=layout.guard, hint=unfinished_hint(Places(layout)))
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or not _is_plan(path)):
        raise RefusedError("something else has this name: only a plan file is replaced", path=path)
    document = {
        "rmqtool_plan": VERSION,
        "command": plan.command,
        "options": plan.options,
        "summary": plan.summary,
        "actions": plan.rows(),
        "fingerprint": fingerprint_row(plan.fingerprint),
    }
    disk.replace_file(path, json.dumps(document, indent=1).encode("ascii") + b"\n")


def _is_plan(path: Path) -> bool:
    try:
        document = read_json(path)
    except InputError:
        return False
    return document is not None and "rmqtool_plan" in document


def read_plan(path: Path, command: str) -> PlanFile:
    """Read a plan file of `rmqtool COMMAND`, as untrusted input.

    Raises:
        UsageError: it is another command's.
        InputError: it is none, or cannot be understood.
        UnreadableError: it cannot be read.
    """
    document = read_json(path)
    if document is None:
        raise InputError("no such file", path=path)
    version = document.get("rmqtool_plan")
    if type(version) is not int or version != VERSION:
        what = "this is not a plan of rmqtool" if version is None else f"a plan of version {version!r}"
        raise InputError(what, path=path)
    made_by = convert(document.get("command"), str, path)
    if made_by != command:
        raise UsageError(f"{path} is a plan of rmqtool {made_by}, not of {command}")
    return PlanFile(
        made_by,
        convert(document.get("options"), dict[str, Any], path),
        tuple(convert(document.get("actions"), list[dict[str, Any]], path)),
        read_fingerprint(document.get("fingerprint"), path),
        path,
    )


def check_unchanged(file: PlanFile, layout: StoreLayout) -> None:
    """Check, before the plan is made again, that the store is as it was for a plan file.

    Raises:
        RefusedError: it has changed since; the file is named.
    """
    if layout.root is None:
        raise RefusedError("this is not a store root", path=file.path)
    file.fingerprint.must_be(again(layout, file.fingerprint), layout.root)


def agree(plan: Plan, file: PlanFile) -> None:
    """Raise RefusedError unless a repeated plan is equal to the one in the file."""
    rows = json.loads(json.dumps(plan.rows()))
    hint = f"make the plan again: rmqtool {plan.command} --write-plan"
    for number, (mine, theirs) in enumerate(zip(rows, file.actions, strict=False), 1):
        if mine != theirs:
            what = f"action {number} of the plan, for {mine['path']},"
            raise RefusedError(f"{what} is not the one that would be done now",
                               path=file.path, hint=hint)  # fmt: skip
    if len(rows) != len(file.actions):
        raise RefusedError(f"the plan has {len(file.actions)} actions, {len(rows)} would be done now",
                           path=file.path, hint=hint)  # fmt: skip
