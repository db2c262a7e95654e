"""`rmqtool problems`: the text of a code fits a terminal, and its source is one that a user can follow."""

from __future__ import annotations

import re

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_OK
from rmqtool.problems import PROBLEMS

_SOURCE = re.compile(r"(?:[A-Z]\w+(?:\.[A-Z]\w+)?(?:#\w+)?|#\w+)(?:, |$)|rmqtool-?\w*\(\d\)(?:, [A-Z ]+)?$")


@pytest.mark.parametrize("columns", ["80", "200"])
def test_every_code_fits_80_columns(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["problems", *(each.code for each in PROBLEMS)]) == EXIT_OK
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    for each in PROBLEMS:
        for text in (each.message, each.broker, each.remedy or "none", each.source):
            assert " ".join(text.split()) in words, each.code


def test_what_rebuild_repairs_recover_repairs_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The findings lead to recover; the explanation of a code names both."""
    assert main(["problems", "CQ13"]) == EXIT_OK
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "rmqtool rebuild STORE: rebuilds the queue from the commit log; rmqtool recover STORE does so too"
        in text
    )


def test_sources_are_classes_of_rocketmq_or_pages_of_the_manual() -> None:
    """Not the papers that this project was made from, which no user has."""
    for each in PROBLEMS:
        assert "".join(match[0] for match in _SOURCE.finditer(each.source)) == each.source, each.code


def test_a_checkpoint_that_is_behind_is_normal_after_append(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the page on recovery said that it does no harm."""
    assert main(["problems", "CP07"]) == EXIT_OK
    assert "normal after an append of older messages" in " ".join(capsys.readouterr().out.split())
