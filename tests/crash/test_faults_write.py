"""Every file operation of every command that writes, failed once and from there on, below libc.

The command ends with one clear error; nothing that it has acknowledged is lost; the same command run again
ends as a run that nothing disturbs. What takes part of a write, or is interrupted, is gone on with.

RMQTOOL_SWEEP=1 takes every operation, else a few of each command.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_REFUSED
from rmqtool.read.store import Store
from rmqtool.write.store_writer import StoreWriter
from tests.faults import CHANGES, Fault, Ran, Runner
from tests.support.crash_child import DELAY_LEVEL, Scenario, message
from tests.support.sweep import IS_WHOLE, sample
from tests.support.trees import copy_tree

pytestmark = pytest.mark.sweep

SAMPLE = 2  # operations of a command
OPTIONS = {**Scenario().options(), "reserve": False}
ROWS = [
    {"topic": f"Topic{number % 3}", "body": f"row {number} " + "x" * 300, "keys": f"r{number}"}
    for number in range(40)
]
SIZES = "--commitlog-file-size 8k --queue-file-size 300 --index-slots 10 --index-entries 40"
SHOWN = "--flush sync --show messages --format jsonl"
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)


# Stores, each made as `store` of a folder


def sound(folder: Path) -> None:
    """Closed cleanly, with delayed messages that are due."""
    with StoreWriter.create(folder / "store", "5.4", **OPTIONS) as writer:
        for number in range(40):
            level = DELAY_LEVEL if number % 5 == 2 else 0
            writer.put(replace(message(number), uniq_key=f"U{number:08}", delay_level=level))
    (folder / "store/config/consumerOffset.json").write_text('{"offsetTable":{"Topic0@group":{0:2,1:99}}}')
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def nothing(folder: Path) -> None:
    """Rows alone: the store is to be made."""
    sound(folder)
    shutil.rmtree(folder / "store")


def damaged(folder: Path) -> None:
    """A hole in the log, a queue and the index gone, an own abort file, the checkpoint cut."""
    sound(folder)
    root = folder / "store"
    with (root / "commitlog/00000000000000008192").open("r+b") as file:
        file.seek(2000)
        file.write(bytes(1500))
    shutil.rmtree(root / "consumequeue/Topic1")
    for path in (root / "index").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    os.truncate(root / "checkpoint", 7)
    (root / "abort").write_text("1")


def repaired(folder: Path, runner: Runner) -> None:
    """One that was recovered, with the backup of it."""
    damaged(folder)
    ran = runner.run(words("recover {store} --apply -y --backup-dir {folder}/backup", folder), NONE)
    assert ran.code == EXIT_OK, ran.told


@dataclass(frozen=True)
class Work:
    """A command, the store that it is run over, and the code with which it ends where nothing disturbs it."""

    line: str
    make: Callable[..., None] = sound
    code: int = EXIT_OK


WORKS = {
    "append": Work("append {store} --topic Topic0 --key k --body one " + SHOWN),
    "append --input": Work("append {store} --input {folder}/rows.jsonl " + SHOWN),
    "append --create": Work(
        f"append {{store}} --create --create-topic {SIZES} --input {{folder}}/rows.jsonl {SHOWN}",
        nothing,
    ),
    "recover": Work("recover {store} --apply -y --backup-dir {folder}/backup", damaged),
    "recover --fill none": Work(
        "recover {store} --apply -y --fill none --backup-dir {folder}/backup", damaged
    ),
    "rebuild": Work(  # the damage of the log stays
        "rebuild {store} --apply --force --backup-dir {folder}/backup", damaged, code=EXIT_FINDINGS
    ),
    "reset-offset": Work(
        "reset-offset {store} --group g --topic Topic0 --from 3 --apply --backup-dir {folder}/backup"
    ),
    "recover --undo": Work("recover {store} --undo {folder}/backup", repaired),
    "recover --write-plan": Work("recover {store} --write-plan {folder}/plan", damaged, EXIT_FINDINGS),
    "expire --archive": Work("expire {store} --before 20000 --apply --force --archive {folder}/archive"),
    "expire": Work("expire {store} --before 20000 --apply --force"),
    "deliver": Work("deliver {store} --apply --create-topic"),
    "copy": Work("copy {store} -o {folder}/new"),
    "export parquet": Work("export {store} -o {folder}/new.parquet"),
    "export lines": Work("export {store} -o {folder}/new.jsonl.gz"),
    "export, cursor": Work(
        "export {store} -o {folder}/new/ --output-format jsonl --file-size 4k --cursor-file {folder}/cursor"
    ),
}
# Those that POSIX or Linux lets end with EINTR.
CAN_BE_INTERRUPTED = (
    "create",
    "open-write",
    "write",
    "pwrite",
    "copy",
    "truncate",
    "allocate",
    "fsync",
    "fdatasync",
)
NONE = Fault(Path("/nowhere"))


def words(line: str, folder: Path) -> list[str]:
    return line.format(store=folder / "store", folder=folder).split()


Content = tuple[Any, ...]


def content(folder: Path) -> Content:
    """What a run has to have made: messages by their places, offsets, and what was exported or kept."""
    config = folder / "store/config/consumerOffset.json"
    return (
        records(folder / "store"),
        records(folder / "new") if (folder / "new/commitlog").exists() else None,
        config.read_text() if config.exists() else None,
        sorted(
            path.name
            for path in folder.iterdir()
            if not path.name.startswith(("backup", "archive", "store.", ".rmqtool-"))
            and not path.name.endswith(".rmqtool-lock")  # a free one that could not be deleted does no harm
        ),
        sorted(path.name for path in (folder / "new").glob("*.jsonl")),
        sorted(path.name for path in folder.glob("archive/commitlog/*")),
    )


def records(root: Path) -> list[tuple[Any, ...]]:
    """Every message of a store, by where a consumer finds it."""
    if not (root / "commitlog").is_dir() or not any((root / "commitlog").iterdir()):
        return []
    with Store.open(root) as store:
        return sorted(
            (one.message.topic, one.message.queue_id, one.message.queue_offset, one.message.body)
            for one in store.messages(damage="skip")
        )


def acknowledged(ran: Ran) -> set[tuple[Any, ...]]:
    """The places of messages that `append` said are on the device; the last line may be cut."""
    lines = [
        line
        for line in ran.stdout.splitlines(keepends=True)
        if line.startswith(b"{") and line.endswith(b"\n")
    ]
    rows = [json.loads(line) for line in lines]
    return {(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows if "queue_offset" in row}


def check_error(ran: Ran, fault: Fault, work: Work) -> None:
    """One clear error that gives the system's reason; or the fault changed nothing that matters."""
    assert ran.code in (work.code, EXIT_INPUT), ran.told
    assert "Traceback" not in ran.text and "this is a bug" not in ran.text, ran.told
    if ran.code == EXIT_INPUT:
        assert os.strerror(fault.error) in ran.text, ran.told
        assert sum(line.startswith("rmqtool: cannot") for line in ran.text.splitlines()) <= 1, ran.told


def finish(runner: Runner, folder: Path, name: str, ran: Ran) -> None:
    """Run the command again, and do what its errors say; what it has acknowledged is there."""
    line, root = WORKS[name].line, folder / "store"
    for _ in range(4):
        if name.startswith("append"):
            assert acknowledged(ran) <= {row[:3] for row in records(root)} or (root / "abort").exists()
            if any((root / "commitlog").glob("0*")):  # it is a store already
                line = line.replace(f"--create --create-topic {SIZES}", "--create-topic")
        again = runner.run(words(line, folder), NONE)
        if again.code == WORKS[name].code:
            return
        assert again.code == EXIT_REFUSED, again.told
        if "omit --create" in again.text:  # its topics.json is there, and nothing else
            line = line.replace(f"--create --create-topic {SIZES}", "--create-topic")
            continue
        if name == "copy" and "is already a store" in again.text:
            return  # it is whole, but its entry was not flushed
        if "--force replaces it" in again.text:  # it is whole, but its entry was not flushed
            line += " --force"
        else:
            obey(runner, folder, again)
    raise AssertionError(again.told)


def obey(runner: Runner, folder: Path, ran: Ran) -> None:
    """Do what the hint of an error says: recover the store, or delete what was only begun."""
    found = re.search(r"delete (\S+)", ran.text)
    if found is not None:
        shutil.rmtree(found[1])
        return
    assert "rmqtool recover" in ran.text, ran.told
    mended = runner.run(words("recover {store} --apply -y", folder), NONE)
    assert mended.code == EXIT_OK, mended.told


def codes(root: Path) -> set[str]:
    with Store.open(root) as store:
        return {item.problem.code for item in verify(store, jobs=1) if item.problem.severity != "note"}


def faults(operations: tuple[str, ...], name: str, folder: Path) -> list[Fault]:
    """Every operation once, and from there on, with errors in turn; or a sample."""
    made = [
        Fault(folder, CHANGES, number, sticky, error=ERRORS[(number + sticky) % len(ERRORS)])
        for number in range(1, len(operations) + 1)
        for sticky in (False, True)
    ]
    return made if IS_WHOLE else Random(name).sample(made, min(SAMPLE, len(made)))


@pytest.fixture
def start(tmp_path: Path, runner: Runner) -> Callable[[str], Path]:
    """A function that makes the folder of a command, again and again."""

    def make(name: str) -> Path:
        above, folder = tmp_path / "start", tmp_path / "run"
        if not above.exists():
            folder.mkdir()
            WORKS[name].make(folder, runner) if WORKS[name].make is repaired else WORKS[name].make(folder)
            folder.rename(above)
        shutil.rmtree(folder, ignore_errors=True)
        return copy_tree(above, folder)

    return make


@pytest.mark.parametrize("name", WORKS)
def test_a_failed_operation(
    runner: Runner, start: Callable[[str], Path], name: str, record_property: Callable[[str, object], None]
) -> None:
    work, folder = WORKS[name], start(name)
    line = words(work.line, folder)
    whole = runner.run(line, Fault(folder, CHANGES), logged=True)
    assert whole.code == work.code, whole.told
    wanted, wanted_codes = content(folder), codes(folder / "store")
    chosen = faults(whole.operations, name, folder)
    for fault in chosen:
        start(name)
        what = f"{name}, {fault} of {whole.operations[fault.first - 1]}"
        ran = runner.run(line, fault)
        try:
            check_error(ran, fault, work)
            if ran.code != work.code or ran.code == EXIT_INPUT:
                finish(runner, folder, name, ran)
            check_content(folder, name, wanted)
            assert codes(folder / "store") <= wanted_codes
        except Exception as error:
            error.add_note(f"{what}\n{ran.told}")
            raise
    record_property("operations", len(whole.operations))
    record_property("faults", len(chosen))


def check_content(folder: Path, name: str, wanted: Content) -> None:
    found = content(folder)
    if name.startswith("append"):  # rows that the failed run stored are there twice
        assert {row[3] for row in found[0]} == {row[3] for row in wanted[0]}
        return
    if name == "deliver":  # at least once, as a broker
        assert {row[3] for row in found[0]} == {row[3] for row in wanted[0]}
        assert len(found[0]) >= len(wanted[0])
        return
    assert found == wanted


@pytest.mark.parametrize(("name", "kind"), sample(list(product(WORKS, ("short", "interrupted"))), 2))
def test_a_write_that_takes_less_or_is_interrupted(
    runner: Runner, start: Callable[[str], Path], name: str, kind: str
) -> None:
    """Gone on with: the run ends as one that nothing disturbs."""
    work, folder = WORKS[name], start(name)
    line = words(work.line, folder)
    kinds = ("write", "pwrite", "copy") if kind == "short" else CAN_BE_INTERRUPTED
    whole = runner.run(line, Fault(folder, kinds))
    wanted = content(folder)
    numbers = list(range(1, whole.count + 1))
    for number in numbers if IS_WHOLE else Random(name).sample(numbers, min(1, len(numbers))):
        start(name)
        how = "short" if kind == "short" else "fail"
        ran = runner.run(line, Fault(folder, kinds, number, how=how, error=errno.EINTR))
        assert ran.code == work.code, f"{number}: {ran.hit}\n{ran.told}"
        check_content(folder, name, wanted)
