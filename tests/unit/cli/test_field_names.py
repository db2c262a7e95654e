"""`--fields help` and `--columns help`: the names of fields, of every command that has such an option."""

from __future__ import annotations

from importlib import import_module
from inspect import signature

import pytest

from rmqtool.cli import main
from rmqtool.commands import COMMANDS
from rmqtool.message.columns import NAMES
from tests.support.stores import Library

Capture = pytest.CaptureFixture[str]


def option_of(command: str) -> str | None:
    """The option of a command that takes names of fields."""
    taken = signature(getattr(import_module(f"rmqtool.commands.{command}"), command)).parameters
    return next((f"--{name}" for name in ("fields", "columns") if name in taken), None)


@pytest.mark.parametrize("command", [name for name in COMMANDS if option_of(name)])
def test_names_are_listed_without_a_store(command: str, capsys: Capture) -> None:
    """STORE may be missing: the names do not depend on it."""
    code = main([command.replace("_", "-"), str(option_of(command)), "help"])
    out, err = capsys.readouterr()
    if command == "sql":
        assert (code, out) == (2, "") and "the fields are those of the query" in err
    else:
        assert (code, err) == (0, "") and len(out.splitlines()) > 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump"], ["dump", "--gaps"], ["dump", "--stats-only"], ["dump", "--what", "index"],
        ["dump", "--what", "consumequeue"], ["dump", "--what", "checkpoint"], ["dump", "--what", "config"],
        ["dump", "--what", "timer"], ["dump", "--what", "pop"], ["dump", "--what", "epoch"],
        ["stats"], ["stats", "--by", "group,topic"], ["stats", "--by", "queue"], ["stats", "--delayed"],
        ["stats", "--transactions"], ["stats", "--duplicates"], ["stats", "--largest", "1"], ["tail"],
        ["verify"], ["lookup", "--topic", "pubTopicOne", "--tag", "x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_they_are_those_of_the_rows(arguments: list[str], cases: Library, capsys: Capture) -> None:
    """The names are accepted as they are listed, and each other one is not."""
    assert main([*arguments, "--fields", "help"]) == 0
    names = capsys.readouterr().out.split()
    command, *options = arguments
    store = str(cases.path("ok_540_clean"))
    assert main([command, store, *options, "--fields", ",".join(names), "--format", "csv"]) in (0, 1)
    header = capsys.readouterr().out.partition("\n")[0]
    assert not header or header.split(",") == names
    assert main([command, store, *options, "--fields", "nosuch"]) == 2
    listed = capsys.readouterr().err.partition("fields are: ")[2].strip()
    assert listed.split(", ") == names


def test_the_kind_of_a_single_file_counts(cases: Library, capsys: Capture) -> None:
    """`dump` of a queue lists its fields; where it is a store, those of messages."""
    store = cases.path("ok_540_clean")
    for path, first in ((store / "consumequeue/pubTopicOne/0", "topic"), (store, NAMES[0])):
        assert main(["dump", str(path), "--fields", "help"]) == 0
        assert capsys.readouterr().out.split()[0] == first
    assert main(["dump", "--what", "x", "--fields", "help"]) == 2
    assert "'x' is not one of commitlog, consumequeue" in capsys.readouterr().err
    assert main(["sql", str(store), "SELECT topic FROM messages", "--fields", "help"]) == 0
    assert capsys.readouterr().out == "topic\n"
