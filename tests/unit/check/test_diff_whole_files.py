"""Files of the log that `rmqtool diff` says to copy to one of two stores whose logs part."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.formats.index import Shape
from rmqtool.formats.message import Message
from rmqtool.read.fillers import fillers
from rmqtool.read.store import Store
from tests.support.build_store import file_name, patch
from tests.support.diffs import Pair, make_pair, run
from tests.support.trees import copy_tree
from tests.support.whole_store import keyed, write_whole

pytestmark = pytest.mark.usefixtures("unbroken")

Capture = pytest.CaptureFixture[str]
StoreCopy = Callable[[str], Path]

MIB = 1 << 20
PARTS_AT = 3_718_465  # of the two real stores
SIZE = 8192  # of the log files of the small ones


@pytest.fixture
def real(store_copy: StoreCopy) -> Pair:
    """Two stores of a real broker, written from the same state on: it was killed twice."""
    return store_copy("torn_540_killed"), store_copy("torn_540_killed_burst")


def make_parted(
    folder: Path, parts_at: int, *, count: int = 160, body: int = 150, prefix: bytes = b"V"
) -> list[Message]:
    """Two small stores whose logs part at the record of this number, `a` and `b`; the records of `a`.

    The unique keys of `b` begin with `prefix` from there on, those of `a` with U.
    """
    records = keyed(count, body=body)
    later = [
        replace(
            each, properties_bytes=each.properties_bytes.replace(b"U0", prefix + b"0"),
            born_timestamp=each.born_timestamp + 1, store_timestamp=each.store_timestamp + 1,
        )
        for each in records[parts_at:]
    ]  # fmt: skip
    shape = Shape(50, 6 * count)
    stored = write_whole(folder / "a", records, log_file_size=SIZE, shape=shape)
    write_whole(folder / "b", [*records[:parts_at], *later], log_file_size=SIZE, shape=shape)
    return stored


def zero(root: Path, start: int, stop: int, size: int = SIZE) -> None:
    """Overwrite this range of the log, which lies in one file, with zeros."""
    base = start - start % size
    patch(root / "commitlog" / file_name(base), start - base, bytes(stop - start))


def log_of(capfd: Capture, pair: Pair, *options: str) -> dict[str, Any]:
    """The comparison of the two logs, as JSON; they part."""
    log: dict[str, Any] = run(capfd, *pair, *options)[1]["commit_log"]
    assert log["diverged"] is not None
    return log


def copies(log: dict[str, Any]) -> list[tuple[str, list[str], int | None]]:
    """Which side is to get which files, and how many messages they bring."""
    return [
        (each["side"], [Path(file["from"]).name for file in each["files"]], each["messages"])
        for each in log["whole_files"]
    ]


def follow(text: str, backup: Path | None) -> None:
    """Run the lines of the advice to copy files, one by one, word for word."""
    lines = text[text.index("\nbest ") + 1 :].splitlines()
    for line in lines[1 : next(n for n, each in enumerate(lines) if each.startswith(("offsets", "carry")))]:
        label, words = line[:13].rstrip(), shlex.split(line[13:])
        if label == "undo":
            assert words[-1] == "BACKUP" and backup is not None
            words[-1] = str(backup)
        if label in ("keep", "copy"):
            assert words[0] in ("mkdir", "mv", "cp")
            subprocess.run(words, check=True, timeout=60)
        else:
            assert words[:2] == ["rmqtool", "recover"] and label in ("undo", "run")
            assert main(words[1:]) == EXIT_OK


def state(roots: Pair, side: str) -> tuple[Path, Path]:
    """The store of a side, and the other one."""
    return roots if side == "a" else roots[::-1]


@pytest.mark.parametrize(
    ("way", "side"),
    [("gone", "a"), ("cut", "b"), ("zeroed", "a"), ("page", "b"), ("filled", "a"), ("page and filled", "b")],
)
def test_files_before_the_parting_are_copied(
    way: str, side: str, real: Pair, tmp_path: Path, capfd: Capture
) -> None:
    """The advice, word for word: nothing of the damage is left, in the log, the queues and the index."""
    damaged, sound = state(real, side)
    second, third = sorted((damaged / "commitlog").iterdir())[1:3]
    if way == "gone":
        second.unlink()
    elif way == "cut":
        os.truncate(second, 300_000)
    elif way == "zeroed":
        patch(second, 0, bytes(MIB))
    else:
        patch(second, 300_000, bytes(8192))
    if "and" in way:
        patch(third, 700_000, bytes(20_000))
    backup = None
    if "filled" in way:
        assert main(["recover", str(damaged), "--apply"]) == EXIT_OK
        (backup,) = tmp_path.glob(f"{damaged.name}.rmqtool-backup-*")
    lost = [second, third] if "and" in way else [second]
    log = log_of(capfd, real)
    ((found_side, names, messages),) = copies(log)
    assert (found_side, names) == (side, [each.name for each in lost])
    assert log["whole_files"][0]["fillers"] == ("filled" in way)
    assert (messages is None) == (way == "cut")  # the cut removes the start of the message
    assert messages is None or messages > 10
    assert main(["diff", *map(str, real)]) == EXIT_FINDINGS
    text = capfd.readouterr().out
    assert f"\nbest         If {side.upper()} stays, copy {len(lost)} file" in text
    assert text.index("\nbest ") < text.index("\ncarry over ") < text.index("\nif A stays")
    assert "Then compare again before you run any other line" in text
    kept = {each.name: each.read_bytes() for each in lost if each.exists() and backup is None}
    follow(text, backup)
    for each in lost:
        assert each.read_bytes() == (sound / "commitlog" / each.name).read_bytes()
    aside = damaged.with_name(f"{damaged.name}.replaced")
    assert {each.name: each.read_bytes() for each in aside.glob("*")} == kept
    capfd.readouterr()
    assert main(["verify", str(damaged)]) == EXIT_OK, capfd.readouterr().out
    with Store.open(damaged) as store:
        assert list(fillers(store)) == []
    log = log_of(capfd, real)
    assert log["diverged"]["physical_offset"] == PARTS_AT and log["whole_files"] == []
    assert [part for each in log["ranges"] for part in each["lacking"]] == []
    assert not any(part["place"] == "inside" for part in log["only"])
    (first,) = log["ranges"]
    assert first["physical_offset"] >= PARTS_AT


def test_damage_of_either_store_is_cured_from_the_other(real: Pair, capfd: Capture) -> None:
    """Each has a file that the other needs, so whichever stays gets one."""
    for root, place in zip(real, (200_000, MIB + 200_000), strict=True):
        zero(root, place, place + 9000, MIB)
    (a, b) = copies(log_of(capfd, real))
    assert (a[:2], b[:2]) == (("a", [file_name(0)]), ("b", [file_name(MIB)]))
    main(["diff", *map(str, real)])
    text = capfd.readouterr().out
    assert "\nbest         If A stays, " in text and "\nbest         If B stays, " in text


def test_the_file_in_which_the_logs_part_is_not_copied(real: Pair, capfd: Capture) -> None:
    """Even if the damage is long before the parting: the file has records of the other store."""
    place = PARTS_AT - PARTS_AT % MIB + 20_000
    zero(real[0], place, place + 9000, MIB)
    log = log_of(capfd, real)
    assert [part["side"] for each in log["ranges"] for part in each["lacking"]][-1] == "a"
    assert copies(log) == []


def test_no_file_is_copied_that_would_bring_a_loss(tmp_path: Path, capfd: Capture) -> None:
    """The other store is damaged in that file too, or has a filler there: both lack something of it."""
    make_parted(tmp_path, 120)
    pair = tmp_path / "a", tmp_path / "b"
    zero(pair[0], SIZE + 500, SIZE + 1200)
    assert [each[:2] for each in copies(log_of(capfd, pair))] == [("a", [file_name(SIZE)])]
    zero(pair[1], SIZE + 6500, SIZE + 7200)
    assert copies(log_of(capfd, pair)) == []
    assert main(["recover", str(pair[1]), "--apply"]) == EXIT_OK
    log = log_of(capfd, pair)
    assert [part["kind"] for each in log["ranges"] for part in each["lacking"]] == ["damage", "fillers"]
    assert copies(log) == []


def test_no_file_is_copied_that_is_damaged_alike(tmp_path: Path, capfd: Capture) -> None:
    """What both stores lack does not differ, but the file is not sound in the other one."""
    make_parted(tmp_path, 120)
    pair = tmp_path / "a", tmp_path / "b"
    zero(pair[0], SIZE + 500, SIZE + 1200)
    for root in pair:
        zero(root, SIZE + 6500, SIZE + 7200)
    assert copies(log_of(capfd, pair)) == []


def test_no_file_with_fillers_is_copied(tmp_path: Path, capfd: Capture) -> None:
    """They stand where both have lost the messages, so that the copy would lack them too."""
    make_parted(tmp_path, 120)
    pair = tmp_path / "a", tmp_path / "b"
    zero(pair[1], SIZE + 6500, SIZE + 7200)
    assert main(["recover", str(pair[1]), "--apply"]) == EXIT_OK
    zero(pair[0], SIZE + 6400, SIZE + 7300)
    zero(pair[0], SIZE + 500, SIZE + 1200)
    assert copies(log_of(capfd, pair)) == []


def test_a_message_with_two_contents_is_not_replaced(tmp_path: Path, capfd: Capture) -> None:
    """No CRC covers the flag: which of the two messages is damaged is not known."""
    stored = make_parted(tmp_path, 120)
    pair = tmp_path / "a", tmp_path / "b"
    zero(pair[0], SIZE + 500, SIZE + 1200)
    place = next(each.physical_offset for each in stored if each.physical_offset > SIZE + 6500)
    patch(pair[0] / "commitlog" / file_name(SIZE), place - SIZE + 16, b"\0\0\0\7")
    assert copies(log_of(capfd, pair)) == []


def test_messages_after_the_end_of_a_damaged_log_are_not_replaced(tmp_path: Path, capfd: Capture) -> None:
    """Damage in the last file ends the log, and hides that it parts: recover salvages what follows."""
    stored = make_parted(tmp_path, 150)
    pair, starts = (tmp_path / "a", tmp_path / "b"), [each.physical_offset for each in stored]
    assert starts[-1] < starts[145] - starts[145] % SIZE + SIZE  # all of it is in one file
    base = starts[145] - starts[145] % SIZE
    patch(pair[0] / "commitlog" / file_name(base), starts[145] - base, b"\xff" * (starts[152] - starts[145]))
    shutil.rmtree(pair[0] / "consumequeue")  # its units would lead past the damage
    log = run(capfd, *pair)[1]["commit_log"]
    assert log["diverged"] is None and (log["behind_end"]["side"], log["ahead"]) == ("a", "b")
    assert copies(log) == []
    zero(pair[0], starts[152], starts[-1] + stored[-1].total_size)
    log = run(capfd, *pair)[1]["commit_log"]
    (found,) = log["whole_files"]
    assert [Path(each["from"]).name for each in found["files"]] == [file_name(base)]


def test_damage_up_to_the_parting_may_hide_it(tmp_path: Path, capfd: Capture) -> None:
    """The logs may part within what one of them lacks, if no message after it is in both."""
    stored = make_parted(tmp_path, 0)
    starts = [each.physical_offset for each in stored]
    number = next(n for n, start in enumerate(starts) if start == 3 * SIZE)
    for parts_at, lacked, offered in (
        (number, [SIZE], [SIZE]),
        (number, [2 * SIZE], []),
        (number, [SIZE, 2 * SIZE], []),
        (number + 1, [SIZE, 2 * SIZE], [SIZE, 2 * SIZE]),
    ):
        folder = tmp_path / f"{parts_at} {len(lacked)} {lacked[0]}"
        make_parted(folder, parts_at)
        pair = folder / "a", folder / "b"
        for each in lacked:
            (pair[0] / "commitlog" / file_name(each)).unlink()
        log = log_of(capfd, pair)
        assert log["diverged"]["physical_offset"] == starts[parts_at]
        names = [name for side, files, _ in copies(log) for name in files if side == "a"]
        assert names == [file_name(each) for each in offered], folder
    pair = tmp_path / "last/a", tmp_path / "last/b"
    make_parted(tmp_path / "last", number)
    zero(pair[0], 2 * SIZE + 100, 2 * SIZE + 600)  # messages after it, up to the parting, are in both
    assert copies(log_of(capfd, pair)) == [("a", [file_name(2 * SIZE)], 2)]


def test_differing_ranges_after_the_parting_need_not_be_listed(tmp_path: Path, capfd: Capture) -> None:
    """All of those before it must be: what is not listed was not compared."""
    make_parted(tmp_path, 20, count=40, body=6000)  # each message is a range of its own
    pair = tmp_path / "a", tmp_path / "b"
    zero(pair[0], 5 * SIZE + 1000, 5 * SIZE + 5000)
    zero(pair[0], 9 * SIZE + 1000, 9 * SIZE + 5000)
    log = log_of(capfd, pair, "--differences", "3")
    assert log["more_ranges"] and copies(log) == [("a", [file_name(5 * SIZE), file_name(9 * SIZE)], 2)]
    log = log_of(capfd, pair, "--differences", "1")
    assert log["more_ranges"] and copies(log) == []


def test_more_files_than_are_shown_are_copied_before_the_repair(tmp_path: Path, capfd: Capture) -> None:
    """The line of recover follows: what is not copied by then is replaced by fillers."""
    make_parted(tmp_path, 300, count=320)
    for place in range(0, 8 * SIZE, SIZE):
        zero(tmp_path / "a", place + 500, place + 900)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == EXIT_FINDINGS
    lines = capfd.readouterr().out.split("\nbest ")[1].splitlines()[1:]
    assert [each[:13].rstrip() for each in lines[:12]] == ["keep"] * 6 + ["copy"] * 5 + ["and"]
    more = "keep and copy 3 more files before the next line: --json names all (whole_files)"
    assert lines[11][13:] == more and lines[12].startswith("run ")


def test_messages_of_files_that_are_not_copied_do_not_count(tmp_path: Path, capfd: Capture) -> None:
    """A hole goes on in a file that is damaged in both: how much of it the copy brings is not known."""
    make_parted(tmp_path, 120)
    pair = tmp_path / "a", tmp_path / "b"
    zero(pair[0], SIZE + 6000, 2 * SIZE)
    zero(pair[0], 2 * SIZE, 2 * SIZE + 1000)
    zero(pair[1], 2 * SIZE + 7000, 2 * SIZE + 7800)
    assert copies(log_of(capfd, pair)) == [("a", [file_name(SIZE)], None)]


@pytest.mark.parametrize("side", ["a", "b"])
def test_no_file_is_copied_over_messages_that_the_other_store_has_lost(
    side: str, tmp_path: Path, capfd: Capture
) -> None:
    """Two replicas are damaged in one file, and one is repaired: its filler does not replace a message."""
    pair = make_pair(tmp_path)
    damaged, repaired = state(pair, side)
    zero(repaired, SIZE + 6500, SIZE + 7200)
    assert main(["recover", str(repaired), "--apply"]) == EXIT_OK
    zero(damaged, SIZE + 500, SIZE + 1200)
    log = run(capfd, *pair)[1]["commit_log"]
    lacking = [(part["side"], part["kind"]) for each in log["ranges"] for part in each["lacking"]]
    assert {("a" if each == damaged else "b") for each in pair} == {each for each, _ in lacking}
    assert {kind for _, kind in lacking} == {"damage", "fillers"}
    assert log["whole_files"] == []
    main(["diff", *map(str, pair)])
    assert "\ncopy " not in capfd.readouterr().out


@pytest.mark.parametrize("name", ["-x", "--help", "new\nline", "it's a store", "\x1b[31m"])
def test_copy_lines_work_whatever_the_name_of_the_store(
    name: str, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths that begin with a hyphen, and characters that a terminal must not get; either side."""
    make_pair(tmp_path)
    monkeypatch.chdir(tmp_path)
    copy_tree(tmp_path / "b", tmp_path / name)
    for damaged, sound in ((Path(name), Path("a")), (Path("a"), Path(name))):
        lost = tmp_path / damaged / "commitlog" / file_name(SIZE)
        lost.unlink()
        assert main(["diff", "--", str(damaged), str(sound)]) == EXIT_FINDINGS
        lines = capfd.readouterr().out.splitlines()
        (line,) = [each[13:] for each in lines if each.startswith("copy ")]
        subprocess.run(["bash", "-c", line], check=True, timeout=60)
        assert lost.read_bytes() == (tmp_path / sound / "commitlog" / lost.name).read_bytes()
        source = (tmp_path / sound / "commitlog" / lost.name).stat()
        assert lost.stat().st_mtime_ns == source.st_mtime_ns  # a broker deletes a file by this time
