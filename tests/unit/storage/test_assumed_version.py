"""A broker version that the store does not tell: it is called a guess, and an option settles it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmqtool.cli import main
from tests.support.stores import Library

Capture = pytest.CaptureFixture[str]

GUESS = "5.x (5.3 or 5.4; config/ is missing)"
ASSUMED = f"the broker version is {GUESS}; 5.3 is assumed: "


@pytest.fixture
def store(cases: Library, tmp_path: Path) -> Path:
    root = cases.copy("ok_540_clean", tmp_path / "store")
    shutil.rmtree(root / "config")
    return root


def run(capfd: Capture, *arguments: object) -> tuple[str, str]:
    """What a command says on stdout and on stderr."""
    capfd.readouterr()
    main([str(each) for each in arguments])
    out, err = capfd.readouterr()
    return out, err


def test_info_and_diff(store: Path, capfd: Capture) -> None:
    assert f"written by   broker {GUESS}, record version 1\n" in run(capfd, "info", store)[0]
    found = json.loads(run(capfd, "info", store, "--format", "json")[0])
    assert found["written_by"] == "5.3" and found["written_by_candidates"] == ["5.3", "5.4"]
    assert found["written_by_reason"] == "config/ is missing"
    assert f"(broker {GUESS}, stopped cleanly)" in " ".join(run(capfd, "diff", store, store)[0].split())


@pytest.mark.parametrize("name", ["recover", "rebuild"])
def test_a_repair_does_not_make_the_guess_a_fact(store: Path, capfd: Capture, name: str) -> None:
    """The topics.json that it writes is read by brokers of both versions, and shows neither."""
    assert "which did not write" not in run(capfd, "recover", store)[0]
    run(capfd, name, store, "--apply")
    topics = json.loads((store / "config/topics.json").read_bytes())["topicConfigTable"]
    assert topics["pubBatchCQ"]["attributes"] and "attributes" not in topics["pubTopicOne"]
    known = "5.x (5.3 or 5.4; config/ does not say)"
    assert f"written by   broker {known}, " in run(capfd, "info", store)[0]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("expire",), "--broker"),
        (("lookup", "--topic", "pubTopicOne", "--time", "2026-11-21T08:51:00Z"), "--broker"),
        (("rebuild",), "--profile"),
        (("recover",), "--profile"),
        (("deliver",), "--profile"),
        (("copy", "--output", "NEW"), "--profile"),
        (("append", "--topic", "pubTopicOne", "--body", "x", "--create-topic"), "--profile"),
    ],
)
def test_a_command_names_what_it_assumes(
    store: Path, tmp_path: Path, capfd: Capture, command: tuple[str, ...], option: str
) -> None:
    name, *rest = command
    arguments = [each.replace("NEW", str(tmp_path / "new")) for each in rest]
    assert f"{ASSUMED}use {option} to name the version" in run(capfd, name, store, *arguments)[1]
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert "is assumed" not in run(capfd, name, store, *arguments, option, "5.4")[1]


def test_a_known_version_is_stated(cases: Library, capfd: Capture) -> None:
    root = cases.path("ok_540_clean")
    assert "written by   broker 5.4, record version 1\n" in run(capfd, "info", root)[0]
    out, err = run(capfd, "expire", root)
    assert "rules        defaults of broker 5.4 (" in out and "assumed" not in err
