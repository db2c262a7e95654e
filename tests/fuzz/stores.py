"""Commands over mutated stores: each ends with one of its exit codes, within bounds, and changes nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from rmqtool.cli import main
from rmqtool.problems import PROBLEMS
from rmqtool.write.store_writer import StoreWriter
from tests.fuzz import databases, hostile_databases
from tests.fuzz.case import Case, Failure, judge
from tests.fuzz.mutate import NUMBERS, TEXTS, mutate, mutate_json
from tests.support.build_store import LOG_FILE_SIZE
from tests.support.confined import Ended, confined
from tests.support.crash_child import DELAY_LEVEL, Scenario, message
from tests.support.damage import random_edits
from tests.support.ledgers import write_ledger
from tests.support.stores import Library, damage
from tests.support.trees import copy_tree, tree_rows
from tests.support.whole_store import keyed, write_everything, write_keys, write_state, write_units

# Seldom: these are larger, and of real brokers.
_REAL = ("ok_540_small_ipv6", "ok_540_small_propcrc", "ok_497_small_ipv6", "kind_dledger_540")
_MADE = ("everything", "written", "waiting", "ledger")
_COPIES = {"kind_tiered_540": "tiered", "kind_compaction_540": "compaction"}
"""Stores with logs of their own for each queue, and the folder of these, which is read as a store too."""
_CODES = (0, 1, 2, 3, 4)
_CPU_SECONDS = 60  # of one command, which takes some hundredths
_CODE_OF = {problem.code for problem in PROBLEMS}

# Of each group one is drawn for a store; {store}, {base} and {new} are paths.
COMMANDS = tuple(
    tuple(group.splitlines())
    for group in """\
verify {store} --severity note --format jsonl
verify {store} --severity note --format jsonl --jobs 2
verify {store} --sample 1/2
verify {store} --limit-bytes 3k --format json

dump {store} --gaps --format jsonl
dump {store} --gaps --format jsonl --reverse
dump {store} --raw
dump {store} --stats-only
dump {store} --format table --body hex
dump {store} --key order3 --format csv
dump {store} --filter
dump {store} --explain 300
dump {store} --explain 0
dump {store} --since 2023-11-14 --tag Tag1

dump {store} --what consumequeue
dump {store} --what index --part entries
dump {store} --what index --part slots --format csv
dump {store} --what index --part chains
dump {store} --what checkpoint
dump {store} --what config
dump {store} --what pop
dump {store} --what timer
dump {store} --what epoch
dump {store} --what compaction
dump {store} --what index --part header

info {store}
info {store} --queues --format json
info {store} --residency

stats {store} --all --format json
stats {store} --by topic,queue,tag,hour
stats {store} --delayed
stats {store} --duplicates
stats {store} --transactions
stats {store} --largest 3

export {store} -o {new}.parquet
export {store} -o {new}.jsonl
export {store} -o {new}.csv --body both
export {store} -o {new}/ --output-format arrow --partition-by topic
export {store} -o {new}.bin --output-format records

lookup {store} --key order3 --topic TopicTest
lookup {store} --key order3 --explain
lookup {store} --key order3 --scan never --trace
lookup {store} --offset 0 --trace
lookup {store} --time 2023-11-14T22:13:20Z
lookup {store} --uniq-key U00000003 --scan always
lookup {store} --topic TopicTest --queue 0 --queue-offset 2
lookup {store} --key key5 --trace
lookup {store} --msg-id C0A8000100002A9F0000000000000000

tail {store} --format jsonl
tail {store} --group group --retry
tail {store} --last 3
tail {store} --topic * --from -2 --format table
tail {store} --since 2023-11-14

recover {store}
recover {store} --mode broker --format json
recover {store} --fill none
recover {store} --broker 4.9

rebuild {store}
rebuild {store} --format jsonl --only queues
rebuild {store} --only index

reset-offset {store} --group group --topic TopicTest --since 2023-11-14
reset-offset {store} --group * --from -2 --format jsonl

diff {store} {base}
diff {base} {store} --format json
diff {store} {store}

expire {store} --keep-hours 0
expire {store} --until-free 100E
expire {store}
expire {store} --before 3000 --format json

deliver {store}
copy {store} -o {new}
problems
copy {store} -o {new} --profile 4.9
""".split("\n\n")
)
# On a copy of their own; the second one follows the first.
_CHANGING = (
    ("recover {copy} --apply -y --force", "verify {copy}"),
    ("rebuild {copy} --apply --force", "verify {copy}"),
    ("reset-offset {copy} --group g --topic TopicTest --from 1 --apply --force", "verify {copy}"),
    ("append {copy} --topic TopicTest --key k --body x --create-topic", "verify {copy}"),
    ("deliver {copy} --apply --create-topic", "verify {copy}"),
    ("expire {copy} --keep-hours 0 --apply --force", "verify {copy}"),
)


class Stores:
    """The stores that are mutated, below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = Library(folder / "cases")
        self._library.root.mkdir(parents=True)
        self._number = 0

    def draw(self, random: Random) -> Case:
        """A store and what is done to it."""
        kind = random.random()
        is_database = 0.05 <= kind < 0.15
        if kind >= 0.92:
            return self.draw_copy(random)
        name = random.choice(_REAL if kind < 0.05 else databases.STORES if is_database else _MADE)
        root = self.base(name)
        if is_database and random.random() < 0.7:
            edits = databases.edits(root, random)
        elif random.random() < 0.3:
            edits = random_edits(root, random.randrange(1 << 60))
        else:
            edits = [edit for _ in range(random.choice((1, 1, 2, 3))) for edit in _edits(root, random)]
        chosen = [random.choice(each) for each in COMMANDS]
        random.shuffle(chosen)
        if random.random() < 0.4:
            chosen += random.choice(_CHANGING)
        return Case("stores", name, edits=_possible(root, edits), commands=tuple(map(_arguments, chosen)))

    def draw_copy(self, random: Random) -> Case:
        """A store with a tiered copy or compacted topics, mutated there; or that folder as a store."""
        name, folder = random.choice(list(_COPIES.items()))
        root = self.base(name)
        edits = [edit for _ in range(random.choice((1, 1, 2, 3))) for edit in _edits(root / folder, random)]
        for edit in edits:
            for key in edit.keys() & {"path", "to"}:
                edit[key] = f"{folder}/{edit[key]}"
        metadata = "config/tieredStoreMetadata.json"
        if folder == "tiered" and random.random() < 0.3:
            changed = mutate_json((root / metadata).read_bytes(), random)
            edits.append({"op": "create", "path": metadata, "hex": changed.hex(), "why": "mutated"})
        chosen = [random.choice(each) for each in COMMANDS]
        if random.random() < 0.5:
            chosen = [line.replace("{store}", f"{{store}}/{folder}") for line in chosen]
        return Case("stores", name, edits=_possible(root, edits), commands=tuple(map(_arguments, chosen)))

    def draw_databases(self, random: Random) -> Case:
        """A store with RocksDB databases, of which files are mutated, and some commands."""
        name = random.choice(hostile_databases.STORES)
        edits = hostile_databases.edits(self.base(name), random)
        chosen = random.sample(hostile_databases.COMMANDS, 4)
        return Case("databases", name, edits=_possible(self.base(name), edits),
                    commands=tuple(map(_arguments, chosen)))  # fmt: skip

    def base(self, name: str) -> Path:
        """The sound store of that name; nobody may change it."""
        if name in (*_REAL, *_COPIES, *databases.STORES, *hostile_databases.STORES):
            return self._library.path(name)
        root = self._folder / "made" / name
        if not root.exists():
            root.parent.mkdir(exist_ok=True)
            _MAKERS[name](root)
        return root

    def run(self, case: Case) -> None:
        """Run all commands of a case; raises Failure."""
        self._number += 1
        folder = self._folder / f"run{self._number}"
        folder.mkdir()
        try:
            self._run(case, folder)
        finally:
            shutil.rmtree(folder)

    def _run(self, case: Case, folder: Path) -> None:
        base, root = self.base(case.name), folder / "store"
        damage(base, root, case.edits)
        before = tree_rows(root)
        copy = folder / "copy"
        for number, command in enumerate(case.commands or map(_arguments, _every_command())):
            if "{copy}" in command and not copy.exists():
                copy_tree(root, copy)
            places = {
                "store": str(root),
                "base": str(base),
                "new": str(folder / f"new{number}"),
                "copy": str(copy),
            }
            line = [part.format(**places) if "{" in part else part for part in command]
            ended = run_command(line)
            judge(line, ended, _CODES)
            _judge_rows(line, ended)
            if "{copy}" not in command and (after := tree_rows(root)) != before:
                raise Failure(f"rmqtool {' '.join(line)}: changed {set(before) ^ set(after)}")


def run_command(line: Sequence[str]) -> Ended:
    """One command in a child."""
    return confined(lambda: main(line), cpu_seconds=_CPU_SECONDS)


def _arguments(line: str) -> tuple[str, ...]:
    words = line.split()
    if words[-1] == "--filter":
        words.append("TAGS = 'Tag1' OR KEYS IS NULL")
    return tuple(words)


def _every_command() -> list[str]:
    return [line for group in COMMANDS for line in group] + list(_CHANGING[0])


def _judge_rows(line: Sequence[str], ended: Ended) -> None:
    """Lines of JSON are that; a finding has a code, a place inside the store, and numbers from 0 on."""
    if "jsonl" not in line:
        return
    for text in ended.stdout.splitlines():
        row = json.loads(text)
        if line[0] != "verify":
            continue
        if row["problem"] not in _CODE_OF or not row["path"] or row["path"].startswith("/"):
            raise Failure(f"verify: {text!r}")
        if any(row[name] is not None and row[name] < 0 for name in ("length", "physical_offset")):
            raise Failure(f"verify: {text!r}")


# -- mutations, as edits ------------------------------------------------------------------------------


def _edits(root: Path, random: Random) -> list[dict[str, Any]]:
    """One mutation: of bytes in their place, of a whole file, or of what lies where."""
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    path = random.choice(paths)
    size = (root / path).stat().st_size
    at = random.randrange(size + 1) if size else 0
    if random.random() < 0.4:
        at -= at % random.choice((4, 20))
    kind = random.choice(
        (
            "number",
            "number",
            "number",
            "text",
            "zero",
            "cut",
            "grow",
            "whole",
            "whole",
            "delete",
            "name",
            "other",
            "odd",
        )
    )
    if kind in ("number", "text"):
        data = random.choice(NUMBERS if kind == "number" else TEXTS)[: size - at]
        return [{"op": "write", "path": path, "offset": at, "hex": data.hex(), "why": kind}] if data else []
    if kind == "zero":
        length = min(random.choice((4, 20, 100, 4096)), size - at)
        return [{"op": "zero", "path": path, "offset": at, "length": length, "why": kind}]
    if kind in ("cut", "grow"):
        new = at if kind == "cut" else size + random.choice((1, 20, 1000, 1 << 20, 1 << 32))
        return [{"op": "truncate", "path": path, "size": new, "why": kind}]
    if kind == "delete":
        parents = [parent.as_posix() for parent in Path(path).parents][:-1]
        return [{"op": "delete", "path": random.choice((path, path, *parents)), "why": kind}]
    if kind == "name":
        name = random.choice(
            (
                "9" * 19 + "0",
                "09223372036854775807",
                "00000000000000000020",
                "00000000000000002048",
                "x",
                "0" * 20,
                "-1",
                "00000000000000000000.tmp",
                "20231114221320124",
            )
        )
        to = Path(path).with_name(name).as_posix()
        return [{"op": random.choice(("copy", "rename")), "path": path, "to": to, "why": kind}]
    if kind == "other":
        other = random.choice(paths)
        data = (root / other).read_bytes()[: 1 << 16]
        return [{"op": "create", "path": path, "hex": data.hex(), "why": f"the bytes of {other}"}]
    if kind == "odd":
        return [
            random.choice(
                (
                    {"op": "mkdir", "path": f"consumequeue/A/{random.choice(('0', '-1', 'x', '70000'))}"},
                    {"op": "create", "path": "abort", "text": ""},
                    {
                        "op": "create",
                        "path": "consumequeue/New/0/00000000000000000000",
                        "hex": "",
                        "size": 1 << 33,
                    },
                    {"op": "create", "path": "index/20231114221320999", "hex": "00", "size": 1 << 30},
                    {"op": "create", "path": "commitlog/00000000000000002048", "hex": "00", "size": 4096},
                    {
                        "op": "create",
                        "path": "config/delayOffset.json",
                        "text": '{"offsetTable":{"1":99999999}}',
                    },
                )
            )
        ]
    data = (root / path).read_bytes()[: 1 << 16]
    changed = mutate_json(data, random) if data[:1] in (b"{", b"[") else mutate(data, random)
    edit: dict[str, Any] = {"op": "create", "path": path, "hex": changed.hex(), "why": "mutated"}
    if size > len(data) >= len(changed):
        edit["size"] = size
    return [edit]


def _possible(root: Path, edits: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The edits that can be done one after the other: of several one may have deleted another's file."""
    sizes = {
        path.relative_to(root).as_posix(): path.stat().st_size for path in root.rglob("*") if path.is_file()
    }
    folders = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}
    kept: list[dict[str, Any]] = []
    special: set[str] = set()  # a write to a pipe never ends, one through a link goes elsewhere
    for edit in edits:
        path, op = edit["path"], edit["op"]
        if path in special or edit.get("to") in special:
            continue
        end = edit.get("offset", 0) + edit.get("length", len(edit.get("hex", "")) // 2)
        if op in ("write", "zero") and not (path in sizes and end <= sizes[path]):
            continue
        if op in ("truncate", "rename", "copy", "chmod") and path not in sizes:
            continue
        if op == "delete" and path not in sizes and path not in folders:
            continue
        if op in ("rename", "copy") and (edit["to"] in sizes or edit["to"] in folders):
            continue
        if op in ("create", "mkdir") and (
            path in folders or any(each in sizes for each in map(str, Path(path).parents))
        ):
            continue
        if op in ("mkdir", "link", "pipe") and path in sizes:
            continue
        if op in ("link", "pipe") and (path in folders or str(Path(path).parent) not in folders):
            continue
        if op in ("link", "pipe"):
            special.add(path)
        kept.append(edit)
        if op == "delete":
            sizes = {
                name: size for name, size in sizes.items() if name != path and not name.startswith(f"{path}/")
            }
            folders = {name for name in folders if name != path and not name.startswith(f"{path}/")}
        elif op == "truncate":
            sizes[path] = edit["size"]
        elif op == "create":
            length = len(edit["text"].encode()) if "text" in edit else len(edit["hex"]) // 2
            sizes[path] = edit.get("size", length)
        elif op in ("rename", "copy"):
            sizes[edit["to"]] = sizes.pop(path) if op == "rename" else sizes[path]
        if op in ("create", "mkdir"):
            folders |= {str(each) for each in Path(path).parents if str(each) != "."}
            folders |= {path} if op == "mkdir" else set()
    return tuple(kept)


# -- the stores ---------------------------------------------------------------------------------------


def _written(root: Path) -> None:
    """Of our own writer: many small files, and delayed messages among others."""
    with StoreWriter.create(root, "5.4", **{**Scenario().options(), "reserve": False}) as writer:
        for number in range(60):
            level = DELAY_LEVEL if number % 7 == 3 else 0
            writer.put(replace(message(number), uniq_key=f"U{number:08}", delay_level=level))
    _without_clock(root)


def _waiting(root: Path) -> None:
    """Delayed messages that wait, and consumers that lag."""
    with StoreWriter.create(root, "5.4", **{**Scenario().options(), "reserve": False}) as writer:
        for number in range(12):
            writer.put(
                replace(message(number), topic="Orders", uniq_key=f"U{number:08}", delay_level=number % 3)
            )
    config = root / "config"
    (config / "delayOffset.json").write_text('{"offsetTable":{1:1,2:0},"dataVersion":{"counter":1}}')
    (config / "consumerOffset.json").write_text(
        '{"offsetTable":{"Orders@g":{0:1,1:99},"%RETRY%g@g":{0:0},"Gone@h":{0:5}}}'
    )
    (config / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"g":{"groupName":"g","consumeEnable":true,"retryMaxTimes":16}}}'
    )
    _without_clock(root)


def _without_clock(root: Path) -> None:
    """Times of now become fixed ones: a store is the same in every run."""
    for number, path in enumerate(sorted((root / "index").iterdir())):
        path.rename(path.with_name(f"2023111422132{number:04}"))
    for path in (root / "config").iterdir():
        path.write_text(re.sub(r'"timestamp":\s*\d+', '"timestamp":1700000000000', path.read_text()))


def _ledger(root: Path) -> None:
    """A DLedger log of three files, with queues, index and config."""
    stored = write_ledger(root / "dledger-n0", keyed(40), file_size=LOG_FILE_SIZE, term=3)
    write_units(root, stored)
    write_keys(root, stored)
    write_state(root, stored)


_MAKERS = {"everything": write_everything, "written": _written, "waiting": _waiting, "ledger": _ledger}
