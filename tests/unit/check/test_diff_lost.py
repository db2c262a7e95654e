"""`rmqtool diff` of a damaged store and one that has the lost messages: the lines that carry these over."""

from __future__ import annotations

import os
import shlex
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.read.store import Store
from tests.support.build_store import patch
from tests.support.diffs import carry, keys, make_pair, run
from tests.support.stores import Library
from tests.support.trees import copy_tree

Capture = pytest.CaptureFixture[str]

_PAGE = 30 * 4096  # lost in the first file of the log


def commands(text: str, label: str) -> list[str]:
    """The command lines below a line of the text that begins with `label`, up to the next choice."""
    lines = text[text.index(f"\n{label}") + 1 :].splitlines()
    ends = [number for number, line in enumerate(lines) if number and line.startswith(("if ", "instead "))]
    return [line[13:] for line in lines[: min(ends, default=len(lines))] if line.startswith("run ")]


def test_messages_that_only_the_other_store_has_sound_are_carried_over(
    store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss left a page of zeros in A, which is ahead: each choice gets its lines, and they are true.

    The record before the page keeps its message in A without its keys: a line of its own adds it again. As if
    no file were whole.
    """
    monkeypatch.setattr("rmqtool.check.diff.log.whole_files", lambda *_: ())
    old, new = store_copy("torn_540_killed_burst"), store_copy("ok_540_clean")
    whole = keys(new)
    patch(min((old / "commitlog").iterdir()), _PAGE, bytes(4096))
    for first, second, name, other in ((new, old, "B", "A"), (old, new, "A", "B")):
        assert main(["diff", str(first), str(second)]) == EXIT_FINDINGS
        text = capfd.readouterr().out
        assert f"             122988 to 127046: no sound record in {name}, 11 messages in {other}\n" in text
        assert f"if {name} stays   11 messages (11 of pubTopicOne) where {name} is damaged\n" in text
        assert f" damaged\nfirst        {name} was not" in text
        assert "1 message with sound ones in" in text
        assert f"if {other} stays   11504 messages only in {name}: 11500 of pubBurst and 4 of pubD" in text
    repair, line, keyless = commands(text, "if A stays")
    (ahead,) = commands(text, "if B stays")
    assert "--from-offset 122988 --to-offset 127046 " in line and f"| rmqtool append {old} " in line
    assert "--from-offset 3718465 --to-offset 6135381 " in ahead and f"| rmqtool append {new} " in ahead
    assert main(shlex.split(repair)[1:]) == EXIT_OK
    assert len(whole - keys(old)) == 12  # the key of the record that ends in zeros is lost
    main(["diff", str(old), str(new)])
    assert commands(capfd.readouterr().out, "if A stays") == [line, keyless]
    carry(line, tmp_path / "rows", capfd)
    assert len(whole - keys(old)) == 1
    carry(keyless, tmp_path / "rows", capfd)
    assert not whole - keys(old)
    log = run(capfd, old, new)[1]["commit_log"]
    (each,) = log["ranges"]
    found = [(part["kind"], part["carried"]["in_other"]) for part in each["lacking"]]
    assert found == [("properties", 1), ("fillers", 11)]
    assert (log["ahead_carried"]["messages"], log["ahead_carried"]["in_other"]) == (11516, 12)
    main(["diff", str(old), str(new)])
    text = capfd.readouterr().out
    assert "if A stays" not in text and commands(text, "if B stays") == [ahead]
    carry(ahead, tmp_path / "rows", capfd)
    assert len(keys(old) - keys(new)) == 1  # the key that lost its end


def test_damage_alone_gets_one_line_and_none_where_append_does_not_write(
    store_copy: Callable[[str], Path], cases: Library, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal logs but for the damage: no choice. Folders of log files get no line.

    Where a file can be copied that has all messages, no line adds them a second time.
    """
    damaged, intact = store_copy("ok_540_clean"), cases.path("ok_540_clean")
    patch(min((damaged / "commitlog").iterdir()), _PAGE, bytes(4096))
    main(["diff", str(damaged), str(intact)])
    text = capfd.readouterr().out
    assert "\nbest " in text and "rmqtool append" not in text and "carry over" not in text
    assert "Then compare again to see that A lacks no message of B." in " ".join(text.split())
    monkeypatch.setattr("rmqtool.check.diff.log.whole_files", lambda *_: ())
    main(["diff", str(damaged), str(intact)])
    text = capfd.readouterr().out
    assert "carry over   Stop both brokers before you run a line." in text and " stays " not in text
    repair, line, _ = commands(text, "carry over")
    assert repair == f"rmqtool recover {damaged} --apply"
    assert line.startswith(f"rmqtool dump {intact} --from-offset 122988 --to-offset 127046 ")
    main(["diff", str(damaged / "commitlog"), str(intact / "commitlog")])
    text = capfd.readouterr().out
    assert "122988 to 127046: no sound record in A, 11 messages in B\n" in text and "carry over" not in text


def test_messages_of_one_batch_are_told_apart(
    store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    """All messages of a batch that a client has sent have one unique key."""
    whole = store_copy("ok_533_clean")
    lost = copy_tree(whole, tmp_path / "lost")
    patch(lost / "commitlog" / f"{3 << 20:020}", 440_176, bytes(5))
    _, found = run(capfd, whole, lost)
    (place,) = found["commit_log"]["ranges"][0]["lacking"]
    assert (place["messages"], place["carried"]["only_here"], place["carried"]["in_other"]) == (1, 1, 0)


def test_a_damaged_message_is_not_carried_over(
    store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    """Two fillers in A, of which B has one message sound: the line carries this one."""
    filled = store_copy("ok_540_clean")
    other, file = copy_tree(filled, tmp_path / "other"), f"commitlog/{2 << 20:020}"
    for place in (60_105, 342_044):
        patch(filled / file, place, bytes(3000))
    byte = (other / file).read_bytes()[130_479]
    patch(other / file, 130_479, bytes([byte ^ 4]))
    assert main(["recover", str(filled), "--apply"]) == EXIT_OK
    capfd.readouterr()
    main(["diff", str(filled), str(other)])
    text = capfd.readouterr().out
    (line,) = [each[13:] for each in text.splitlines() if each.startswith("run ") and " | " in each]
    assert "--from-offset 2404623 " in line and "stay behind" not in text
    carry(line, tmp_path / "rows.jsonl", capfd)


def test_a_message_whose_properties_are_damaged_on_one_side(
    store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    """The other side has them whole: neither the text before the repair nor the one after says otherwise."""
    intact, damaged = store_copy("torn_540_killed"), store_copy("torn_540_killed_burst")
    patch(min((damaged / "commitlog").iterdir()), 460_800, b"\xff" * 512)
    assert main(["diff", str(intact), str(damaged)]) == EXIT_FINDINGS
    text = capfd.readouterr().out
    said = " ".join(text.split())
    assert "in B 460461 to 460844: pubTopicOne queue 0 offset 947, stored" in said
    assert ": its properties (keys, tags) are damaged after it in A" in said
    assert (
        "460461 to 460844: damaged properties (keys, tags) in B, 1 message with sound ones in A 460844"
        in said
    )
    assert "in properties_bytes of the first record; the record is sound in A only 460461" in said
    assert "1 message has damaged properties in B and sound ones in A." in said
    repair = commands(text, "first        Whichever store stays: B")[0]
    ahead, lost, _ = commands(text, "if B stays")
    assert "\nand          2 messages (2 of pubTopicOne) where B is damaged\n" in text
    assert "B keeps the body: consumers receive it twice" in said
    assert main(shlex.split(repair)[1:]) == EXIT_OK
    capfd.readouterr()
    for each in (ahead, lost):
        carry(each, tmp_path / "rows", capfd)
    log = run(capfd, intact, damaged)[1]["commit_log"]
    assert log["ranges"][0]["b"]["at"]["status"] == "properties"
    main(["diff", str(intact), str(damaged)])
    text = capfd.readouterr().out
    assert "B holds every message of A" not in text and "Nothing: each" not in text
    (line,) = commands(text, "if B stays")
    assert "--from-offset 460461 --to-offset 460844 " in line
    carry(line, tmp_path / "rows", capfd)
    main(["diff", str(intact), str(damaged)])
    assert "B holds every message of A" in capfd.readouterr().out


@pytest.mark.parametrize("way", ["gone", "cut", "zeroed", "filled"])
def test_whole_files_of_the_other_store_are_copied_first(
    way: str, store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    """They keep every message and its queue offset; the lines that append to the store would not."""
    intact = store_copy("ok_533_clean")
    damaged = copy_tree(intact, tmp_path / "damaged")
    third = sorted((damaged / "commitlog").iterdir())[2]
    if way == "gone":
        third.unlink()
    elif way == "cut":
        os.truncate(third, 300_000)
    else:
        patch(third, 300_000, bytes(40_000))
    if way == "filled":
        assert main(["recover", str(damaged), "--apply"]) == EXIT_OK
        capfd.readouterr()
    (files,) = run(capfd, damaged, intact)[1]["commit_log"]["whole_files"]
    assert files["files"] == [{"from": str(intact / "commitlog" / third.name), "to": str(third)}]
    assert (files["side"], files["fillers"]) == ("a", way == "filled")
    main(["diff", str(damaged), str(intact)])
    text = capfd.readouterr().out
    assert "\nbest         If A stays, copy 1 file of the log, whole and sound in B, " in text
    if way == "filled":
        (backup,) = tmp_path.glob("damaged.rmqtool-backup-*")
        assert main(["recover", str(damaged), "--undo", str(backup)]) == EXIT_OK
    (line,) = [each[13:] for each in text.splitlines() if each.startswith("copy ")]
    subprocess.run(shlex.split(line), check=True, timeout=60)
    capfd.readouterr()
    assert main(["recover", str(damaged)]) == EXIT_OK  # nothing to do
    assert run(capfd, damaged, intact)[1]["commit_log"]["identical"]


def test_no_file_is_copied_that_is_damaged_too_or_from_elsewhere(
    store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    """A store in an archive has no files that cp can read."""
    intact = store_copy("ok_533_clean")
    damaged = copy_tree(intact, tmp_path / "damaged")
    third = sorted((damaged / "commitlog").iterdir())[2]
    patch(third, 300_000, bytes(40_000))
    with tarfile.open(tmp_path / "intact.tar", "w") as archive:
        archive.add(intact, "store")
    assert run(capfd, damaged, tmp_path / "intact.tar")[1]["commit_log"]["whole_files"] == []
    patch(intact / "commitlog" / third.name, 500_000, b"\xff" * 4000)
    assert run(capfd, damaged, intact)[1]["commit_log"]["whole_files"] == []


@pytest.mark.parametrize("way", ["gone", "empty", "cut"])
def test_a_missing_file_is_repaired_first_if_the_other_one_is_damaged(
    way: str, tmp_path: Path, capfd: Capture
) -> None:
    """It is not copied, for one message in it is damaged; after the repair the lines add all others."""
    intact, damaged = make_pair(tmp_path)
    whole, second = keys(intact), sorted((damaged / "commitlog").iterdir())[1]
    with Store.open(intact) as store:
        stored = [each.physical_offset for each in store.messages()]
    hurt = next(each for each in stored if each > int(second.name) + 4000)
    patch(intact / "commitlog" / second.name, hurt - int(second.name) + 110, b"\xee")
    if way == "gone":
        second.unlink()
    else:
        os.truncate(second, 0 if way == "empty" else 3000)
    assert run(capfd, damaged, intact)[1]["commit_log"]["whole_files"] == []
    main(["diff", str(damaged), str(intact)])
    text = capfd.readouterr().out
    repair = f"\nrun          rmqtool recover {damaged} --apply\n"
    first = "A lacks 1 part of its log: repair it, do not start it, then compare again:"
    assert f"\n\nfirst        If A stays: {first}{repair}" in text
    main(["diff", str(intact), str(damaged)])
    assert "first        If B stays: B lacks 1 part of its log: repair it" in capfd.readouterr().out
    assert main(["recover", str(damaged), "--apply"]) == EXIT_OK
    main(["diff", str(damaged), str(intact)])
    text = capfd.readouterr().out
    assert "lacks" not in text[text.index("\nverdict ") :]
    for line in commands(text, "carry over"):
        carry(line, tmp_path / "rows", capfd)
    assert len(whole - keys(damaged)) == 1
