"""`rmqtool diff`: exit codes, text and JSON, stores in use, damage of every kind, nothing changed."""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.diff import diff as compare
from rmqtool.cli import main
from rmqtool.commands.diff import diff
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_USAGE
from rmqtool.formats import filler, ledger, message
from rmqtool.formats.index import Shape
from rmqtool.read.store import Store
from rmqtool.storage.page_cache import resident_bytes
from rmqtool.terminal import format_size
from tests.support.build_store import file_name, patch, placed, write_sparse
from tests.support.damage import PARTS, damage_store, describe
from tests.support.diffs import Pair, diff_of, make_pair, run
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.programs import PATIENCE_S, RMQTOOL, ROOT, started
from tests.support.records import record
from tests.support.stores import Library, case
from tests.support.sweep import paired, sample
from tests.support.trees import copy_tree, tree_rows, unchanged
from tests.support.whole_store import keyed, write_config, write_whole
from tests.unit.check.test_live import broker

pytestmark = [pytest.mark.sweep, pytest.mark.usefixtures("unbroken")]

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path)


def cut_log(root: Path, keep: int) -> None:
    """Leave the first `keep` bytes of the log, and of the queues what they hold."""
    for path in sorted((root / "commitlog").iterdir()):
        left = max(keep - int(path.name), 0)
        if left == 0:
            path.unlink()
        elif left < 8192:
            patch(path, left, bytes(8192 - left))


# -- exit codes and output -------------------------------------------------------------------------


def test_identical(pair: Pair, capfd: Capture) -> None:
    code, row = run(capfd, *pair)
    assert code == EXIT_OK
    assert (row["identical"], row["identical_in_common"]) == (True, True)
    assert row["commit_log"]["compared_bytes"] == row["a"]["commit_log"]["end_offset"]
    assert row["commit_log"]["ranges"] == row["commit_log"]["only"] == row["queues"]["queues"] == []
    assert row["not_compared"] == ["index", "checkpoint"]


def test_a_difference(pair: Pair, capfd: Capture) -> None:
    """The place with times as text beside the milliseconds."""
    patch(pair[1] / "commitlog" / file_name(8192), 300, b"\xee")
    for options in ((), ("--common",)):
        code, row = run(capfd, *pair, *options)
        assert code == EXIT_FINDINGS
        assert (row["identical"], row["identical_in_common"]) == (False, False)
    log = row["commit_log"]
    assert log["first_difference"] == 8192 + 300
    (each,) = log["ranges"]
    record = each["a"]["at"]
    assert record["physical_offset"] <= 8192 + 300 < record["physical_offset"] + record["size"]
    assert record["store_timestamp_ms"] // 1000 == 1_700_000_000
    assert record["store_time"].startswith("2023-11-14T22:13:20.")


def test_one_side_holds_more(pair: Pair, capfd: Capture) -> None:
    """That is a difference, unless one side may hold more."""
    cut_log(pair[1], 20_000)
    shutil.rmtree(pair[1] / "consumequeue")
    for first, second, side in ((*pair, "a"), (*reversed(pair), "b")):
        code, row = run(capfd, first, second)
        assert code == EXIT_FINDINGS
        assert row["commit_log"]["ahead"] == side
    assert run(capfd, *pair, "--common")[0] == EXIT_FINDINGS  # the queues are gone, their log is not
    shutil.rmtree(pair[0] / "consumequeue")
    code, row = run(capfd, *pair, "--common")
    assert (code, row["identical"], row["identical_in_common"]) == (EXIT_OK, False, True)


def test_progress_of_consumers(pair: Pair, capfd: Capture) -> None:
    """It moves all the time, so it counts only where all has to be equal."""
    write_config(pair[1], "consumerOffset.json", {"offsetTable": {"TopicTest@group": {"0": 3, "1": 50}}})
    assert run(capfd, *pair)[0] == EXIT_FINDINGS
    assert run(capfd, *pair, "--common")[0] == EXIT_OK
    write_config(pair[1], "topics.json", {"topicConfigTable": {}})
    assert run(capfd, *pair, "--common")[0] == EXIT_FINDINGS


def test_text_of_a_file_that_only_one_side_has(pair: Pair, capfd: Capture) -> None:
    """Once for each file, whatever it has; and the verdict says that all else is equal."""
    for path in (pair[0] / "config").iterdir():
        path.unlink()
    assert main(["diff", *map(str, pair)]) == EXIT_FINDINGS
    out = capfd.readouterr().out
    assert "\n             topics.json: only in B\n" in out
    assert "\n             consumerOffset.json: only in B\n" in out
    assert out.count("only in B") == 3
    assert "Logs and queues are identical; only the configuration differs." in out
    assert run(capfd, *pair)[1]["config"]["only_in"]["topics.json"] == "b"


def test_text_of_identical_stores(pair: Pair, capfd: Capture) -> None:
    assert main(["diff", *map(str, pair)]) == EXIT_OK
    end, broker = diff_of(*pair).a.end, "5.x (5.3 or 5.4; config/ does not say)"
    assert capfd.readouterr().out.splitlines() == [
        f"A            {pair[0]} (broker {broker}, stopped cleanly), log 0 to {end}",
        f"B            {pair[1]} (broker {broker}, stopped cleanly), log 0 to {end}",
        f"commit log   0 to {end} in both, 29.6 KiB compared: identical",
        "ahead        neither",
        "queues       2 with 100 units in both: identical",
        "config       3 files compared: identical by value",
        "left out     index, checkpoint: each broker has its own",
        "",
        "verdict      Identical.",
    ]


def test_text_of_differences(pair: Pair, capfd: Capture) -> None:
    """Every kind of line."""
    a, b = pair
    with Store.open(a) as store:
        second = [each for each in store.messages() if each.physical_offset > 8192][0]
    place = second.physical_offset + 100
    patch(b / "commitlog" / file_name(8192), place - 8192, b"\xee")
    patch(b / "consumequeue/TopicTest/0" / file_name(0), 3, b"\x01")
    (b / "consumequeue/TopicTest/1" / file_name(0)).unlink()
    (b / "commitlog" / file_name(0)).unlink()
    write_config(b, "topics.json", {"topicConfigTable": {}})
    patch(b / "commitlog" / file_name(24576), 5000, bytes(3192))
    assert main(["diff", str(a), str(b)]) == EXIT_FINDINGS
    text = capfd.readouterr().out
    for part in (
        f"differs      {place} to {place + 1}: 1 byte, in body; the record is sound in A only\n",
        "             before it in both 8192 to ", "             after it in both ",
        f"             in A {second.physical_offset} to ", ": its body does not match its CRC\n",
        f"             in B {second.physical_offset} to ", ": sound\n",
        "only A       0 to 8192, 8.0 KiB, ", "ahead        A by ",
        "             topics.json TopicTest: only in A: readQueueNums ",
        "verdict      The stores differ. In 1 differing range only A is sound: B",
    ):  # fmt: skip
        assert part in text, (part, text)
    size = second.message.total_size
    patch(a / "commitlog" / file_name(8192), second.physical_offset - 8192,
          filler.encode(size, second.physical_offset, born_timestamp=1, store_timestamp=1))  # fmt: skip
    assert main(["diff", str(a), str(b)]) == EXIT_FINDINGS
    text = capfd.readouterr().out
    assert "In 1 differing range A has a filler, B a damaged message.\n" in text
    assert "; A has a filler, B a damaged message\n" in text


def test_text_of_logs_that_have_diverged(tmp_path: Path, capfd: Capture) -> None:
    """Neither is ahead: both have records of their own from one offset on."""
    for name, bodies in (("a", [b"mine"]), ("b", [b"longer", b"and more"])):
        own = [record(body=body) for body in bodies]
        write_whole(tmp_path / name, [*keyed(20), *own], log_file_size=1 << 20)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == EXIT_FINDINGS
    text = capfd.readouterr().out
    with Store.open(tmp_path / "a") as store:
        place = [each.physical_offset for each in store.messages()][-1]
    for part in (
        f"diverged     the logs part at {place}; each has records that the other lacks, ",
        f"             A has {place} to ", ", 1 record, stored ",
        f"             B has {place} to ", ", 2 records, stored ",
        "verdict      The stores differ; their logs have diverged. Less has to be carried over if B stays:"
        " 1 message instead of 2.\n",
    ):  # fmt: skip
        assert part in text, (part, text)
    assert "ahead" not in text and f"only B       {place}" not in text
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "a/commitlog").rename(elsewhere)
    assert main(["diff", *map(str, (tmp_path / "a", tmp_path / "b")), "--commitlog-a", str(elsewhere)]) == 1
    dump, append = (
        f"rmqtool {name} {tmp_path / 'a'} --commitlog {elsewhere} " for name in ("dump", "append")
    )
    text = capfd.readouterr().out
    assert f"\nrun          {dump}--from-offset {place} --to-offset " in text
    assert f" --exclude-topic 'RMQ_SYS*' --json | {append}--create-topic --input -\n" in text


@pytest.mark.parametrize("version", ["497", "540"])
def test_a_store_that_is_ahead_leads_to_the_line_that_carries_the_rest_over(
    version: str, cases: Library, store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    """A broker wrote on and was killed: the line makes the store from before equal to the one from after."""
    old, new = store_copy(f"ok_{version}_clean"), cases.path(f"torn_{version}_killed")
    for pair, name, other in (((old, new), "B", "A"), ((new, old), "A", "B")):
        log = run(capfd, *pair)[1]["commit_log"]
        assert (log["ahead"], log["diverged"]) == (name.lower(), None)
        with Store.open(old) as before, Store.open(new) as after:
            count = sum(1 for _ in after.messages()) - sum(1 for _ in before.messages())
        assert log["ahead_messages"] == count > 1000
        assert main(["diff", *map(str, pair)]) == EXIT_FINDINGS
        text = capfd.readouterr().out
        by = f"{name} is ahead by {count} messages, {format_size(log['ahead_bytes'])}"
        assert f"verdict      Same history: {by}; the configuration differs.\n" in text
        assert f"carry over   Nothing if {name} stays: it holds all messages of {other}. As a slave" in text
        assert f"if {other} stays   Stop both brokers and run the line once" in text
        assert "recover" not in text  # the one that stays was stopped cleanly
    (line,) = [line[13:] for line in text.splitlines() if line.startswith("run ")]
    dump, _, append = line.partition(" | ")
    assert main(shlex.split(dump)[1:]) == EXIT_OK
    (tmp_path / "rows").write_text(capfd.readouterr().out)
    assert shlex.split(append)[-2:] == ["--input", "-"]
    assert main([*shlex.split(append)[1:-1], str(tmp_path / "rows")]) == EXIT_OK
    assert run(capfd, old, new)[1]["identical"]


def test_messages_that_were_carried_over_where_a_broker_had_ended_a_file(
    cases: Library, store_copy: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    """Before a batch that did not fit. The other log has a record there: both are sound and have the same."""
    old, new = store_copy("ok_540_clean"), cases.path("torn_540_killed_burst")
    main(["diff", str(old), str(new)])
    (line,) = [line[13:] for line in capfd.readouterr().out.splitlines() if line.startswith("run ")]
    dump, _, append = line.partition(" | ")
    main(shlex.split(dump)[1:])
    (tmp_path / "rows").write_text(capfd.readouterr().out)
    assert main([*shlex.split(append)[1:-1], str(tmp_path / "rows")]) == EXIT_OK
    capfd.readouterr()
    for first, second, name, other in ((old, new, "A", "B"), (new, old, "B", "A")):
        log = run(capfd, first, second)[1]["commit_log"]
        (each,) = log["ranges"]
        kinds = {each[side]["at"]["kind"]: each[side]["at"]["physical_offset"] for side in "ab"}
        assert kinds.keys() == {"record", "blank"} and {*kinds.values()} == {
            log["diverged"]["physical_offset"]
        }
        assert main(["diff", str(first), str(second)]) == EXIT_FINDINGS
        text = capfd.readouterr().out
        assert f"; a record in {name}, where the file of {other} ends\n" in text and "damaged" not in text
        assert "logs have diverged. Each holds every message of the other, by unique key.\n" in text
    broken = copy_tree(new, tmp_path / "broken")
    base = kinds["blank"] - kinds["blank"] % (1 << 20)
    patch(
        broken / "commitlog" / file_name(base), kinds["blank"] - base, b"\0\0\0\x20"
    )  # a wrong size is damage
    main(["diff", str(old), str(broken)])
    assert "In 1 differing range only A is sound: B is damaged there." in capfd.readouterr().out


def test_the_store_that_stays_is_repaired_first(store_copy: Callable[[str], Path], capfd: Capture) -> None:
    """It was not stopped cleanly, or has bytes after its end. What expired in the other one is said."""
    old, new = store_copy("ok_540_clean"), store_copy("ok_540_expired")
    (old / "abort").touch()
    main(["diff", str(old), str(new)])
    text = capfd.readouterr().out
    assert "verdict      Same history: B is ahead by 43 messages, 26.2 KiB; offsets of consumers" in text
    assert "Nothing if B stays: it holds all messages of A except those before 2097152. " in text
    repair = f"repair it, do not start it, then compare again:\nrun          rmqtool recover {old} --apply\n"
    assert f"A was not stopped cleanly: {repair}" in text
    (old / "abort").unlink()
    patch(max((old / "commitlog").iterdir()), 3_718_465 % (1 << 20), b"\1\2\3")
    main(["diff", str(old), str(new)])
    assert (
        "A has bytes after its end: repair it, do not start it, then compare again:" in capfd.readouterr().out
    )


def test_what_append_does_not_write_gets_no_line(
    cases: Library, store_copy: Callable[[str], Path], capfd: Capture
) -> None:
    """Folders of log files, and a DLedger log: nothing, or only that nothing is needed."""
    old, new = cases.path("ok_540_clean") / "commitlog", cases.path("torn_540_killed") / "commitlog"
    main(["diff", str(old), str(new)])
    verdict = "verdict      Same history: B is ahead by 1126 messages, 557.4 KiB.\n"
    assert capfd.readouterr().out.endswith(f"\n\n{verdict}")
    old, new = store_copy("kind_dledger_540"), cases.path("kind_dledger_540")
    with Store.open(new) as store:
        last = [*store.messages()][-1]
        data = store.layout.commit_log[0].path.relative_to(new)
    start = last.physical_offset - ledger.HEADER_SIZE
    patch(old / data, start, bytes(ledger.HEADER_SIZE + last.message.total_size))
    main(["diff", str(old), str(new)])
    text = capfd.readouterr().out
    assert "verdict      Same history: B is ahead by " in text
    assert text.endswith("\n\ncarry over   Nothing if B stays: it holds all messages of A.\n")


def test_messages_of_a_long_range_are_counted_by_the_queues(tmp_path: Path) -> None:
    """If these reach the end of the log, and begin with it; else the number is unknown."""
    old, new = keyed(40), keyed(35, first=40, body=1 << 19)
    write_whole(tmp_path / "a", old, log_file_size=1 << 20)
    write_whole(tmp_path / "b", [*old, *new], log_file_size=1 << 20, shape=Shape(50, 400))
    found = diff_of(tmp_path / "a", tmp_path / "b")
    assert found.log is not None and found.log.only[0].records is None
    assert (found.log.ahead_bytes > 16 << 20, found.messages_ahead) == (True, 35)
    cut_log(tmp_path / "a", 0)
    shutil.rmtree(tmp_path / "b/consumequeue/TopicTest/0")
    assert diff_of(tmp_path / "a", tmp_path / "b").messages_ahead is None


def test_logs_without_a_common_range_are_ahead_by_bytes_only(
    cases: Library, store_copy: Callable[[str], Path], capfd: Capture
) -> None:
    """What lies between the end of the one and the start of the other is in neither: nobody can count it."""
    old, new = cases.path("ok_540_clean"), store_copy("torn_540_killed")
    for path in sorted((new / "commitlog").iterdir())[:-2]:
        path.unlink()
    log = run(capfd, old, new)[1]["commit_log"]
    before, after = log["only"]
    assert before["physical_offset"] + before["length"] < after["physical_offset"] and after["records"]
    assert (log["ahead"], log["ahead_messages"]) == ("b", None)


def test_text_from_a_store_is_escaped(pair: Pair, capfd: Capture) -> None:
    """Names cannot drive a terminal."""
    for root, count in zip(pair, (1, 2), strict=True):
        write_config(root, "topics.json", {"topicConfigTable": {"\x1b[31mred": {"perm": count}}})
    main(["diff", *map(str, pair)])
    out = capfd.readouterr().out
    assert "\x1b" not in out and "\\x1b[31mred" in out


def test_wrong_use(pair: Pair, capfd: Capture) -> None:
    a, b = map(str, pair)
    assert main(["diff", a]) == EXIT_USAGE
    assert main(["diff", a, b, "--differences", "0"]) == EXIT_USAGE
    assert main(["diff", a, f"{b}/nothing"]) == EXIT_INPUT
    assert main(["diff", a, f"{b}/config"]) == EXIT_INPUT
    index = next((pair[1] / "index").iterdir())
    assert main(["diff", a, str(index)]) == EXIT_INPUT
    assert main(["diff", str(index), str(index)]) == EXIT_INPUT
    capfd.readouterr()
    assert main(["diff", f"{a}/commitlog", f"{b}/consumequeue/TopicTest/0"]) == EXIT_INPUT
    assert "a part of a commit log" in capfd.readouterr().err


def test_a_commit_log_elsewhere(pair: Pair, tmp_path: Path, capfd: Capture) -> None:
    """`--commitlog-b` names it."""
    (pair[1] / "commitlog").rename(tmp_path / "elsewhere")
    assert run(capfd, *pair, "--common")[0] == EXIT_FINDINGS
    code, row = run(capfd, *pair, "--commitlog-b", tmp_path / "elsewhere")
    assert (code, row["identical"]) == (EXIT_OK, True)
    assert run(capfd, *reversed(pair), "--commitlog-a", tmp_path / "elsewhere")[0] == EXIT_OK


def test_from_a_program(pair: Pair, capfd: Capture) -> None:
    assert diff(*pair, jobs=1, quiet=True) == EXIT_OK
    assert capfd.readouterr().err == ""


# -- stores in use ---------------------------------------------------------------------------------


def test_a_store_in_use_and_its_copy(tmp_path: Path, capfd: Capture) -> None:
    """What was complete when it began agrees with a copy made before; the running one is ahead."""
    root = tmp_path / "store"
    with broker(root, first=1500, kept=10_000):
        copy = copy_tree(root, tmp_path / "copy")
        (copy / "lock").unlink()
        for _ in range(3):
            with Store.open(root) as a, Store.open(copy) as b:
                found = compare(a, b, jobs=2)
            assert found.a.live and not found.b.live
            assert found.log is not None and not found.log.differs, found.log.row()
        code, row = run(capfd, root, root)
        assert code in (EXIT_OK, EXIT_FINDINGS)
        assert row["commit_log"]["identical"] and row["queues"]["different"] == 0


def test_files_that_vanish(tmp_path: Path, capfd: Capture) -> None:
    """A broker deletes its oldest files meanwhile: no difference and no error."""
    root = tmp_path / "store"
    with broker(root, first=2000, kept=5):
        for _ in range(5):
            code, row = run(capfd, root, root)
            assert code in (EXIT_OK, EXIT_FINDINGS), row
            assert row["commit_log"]["ranges"] == [], row
            assert row["queues"]["different"] == 0, row["queues"]
            assert row["unread"] == [], row["unread"]


def test_a_file_that_vanishes_from_a_stopped_store(pair: Pair) -> None:
    """That is told, and its bytes are not taken for compared."""
    with Store.open(pair[0]) as a, Store.open(pair[1]) as b:
        (pair[1] / "commitlog" / file_name(8192)).unlink()
        found = compare(a, b)
    assert [(side, path) for side, path, _ in found.unread] == [("b", f"commitlog/{file_name(8192)}")]
    assert found.log is not None and not found.log.differs


# -- what cannot be read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["commitlog", f"commitlog/{file_name(8192)}", "consumequeue/TopicTest/0", "config", "config/topics.json",
     f"consumequeue/TopicTest/0/{file_name(0)}", f"consumequeue/TopicTest/0/{file_name(400)}"],
)  # fmt: skip
def test_what_an_ordinary_user_may_not_read(pair: Pair, name: str, tmp_path: Path, capfd: Capture) -> None:
    """Exit code 3 with the path, no difference that is none, and the rest is compared."""
    open_to_all(tmp_path)
    path = pair[1] / name
    mode = path.stat().st_mode
    path.chmod(0)

    def action() -> None:
        code, row = run(capfd, *pair)
        assert code == EXIT_INPUT
        assert name in {part["path"] for part in row["unread"]}, row["unread"]
        assert row["commit_log"]["ranges"] == []

    as_nobody(action)
    path.chmod(mode)


def test_parts_out_of_reach(pair: Pair, capfd: Capture) -> None:
    """Queues in RocksDB are said not to be compared."""
    shutil.rmtree(pair[1] / "consumequeue/TopicTest")
    (pair[1] / "consumequeue/CURRENT").write_text("x")
    code, row = run(capfd, *pair)
    assert code == EXIT_INPUT and row["queues"] is None
    assert "RocksDB" in row["unread"][0]["reason"]


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seed"), paired(["ok_540_small_propcrc", "ok_497_small_ipv6"], range(12)))
def test_random_damage(cases: Library, tmp_path: Path, name: str, seed: int, capfd: Capture) -> None:
    """Bytes of the common range that were changed are found, and nothing else is; never a traceback."""
    a = cases.path(name)
    b = cases.copy(name, tmp_path / "b")
    edits = damage_store(b, seed, parts=PARTS)
    before = tree_rows(b)
    with unchanged(a):
        code, row = run(capfd, a, b)
    assert tree_rows(b) == before
    assert code in (0, 1, 3), describe(edits)
    changed = changed_files(a, b)
    if not changed:
        assert code == EXIT_OK, describe(edits)
    log = row["commit_log"]
    with Store.open(a) as one, Store.open(b) as other:
        expected = plain_difference(one, other, log["common_start"], log["common_end"])
    assert log["first_difference"] == expected, describe(edits)
    main(["diff", str(b), str(a)])
    assert "Traceback" not in capfd.readouterr().err


def changed_files(a: Path, b: Path) -> set[str]:
    """Names of what is not the same in two folders, times left out."""
    rows = [{row[0]: row[1:3] + row[4:] for row in tree_rows(root)} for root in (a, b)]
    return {name for name in {*rows[0], *rows[1]} if rows[0].get(name) != rows[1].get(name)}


def plain_difference(a: Store, b: Store, start: int, stop: int) -> int | None:
    """The first offset in [start, stop) at which two logs have different bytes, byte by byte."""
    images: list[dict[int, int]] = []
    for store in (a, b):
        image: dict[int, int] = {}
        files = store.layout.commit_log
        for place, file in enumerate(files):
            limit = files[place + 1].file_from_offset if place + 1 < len(files) else file.end
            data = file.path.read_bytes()
            low, high = max(file.file_from_offset, start), min(file.end, limit, stop)
            image.update(zip(range(low, high), data[low - file.file_from_offset :], strict=False))
        images.append(image)
    return next((at for at in range(start, stop) if at in images[0] and at in images[1]
                 and images[0][at] != images[1][at]), None)  # fmt: skip


@pytest.mark.parametrize("seed", sample(range(25), 2))
def test_any_bytes(pair: Pair, seed: int, capfd: Capture) -> None:
    """Files of noise, of odd sizes and names: an answer, or one clear error."""
    noise = random.Random(seed)
    for path in sorted(pair[1].rglob("*")):
        if path.is_file() and noise.random() < 0.4:
            path.write_bytes(noise.randbytes(noise.choice([0, 1, 19, 400, 5000])))
        if path.is_file() and path.name.isdigit() and noise.random() < 0.2:
            path.rename(path.with_name(f"{noise.choice([7, 10**18, 2**63 - 1, 4096]):020d}"))
    with unchanged(pair[0]), unchanged(pair[1]):
        assert main(["diff", *map(str, pair)]) in (0, 1, 3)
        assert main(["diff", *map(str, reversed(pair)), "--format", "json"]) in (0, 1, 3)
    assert "Traceback" not in capfd.readouterr().err


DAMAGED = (
    "bad_cl04_wrong_length", "bad_cl21_wrong_size_file", "bad_cl23_empty_file", "bad_cf02_config_unreadable",
    "bad_cp05_repair_unfinished", "bad_cq09_wrong_size_file", "gap_cl26_log_missing", "gap_cl20_missing_file",
    "old_un01_tiered", "bad_cp08_wrong_type", "bad_cl25_misnamed_file", "bad_cq04_misaligned",
)  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_stores(cases: Library, name: str, capfd: Capture) -> None:
    """Against what they were made of, in both orders."""
    base = cases.path(case(name).base or "ok_540_clean")
    store = cases.path(name)
    for a, b in ((base, store), (store, base), (store, store)):
        with unchanged(a), unchanged(b):
            assert main(["diff", str(a), str(b)]) in (0, 1, 3)
    assert "Traceback" not in capfd.readouterr().err


# -- manners ---------------------------------------------------------------------------------------


def test_nothing_is_changed(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """On stores that nobody may write to, as an ordinary user too, with every option."""
    a = cases.path("ok_540_small_propcrc")
    b = cases.copy("ok_540_small_propcrc", tmp_path / "b")
    for path in (b, *b.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    open_to_all(tmp_path)

    def run_all() -> None:
        for options in ((), ("--common",), ("--format", "json"), ("--keep-cache", "--jobs", "1")):
            assert main(["diff", str(b), str(b), *options]) == EXIT_OK

    with unchanged(a), unchanged(b):
        run_all()
        as_nobody(run_all)
        assert main(["diff", str(a), str(b)]) == EXIT_OK
    for path in (b, *b.rglob("*")):
        path.chmod(0o755)


def test_interrupted(tmp_path: Path) -> None:
    """SIGINT while it waits for its rate: 130, and nothing is changed."""
    a, b = make_pair(tmp_path)
    before = tree_rows(a), tree_rows(b)
    with started([*RMQTOOL, "diff", a, b, "--io-limit", "4K", "--progress"], bufsize=0) as process:
        assert process.stderr is not None and process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    assert (tree_rows(a), tree_rows(b)) == before


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked on Linux only")
def test_page_cache_is_left_as_it_was(disk_path: Path) -> None:
    """Pages that were not there before are dropped again, unless they are to be kept."""
    write_whole(disk_path / "a", keyed(600, body=60_000), log_file_size=16 << 20, queue_file_size=40_000,
                shape=Shape(500, 3600))  # fmt: skip
    b = copy_tree(disk_path / "a", disk_path / "b")
    files = sorted([*(disk_path / "a/commitlog").iterdir(), *(b / "commitlog").iterdir()])

    def resident() -> int:
        found = [resident_bytes(path) for path in files]
        if None in found:
            pytest.skip("this system does not tell which pages are in the page cache")
        return sum(size for size in found if size is not None)

    def drop() -> None:
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if resident():
            pytest.skip("this file system does not drop pages")

    drop()
    assert not differs_plainly(disk_path / "a", b, keep_cache=True)
    assert resident() > 60 << 20
    drop()
    assert not differs_plainly(disk_path / "a", b, keep_cache=False)
    assert resident() < 8 << 20


def differs_plainly(a: Path, b: Path, **arguments: Any) -> bool:
    """Whether two stores differ; without the guard against changes, which reads all of them."""
    with Store.open(a) as one, Store.open(b) as other:
        return compare(one, other, **arguments).differs


def test_memory_does_not_grow_with_the_logs(tmp_path: Path) -> None:
    """Two sparse logs of 64 GiB that differ in much of what they have: an answer in little memory."""
    for name, value in (("a", b"\1"), ("b", b"\2")):
        for number in range(64):
            base = number << 30
            head = message.encode(placed(record(), base))
            pieces = (0, head), (5000, value * 1_000_000)
            write_sparse(tmp_path / name / "commitlog" / file_name(base), 1 << 30, *pieces)
    if (tmp_path / "a/commitlog" / file_name(1 << 30)).stat().st_blocks > 10_000:
        pytest.skip("this file system has no holes")
    code = (
        "import resource, sys; from rmqtool.cli import main;"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30));"
        "sys.exit(main(['diff', *sys.argv[1:], '--jobs', '2']))"
    )
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", code, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert done.returncode == EXIT_FINDINGS, done.stderr
    assert "63000000 bytes differ" in done.stdout


def test_json_is_complete(pair: Pair, capfd: Capture) -> None:
    """All keys are there whatever is found, and texts of the store come through."""
    patch(pair[1] / "commitlog" / file_name(8192), 300, b"\xee")
    keys: Callable[[dict[str, Any]], list[str]] = list
    _, same = run(capfd, pair[0], pair[0])
    _, differs = run(capfd, *pair)
    assert keys(same) == keys(differs)
    assert keys(same["commit_log"]) == keys(differs["commit_log"])
    assert json.loads(json.dumps(differs)) == differs
