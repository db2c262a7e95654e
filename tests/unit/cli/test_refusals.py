"""Errors of a command line name the words that were typed, and their lines can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.commands.doctor_text import _omissions_in_short
from rmqtool.errors import EXIT_USAGE
from rmqtool.report.doctor.diagnosis import Examination, Omission
from tests.support.stores import Library

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["completion"], "Missing argument 'SHELL'. Choose from: bash, zsh, fish\n"),
        (["lookup", "STORE", "k", "--keys-from", "KEYS"], "VALUE and --keys-from exclude each other"),
        (["export", "STORE", "--output", "x.csv", "--fields", "topic,topic"], "a column is named twice"),
        (["export", "STORE", "--output", "x.csv", "--fields", "qqq"], "help instead of names lists them"),
        (["expire", "STORE", "--before", "9" * 20], "a physical offset has at most 19 digits"),
        *(([name, ""], "the name of the store is empty") for name in ("info", "recover", "serve", "warm")),
        (["diff", "STORE", ""], "the name of the store is empty"),
    ],
)
def test_a_wrong_line_is_told_why(
    words: list[str], told: str, cases: Library, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "keys").write_text("a\n")
    places = {"STORE": str(cases.path("ok_540_clean")), "KEYS": str(tmp_path / "keys")}
    assert main([places.get(word, word) for word in words]) == EXIT_USAGE
    assert told in capsys.readouterr().err


def test_doctor_cuts_no_phrase_of_what_it_did_not_look_at() -> None:
    """Only as many as fit two lines; the rest is `and more`."""
    whats = [f"the {number}th part of the commit log" for number in range(9)]
    found = Examination.__new__(Examination)
    found.omissions = [Omission(what, "too long") for what in whats]
    *lines, more = _omissions_in_short(found)
    text = " ".join(line.strip() for line in lines).removeprefix("unknown").strip()
    assert len(lines) <= 2 and text.split("; ") == whats[: text.count(";") + 1]
    assert more.strip().startswith("and more: ")


@pytest.mark.parametrize("words", [["k" * 100_000 + " "], ["--offset", "k" * 100_000]])
def test_a_long_value_is_not_repeated_in_full(words: list[str], cases: Library, capsys: Capture) -> None:
    """Neither in what was not found, nor in a command line, nor in an error."""
    assert main(["lookup", str(cases.path("ok_540_small_ipv6")), *words]) != 0
    assert len(capsys.readouterr().err) < 3000


def test_doctor_says_that_it_read_nothing_of_the_log(cases: Library, capsys: Capture) -> None:
    """Not that it left out the older part, which is all of it."""
    main(["doctor", str(cases.path("ok_540_clean")), "--read-limit", "1", "--all"])
    out = capsys.readouterr().out
    assert "the older" not in out and "the records of the commit log (" in out
