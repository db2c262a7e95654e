"""A plan on paper: what `--write-plan` writes and `--apply --plan` wants to see again.

The file is not what is done. The command makes its plan again from the file's options, under the
store's lock, and `agree` refuses unless both are the same: so a file that somebody has changed can
only make the command refuse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqtool.errors import InputError, RefusedError, UsageError
from rmqtool.store import disk
from rmqtool.store.layout import StoreLayout
from rmqtool.store.plan.action import Plan
from rmqtool.store.plan.documents import convert, fingerprint_row, read_fingerprint, read_json
from rmqtool.store.plan.fingerprint import Fingerprint, again

VERSION = 1


@dataclass(frozen=True)
class PlanFile:
    """What a plan file says; nothing of it but its form is checked.

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


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan to a file, in place of one that has the name.

    Raises:
        UnwritableError: it cannot be written; what was there still is.
    """
    document = {
        "rmqtool_plan": VERSION,
        "command": plan.command,
        "options": plan.options,
        "summary": plan.summary,
        "actions": plan.rows(),
        "fingerprint": fingerprint_row(plan.fingerprint),
    }
    new = path.with_name(f"{path.name}.new")
    disk.remove(new)
    disk.write_new(new, json.dumps(document, indent=1).encode("ascii") + b"\n")
    disk.rename(new, path)


def read_plan(path: Path) -> PlanFile:
    """Read a plan file, which anybody may have written.

    Raises:
        InputError: it is none, or cannot be understood.
        UnreadableError: it cannot be read.
    """
    document = read_json(path)
    if document is None:
        raise InputError("no such file", path=path)
    version = document.get("rmqtool_plan")
    if version != VERSION:
        what = "this is no plan of rmqtool" if version is None else f"a plan of version {version!r}"
        raise InputError(what, path=path)
    return PlanFile(
        convert(document.get("command"), str, path),
        convert(document.get("options"), dict[str, Any], path),
        tuple(convert(document.get("actions"), list[dict[str, Any]], path)),
        read_fingerprint(document.get("fingerprint"), path),
        path,
    )


def check_unchanged(file: PlanFile, layout: StoreLayout, command: str) -> None:
    """Whether a plan file is for this command, and for the store as it is now; before the plan is made again.

    Raises:
        UsageError: it is another command's.
        RefusedError: the store has changed since; the file is named.
    """
    if file.command != command:
        raise UsageError(f"{file.path} is a plan of rmqtool {file.command}, not of {command}")
    if layout.root is None:
        raise RefusedError("this is no store root", path=file.path)
    file.fingerprint.must_be(again(layout, file.fingerprint), layout.root)


def agree(plan: Plan, file: PlanFile) -> None:
    """Raise RefusedError unless a plan that was made again is the one in the file."""
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
