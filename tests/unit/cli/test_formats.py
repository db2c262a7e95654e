"""`--json`, and the default format of the environment, for every kind of command."""

from __future__ import annotations

import json

import pytest

from rmqtool.cli import main
from tests.support.stores import Library

Capture = pytest.CaptureFixture[str]
ROWS = ["dump", "--limit", "3", "--fields", "topic,physical_offset"]
OBJECT = ["recover", "--broker", "5.4"]  # whose answer depends on nothing but the store


@pytest.fixture
def store(cases: Library) -> str:
    return str(cases.path("ok_540_clean"))


def out_of(capsys: Capture, words: list[str], store: str) -> str:
    """What the command prints."""
    assert main([words[0], store, *words[1:]]) == 0
    return capsys.readouterr().out


def test_json_is_a_short_form(store: str, capsys: Capture) -> None:
    """Of jsonl where rows are shown, and of json where one object is."""
    for words, format in ((ROWS, "jsonl"), (OBJECT, "json")):
        asked = out_of(capsys, [*words, "--json"], store)
        assert asked == out_of(capsys, [*words, "--format", format], store)
    assert main(["info", store, "--json", "--format", "text"]) == 2
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "rows", "single"),
    [("text", "table", "text"), ("table", "table", "text"), ("jsonl", "jsonl", "json"),
     ("json", "json", "json"), ("csv", "csv", "text"), ("tsv", "tsv", "text")],
)  # fmt: skip
def test_the_environment_sets_the_default(
    store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, value: str, rows: str, single: str
) -> None:
    """Of every command; the option wins."""
    wanted = [
        out_of(capsys, [*words, "--format", name], store) for words, name in ((ROWS, rows), (OBJECT, single))
    ]
    other = out_of(capsys, [*ROWS, "--format", "tsv"], store)
    monkeypatch.setenv("RMQTOOL_FORMAT", value)
    assert [out_of(capsys, words, store) for words in (ROWS, OBJECT)] == wanted
    assert out_of(capsys, [*ROWS, "--format", "tsv"], store) == other


def test_a_format_of_the_environment_that_does_not_exist(
    store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQTOOL_FORMAT", "yaml")
    assert main(["info", store]) == 2
    error = capsys.readouterr().err
    assert "RMQTOOL_FORMAT: unknown format 'yaml'" in error and "jsonl" in error


def test_one_kind_of_damage(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """`problems CODE` is a text for people, unless anything else is requested."""
    assert main(["problems", "CL03"]) == 0
    text = capsys.readouterr().out
    monkeypatch.setenv("RMQTOOL_FORMAT", "text")
    assert main(["problems", "CL03"]) == 0
    assert capsys.readouterr().out == text
    for words in (["--json"], ["--format", "jsonl"]):
        assert main(["problems", "CL03", *words]) == 0
        assert json.loads(capsys.readouterr().out)["problem"] == "CL03"
