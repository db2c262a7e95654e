"""Files that come from outside, mutated: each command that reads one ends with one of its exit codes."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.fuzz.case import Case, Failure, judge
from tests.fuzz.mutate import mutate, mutate_json
from tests.fuzz.stores import Stores, run_command
from tests.support.stores import damage
from tests.support.trees import copy_tree, tree_rows

_CODES = (0, 1, 2, 3, 4)
_ROWS: list[dict[str, Any]] = [
    {
        "topic": "TopicTest",
        "body": "x",
        "keys": ["a", "b"],
        "tags": "t",
        "queue_id": 1,
        "properties": {"p": "q"},
    },
    {"topic": "Other", "body": "y" * 60, "keys": [], "tags": None, "queue_id": None, "properties": {}},
    {
        "topic": "TopicTest",
        "body": "",
        "keys": ["\u6807"],
        "tags": "",
        "queue_id": 0,
        "properties": {"A": "\U0001f600"},
    },
]
_APPEND = "append {copy} --create-topic --dry-run --input {file}"
_APPLY = "append {copy} --create-topic --input {file} --on-error skip"


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, a sound one, who reads it; {file} is where it lies in `commands`.

    `change` draws a changed one. Where `within` is given the file lies there below the backup or the store.
    """

    name: str
    sound: Callable[[Outside], bytes]
    commands: tuple[str, ...]
    change: Callable[[bytes, Random], bytes] = mutate
    within: str = ""


class Outside:
    """The kinds of files, with the store that they are read beside."""

    def __init__(self, folder: Path, stores: Stores) -> None:
        self._folder = folder
        self._stores = stores
        self._sound: dict[str, bytes] = {}
        self._number = 0
        folder.mkdir(parents=True)

    @property
    def store(self) -> Path:
        """The store: sound, and for reading."""
        return self._stores.base("everything")

    def draw(self, random: Random) -> Case:
        """A kind of file, changed."""
        name = random.choice(list(KINDS))
        return Case("files", name, KINDS[name].change(self.sound(name), random))

    def sound(self, name: str) -> bytes:
        """A sound file of a kind."""
        if name not in self._sound:
            data = KINDS[name].sound(self)
            for place, value in self._placeholders.items():
                data = data.replace(value, place)
            self._sound[name] = data
        return self._sound[name]

    @cached_property
    def _placeholders(self) -> dict[bytes, bytes]:
        """What is another in each process: where all lies, and the name of the run that made the backup."""
        run = json.loads((self.repaired / "backup" / "manifest.json").read_text())["run"]
        return {b"@FOLDER@": str(self._folder).encode(), b"@RUN@": run.encode()}

    def run(self, case: Case) -> None:
        """Run the commands that read such a file; raises Failure."""
        kind = KINDS[case.name]
        self._number += 1
        folder = self._folder / f"run{self._number}"
        folder.mkdir()
        try:
            self._run(kind, case.data, folder)
        finally:
            shutil.rmtree(folder)

    def _run(self, kind: Kind, data: bytes, folder: Path) -> None:
        file = folder / kind.name
        before = tree_rows(self.store)
        for place, value in self._placeholders.items():
            data = data.replace(place, value)
        for number, command in enumerate(kind.commands):
            copy, backup = folder / f"copy{number}", folder / f"backup{number}"
            if "{copy}" in command:
                if "{backup}" in command:
                    copy_tree(self.repaired / "store", copy)
                    copy_tree(self.repaired / "backup", backup)
                else:
                    copy_tree(self.store, copy)
            places = {"copy": copy, "store": self.store, "new": folder / f"new{number}", "backup": backup}
            if kind.within:
                file = Path(kind.within.format(**places))
                file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            if kind.name == "manifest":
                _seal(backup)
            line = [part.format(file=file, **places) for part in command.split()]
            judge(line, run_command(line), _CODES)
            around = {path.name for path in folder.iterdir()} - {
                path.name for path in (file, *places.values())
            }
            if any(not name.startswith(("copy", "backup", "new", kind.name)) for name in around):
                raise Failure(f"rmqtool {' '.join(line)}: left {around}")
        if tree_rows(self.store) != before:
            raise Failure(f"rmqtool {kind.commands}: the store has changed")

    @property
    def repaired(self) -> Path:
        """A store that was recovered, and the backup of that."""
        folder = self._folder / "repaired"
        if not folder.exists():
            folder.mkdir()
            edits = ({"op": "delete", "path": "index"}, {"op": "delete", "path": "consumequeue/TopicTest/0"})
            damage(self.store, folder / "damaged", edits)
            copy_tree(folder / "damaged", folder / "store")
            shutil.rmtree(folder / "damaged")
            line = ["recover", folder / "store", "--apply", "-y", "--backup-dir", folder / "backup"]
            ended = run_command(list(map(str, line)))
            assert ended.code == 0, ended.told
        return folder


# -- sound ones ---------------------------------------------------------------------------------------


def _table() -> pa.Table:
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("body", pa.binary()),
            ("keys", pa.list_(pa.string())),
            ("tags", pa.string()),
            ("queue_id", pa.int32()),
            ("properties", pa.map_(pa.string(), pa.string())),
        ]
    )
    rows = [
        {**row, "body": row["body"].encode(), "properties": list(row["properties"].items())} for row in _ROWS
    ]
    return pa.Table.from_pylist(rows, schema)


def _arrow(made: Callable[..., Any]) -> Callable[[Outside], bytes]:
    def sound(outside: Outside) -> bytes:
        sink = io.BytesIO()
        with made(sink, _table().schema) as writer:
            writer.write_table(_table())
        return sink.getvalue()

    return sound


def _dictionary(outside: Outside) -> bytes:
    table = _table()
    table = table.set_column(0, "topic", table["topic"].dictionary_encode())
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _parquet(outside: Outside) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(), sink)
    return sink.getvalue()


def _json_lines(outside: Outside) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in _ROWS)


def _csv(outside: Outside) -> bytes:
    return 'topic,body,tags,queue_id\nTopicTest,x,t,1\nOther,"a ""b""\n c",,0\nTopicTest,\u6807,,\n'.encode()


def _tar(outside: Outside) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(outside.store, "store")
    return sink.getvalue()


def _made_by(command: str) -> Callable[[Outside], bytes]:
    """The file that a command writes to {new}."""

    def sound(outside: Outside) -> bytes:
        new = outside.repaired / f"made-{len(list(outside.repaired.iterdir()))}"
        root = outside.repaired / f"{new.name}-store"
        edits = ({"op": "delete", "path": "index"}, {"op": "delete", "path": "consumequeue/TopicTest/0"})
        damage(outside.store, root, edits)
        line = [part.format(new=new, store=root) for part in command.split()]
        ended = run_command(line)
        assert new.exists(), ended.told
        shutil.rmtree(root)
        return new.read_bytes()

    return sound


def _of_backup(name: str) -> Callable[[Outside], bytes]:
    return lambda outside: (outside.repaired / "backup" / name).read_bytes()


def _of_store(name: str) -> Callable[[Outside], bytes]:
    return lambda outside: (outside.store / name).read_bytes()


def _conf(outside: Outside) -> bytes:
    return (
        b"brokerName=a\nstorePathRootDir=/nowhere/store\nstorePathCommitLog=commitlog\n"
        b"mappedFileSizeCommitLog=1073741824\nmaxHashSlotNum=5000000\nmaxIndexNum=20000000\n"
        b"fileReservedTime=72\ndeleteWhen=04\ndiskMaxUsedSpaceRatio=75\nmessageDelayLevel=1s 5s 10s\n"
        b"enableConsumeQueueExt=true\nmappedFileSizeConsumeQueue=6000000\n# c\nkey\\u0020x: y\\\n z\n"
    )


def _seal(backup: Path) -> None:
    """Let the backup's other files hold the CRC of the manifest as it is: else all ends at that."""
    manifest = (backup / "manifest.json").read_bytes()
    for name in ("copied.json", "applied.json"):
        row = json.loads((backup / name).read_text())
        row["manifest_crc32"] = zlib.crc32(manifest)
        (backup / name).write_text(json.dumps(row))


def _compressed(
    pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]
) -> Callable[[bytes, Random], bytes]:
    """Changes inside of what is compressed, or of the compressed bytes."""

    def change(data: bytes, random: Random) -> bytes:
        return pack(mutate(unpack(data), random)) if random.random() < 0.5 else mutate(data, random)

    return change


_UNDO = ("recover {copy} --undo {backup}", "recover {copy} --undo {backup} --force")
_LOOK = (
    "info {copy}",
    "verify {copy}",
    "recover {copy}",
    "stats {copy} --all --format json",
    "deliver {copy}",
)
_READ = ("info {file}", "verify {file}", "dump {file} --gaps --format jsonl", "recover {file}")
_ALL = (
    Kind("rows.arrow", _arrow(pa.ipc.new_file), (_APPEND, _APPLY)),
    Kind("stream.arrow", _arrow(pa.ipc.new_stream), (_APPEND, _APPLY)),
    Kind("dictionary.arrow", _dictionary, (_APPEND, _APPLY)),
    Kind("rows.parquet", _parquet, (_APPEND, _APPLY)),
    Kind("rows.jsonl", _json_lines, (_APPEND, _APPLY)),
    Kind("rows.csv", _csv, (_APPEND, _APPLY)),
    Kind("store.tar", _tar, _READ),
    Kind(
        "store.tar.gz",
        lambda outside: gzip.compress(_tar(outside)),
        _READ,
        _compressed(gzip.compress, gzip.decompress),
    ),
    Kind(
        "store.tar.zst",
        lambda outside: zstandard.compress(_tar(outside)),
        _READ,
        _compressed(zstandard.compress, zstandard.decompress),
    ),
    Kind(
        "log.zst",
        lambda outside: zstandard.compress(_of_store("commitlog/00000000000000000000")(outside)),
        ("verify {copy}", "dump {copy} --format jsonl"),
        _compressed(zstandard.compress, zstandard.decompress),
        "{copy}/commitlog/00000000000000000000.zst",
    ),
    Kind(
        "recover.plan",
        _made_by("recover {store} --write-plan {new}"),
        ("recover {copy} --apply --plan {file}", "recover {copy} --plan {file}"),
        mutate_json,
    ),
    Kind(
        "rebuild.plan",
        _made_by("rebuild {store} --write-plan {new}"),
        ("rebuild {copy} --apply --plan {file}",),
        mutate_json,
    ),
    Kind(
        "reset-offset.plan",
        _made_by("reset-offset {store} --group g --topic TopicTest --from 1 --write-plan {new}"),
        ("reset-offset {copy} --apply --plan {file}",),
        mutate_json,
    ),
    Kind("manifest", _of_backup("manifest.json"), _UNDO, mutate_json, "{backup}/manifest.json"),
    Kind("copied", _of_backup("copied.json"), _UNDO, mutate_json, "{backup}/copied.json"),
    Kind("applied", _of_backup("applied.json"), _UNDO, mutate_json, "{backup}/applied.json"),
    Kind(
        "journal",
        lambda outside: b'{"rmqtool_journal":1,"open":[{"id":"x","backup":"/nowhere/backup"}]}',
        _LOOK,
        mutate_json,
        "{copy}/rmqtool-repair.json",
    ),
    Kind(
        "cursor.json",
        _made_by("export {store} -o {new}.jsonl --cursor-file {new}"),
        ("export {store} -o {new}.jsonl --cursor-file {file}",),
        mutate_json,
    ),
    Kind(
        "broker.conf",
        _conf,
        (
            "info {store} --broker-conf {file}",
            "verify {store} --broker-conf {file}",
            "recover {store} --broker-conf {file}",
            "expire {store} --broker-conf {file}",
            "deliver {store} --broker-conf {file}",
        ),
    ),
    Kind(
        "topics",
        _of_store("config/topics.json"),
        (*_LOOK, "append {copy} --topic New --create-topic --body x"),
        mutate_json,
        "{copy}/config/topics.json",
    ),
    Kind(
        "offsets",
        _of_store("config/consumerOffset.json"),
        (*_LOOK, "tail {copy} --group group --retry"),
        mutate_json,
        "{copy}/config/consumerOffset.json",
    ),
    Kind(
        "delays",
        _of_store("config/delayOffset.json"),
        (*_LOOK, "deliver {copy} --apply --create-topic"),
        mutate_json,
        "{copy}/config/delayOffset.json",
    ),
    Kind("keys", lambda outside: b"order3\nuser1\nU00000004\n", ("lookup {store} --keys-from {file}",)),
)
KINDS = {kind.name: kind for kind in _ALL}
