"""Any bytes in any file of a store: `verify` and `info` end, with findings or a clear error."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqtool.errors import RmqtoolError
from rmqtool.formats import batch, epoch
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, BatchUnit, ExtUnit, encode_ext_unit
from rmqtool.formats.java import tags_code
from rmqtool.formats.message import INNER_BATCH
from rmqtool.problems import PROBLEMS
from rmqtool.store import Store
from rmqtool.store.info import store_info
from rmqtool.store.verify import PASSES, verify
from tests.build_store import file_name, write_log, write_queue
from tests.records import STORE_TIMESTAMP, record
from tests.whole_store import codes_of, keyed, write_config, write_keys, write_state, write_units

LIMIT_S = 120  # a store of some pages takes milliseconds


def write_everything(root: Path) -> None:
    """A small sound store with every sort of file that `verify` reads."""
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "TAGS": "A", "UNIQ_KEY": "L", "INNER_MULTI_QUEUE_OFFSET": "0"}
    items = batch.encode_items([batch.item(b"a", b""), batch.item(b"b", b"")])
    inner = {"INNER_BASE": "0", "INNER_NUM": "2", "TAGS": "A", "UNIQ_KEY": "B"}
    records = [
        *keyed(14, body=60),
        record("Mqtt", b"m", light, store_timestamp=STORE_TIMESTAMP + 20),
        record("Batch", items, inner, sys_flag=INNER_BATCH, store_timestamp=STORE_TIMESTAMP + 21),
    ]
    stored = write_log(root / "commitlog", records, file_size=2048)
    write_units(root, stored[:-1])
    of_batch = stored[-1]
    unit = BatchUnit(
        of_batch.physical_offset, of_batch.total_size, tags_code("A"), of_batch.store_timestamp, 0, 2
    )
    write_queue(root / "batchconsumequeue/Batch/0", [unit], file_size=4 * BATCH_UNIT_SIZE)
    write_keys(root, stored)
    write_state(root, stored)
    write_config(root, "consumerOffset.json", {"offsetTable": {"TopicTest@group": {"0": 7, "1": 3}}})
    write_config(root, "delayOffset.json", {"offsetTable": {"1": 0}})
    folder = root / "consumequeue_ext/TopicTest/0"
    folder.mkdir(parents=True)
    extension = encode_ext_unit(ExtUnit(20, 7, STORE_TIMESTAMP, b""))
    (folder / file_name(0)).write_bytes(extension.ljust(200, b"\0"))
    (root / "epochFileCheckpoint").write_bytes(epoch.encode([epoch.Entry(1, 0)]))
    (root / "compaction").mkdir()
    (root / "compaction/position-checkpoint").write_text(json.dumps({"topicPositions": {}}))
    (root / "timerlog").mkdir()
    (root / "timerlog" / file_name(0)).write_bytes(bytes(520))
    (root / "abort.bak").touch()


@dataclass
class Target:
    """The store, and what its files hold when nobody has changed them."""

    root: Path
    files: dict[str, bytes]

    def restore(self) -> None:
        """Undo all mutations."""
        for name, data in self.files.items():
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def mutate(self, mutation: Mutation) -> None:
        """Do one change; places beyond a file's end count from its start again."""
        names = sorted(self.files)
        path = self.root / names[mutation.file % len(names)]
        if not path.exists():
            return
        data = bytearray(path.read_bytes())
        at = mutation.at % max(len(data), 1)
        match mutation.kind:
            case "bytes":
                data[at : at + len(mutation.data)] = mutation.data[: len(data) - at]
            case "zeros":
                data[at : at + mutation.length] = bytes(min(mutation.length, len(data) - at))
            case "cut":
                del data[at:]
            case "grow":
                data += mutation.data * 50
            case "delete":
                path.unlink()
                return
            case "copy":
                source = self.files[names[mutation.length % len(names)]]
                data[at : at + 400] = source[: min(400, len(data) - at)]
            case "shift":
                data[at:at] = mutation.data
        path.write_bytes(data)


@dataclass(frozen=True)
class Mutation:
    """One change to one file; `length` picks the other file of a copy."""

    kind: str
    file: int
    at: int
    length: int
    data: bytes


numbers = st.sampled_from([
    b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\1", b"\x7f" + b"\xff" * 7,
    b"\x80" + bytes(7), b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94", b"\0\x10\0\0",
])  # fmt: skip
mutations = st.builds(
    Mutation,
    kind=st.sampled_from(["bytes", "bytes", "bytes", "zeros", "cut", "grow", "delete", "copy", "shift"]),
    file=st.integers(0, 40),
    at=st.integers(0, 8191) | st.integers(0, 511).map(lambda n: n * 4),
    length=st.integers(0, 5000),
    data=numbers | st.binary(min_size=1, max_size=40),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    root = tmp_path_factory.mktemp("fuzz") / "store"
    write_everything(root)
    files = {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    return Target(root, files)


@contextmanager
def bounded_time() -> Iterator[None]:
    """Fail instead of hanging."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still at work after {LIMIT_S} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_the_store_is_sound(target: Target) -> None:
    """Otherwise what follows would only fuzz the damage that is there."""
    assert set(codes_of(target.root)) <= {"CF03"}


@given(changes=st.lists(mutations, min_size=1, max_size=4), has_abort=st.booleans())
@example([Mutation("bytes", 40, 0, 0, b"x")], True)
def test_any_bytes_anywhere(target: Target, changes: list[Mutation], has_abort: bool) -> None:
    """Findings or an RmqtoolError; never another exception, and never for long."""
    abort = target.root / "abort"
    try:
        for change in changes:
            target.mutate(change)
        if has_abort:
            abort.touch()
        with bounded_time():
            for look in (look_with_verify, store_info):
                try:
                    with Store.open(target.root) as store:
                        look(store)
                except RmqtoolError as error:
                    assert error.message and error.exit_code in (2, 3)
    finally:
        abort.unlink(missing_ok=True)
        target.restore()


def look_with_verify(store: Store) -> None:
    """All findings are well formed: a known code, a place inside the store, numbers that are numbers."""
    for item in verify(store, passes=PASSES, jobs=2):
        assert item.problem in PROBLEMS
        assert item.path and not item.path.startswith("/")
        assert item.length is None or item.length >= 0
        assert item.physical_offset is None or item.physical_offset >= 0
        json.dumps(item.row())


@given(data=st.binary(max_size=300), name=st.sampled_from([
    "checkpoint", "config/topics.json", "config/consumerOffset.json", "config/delayOffset.json",
    "epochFileCheckpoint", "compaction/position-checkpoint", "lock", f"timerlog/{file_name(0)}",
]))  # fmt: skip
def test_any_content_of_the_small_files(target: Target, data: bytes, name: str) -> None:
    path = target.root / name
    try:
        path.write_bytes(data)
        path.with_name(f"{path.name}.bak").write_bytes(data[::-1])
        with bounded_time(), Store.open(target.root) as store:
            list(verify(store, passes=["files", "checkpoint", "config", "timer"]))
    finally:
        os.unlink(path.with_name(f"{path.name}.bak"))  # noqa: PTH108
        target.restore()
