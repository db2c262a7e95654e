"""`rmqtool problems`: the text of a code fits a terminal, and its source is one that a user can follow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_OK, EXIT_USAGE
from rmqtool.problems import PROBLEMS
from rmqtool.report import doctor
from rmqtool.report.doctor.names import NAMES
from tests.support.stores import Library

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


def test_names_of_doctor_are_explained_too(capsys: pytest.CaptureFixture[str]) -> None:
    """All that a result can have besides codes, with cost and cure; a wrong name is told the nearest."""
    sources = [path.read_text() for path in Path(next(iter(doctor.__path__))).glob("*.py")]
    made = re.compile(r'(?:result\(\s*|yield )"([a-z_]+)", ')
    given = {name for source in sources for name in made.findall(source)}
    assert given == NAMES.keys() >= {"start_fails", "expired_unread", "read_ahead", "queues_missing"}
    assert main(["problems", *sorted(given)]) == EXIT_OK
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and len(re.findall(r"^cost  ", out, re.M)) == len(given)
    words = " ".join(out.split())
    for each in NAMES.values():
        assert f"problem {each.name} " in words and each.message in words
        assert f"cost {each.cost} do {each.cure} source rmqtool-doctor(1)" in words
    assert main(["problems", "start_fail"]) == EXIT_USAGE
    assert "nearest: start_fails" in capsys.readouterr().err


def test_what_rebuild_repairs_recover_repairs_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The findings lead to recover; the explanation of a code names both."""
    assert main(["problems", "CQ13"]) == EXIT_OK
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "rmqtool rebuild STORE: rebuilds the queue from the commit log; rmqtool recover STORE does so too"
        in text
    )


def test_no_repair_is_named_that_leaves_the_finding(
    cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries that a broker made twice stay: rebuild keeps an index file that is as a broker writes it."""
    root = cases.copy("torn_533_killed_after_recovery", tmp_path / "store")
    assert main(["rebuild", str(root), "--only", "index", "--apply"]) == EXIT_OK
    capsys.readouterr()
    main(["verify", str(root), "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (repair,) = {each["repair"] for each in found if each["problem"] == "IX05"}
    assert repair is None


def test_sources_are_classes_of_rocketmq_or_pages_of_the_manual() -> None:
    """Not the papers that this project was made from, which no user has."""
    for each in PROBLEMS:
        assert "".join(match[0] for match in _SOURCE.finditer(each.source)) == each.source, each.code


def test_a_checkpoint_that_is_behind_is_normal_after_append(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the page on recovery said that it does no harm."""
    assert main(["problems", "CP07"]) == EXIT_OK
    assert "normal after an append of older messages" in " ".join(capsys.readouterr().out.split())


def test_the_page_of_help_takes_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """And shows the same as the command; another page refuses them."""
    assert main(["problems", "CF03"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert main(["help", "problems", "CF03"]) == EXIT_OK
    assert capsys.readouterr().out == shown
    assert main(["help", "dump", "CF03"]) == EXIT_USAGE
    assert "help shows one page" in capsys.readouterr().err
