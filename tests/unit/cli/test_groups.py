"""Groups of options: what Typer sees of them, and what a command gets."""

from __future__ import annotations

import os
import subprocess
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from rmqtool.command_line import command_line
from rmqtool.commands import options
from rmqtool.commands.groups import Before, Group, Only, with_groups
from rmqtool.output import Output
from rmqtool.read.body_pattern import BodyPattern
from rmqtool.read.selection import Selection
from rmqtool.terminal import escape
from tests.support.programs import PATIENCE_S

Extra = Annotated[int, typer.Option("--extra", metavar="N", help="A number.")]
GOT: list[Any] = []


class OwnOptions(Group):
    """Options of one command."""

    first: Annotated[str | None, typer.Option("--first", metavar="A", help="A.")] = None
    last: Annotated[bool, typer.Option("--last", help="B."), Before("format")] = False


@with_groups
def command(
    *,
    store: options.StoreOptions,
    extra: Extra = 3,
    selected: Annotated[options.SelectionOptions, Only("queue topic")],
    shown: options.ObjectOutput,
    own: Annotated[OwnOptions, Before("queue")],
) -> int:
    """A command."""
    GOT[:] = store, extra, selected, shown, own
    return 0


def test_the_help_shows_options_where_the_signature_says() -> None:
    assert list(signature(command).parameters) == [
        "store", "commitlog", "read_only_commitlog", "broker_conf", "extra", "first", "queue", "topic", "tz",
        "last", "format", "json", "quiet", "progress",
    ]  # fmt: skip


def test_a_command_gets_its_groups_with_values_and_defaults() -> None:
    assert command(Path("s"), topic=["T"], last=True) == 0
    store, extra, selected, shown, own = GOT
    assert (store.store, store.commitlog, extra) == (Path("s"), None, 3)
    assert (selected.topic, selected.queue) == (["T"], None)
    assert selected.limit is None  # an option that the command does not have
    assert (shown.format, own.first, own.last) == (None, None, True)


def test_a_required_option_and_an_unknown_one_are_refused() -> None:
    with pytest.raises(TypeError, match="store"):
        command()
    with pytest.raises(TypeError, match="limit"):
        command(Path("s"), limit=3)


def test_an_override_replaces_the_option_and_keeps_its_place() -> None:
    """`format` of an object knows other formats; STORE of a command that changes stores another check."""
    assert "jsonl" not in str(signature(command).parameters["format"].annotation.__metadata__[0].metavar)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"topic": ["T"]}, Selection(topics=["T"])),
        ({"exclude_topic": ["T"]}, Selection(exclude_topics=["T"])),
        ({"queue": ["0-2", "7"]}, Selection(queues={0, 1, 2, 7})),
        ({"tag": ["A"]}, Selection(tags=["A"])),
        ({"key": ["k"]}, Selection(keys=["k"])),
        ({"grep": "a.c"}, Selection(grep=BodyPattern("a.c"))),
        ({"since": "5"}, Selection(since=5)),
        ({"until": "9"}, Selection(until=9)),
        ({"since": "5", "time_field": "born"}, Selection(since=5, time_field="born")),
        ({"from_offset": 3}, Selection(from_offset=3)),
        ({"to_offset": 4}, Selection(to_offset=4)),
        ({"limit": 5}, Selection(limit=5)),
    ],
)
def test_every_option_reaches_the_selection(given: dict[str, Any], meant: Selection) -> None:
    assert options.SelectionOptions(**given).selection("UTC") == meant


def test_every_option_of_the_selection_is_in_the_test_above() -> None:
    tested = {"topic", "exclude_topic", "queue", "tag", "key", "grep", "since", "until", "time_field",
              "from_offset", "to_offset", "limit"}  # fmt: skip
    assert set(options.SelectionOptions.__annotations__) == tested | {"filter"}
    filtered = options.SelectionOptions(filter="a IS NULL").selection(None)
    assert filtered.filter is not None and filtered != Selection()


def test_options_of_the_output_reach_the_writer() -> None:
    shown = options.OutputOptions(format="csv", fields="a, b", quiet=True)
    writer = shown.writer()
    assert isinstance(writer, Output)
    assert (writer.format, writer.fields, writer.quiet) == ("csv", ("a", "b"), True)


def test_a_command_line_of_the_same_store_is_one_for_a_shell() -> None:
    store = options.ProfiledStoreOptions(
        store=Path("my store"), commitlog=[Path("b")], broker_conf=Path("c"), profile="4.9"
    )
    line = store.command("recover", "--undo", "x y")
    assert line == "rmqtool recover 'my store' --commitlog b --broker-conf c --profile 4.9 --undo 'x y'"
    assert options.StoreOptions(store=Path("-s")).command("verify") == "rmqtool verify ./-s"


NAMES = ["$(id)", "a'b", "a\nb'c\\d", "\x1b[1m a!b", "\u202eé€", "\udcff\udcfe0", "~", ""]


def test_a_command_line_can_be_copied_from_the_screen() -> None:
    line = command_line("printf", r"%s\0", *NAMES)
    assert escape(line) == line
    done = subprocess.run(["bash", "-c", line], check=True, capture_output=True, timeout=PATIENCE_S)  # noqa: S603, S607
    assert [os.fsdecode(word) for word in done.stdout.split(b"\0")] == [*NAMES, ""]


def test_a_name_that_has_no_bytes_is_written() -> None:
    """Topics may have lone surrogates, which no shell can give to a program."""
    assert command_line("--topic", "a\ud800") == r"--topic $'a\xed\xa0\x80'"
