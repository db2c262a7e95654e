"""`rmqtool diff` of a store and one that lacks the end of its log: count, files to copy, lines."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rmqtool import StoreWriter
from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK
from rmqtool.formats.index import Shape
from rmqtool.log.events import StoredMessage
from rmqtool.read.store import Store
from tests.support.build_store import file_name, patch
from tests.support.diffs import Pair, carry, diff_of, keys, make_pair, run
from tests.support.trees import copy_tree
from tests.support.whole_store import keyed, write_whole

Capture = pytest.CaptureFixture[str]

SIZE = 8192  # of the log files


def text_of(capfd: Capture, pair: Pair) -> str:
    """The text about two stores that differ."""
    capfd.readouterr()
    assert main(["diff", *map(str, pair)]) == EXIT_FINDINGS
    return capfd.readouterr().out


def run_lines(text: str, word: str) -> list[str]:
    """The command lines with a word in them."""
    return [line[13:] for line in text.splitlines() if line.startswith("run ") and f" {word} " in line]


def records(root: Path) -> list[StoredMessage]:
    with Store.open(root) as store:
        return list(store.messages())


def flip(root: Path, stored: StoredMessage) -> None:
    """Change a byte in the body of a message."""
    base = stored.physical_offset - stored.physical_offset % SIZE
    patch(root / "commitlog" / file_name(base), stored.physical_offset - base + 110, b"\xee")


def without_last_file(folder: Path) -> tuple[Pair, Path, int]:
    """Two equal stores, of which `a` has lost its last log file: them, the file, and how many messages."""
    pair = make_pair(folder)
    lost = max((pair[0] / "commitlog").iterdir())
    lost.unlink()
    return pair, lost, sum(each.physical_offset >= int(lost.name) for each in records(pair[1]))


def test_a_lost_last_file_is_counted_and_copied(tmp_path: Path, capfd: Capture) -> None:
    """The blank that ends the file before it is in both: that file is not copied, and nothing follows it."""
    pair, lost, count = without_last_file(tmp_path)
    log = run(capfd, *pair)[1]["commit_log"]
    assert (log["ahead"], log["ahead_messages"]) == ("b", count) and count > 10
    assert log["behind_end"] == {"side": "a", "physical_offset": int(lost.name), "state": "empty"}
    (files,) = log["whole_files"]
    assert ([each["to"] for each in files["files"]], files["messages"]) == ([str(lost)], count)
    text = text_of(capfd, pair)
    assert f"verdict      Same history: B is ahead by {count} messages" in text
    assert "after its end" not in text
    (line,) = [each[13:] for each in text.splitlines() if each.startswith("copy ")]
    lost.write_bytes(Path(shlex.split(line)[2]).read_bytes())
    assert main(["verify", str(pair[0])]) == EXIT_OK
    assert run(capfd, *pair)[1]["identical"]


def test_a_lost_last_file_without_a_copy_is_carried_over(tmp_path: Path, capfd: Capture) -> None:
    """The queues that reach past the log are cut first, for append refuses them; then that is not said."""
    pair, _, count = without_last_file(tmp_path)
    text = text_of(capfd, pair)
    assert "\nfirst        A has queues that reach past its log: repair it, do not start it, then" in text
    repair = run_lines(text, "recover")[-1]
    assert main(shlex.split(repair)[1:]) == EXIT_OK
    text = text_of(capfd, pair)
    assert f"B is ahead by {count} messages" in text
    assert "\nfirst " not in text and "\nbest " not in text and not run_lines(text, "recover")
    (line,) = run_lines(text, "dump")
    carry(line, tmp_path / "rows", capfd)
    assert keys(pair[0]) == keys(pair[1])
    log = run(capfd, *pair)[1]["commit_log"]
    assert (log["identical"], log["ahead"]) == (True, None)


def test_a_blank_that_the_shorter_log_lacks_is_no_common_end(tmp_path: Path, capfd: Capture) -> None:
    """The file with it is copied too, else the log would end before the next file."""
    pair, lost, count = without_last_file(tmp_path)
    before = lost.with_name(file_name(int(lost.name) - SIZE))
    end = run(capfd, *pair)[1]["a"]["commit_log"]["end_offset"]
    patch(before, end - int(before.name), bytes(int(lost.name) - end))
    log = run(capfd, *pair)[1]["commit_log"]
    assert log["behind_end"] == {"side": "a", "physical_offset": end, "state": "empty"}
    (files,) = log["whole_files"]
    assert [each["to"] for each in files["files"]] == [str(before), str(lost)]
    assert (log["ahead_messages"], files["messages"]) == (count, count)


def test_a_file_without_a_record_at_the_end_counts_nothing(tmp_path: Path, capfd: Capture) -> None:
    """A broker makes the next file ahead of time."""
    pair, lost, _ = without_last_file(tmp_path)
    (pair[1] / "commitlog" / lost.name).write_bytes(bytes(SIZE))
    before = lost.with_name(file_name(int(lost.name) - SIZE))
    count = sum(each.physical_offset >= int(before.name) for each in records(pair[1]))
    before.unlink()
    log = run(capfd, *pair)[1]["commit_log"]
    assert (log["ahead"], log["ahead_messages"]) == ("b", count) and count > 10


def test_units_that_the_shorter_log_has_lost_do_not_hide_messages(tmp_path: Path) -> None:
    """Of a long range the units of the longer log count, whatever the other one's queues still name."""
    written = [*keyed(40), *keyed(35, first=40, body=1 << 19)]
    write_whole(tmp_path / "b", written, log_file_size=1 << 20, shape=Shape(50, 400))
    copy_tree(tmp_path / "b", tmp_path / "a")
    for path in sorted((tmp_path / "a/commitlog").iterdir())[1:]:
        path.unlink()
    count = sum(each.physical_offset >= 1 << 20 for each in records(tmp_path / "b"))
    found = diff_of(tmp_path / "a", tmp_path / "b")
    assert found.log is not None and found.log.only[0].records is None
    assert found.messages_ahead == count > 30


def ahead_with_damage(folder: Path, damaged: list[int]) -> tuple[Pair, set[str | None]]:
    """A store of 40 messages, and one with 20 more, of which these are damaged; the keys of sound ones."""
    write_whole(folder / "a", keyed(40), log_file_size=SIZE, shape=Shape(50, 400))
    write_whole(folder / "b", keyed(60), log_file_size=SIZE, shape=Shape(50, 400))
    stored = records(folder / "b")
    for number in damaged:
        flip(folder / "b", stored[number])
    return (folder / "a", folder / "b"), keys(folder / "b") - {f"U{number:08}" for number in damaged}


def test_damage_after_the_end_of_the_shorter_log_is_left_out(tmp_path: Path, capfd: Capture) -> None:
    """The lines go around it: append would stop there."""
    pair, sound = ahead_with_damage(tmp_path, [46, 53])
    assert len(sound) == 58
    text = text_of(capfd, pair)
    assert "Same history: B is ahead by 20 messages" in text
    assert "\n             B is damaged in 2 places after the end of A: what is sound is added.\n" in text
    lines = run_lines(text, "dump")
    assert len(lines) == 3
    for line in lines:
        carry(line, tmp_path / "rows", capfd)
    assert keys(pair[0]) == sound


def test_one_line_goes_on_after_each_of_many_damaged_places(tmp_path: Path, capfd: Capture) -> None:
    """Of more ranges than are shown one line adds all that is sound."""
    pair, sound = ahead_with_damage(tmp_path, [42, 46, 50, 54])
    text = text_of(capfd, pair)
    (line,) = run_lines(text, "dump")
    assert "--on-error skip --input -" in line
    assert (
        "\n             append skips the damaged messages between the others, and exits with 3 then\n" in text
    )
    dump, _, append = line.partition(" | ")
    assert main(shlex.split(dump)[1:]) == EXIT_FINDINGS
    (tmp_path / "rows").write_text(capfd.readouterr().out)
    assert main([*shlex.split(append)[1:-1], str(tmp_path / "rows")]) == EXIT_INPUT
    assert keys(pair[0]) == sound and len(sound) == 56


def test_what_an_empty_store_lacks_is_carried_over(tmp_path: Path, capfd: Capture) -> None:
    """Its log has no range in common with the other; of that one files have expired."""
    write_whole(tmp_path / "b", keyed(60), log_file_size=SIZE, shape=Shape(50, 400))
    min((tmp_path / "b/commitlog").iterdir()).unlink()
    StoreWriter.create(tmp_path / "a", profile="5.4", commit_log_file_size=SIZE).close()
    pair = tmp_path / "a", tmp_path / "b"
    text = text_of(capfd, pair)
    assert "\nif A stays   " in text
    (line,) = run_lines(text, "dump")
    assert f"--from-offset {SIZE} " in line
    carry(line, tmp_path / "rows", capfd)
    assert keys(pair[0]) == keys(pair[1]) and len(keys(pair[0])) > 20
