"""Findings as blocks of text: nothing is cut, whatever the width."""

from __future__ import annotations

import json
import sys

import pytest

from rmqtool.cli import main
from rmqtool.commands.finding_report import FindingBlocks
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.problems import BY_CODE, PROBLEMS
from tests.support.stores import Library


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["gap_cl20_missing_file", "gap_cl08_zeroed_page"])
def test_findings_of_verify(
    cases: Library, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    """Code, severity and whole place; the sentence; what to do, with the store's path."""
    root = cases.path(name)
    monkeypatch.setenv("COLUMNS", str(width))
    main(["verify", str(root), "--json"])
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    main(["verify", str(root)])
    lines = capfd.readouterr().out.splitlines()
    text = " ".join(" ".join(lines).split())
    assert rows
    for row in rows:
        place = row["path"] + (f", offset {row['physical_offset']}" if row["physical_offset"] else "")
        assert f"{row['severity'].upper()}: {row['problem']} {place}" in text
        assert row["message"] in text
        assert "STORE" not in (row["repair"] or "") and (row["repair"] or "") in text
    assert all(len(line) <= width or str(root) in line for line in lines)
    main(["verify", str(root), "--format", "table"])
    assert capfd.readouterr().out.split()[:2] == ["problem", "severity"]


def test_a_problem_is_explained_once_for_all_its_places() -> None:
    row = {"problem": "CQ13", "severity": "error", "message": "wrong", "path": "a", "physical_offset": None,
           "length": 20, "repair": "rmqtool rebuild STORE: rebuilds it"}  # fmt: skip
    blocks = FindingBlocks()
    rows = (row, {**row, "path": "b"}, {**row, "message": "more"})
    assert [line for each in rows for line in blocks.lines(each, 80)] == [
        "ERROR: CQ13 a, 20 bytes", "  wrong", "  do      rmqtool rebuild STORE: rebuilds it",
        "ERROR: CQ13 b, 20 bytes", "", "ERROR: CQ13 a, 20 bytes", "  more",
    ]  # fmt: skip


def test_the_list_of_problems(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong and what a broker does, in full at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["problems"]) == EXIT_OK
    out = capfd.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    for each in PROBLEMS:
        assert f"{each.severity.upper()}: {each.code} {each.name} {each.message} broker" in words
        assert " ".join(each.reaction.split()) in words


def test_no_command_repairs_a_part_of_a_store(cases: Library, capfd: pytest.CaptureFixture[str]) -> None:
    """Recover refuses it: the line could not be carried out."""
    (first, *_) = sorted((cases.path("bad_cl03_body_crc") / "commitlog").iterdir())
    assert main(["verify", str(first)]) == EXIT_FINDINGS
    out = capfd.readouterr().out
    assert "do      a repair needs the whole store\n" in out and "rmqtool recover" not in out


@pytest.mark.parametrize("terminal", [False, True])
def test_findings_of_dump(
    cases: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """In one line that can be searched; on a terminal the sentence is below the place."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["dump", str(cases.path("gap_cl08_zeroed_page"))]) == EXIT_FINDINGS
    lines = [line for line in capsys.readouterr().err.splitlines() if "CL08" in line or line.startswith("  ")]
    assert lines[0].startswith("rmqtool: error: CL08 ")
    assert lines[0].startswith("rmqtool: error: CL08 commitlog/") is terminal
    if terminal:
        assert lines[1] == f"  {BY_CODE['CL08'].message}"
