"""The command that unpacks a case by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores import case_names, main


@pytest.mark.parametrize("words", [(), ("--help",), ("nope", "NEW"), ("ok_540_clean",), ("9.9:a:b:c", "NEW")])
def test_the_names_are_listed(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stdout for --help; for a wrong name with the reason on stderr, and exit code 2."""
    code = main([word.replace("NEW", str(tmp_path / "new")) for word in words])
    out, err = capsys.readouterr()
    is_asked = words == ("--help",)
    assert (code, bool(out), bool(err)) == (0 if is_asked else 2, is_asked, not is_asked)
    assert set(case_names()) <= set((out + err).split()) and "usage: " in out + err
    assert not list(tmp_path.iterdir())


def test_a_case_is_unpacked_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing folder stays as it is."""
    folder = tmp_path / "store"
    assert main(["torn_497_killed_burst", str(folder)]) == 0
    assert (folder / "commitlog").is_dir() and list(tmp_path.iterdir()) == [folder]
    assert main(["torn_497_killed_burst", str(folder)]) == 2
    assert "exists" in capsys.readouterr().err
