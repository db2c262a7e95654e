"""Damage of extension files, and what a start of the real store library then did to queues and extensions.

`fixtures/extension_starts.json` has it by store, damage and abort file: whether load succeeded, and the
queue and extension files that were made, deleted and changed. `interop_extension.py` asks again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rmqtool.broker.predict import predict
from rmqtool.broker.prediction import Prediction
from rmqtool.broker.rules import StartSettings
from rmqtool.formats.consume_queue import EXT_HEAD, ExtUnit, encode_ext_unit
from rmqtool.message.system_topics import parse_delay_levels
from rmqtool.read.store import Store
from rmqtool.storage.layout import detect
from tests.support.rebuild_checks import conf_of
from tests.support.stores import FIXTURES, case

STORES = {"ok_497_ext": "4.9.7", "ok_540_ext": "5.4.0"}
PARTS = ("consumequeue/", "consumequeue_ext/")
KINDS = ("made", "deleted", "changed")
FIRST = f"{0:020}"
Damage = Callable[[Path], None]
Verdict = dict[str, Any]


def _write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _stale(root: Path) -> None:
    """Units that none names, and a file of them, as a repeated dispatch leaves them."""
    folder = root / "consumequeue_ext/ExtBatch/0"
    unit = encode_ext_unit(ExtUnit(EXT_HEAD.size, 5, 6, b""))
    data = (folder / FIRST).read_bytes().rstrip(b"\0")
    end = -(-len(data) // EXT_HEAD.size) * EXT_HEAD.size
    _write(folder / FIRST, end, unit)
    (folder / f"{1000:020}").write_bytes(unit.ljust(1000, b"\0"))


def _cut_queue(root: Path) -> None:
    _write(root / "consumequeue/ExtA/0" / FIRST, 30 * 20, bytes(45 * 20))


DAMAGE: dict[str, Damage] = {
    "none": lambda root: None,
    "zeroed": lambda root: _write(root / "consumequeue_ext/ExtA/0" / FIRST, 400, bytes(600)),
    "zeroed-last": lambda root: _write(root / "consumequeue_ext/ExtA/0" / f"{1000:020}", 0, bytes(1000)),
    "leads-out": lambda root: _write(root / "consumequeue_ext/ExtA/0" / FIRST, 40, b"\x14\x14"),
    "to-the-end": lambda root: _write(root / "consumequeue_ext/ExtA/0" / FIRST, 980, b"\x00\x14"),
    "cut": lambda root: (root / "consumequeue_ext/ExtA/1" / FIRST).write_bytes(b"\0" * 500) and None,
    "last-file-gone": lambda root: (root / "consumequeue_ext/ExtA/1" / f"{1000:020}").unlink(),
    "first-file-gone": lambda root: (root / "consumequeue_ext/ExtA/1" / FIRST).unlink(),
    "stale": _stale,
    "queue-cut": _cut_queue,
    "queue-file-gone": lambda root: (root / "consumequeue/ExtA/0" / FIRST).unlink(),
}


def damaged(root: Path, damage: str, *, abort: bool) -> Path:
    """The store `root` with a damage, as a crash (`abort`) or a clean stop left it."""
    DAMAGE[damage](root)
    (root / "abort").unlink(missing_ok=True)
    if abort:
        (root / "abort").write_bytes(b"")
    return root


def predicted(root: Path, name: str) -> Verdict:
    """What `predict` says of the broker that wrote a store, in the form of the real verdicts."""
    levels = parse_delay_levels(case(name).settings["messageDelayLevel"])
    with Store(detect(root, broker_conf=conf_of(root, name))) as store:
        said: Prediction = predict(store, case(name).profile, settings=StartSettings(delays_ms=levels))
    if not said.loads:
        return {"load": False}
    lists = (said.files_made, said.files_deleted, said.files_changed)
    found = {
        kind: sorted(path for path in paths if path.startswith(PARTS))
        for kind, paths in zip(KINDS, lists, strict=True)
    }
    return {"load": True, **found}


def key_of(name: str, damage: str, *, abort: bool) -> str:
    """The name of a verdict."""
    return ":".join((name, damage, "abort" if abort else "noabort"))


@cache
def verdicts() -> dict[str, Verdict]:
    """What the real libraries did."""
    found: dict[str, Verdict] = json.loads((FIXTURES / "extension_starts.json").read_text("utf-8"))
    return found
