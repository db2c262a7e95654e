"""The command `recover`: what it prints, what it ends with."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.commands.groups import PRESENTATION
from rmqtool.commands.rebuild import rebuild
from rmqtool.commands.recover import recover
from rmqtool.commands.recover_text import recover_lines
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_REFUSED, EXIT_USAGE
from rmqtool.message.cells import with_times
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.problems import COPY_CONFIG
from rmqtool.read.store import Store
from tests.support.recover_checks import codes
from tests.support.stores import Library

pytestmark = pytest.mark.usefixtures("unbroken")

StoreCopy = Callable[[str], Path]
Unchanged = Callable[[Path], AbstractContextManager[None]]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = main(["recover", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object."""
    code, out, _ = run(capsys, *arguments, "--format", "json")
    return code, json.loads(out)


def test_each_broker_stands_beside_the_plan(
    cases: Library, unchanged: Unchanged, capsys: pytest.CaptureFixture[str]
) -> None:
    """One column for all versions that do the same; without --broker only those that may have written it."""
    root = cases.path("gap_cl02_zero_hole")
    every = [f"--broker={version}" for version in ("4.9", "5.3", "5.4")]
    heads = []
    with unchanged(root):
        for options in (every, []):
            code, out, err = run(capsys, root, *options)
            assert code == 1
            heads += [line.split()[3:] for line in out.splitlines() if line.startswith("a start would")]
            others = "starts of other versions: --broker 4.9, --broker 5.3"
            assert (others in out) == (not options)
    assert heads == [["4.9,", "5.3,", "5.4", "recover"], ["5.4", "recover"]]
    assert "end the log at" in out and "lose sound messages" in out
    assert "RMQTOOL_FILLER" in out and "readable" not in out
    assert "nothing was changed" in err and f"rmqtool recover {root} --apply" in err


def test_lost_queues_are_shown(cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue folder that is gone: rows for it, and the queue among those that change, text and JSON."""
    root = cases.variant("5.4.0:clean:cq-delete-topic:noabort", tmp_path / "store")
    _, out, _ = run(capsys, root, "--broker", "4.9", "--broker", "5.3", "--broker", "5.4")
    lines = [line.split() for line in out.splitlines()]
    assert ["lose", "queues", "3", "1", "0"] in lines
    assert ["hide", "messages", "1412", "1400", "0"] in lines
    assert ["pubTopicOne", "0", "none", "none", "none", "0..1400"] in lines
    assert ["pubBatchCQ", "0", "0..36", "none", "same", "0..36"] in lines
    assert "             hide messages: their queue has no unit of them any more" in out
    assert "             leave groups ahead: their committed offset is past the end" in out
    assert "dispatch once more" not in out  # a line for each row that is shown, and no other
    assert "their queue has no unit of them" in out and "never dispatch" not in out
    _, found = report(capsys, root, "--broker", "5.4")
    (row,) = found["predictions"]
    assert (row["queues_lost"], row["messages_unreachable"], row["never_dispatched"]) == (1, 1400, 0)
    (queue,) = [each for each in row["queues"] if each["lost"]]
    assert (queue["topic"], queue["log_max"], queue["max_after"]) == ("pubTopicOne", 1400, 0)


def test_a_queue_that_only_recover_shortens_is_shown(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two queue folders were exchanged: the longer queue loses units that lead to records of the other.

    The record past the end of the other has a unit, in the wrong queue.
    """
    root = store_copy("ok_540_clean") / "consumequeue/pubTopicEight"
    for before, after in (("3", "x"), ("5", "3"), ("x", "5")):
        (root / before).rename(root / after)
    _, out, _ = run(capsys, root.parents[1], "--broker", "5.4")
    lines = [line.split() for line in out.splitlines()]
    assert ["shorten", "queues", "0", "1"] in lines and ["hide", "messages", "1", "0"] in lines
    assert ["pubTopicEight", "3", "0..70", "0..70", "0..71"] in lines
    assert ["pubTopicEight", "5", "0..71", "same", "0..70"] in lines
    assert "recover      shortens queues whose last units lead to no sound record of the queue\n" in out
    says = "leaves 1 message without a unit in its queue: the consumers of the queue never receive it"
    assert says in " ".join(out.split())


def test_a_new_index_file_has_the_time_of_the_first_key_if_the_log_begins_with_a_hole(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first record will be a filler: none that is there now."""
    root = store_copy("ok_540_clean")
    with sorted((root / "commitlog").iterdir())[0].open("r+b") as log:
        log.write(bytes(500_000))
    shutil.rmtree(root / "index")
    _, found = report(capsys, root)
    names = [Path(each["path"]).name for each in found["actions"] if each["path"].startswith("index/")]
    assert names and all(name.startswith("2026") for name in names)
    assert run(capsys, root, "--apply", "--backup-dir", tmp_path / "backup")[0] == 0
    made = sorted(each.name for each in (root / "index").iterdir())
    assert made[0] == names[0] and all(name.startswith("2026") for name in made)


def test_the_heap_is_an_option(cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table says with which heap 4.9 ends, or does not; mode broker goes by it."""
    root = cases.variant("4.9.7:clean:totalsize-500MiB:noabort", tmp_path / "store")
    _, out, _ = run(capsys, root)
    assert "500.0 MiB" in out and "2.0 GiB" in out and "out of memory" not in out
    _, out, err = run(capsys, root, "--broker-heap", "256M")
    assert "no: out of memory" in out and "256.0 MiB" in out
    assert "--broker-heap 268435456" in err
    _, found = report(capsys, root, "--broker-heap", "256M")
    assert found["broker_heap_bytes"] == 256 << 20
    assert [row["crashes"] for row in found["predictions"]] == [True, False, False]
    assert [row["claimed_bytes"] for row in found["predictions"]] == [500 << 20, None, None]
    assert {row["heap_bytes"] for row in found["predictions"]} == {256 << 20}
    code, _, err = run(capsys, root, "--mode", "broker", "--broker", "4.9", "--broker-heap", "256M")
    assert code == EXIT_REFUSED and "run out of memory" in err
    code, _, err = run(capsys, root, "--mode", "broker", "--broker", "4.9")
    assert code == EXIT_FINDINGS
    code, _, err = run(capsys, root, "--undo", tmp_path, "--broker-heap", "1G")
    assert code == EXIT_USAGE and "--broker-heap cannot be used with --undo" in err


def test_only_the_brokers_that_are_asked_for(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the versions."""
    root = cases.path("gap_cl02_zero_hole")
    _, found = report(capsys, root, "--broker", "5.4", "--broker", "4.9")
    assert [row["broker"] for row in found["predictions"]] == ["4.9", "5.4"]


def test_a_program_gets_everything(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """Times beside milliseconds, every change with its reason and problem."""
    code, found = report(capsys, cases.path("gap_cl02_zero_hole"))
    assert code == 1 and found["mode"] == "best" and found["applied"] is None
    assert found["lost_messages"] == sum(row["count"] for row in found["lost"]) > 0
    for row in found["lost"]:
        assert row["stored_after_time"] is None or row["stored_after_time"].startswith("20")
    assert {row["kind"] for row in found["actions"]} >= {"fill"}
    assert all(row["reason"] and "content_base64" not in row for row in found["actions"])


def test_a_sound_store_needs_nothing(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and no command to run."""
    code, out, err = run(capsys, cases.path("ok_540_clean"))
    assert (code, err) == (0, "")
    assert "nothing to do" in out


def test_a_copy_of_a_missing_log_file_is_better_than_the_plan(
    cases: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line to apply the plan says so, for files that are missing and for those that are cut."""
    root = cases.path("gap_cl20_missing_file")
    _, out, err = run(capsys, root)
    line = f"rmqtool recover {root}"
    if "--broker-conf" in err:
        line += " --broker-conf FILE"
    first = "if there is a copy of commitlog/"
    assert first in err and err.endswith(
        f", copy it into the store and plan again; without one, to apply the plan: {line} --apply\n"
    )


def test_from_plan_to_undo(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of an operator: look, write the plan, do it, look again, read the backup, go back."""
    root, plan, backup = store_copy("gap_cl02_zero_hole"), tmp_path / "plan", tmp_path / "backup"
    monkeypatch.chdir(tmp_path)
    before, root = codes(root), root.relative_to(tmp_path)
    code, shown, note = run(capsys, root, "--write-plan", plan)
    assert code == 1 and f"--plan {plan} --apply" in note
    assert run(capsys, root, "--plan", plan) == (1, shown, note)
    code, out, _ = run(capsys, root, "--apply", "--plan", plan, "--backup-dir", backup)
    assert code == 0 and str(backup) in out and "applied" in out
    undo = next(line for line in out.splitlines() if line.startswith("undo ")).removeprefix("undo").strip()
    assert run(capsys, root)[0] == 0
    assert run(capsys, root, "--plan", plan)[0] == 4
    assert codes(root) == set()
    assert undo == f"rmqtool recover {root} --undo {backup}"
    assert main(["info", str(backup)]) == 3 and "README.txt" in capsys.readouterr().err
    lines = [line.strip() for line in (backup / "README.txt").read_text("utf-8").splitlines()]
    undo = f"rmqtool recover {root.absolute()} --undo {backup}"  # it may be read in another folder
    assert undo in lines and any(line.endswith(" --explain 76607") for line in lines)
    monkeypatch.chdir("/")
    for line in lines:
        if line.startswith("rmqtool dump "):
            assert main(shlex.split(line)[1:]) < 2 and len(capsys.readouterr().out.splitlines()) > 3, line
    root = tmp_path / root
    code, found = report(capsys, root, "--undo", backup)
    assert code == 0 and found["backup"] == str(backup)
    assert codes(root) == before
    assert (found["files"], found["removed"], found["command"]) == (3, 0, "recover")
    code, out, _ = run(capsys, root, "--undo", backup)
    assert code == 0 and "nothing to do" in out
    run(capsys, root, "--apply", "--backup-dir", tmp_path / "second")
    code, out, _ = run(capsys, root, "--undo", tmp_path / "second")
    assert code == 0 and "3 files restored: the store is as it was before rmqtool recover\n" in out
    assert f"next         before a broker starts again: rmqtool recover {root}\n" in out


def test_a_log_file_that_was_cut_is_filled(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file gets its length back, and the queues and the index agree with the log that this makes."""
    root = store_copy("ok_540_clean")
    os.truncate(sorted((root / "commitlog").iterdir())[-2], 178_646)
    code, _, _ = run(capsys, root, "--apply", "--yes", "--backup-dir", tmp_path / "backup")
    assert code == 0
    assert main(["verify", str(root), "--quiet"]) == 0, capsys.readouterr().out


def test_whether_a_key_was_lost_can_be_seen_before_and_afterwards(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before by lookup, afterwards in the old index; the plan and the result say so."""
    root = store_copy("ok_497_clean")
    os.truncate(sorted((root / "commitlog").iterdir())[1], 600_000)
    _, out, _ = run(capsys, root)
    (place,) = [number for number, line in enumerate(out.splitlines()) if line.startswith("keys ")]
    said, line = out.splitlines()[place : place + 2]
    assert said.endswith("most of them. After --apply, only the old index in the backup knows.")
    line = line.removeprefix(" " * 13)  # of its own, to be copied
    assert main(shlex.split(line.replace("KEY", "plain"))[1:]) == 1
    assert "the index leads to offset 1701240, which has no sound record" in capsys.readouterr().err
    _, out, _ = run(capsys, root, "--apply", "--backup-dir", tmp_path / "backup")
    (place,) = [number for number, line in enumerate(out.splitlines()) if line.startswith("keys ")]
    line = out.splitlines()[place + 1].removeprefix(" " * 13)  # of its own, to be copied
    words = shlex.split(line.replace("TOPIC", "pubTopicEight").replace("KEY", "plain"))
    assert words[2] == str(tmp_path / "backup/files")  # all old files of the index, not one of them
    assert main([*words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["physical_offset"] == 1701240
    main([*words[1:-1], "plainer"])
    assert capsys.readouterr().out == ""
    assert "\nkeys " not in run(capsys, root)[1]


def test_no_key_is_looked_up_in_an_index_that_does_not_reach_the_damage(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The index ends long before the damage: lookup sees the key in the damaged bytes."""
    root = store_copy("torn_533_killed_burst")
    with (root / "commitlog/00000000000005242880").open("r+b") as log:
        log.seek(5577200 - 5242880)
        log.write(bytes(90))  # its header
    _, plan, _ = run(capsys, root)
    assert "\nlost already at least 1 message" in plan and "replace  index/" in plan and "\nkeys " not in plan
    assert main(["lookup", str(root), "b5504"]) == 1
    said = (
        "b5504 stands in the damaged bytes at offsets 5577200 to 5577536: it may be a key of a lost message"
    )
    assert f"{said}; what is lost: rmqtool recover {root}\n" in capsys.readouterr().err
    assert main(["lookup", str(root), "b550"]) == 1  # the beginning of this key is none
    assert "stands in" not in capsys.readouterr().err
    code, out, _ = run(capsys, root, "--apply", "--backup-dir", tmp_path / "backup")
    assert code == 0 and "\nkeys " not in out


def test_the_line_after_the_repair_lists_a_filler_for_each_lost_message(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan has --all for that; once it is done, a plan has nothing to show."""
    root = store_copy("ok_540_clean")
    with sorted((root / "commitlog").iterdir())[0].open("r+b") as file:
        file.seek(300_000)
        file.write(bytes(100_000))
    _, found = report(capsys, root)
    code, out, _ = run(capsys, root, "--apply", "--backup-dir", tmp_path / "backup")
    says = "each filler stands where a message was: "
    (line,) = [line.removeprefix(says) for line in out.splitlines() if line.startswith(says)]
    assert code == 0 and "--all" not in out
    assert main([*shlex.split(line)[1:], "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lost = [
        (each["topic"], each["queue_id"], each["queue_offset"] + number)
        for each in found["lost"]
        for number in range(each["count"])
    ]
    assert len(lost) > 20 and {each["fate"] for each in found["lost"]} == {"filled"}
    assert sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in rows) == sorted(lost)


def test_the_undo_line_is_the_whole_command(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell can run it as it is: the backup that was made, quoted, and the options of the store."""
    root, conf = tmp_path / "my store", tmp_path / "broker.conf"
    store_copy("gap_cl02_zero_hole").rename(root)
    conf.write_text("brokerRole=ASYNC_MASTER\n")
    before = codes(root)
    code, out, _ = run(capsys, root, "--broker-conf", conf, "--apply")
    (backup,) = tmp_path.glob("my store.rmqtool-backup-*")
    line = next(line for line in out.splitlines() if line.startswith("undo ")).removeprefix("undo").strip()
    words = shlex.split(line)
    assert (code, words[0]) == (0, "rmqtool")
    assert words[1:] == ["recover", str(root), "--broker-conf", str(conf), "--undo", str(backup)]
    assert main(words[1:]) == 0
    assert codes(root) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--plan", "x", "--mode", "best"],
        ["--mode", "broker"],
        ["--mode", "broker", "--broker", "5.3", "--broker", "5.4"],
        ["--mode", "broker", "--broker", "5.4", "--fill", "none"],
        ["--apply", "--plan", "x", "--mode", "best"],
        ["--apply", "--write-plan", "x"],
        ["--undo", "x", "--apply"],
        ["--broker", "4.8"],
        ["--fill", "zeros"],
    ],
)
def test_options_that_do_not_go_together(
    cases: Library, unchanged: Unchanged, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Usage errors; nothing is looked at."""
    root = cases.path("gap_cl02_zero_hole")
    with unchanged(root):
        assert run(capsys, root, *arguments)[0] == 2


def test_less_than_a_store_is_a_usage_error(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing that it would have to agree with."""
    code, _, err = run(capsys, cases.path("ok_540_clean") / "commitlog")
    assert code == 2 and "whole store" in err


def test_out_of_reach_is_shown_and_not_mended(
    cases: Library, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """3 for looking, 4 for doing; records of pop consumers do not matter."""
    root = store_copy("ok_540_small_ipv6")
    (root / "config/topics").mkdir()
    (root / "config/topics/CURRENT").write_text("MANIFEST-000004\n")
    code, out, _ = run(capsys, root)
    assert code == 3 and "RocksDB" in out
    assert run(capsys, root, "--apply")[0] == 4
    shutil.rmtree(root / "config/topics")
    (root / "kvStore").mkdir()
    (root / "kvStore" / "CURRENT").write_text("MANIFEST-000004\n")
    assert run(capsys, root)[0] == 3
    assert run(capsys, root, "--apply")[0] == 0
    assert run(capsys, cases.path("old_un01_tiered"))[0] == 3
    assert run(capsys, store_copy("old_un01_tiered"), "--apply")[0] == 4


def test_giving_up_sound_messages_needs_yes(
    cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused with 4; the hint names the option."""
    from tests.support.trees import copy_tree

    cases.variant("5.4.0:clean:flip-body-last-file:abort", tmp_path / "linked")
    root = copy_tree(tmp_path / "linked", tmp_path / "store")
    code, out, err = run(capsys, root, "--mode", "broker", "--broker", "5.4")
    assert code == 1 and "refused" in out and "--apply keeps their bytes in the backup (--yes)" in out
    given_up = next(line for line in out.splitlines() if line.startswith("give up log bytes"))
    assert given_up.split()[4:6] == given_up.split()[6:] != ["0"]
    _, out, _ = run(capsys, root)
    assert "1 message is lost already (can be read in part)" in out
    (row,) = report(capsys, root)[1]["lost"]
    (save,) = [line[13:] for line in out.splitlines() if line.startswith("save first")]
    place = row["physical_offset"]
    words = shlex.split(save.removesuffix(f" >> damaged-{place}.jsonl"))
    assert words[3:] == ["--explain", str(place), "-o", f"damaged-{place}.body", "--json"]
    assert main(["lookup", str(root), "--offset", str(place), "--json"]) == 1
    (found,) = map(json.loads, capsys.readouterr().out.splitlines())
    known = ("physical_offset", "topic", "queue_offset", "status", "keys", "uniq_key")
    assert {name: row[name] for name in known} == {name: found[name] for name in known}
    assert row["status"] == ["CL03"] and found["uniq_key"] in out
    (tmp_path / "damaged.jsonl").write_text(json.dumps(found))
    assert (
        main(["append", str(tmp_path / "new"), "--create", "--input", str(tmp_path / "damaged.jsonl")]) == 3
    )
    assert "row 1, status: CL03: not stored as if it were sound" in capsys.readouterr().err
    arguments = (root, "--mode", "broker", "--broker", "5.4", "--apply")
    code, _, err = run(capsys, *arguments)
    assert code == 4 and "--yes" in err
    assert run(capsys, *arguments, "--yes")[0] == 0


def test_a_record_with_damaged_properties_goes_to_the_tail_as_append_takes_it(
    cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is right before the hole: a start keeps it, and nothing of it may be lost without fillers."""
    from tests.support.trees import copy_tree

    cases.variant("5.4.0:clean:zero-page-last-file:abort", tmp_path / "linked")
    root = copy_tree(tmp_path / "linked", tmp_path / "store")
    with Store.open(root) as store:
        before = Counter((each.message.topic, each.message.body) for each in store.messages(damage="skip"))
    code, out, _ = run(capsys, root, "--fill", "none")
    rows = {line[:22].strip(): line[22:].split() for line in out.splitlines()}
    assert (code, rows["give up log bytes"]) == (1, ["201.8", "KiB", "207.5", "KiB"])
    assert (rows["lose sound messages"], rows["shorten queues"]) == (["261", "262"], ["39", "39"])
    assert "CL13: given up with a sound body" in out and "pubBatch queue 3 offset 2 (at 3505988)" in out
    code, out, _ = run(capsys, root, "--fill", "none", "--apply", "--yes")
    tail = out[out.index("\ntail ") :].splitlines()[1:3]
    assert code == 0 and tail[0].endswith(": 262 messages, for rmqtool append")
    assert tail[1].strip() == (
        "1 of them has damaged properties (CL13): append stores it with what is left of them"
    )
    assert main(["append", str(root), "--input", tail[0].split()[1].removesuffix(":"), "--quiet"]) == 0
    with Store.open(root) as store:
        assert Counter((each.message.topic, each.message.body) for each in store.messages()) == before
    assert run(capsys, root)[0] == 0  # the next recover takes nothing away


def test_rows_of_the_tail_that_append_refuses_are_announced(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hole is right before a message whose body cannot be decompressed."""
    root = store_copy("bad_cl14_bad_body")
    with (root / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(730164)
        file.write(bytes(370))
    out = run(capsys, root, "--fill", "none", "--apply", "--yes")[1]
    tail = out[out.index("\ntail ") :].splitlines()[1:3]
    assert tail[1].strip() == "append refuses 1 of them, whose status says why; --on-error skip leaves it out"
    append = ["append", str(root), "--input", tail[0].split()[1].removesuffix(":"), "--json"]
    assert main(append) == EXIT_INPUT and "row 1, status: CL14" in capsys.readouterr().err
    assert main([*append, "--on-error", "skip"]) == EXIT_INPUT
    row = json.loads(capsys.readouterr().out)
    assert (row["left_out"], row["messages"] + 1) == (1, int(tail[0].split()[2]))


def test_a_store_of_the_environment_is_not_changed(
    cases: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to be named."""
    monkeypatch.setenv("RMQTOOL_STORE", str(cases.path("ok_540_clean")))
    assert main(["recover", "--apply"]) == 2
    assert "name the store" in capsys.readouterr().err


def test_names_of_a_store_do_not_reach_the_terminal_raw() -> None:
    """A topic's control characters are escaped in the lines, times are added, nothing is said twice."""
    how = COPY_CONFIG.replace("while", "While", 1)
    found = with_times(
        {
            "store": "/s", "abort": True, "guard": False, "mode": "best", "broker": None, "fill": "records",
            "predictions": [], "lost_messages": 1, "given_up_messages": 0, "backup_bytes": 1,
            "needed_bytes": 2, "queues": [],
            "actions": [{"kind": "fill", "path": "commitlog/0", "offset": 1, "length": 2, "reason": "r",
                         "problem": "CL03"}],
            "warnings": [f"w. {how}; x", f"v. {how}; y"], "guessed_sizes": [], "replica": ["x"],
            "remaining": [], "config_lost": False, "ledger": None,
            "refusals": [{"reason": "n", "needs": None}],
            "applied": None, "incomplete": [], "delayed_originals": [],
            "lost": [{"topic": "a\x1b[31m", "queue_id": 0, "queue_offset": 1, "physical_offset": 5, "size": 9,
                      "count": 1, "fate": "filled", "known_from": "unit", "delivered": 0, "status": None,
                      "keys": None, "uniq_key": None, "remains": None,
                      "stored_after_timestamp_ms": 0, "stored_before_timestamp_ms": 1}],
        },
        None,
    )  # fmt: skip
    lines = list(recover_lines(found))
    assert not any("\x1b" in line for line in lines)
    assert any("a\\x1b[31m" in line for line in lines)
    assert (
        f"warning      w. {how}; x" in lines
        and "warning      v. Copy it to config/ from the same place; y" in lines
    )
    assert found["lost"][0]["stored_before_time"].startswith("1970-01-01T")
    assert found["lost"][0]["stored_after_time"] is None


@pytest.mark.parametrize(
    "where", ["commitlog/x", "commitlog", "rmqtool-staging", "lock/x", ".", "config/plan"]
)
def test_nothing_of_ours_is_put_into_the_store(
    store_copy: StoreCopy, unchanged: Unchanged, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """Neither a backup nor a plan: there it would be taken for a part of the store, or for its log."""
    root = store_copy("gap_cl02_zero_hole")
    with unchanged(root):
        for option in (("--apply", "--backup-dir"), ("--fill", "none", "--yes", "--apply", "--backup-dir")):
            assert run(capsys, root, *option, str(root / where))[0] == EXIT_REFUSED
        assert run(capsys, root, "--write-plan", str(root / where))[0] in (EXIT_USAGE, EXIT_REFUSED)
    assert not list(root.parent.glob("*.jsonl"))


def test_a_plan_takes_the_place_of_plain_files_only(
    store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, plans = store_copy("gap_cl02_zero_hole"), tmp_path / "plans"
    plans.mkdir()
    (plans / "plan.new").write_text("mine")
    os.mkfifo(plans / "pipe")
    (plans / "link").symlink_to(plans / "plan.new")
    for name in ("pipe", "link"):
        assert run(capsys, root, "--write-plan", str(plans / name))[0] == EXIT_REFUSED
    assert run(capsys, root, "--write-plan", "")[0] == EXIT_USAGE
    for _ in range(2):
        assert run(capsys, root, "--write-plan", str(plans / "plan"))[0] == EXIT_FINDINGS
    assert sorted(path.name for path in plans.iterdir()) == ["link", "pipe", "plan", "plan.new"]
    assert (plans / "plan.new").read_text() == "mine"


_SHAPES_PLANS: dict[Any, dict[str, str]] = {
    rebuild: {"only": "queues", "topic": "pubTopicO*", "queue": "0-3"},
    recover: {"mode": "best", "fill": "none", "broker": "5.4", "broker_heap": "3000"},
}


@pytest.mark.parametrize("command", [rebuild, recover])
def test_the_line_that_applies_a_plan_has_all_options_that_shaped_it(
    command: Callable[..., int], store_copy: StoreCopy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option of the command, also one that is added later; those of a plan file are in the file."""
    root, conf, plan = store_copy("ok_540_clean"), tmp_path / "broker.conf", tmp_path / "plan"
    conf.write_text("brokerRole=ASYNC_MASTER\n")
    shutil.rmtree(root / "consumequeue/pubTopicOne")
    elsewhere, expired = tmp_path / "else where", tmp_path / "expired"
    (root / "commitlog").rename(elsewhere)
    expired.mkdir()
    shared = {
        "commitlog": str(elsewhere), "read_only_commitlog": str(expired), "broker_conf": str(conf),
        "profile": "5.4", "backup_dir": str(tmp_path / "backup"), "force": "",
    }  # fmt: skip
    own = _SHAPES_PLANS[command]
    if command is recover:
        shared |= {"tz": "UTC", "yes": ""}
    others = {"store", "apply", "plan", "write_plan", "undo"} | PRESENTATION
    assert set(signature(command).parameters) - others == shared.keys() | own.keys()

    def words(given: dict[str, str]) -> list[str]:
        return [word for name, value in given.items()
                for word in (f"--{name.replace('_', '-')}", value) if word]  # fmt: skip

    def line(*more: str) -> list[str]:
        given = [command.__name__, str(root), *words(shared | own), "-j", "1", *more]
        assert main(given) == EXIT_FINDINGS
        (found,) = [text for text in capsys.readouterr().err.splitlines() if "apply the plan: " in text]
        return shlex.split(found.partition("apply the plan: ")[2])

    whole = line()
    assert whole[:3] == ["rmqtool", command.__name__, str(root)]
    assert sorted(whole[3:]) == sorted([*words(shared | own), "--apply"])
    of_file = line("--write-plan", str(plan))
    assert sorted(of_file[3:]) == sorted([*words(shared), "--plan", str(plan), "--apply"])
    assert main(of_file[1:]) == 0 and (tmp_path / "backup").exists()


@pytest.mark.parametrize(("folder", "name"), [("consumequeue", "consumequeue"), ("index", "index")])
def test_sizes_that_nothing_tells_are_warned_of(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str], tmp_path: Path, folder: str, name: str
) -> None:
    """A broker of other sizes would not load the files; with its broker.conf they are what it wants."""
    root, conf = store_copy("ok_540_clean"), tmp_path / "broker.conf"
    shutil.rmtree(root / folder)
    _, found = report(capsys, root)
    (warning,) = [text for text in found["warnings"] if "the default size" in text]
    assert warning.startswith(f"files of {name} get the default size of ") and "--broker-conf" in warning
    effect, settings, unusual = {
        "index": ("loads them, but finds no key in them", "maxHashSlotNum and maxIndexNum", "log and queue"),
        "consumequeue": ("does not start with them", "mappedFileSizeConsumeQueue", "log"),
    }[name]
    assert f"a broker with another size {effect}. The {unusual} files here do not have the default" in warning
    assert f"or a file with just {settings} (rmqtool info OTHER --json of a broker with" in warning
    shown = warning.rpartition(" shows them as ")[2].rstrip(")").split(" and ")
    main(["info", str(root), "--json"])
    info = json.loads(capsys.readouterr().out)
    assert all(isinstance(info[a][b][c], int) for a, b, c in (each.split(".") for each in shown))
    for command in ("recover", "rebuild"):
        assert main([command, str(root)]) == EXIT_FINDINGS
        captured = capsys.readouterr()
        said = (
            "The size of the files in {} is a guess"
            if command == "recover"
            else "files of {} get the default"
        )
        assert said.format(name) in captured.out + captured.err
        (line,) = [each for each in captured.err.splitlines() if "to apply the plan: " in each]
        assert "--broker-conf FILE" in line and "--apply" in line
        assert main([command, str(root), "--write-plan", str(tmp_path / command)]) == EXIT_FINDINGS
        (line,) = [each for each in capsys.readouterr().err.splitlines() if "to apply the plan: " in each]
        assert "; with --broker-conf FILE the plan has to be made again; to apply the plan: " in line
        assert "--broker-conf" not in line.partition("to apply the plan: ")[2]
    conf.write_text("mappedFileSizeConsumeQueue=6000\nmaxHashSlotNum=500\nmaxIndexNum=2000\n")
    _, found = report(capsys, root, "--broker-conf", conf)
    assert [text for text in found["warnings"] if "the default size" in text] == []
    code, out, _ = run(capsys, root, "--apply")
    assert code == 0 and f"The size of the new files in {name} was a guess" in out.partition("\nverdict ")[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "{} does not set maxHashSlotNum and maxIndexNum. The log and queue files here do not have"),
        ("brokerName=x\nmaxHashSlotNum=500\n", "{} does not set maxIndexNum. The log and queue files here"),
        (
            "# sizes\nmaxHashSlotNum=\nmaxIndexNum=1k\nmappedFileSizeCommitLog=1048576\n"
            "mappedFileSizeConsumeQueue=20000\n",
            "{0} line 2: maxHashSlotNum has no value; {0} line 3: maxIndexNum='1k' is not an integer. Name",
        ),
    ],
)
def test_a_configuration_without_the_sizes_leaves_them_a_guess(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    """Another broker's file, or one with mistakes, silenced the warning: no key was found afterwards."""
    root, conf = store_copy("ok_540_clean"), tmp_path / "broker.conf"
    shutil.rmtree(root / "index")
    conf.write_text(text)
    _, found = report(capsys, root, "--broker-conf", conf)
    (warning,) = [each for each in found["warnings"] if "the default size" in each]
    assert said.format(conf) in warning and found["guessed_sizes"] == ["index"]
    assert main(["rebuild", str(root), "--broker-conf", str(conf)]) == EXIT_FINDINGS
    assert said.format(conf) in capsys.readouterr().err
    _, out, err = run(capsys, root, "--broker-conf", conf)
    assert "The size of the files in index is a guess" in out.partition("\nverdict ")[2]
    (line,) = [each for each in err.splitlines() if "rmqtool recover" in each]
    assert line.endswith(f"rmqtool recover {root} --broker-conf FILE --apply")


def test_a_configuration_that_fits_the_store_means_the_defaults(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It sets what is not the default, so what it leaves out is."""
    root, conf = store_copy("ok_540_clean"), tmp_path / "broker.conf"
    shutil.rmtree(root / "index")
    conf.write_text("mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n")
    _, found = report(capsys, root, "--broker-conf", conf)
    assert found["guessed_sizes"] == [] and not any("the default size" in each for each in found["warnings"])


def test_a_message_that_keeps_its_body_alone_is_named(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its keys are lost, though a broker reads it: a slave or a backup may have them."""
    root = store_copy("bad_cl13_bad_properties")
    code, found = report(capsys, root)
    (message,) = found["incomplete"]
    assert code == 1 and found["actions"] == []
    place = f"{message['topic']} queue {message['queue_id']} offset {message['queue_offset']}"
    text = f"CL13: kept with a sound body, although the properties are damaged: {place} (at"
    assert any(each.startswith(text) for each in found["warnings"])


def test_lost_messages_that_were_delivered_before_are_said(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """A delayed message below the offset of its level has a copy in its own topic."""
    root = store_copy("ok_533_clean")
    log = sorted((root / "commitlog").iterdir())[1]
    with log.open("r+b") as file:
        file.seek(1202243 - int(log.name))
        file.write(b"\xaa" * 1000)  # two delayed messages of level 1, which was delivered up to 24
    _, found = report(capsys, root)
    lost = {(row["topic"], row["queue_offset"]): row["delivered"] for row in found["lost"]}
    assert lost == {(SCHEDULE_TOPIC, 21): 1, (SCHEDULE_TOPIC, 22): 1}
    said = " ".join(run(capsys, root, "--format", "text")[1].split())
    assert "are lost already; 2 of these, delayed messages, were delivered before." in said
    assert "subscribers to * receive" not in said
    (root / "config/delayOffset.json").write_text('{"offsetTable":{1:22}}')
    _, found = report(capsys, root)
    assert [row["delivered"] for row in found["lost"]] == [1, 0]


def test_each_lost_config_file_has_its_reason(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not `as above`, which hides the row: what one .bak costs is not what another costs."""
    root = store_copy("ok_540_clean")
    for name in ("subscriptionGroup", "consumerFilter"):
        (root / f"config/{name}.json").rename(root / f"config/{name}.json.bak")
    (root / "config/subscriptionGroup.json").write_bytes(b"")
    monkeypatch.setenv("COLUMNS", "10000")
    main(["recover", str(root), "--format", "text"])
    out = capsys.readouterr().out
    assert out.count("a broker loads its .bak, which is copied") == 2 and "as above" not in out


def test_lost_messages_of_a_file_that_was_cut(
    store_copy: StoreCopy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queues name all of them, so the rest of the file was a blank; --all shows the ranges of each queue."""
    root = store_copy("ok_497_clean")
    os.truncate(root / "commitlog" / f"{2 << 20:020}", 700_001)
    _, found = report(capsys, root)
    assert found["lost_messages"] > 20 and all(row["count"] for row in found["lost"])  # noqa: PLR2004
    numbers: dict[tuple[str, str], list[int]] = {}
    for row in found["lost"]:
        offsets = range(row["queue_offset"], row["queue_offset"] + row["count"])
        numbers.setdefault((row["topic"], str(row["queue_id"])), []).extend(offsets)
    lines = run(capsys, root, "--format", "text", "--all")[1].splitlines()
    start = next(number for number, line in enumerate(lines) if "first_queue_offset" in line) + 2
    ranges: dict[tuple[str, str], list[int]] = {}
    for line in lines[start : lines.index("", start)]:
        topic, queue, first, last, count = line.split()
        assert int(last) - int(first) + 1 == int(count)
        ranges.setdefault((topic, queue), []).extend(range(int(first), int(last) + 1))
    assert ranges == {queue: sorted(each) for queue, each in numbers.items()}
    shutil.rmtree(root / "consumequeue/pubTopicOne")  # a queue that does not say what it had there
    assert any(not row["count"] for row in report(capsys, root)[1]["lost"])


@pytest.mark.parametrize("case", ["bad_cl06_foreign_record", "gap_cl02_zero_hole", "gap_cq13_queue_missing"])
def test_the_plan_says_how_much_space_apply_needs(
    case: str, store_copy: StoreCopy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least as much as --apply asks for, with a backup on the same file system."""
    from rmqtool.repair.plan import space

    root = store_copy(case)
    _, found = report(capsys, root)
    asked: list[int] = []
    check = space.check_room
    monkeypatch.setattr(
        space, "check_room", lambda needs, *more: (asked.append(sum(needs.values())), check(needs, *more))
    )
    assert run(capsys, root, "--apply")[0] == 0
    assert asked and max(asked) <= found["needed_bytes"] < max(asked) + found["backup_bytes"] + (1 << 20)
