"""The examples of the help work: each is run as it is written, against copies of a fixture."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from rmqtool import cli
from rmqtool.commands import guide
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from tests.support.programs import RMQTOOL, surroundings
from tests.support.stores import Library
from tests.support.trees import copy_tree
from tests.tools import readme

# What a path of an example is in the folder of the operator; all other names exist there, or are made.
PLACES = {
    "/data/rocketmq/store": "STORE",
    "/data/master/store": "STORE",
    "/data/slave/store": "BACKUP",
    "/backup/log": "archive",
    "s3://lake/messages/": "messages/",
}
BACKUP_OF_REPAIR = "STORE.rmqtool-backup-20260131-143000"
# Stores in which a command finds what its examples are about.
STORE_OF = {"recover": "DAMAGED", "expire": "SMALL", "copy": "SMALL"}
SMALL_FILES = "--commitlog-file-size 64K --queue-file-size 200 --index-slots 10 --index-entries 100"

# What cannot run here, by the command or by a word of the line, and why.
NOT_RUN_COMMANDS = {
    "browse": "needs a terminal",
    "serve": "runs until it is stopped",
    "receive": "needs a broker",
    "send-log": "needs a slave",
    "spark-scan": "needs Spark",
}
NOT_RUN_WORDS = {
    "--follow": "runs until it is stopped",
    "--watch": "runs until it is stopped",
    "sudo": "writes to /etc",
}
# Lines that show a plan, which changes something: their exit code is 1.
WOULD_CHANGE = {
    "rmqtool recover STORE", "rmqtool deliver STORE",
    "rmqtool reset-offset STORE --group billing --since '2h ago'",
}  # fmt: skip


def why_not_run(name: str, line: str) -> str | None:
    """The reason that an example is not run here; None if it is."""
    reasons = (reason for word, reason in NOT_RUN_WORDS.items() if word in line)
    return NOT_RUN_COMMANDS.get(name) or next(reasons, None)


RUN = {
    name: lines
    for name in guide.EXAMPLES
    if (lines := [line for _, line in guide.EXAMPLES[name] if why_not_run(name, line) is None])
}


@pytest.fixture(scope="module")
def operator(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an operator: stores that also hold messages of now, a configuration, files."""
    folder = tmp_path_factory.mktemp("operator")
    store = cases.copy(readme.CASE, folder / "STORE")
    rows = [
        {"topic": "orders", "tags": "paid", "keys": key, "body": f"of {key}"} for key in ("ORDER-17", "x")
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(f"rmqtool append {store} --create-topic --input {folder}/rows.jsonl") == EXIT_OK
    commit(store, "orders@billing", 1)
    for name in ("OTHER", "BACKUP"):
        copy_tree(store, folder / name)
    small = folder / "SMALL"
    assert run(f"rmqtool append {small} --create {SMALL_FILES} --input {folder}/rows.jsonl") == EXIT_OK
    commit(small, "orders@billing", 1)
    copy_tree(cases.variant(readme.RECOVERY_CASE, folder / "linked"), folder / "DAMAGED")
    shutil.rmtree(folder / "linked")
    assert run(f"rmqtool export {store} --topic orders --output {folder}/messages.parquet") == EXIT_OK
    (folder / "broker.conf").write_text("brokerName=broker-a\nfileReservedTime=48\n")
    (folder / "store.log").write_text("INFO main - load STORE/consumequeue/orders/0 OK\n")
    return folder


def commit(store: Path, group: str, offset: int) -> None:
    """A consumer group that has read queue 0 up to `offset`, besides those that the store has."""
    file = store / "config" / "consumerOffset.json"
    text = file.read_text() if file.exists() else '{"offsetTable":{}}'
    head, table, rest = text.partition('"offsetTable":{')
    comma = "" if rest.startswith("}") else ","
    file.write_text(f'{head}{table}"{group}":{{0:{offset}}}{comma}{rest}')


@pytest.mark.parametrize("name", RUN)
def test_examples_of_a_command_work(
    name: str, operator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the help: what was applied is then undone."""
    folder = copy_tree(operator, tmp_path / "operator")
    if name in STORE_OF:
        shutil.rmtree(folder / "STORE")
        (folder / STORE_OF[name]).rename(folder / "STORE")
    monkeypatch.chdir(folder)
    for line in RUN[name]:
        assert run(here(line)) == (EXIT_FINDINGS if line in WOULD_CHANGE else EXIT_OK), line


def test_exceptions_are_those_of_examples() -> None:
    """No reason is left for an example that is gone."""
    lines = [line for examples in guide.EXAMPLES.values() for _, line in examples]
    assert guide.EXAMPLES.keys() >= NOT_RUN_COMMANDS.keys() | STORE_OF.keys()
    assert WOULD_CHANGE <= {*lines}
    assert all(any(word in line for line in lines) for word in (*NOT_RUN_WORDS, *PLACES, BACKUP_OF_REPAIR))


def here(line: str) -> str:
    """The line with the names of this folder; what an earlier example has written under them is gone."""
    for place, name in PLACES.items():
        line = line.replace(place, name)
    if BACKUP_OF_REPAIR in line:
        (backup,) = Path().glob("STORE.rmqtool-backup-*")
        line = line.replace(BACKUP_OF_REPAIR, backup.name)
    words = shlex.split(line)
    if "--output" in words:
        output = Path(words[words.index("--output") + 1])
        if output.is_dir():
            shutil.rmtree(output)
        output.unlink(missing_ok=True)
    return line


def run(line: str) -> int:
    """The exit code of a line: in this process, or with a pipe as two programs."""
    command, _, file = line.partition(" > ")
    first, pipe, second = command.partition(" | ")
    assert not (file and pipe)
    words = shlex.split(first)[1:]
    if not pipe:
        with Path(os.devnull).open(encoding="utf-8") as nothing, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", nothing)
            return cli.main(words)
    written = subprocess.run([*RMQTOOL, *words], env=surroundings(), check=True, capture_output=True)
    reader = [*RMQTOOL, *shlex.split(second)[1:]]
    return subprocess.run(reader, env=surroundings(), check=False, input=written.stdout).returncode
