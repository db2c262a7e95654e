"""No command walks more than a little of a large log in plain Python: the compiled walk does it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqtool import NewMessage, StoreWriter
from rmqtool.cli import main
from rmqtool.errors import EXIT_BUG, EXIT_INPUT, EXIT_USAGE
from rmqtool.formats import message
from rmqtool.log import log_heads
from tests.support.sweep import paired, sample

MESSAGES = 30_000
BODY = b"x" * 1000
LOG_FILE_SIZE = 20 << 20
FIRST_MS = 1_700_000_000_000
MOST_BYTES = 1 << 20
"""Bytes of records that one command may decode, or pass by their heads, one by one in Python."""
MIDDLE = 7 << 20
"""Of a log file: where the damaged stores are damaged, bytes."""


def messages() -> pa.RecordBatch:
    numbers = np.arange(MESSAGES)
    return pa.record_batch(
        {
            "topic": pa.array(["Orders"]).take(pa.array(numbers * 0)),
            "queue_id": pa.array((numbers % 4).astype(np.int32)),
            "tags": pa.array(["A", "B", "C"]).take(pa.array(numbers % 3)),
            "keys": pa.array(np.char.add("order-", numbers.astype("U10")).tolist()),
            "body": pa.array([BODY]).take(pa.array(numbers * 0)),
            "store_timestamp_ms": pa.array(FIRST_MS + numbers),
        }
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store of 36 MB in two log files, with some messages that are due."""
    root = tmp_path_factory.mktemp("large") / "store"
    with StoreWriter.create(
        root, auto_create_queues=4, commit_log_file_size=LOG_FILE_SIZE, consume_queue_file_size=200_000,
        index_slots=50_000, index_entries=200_000, reserve=False,
    ) as writer:  # fmt: skip
        for _ in range(20):
            writer.put(NewMessage("Orders", b"late", delay_level=1, store_timestamp=FIRST_MS))
        writer.put_table([messages()])
    yield root
    shutil.rmtree(root.parent)


def lose_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")


def crash(root: Path) -> None:
    (root / "abort").touch()
    (root / "checkpoint").unlink()


def overwrite(data: bytes) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in (root / "commitlog").iterdir():
            with path.open("r+b") as file:
                file.seek(MIDDLE)
                file.write(data)

    return change


STATES: dict[str, Callable[[Path], None]] = {
    "sound": lambda root: None,
    "without queues": lose_queues,
    "after a crash": crash,
    "with a damaged body": overwrite(b"???"),
    "with damaged records": overwrite(b"?" * 5000),
}


@pytest.fixture(scope="module", params=STATES)
def store(
    request: pytest.FixtureRequest, sound: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The store in each state, for reading only."""
    root = tmp_path_factory.mktemp("state") / "store"
    shutil.copytree(sound, root)
    STATES[request.param](root)
    yield root
    shutil.rmtree(root.parent)


class Walked:
    """Bytes of the records that were decoded, or passed by their heads, one by one."""

    def __init__(self) -> None:
        self.bytes = 0

    def count(self, patched: pytest.MonkeyPatch, module: Any, name: str) -> None:
        """Count the records that the function `module.name` returns."""
        original = getattr(module, name)

        def counting(*args: Any) -> Any:
            found = original(*args)
            self.bytes += 0 if found is None else found.total_size
            return found

        patched.setattr(module, name, counting)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> Walked:
    result = Walked()
    result.count(monkeypatch, message, "decode")
    result.count(monkeypatch, log_heads, "_head")
    return result


def check(walked: Walked, *arguments: object) -> None:
    walked.bytes = 0
    code = main([str(each) for each in arguments])
    assert code not in (EXIT_BUG, EXIT_INPUT, EXIT_USAGE), arguments
    assert walked.bytes <= MOST_BYTES, f"{arguments} walked {walked.bytes} bytes in plain Python"


ANYWHERE = [
    "info",
    "verify --pass checkpoint",
    "dump --reverse --limit 5",
    "dump --limit 2000 --fields keys --json",
    "dump --from-offset 30000001 --limit 3",
    "dump --to-offset 30000001 --reverse --limit 3",
    "tail --topic Orders --fields keys --json",
    "tail --topic Orders --last 5",
    "lookup --key order-unknown",
    "lookup --offset 30000001",
    "lookup --topic Orders --queue 1 --queue-offset 7000",
    "recover",
    "expire",
    "deliver",
]
"""Commands that find their place in a store by what other stores may lack."""
SOUND = [
    "verify",
    "verify --pass queues",
    "verify --pass index",
    "verify --pass config",
    "dump --fields keys --json",
    f"dump --since {FIRST_MS + MESSAGES - 100} --fields keys --json",
    "dump --stats-only",
    "dump --gaps --json",
    "dump --gaps --reverse --json",
    "dump --reverse --fields keys --json",
    "dump --reverse --topic Orders --limit 2000 --format csv",
    "tail --topic Orders --tag A --fields keys --json",
    "tail --topic Orders --queue 0 --from -5",
    f"tail --topic Orders --since {FIRST_MS + MESSAGES - 10}",
    "lookup --key order-25000",
    f"lookup --topic Orders --time {FIRST_MS + MESSAGES // 2}",
    "stats",
    "stats --by tag",
    "stats --by group",
    "rebuild",
]


def run(walked: Walked, command: str, root: Path) -> None:
    name, *options = command.split()
    check(walked, name, root, *options)


@pytest.mark.sweep
@pytest.mark.parametrize(("store", "command"), paired(STATES, ANYWHERE, rounds=2), indirect=["store"])
def test_in_any_state(command: str, store: Path, walked: Walked) -> None:
    run(walked, command, store)


@pytest.mark.parametrize("command", SOUND)
def test_of_a_sound_store(command: str, sound: Path, walked: Walked) -> None:
    run(walked, command, sound)


@pytest.mark.parametrize(
    "command", ["export --output out.parquet", "export --output out.jsonl", "copy --output out"]
)
def test_copies(
    command: str, sound: Path, walked: Walked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(walked, command, sound)


def test_two_stores(store: Path, sound: Path, walked: Walked) -> None:
    check(walked, "diff", store, sound)
    check(walked, "diff", sound, store)


@pytest.mark.sweep
@pytest.mark.parametrize("store", sample(list(STATES), 2), indirect=True)
def test_writing(store: Path, walked: Walked, tmp_path: Path) -> None:
    """One command after the other: each finds the store as the one before has left it."""
    root = tmp_path / "store"
    shutil.copytree(store, root)
    for command in ("recover --apply --yes", "append --topic Orders --body hello", "deliver --apply",
                    "rebuild --apply", "expire --apply"):  # fmt: skip
        run(walked, command, root)
    shutil.rmtree(root)
