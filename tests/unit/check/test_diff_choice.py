"""What helps to choose which of two stores stays, and to repair it, in the text of `rmqtool diff`."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from tests.support.build_store import patch
from tests.support.diffs import Pair
from tests.support.whole_store import keyed, write_whole
from tests.unit.check.test_diff_whole_files import make_parted, zero

pytestmark = pytest.mark.usefixtures("unbroken")

Capture = pytest.CaptureFixture[str]
StoreCopy = Callable[[str], Path]


def text_of(capfd: Capture, pair: Pair) -> str:
    """The text of the comparison."""
    capfd.readouterr()
    assert main(["diff", *map(str, pair)]) == EXIT_FINDINGS
    return capfd.readouterr().out


def lines_after(text: str, label: str) -> list[str]:
    """The line that begins with `label`, and those below it."""
    return text[text.index(f"\n{label}") + 1 :].splitlines()


def test_the_verdict_says_which_store_is_cheaper_to_keep(
    store_copy: StoreCopy, tmp_path: Path, capfd: Capture
) -> None:
    """By the messages to carry over, those included that the store lacks where it is damaged."""
    pair = store_copy("torn_540_killed"), store_copy("torn_540_killed_burst")
    patch(min((pair[0] / "commitlog").iterdir()), 204_800, bytes(8192))
    sentence = "Less has to be carried over if {} stays: 1126 messages instead of 11528.\n"
    assert sentence.format("B") in text_of(capfd, pair)
    assert sentence.format("A") in text_of(capfd, pair[::-1])
    sorted((pair[1] / "commitlog").iterdir())[1].unlink()  # how many messages B lacks is not known any more
    assert "Less has" not in text_of(capfd, pair)
    make_parted(tmp_path / "alike", 100)  # 60 messages either way
    assert "Less has" not in text_of(capfd, (tmp_path / "alike/a", tmp_path / "alike/b"))


def test_no_store_is_called_cheaper_for_what_a_copy_brings(tmp_path: Path, capfd: Capture) -> None:
    """Without the messages that come with the files both stores lack the same number."""
    make_parted(tmp_path, 120)
    pair = tmp_path / "a", tmp_path / "b"
    for place in (0, 8192, 16384):
        zero(pair[0], place, place + 8192)
    text = text_of(capfd, pair)
    assert "\nbest         If A stays, copy 3 files" in text and "Less has" not in text


def test_stores_that_lack_nothing_of_each_other_are_equally_cheap(tmp_path: Path, capfd: Capture) -> None:
    """Both have the same messages, and have lost the same one: neither holds all of the other for certain."""
    stored = make_parted(tmp_path, 100, prefix=b"U")
    pair, lost = (tmp_path / "a", tmp_path / "b"), stored[130].physical_offset
    for root in pair:
        zero(root, lost, lost + 40)
    text = text_of(capfd, pair)
    assert "\nverdict      The stores differ; their logs have diverged.\n" in text


def test_a_repair_that_either_choice_needs(tmp_path: Path, capfd: Capture) -> None:
    """Above the choice stands that it does not depend on it; each store that needs none is left out."""
    make_parted(tmp_path, 100)
    pair = tmp_path / "a", tmp_path / "b"
    assert "\nfirst " not in text_of(capfd, pair)
    lead, rest = "first        Whichever store stays", "repair it, do not start it, then compare again:"
    for number, name in enumerate("AB"):
        (pair[number] / "abort").touch()
        text = text_of(capfd, pair)
        assert text.count("\nfirst ") == number + 1
        line, repair = lines_after(text, f"{lead}: {name} ")[:2]
        assert line == f"{lead}: {name} was not stopped cleanly: {rest}"
        assert repair == f"run          rmqtool recover {pair[number]} --apply"
        assert text.index("\ncarry over ") < text.index(f"\n{lead}") < text.index("\nif A stays")


@pytest.mark.parametrize(
    ("folder", "kinds", "settings"),
    [
        ("index", "index files", ["maxHashSlotNum=1000", "maxIndexNum=4000"]),
        ("consumequeue", "queue files", ["mappedFileSizeConsumeQueue=20000"]),
    ],
)
def test_sizes_that_only_the_other_store_shows(
    folder: str, kinds: str, settings: list[str], store_copy: StoreCopy, tmp_path: Path, capfd: Capture
) -> None:
    """A repair with the settings that are named gives files of the sizes that the other store has."""
    pair = store_copy("torn_540_killed"), store_copy("torn_540_killed_burst")
    main(["info", str(pair[0]), "--json"])
    wanted = json.loads(capfd.readouterr().out)["sizes"]
    assert "\nsizes " not in text_of(capfd, pair)
    shutil.rmtree(pair[1] / folder)
    text = text_of(capfd, pair)
    assert text.count("\nsizes ") == 1
    first, said, repair = lines_after(text, "first        Whichever store stays: B")[:3]
    assert first.endswith("then compare again:")
    assert said == (
        f"sizes        B has no {kinds} that show their size. If its broker has the settings of A, write them"
        f" into a FILE, each on a line: {' and '.join(settings)}. With the default sizes run recover without"
        " --broker-conf."
    )
    assert repair == f"run          rmqtool recover {pair[1]} --broker-conf FILE --apply"
    (tmp_path / "settings").write_text("\n".join(settings))
    words = shlex.split(repair[13:].replace("FILE", str(tmp_path / "settings")))
    assert main(words[1:]) == EXIT_OK
    capfd.readouterr()
    main(["info", str(pair[1]), "--json"])
    assert json.loads(capfd.readouterr().out)["sizes"] == wanted
    assert "\nsizes " not in text_of(capfd, pair)


def test_default_sizes_need_no_settings(tmp_path: Path, capfd: Capture) -> None:
    """The other store has them too, or no files that show them; and no repair is asked for."""
    make_parted(tmp_path, 100)
    pair = tmp_path / "a", tmp_path / "b"
    shutil.rmtree(pair[1] / "index")
    assert "\nsizes " not in text_of(capfd, pair)  # nothing to repair first
    (pair[1] / "abort").touch()
    assert "maxHashSlotNum=50 and maxIndexNum=960." in text_of(capfd, pair)
    shutil.rmtree(pair[0] / "index")
    assert "\nsizes " not in text_of(capfd, pair)


def test_sizes_stand_below_files_to_copy_too(tmp_path: Path, capfd: Capture) -> None:
    """Where the logs have not parted, for the store that gets the files."""
    for name in "ab":
        write_whole(tmp_path / name, keyed(45), log_file_size=8192)
    zero(tmp_path / "a", 500, 1000)
    shutil.rmtree(tmp_path / "a/index")
    lines = lines_after(text_of(capfd, (tmp_path / "a", tmp_path / "b")), "best ")
    assert [each[:13].strip() for each in lines[:6]] == ["best", "keep", "keep", "copy", "sizes", "run"]
    assert lines[5] == f"run          rmqtool recover {tmp_path / 'a'} --broker-conf FILE --apply"
