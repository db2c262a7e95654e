"""The sentences that end a report, and the command lines after them: they are run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.commands.expire_text import _sizes_text
from rmqtool.commands.recover_text import _fates
from rmqtool.commands.recover_verdicts import of_recover, offsets_lost_sentence
from rmqtool.commands.verdicts import (
    GROUP_STATES,
    SECTION_OF_CONFIG,
    by_name,
    cure,
    disk_text,
    listed,
    of_lag,
    of_topics_without_groups,
    span,
)
from rmqtool.formats import config_json, properties
from rmqtool.formats.filler import FIELDS
from rmqtool.formats.index import Shape
from rmqtool.formats.message import Message
from rmqtool.message.system_topics import is_system_topic
from rmqtool.read.store import Store
from rmqtool.report.trace import table_fields
from rmqtool.table import Table
from rmqtool.terminal import format_size
from tests.support.exports import append_numbered, small_store
from tests.support.records import record
from tests.support.remote import pack
from tests.support.stores import Library
from tests.support.sweep import in_sweeps
from tests.support.whole_store import keyed, write_config, write_whole

pytestmark = pytest.mark.usefixtures("unbroken")

Capture = pytest.CaptureFixture[str]
StoreCopy = Callable[[str], Path]


def verdict(text: str) -> str:
    """The text of the verdict line, which is the last but for the command lines after it."""
    (line,) = [line for line in text.splitlines() if line.startswith("verdict ")]
    return line[13:]


def commands(text: str, label: str) -> list[str]:
    """The command lines with this label."""
    return [line[13:] for line in text.splitlines() if line.startswith(f"{label:<13}")]


def run(capfd: Capture, *words: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = main([str(word) for word in words])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_names_and_counts() -> None:
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "", "a", "a and b", "a, b and c",
    ]  # fmt: skip
    assert by_name({"Orders": 1}, "message") == "1 message of Orders"
    assert by_name({"a": 2, "b": 5}, "message") == "7 messages (5 of b and 2 of a)"
    counts = {name: 10 - place for place, name in enumerate("abcde")}
    assert by_name(counts, "message", "group") == (
        "40 messages (10 of a, 9 of b, 8 of c and 13 in 2 more groups)"
    )
    assert len(by_name({"x" * 200: 1}, "message")) < 80


def test_a_span_says_once_what_its_ends_share() -> None:
    first, same_day = "2026-11-21T08:50:12.680+00:00", "2026-11-21T08:51:16.716+00:00"
    next_day = "2026-11-22T08:51:16.716+00:00"
    assert span(first, first) == first
    assert span(first, same_day) == "2026-11-21T08:50:12.680 to 08:51:16.716+00:00"
    assert span(first, next_day) == f"{first} to {next_day}"


def test_recover_says_what_a_start_costs(cases: Library, capfd: Capture) -> None:
    """The numbers are those of the predictions, and the topics those that lose messages."""
    root = cases.path("gap_cl02_zero_hole")
    _, out, _ = run(capfd, "recover", root, "--format", "json")
    found = json.loads(out)
    _, out, _ = run(capfd, "recover", root)
    text = verdict(out)
    given_up = {row["messages_abandoned"] for row in found["predictions"]} - {0}
    assert given_up and all(f"gives up {count} sound message" in text for count in given_up)
    topics = found["predictions"][0]["topics_abandoned"]
    assert max(topics, key=lambda name: topics[name]) in text
    assert "recover keeps every sound message" in text


def test_a_file_that_is_made_longer_needs_no_backup(store_copy: StoreCopy, capfd: Capture) -> None:
    """The zeros that are added take the place of nothing."""
    root = store_copy("ok_540_clean")
    os.truncate(root / "commitlog" / f"{1 << 20:020}", (1 << 20) - 50_000)
    _, out, _ = run(capfd, "recover", root, "--format", "json")
    found = json.loads(out)
    assert [(each["kind"], each["length"]) for each in found["actions"]] == [("cut", 50_000)]
    assert found["backup_bytes"] == 0


def test_recover_says_that_a_start_is_safe(cases: Library, capfd: Capture) -> None:
    """Of the versions that lose nothing, and of no other."""
    brokers = [f"--broker={name}" for name in ("4.9", "5.3", "5.4")]
    _, out, _ = run(capfd, "recover", cases.path("ok_540_clean"), *brokers)
    assert verdict(out).startswith("A start of 5.3 or 5.4 loses nothing. A start of 4.9 loses 2 queues")


def test_a_start_that_fails_hangs_or_crashes() -> None:
    """Each is said with the version; a repair that was interrupted comes first."""
    sound: dict[str, Any] = {
        "unread_config": [], "crashes": False, "loads": True, "load_error": None, "load_path": None,
        "hangs": False, "messages_abandoned": 0, "topics_abandoned": {}, "queues_lost": 0,
        "messages_hidden": 0, "consumer_offsets_beyond": [],
    }  # fmt: skip
    found: dict[str, Any] = {
        "guard": False, "applied": None, "actions": [], "warnings": [], "lost": [], "lost_messages": 0,
        "incomplete": [], "guessed_sizes": [], "remaining": [], "config_lost": False, "ledger": None,
        "predictions": [
            {**sound, "broker": "4.9", "loads": False, "load_path": "commitlog/0"},
            {**sound, "broker": "5.3", "hangs": True}, {**sound, "broker": "5.4", "crashes": True},
        ],
    }  # fmt: skip
    assert of_recover(found) == [
        "Do not start a broker yet.", "A start of 4.9 fails: it does not load commitlog/0.",
        "A start of 5.3 hangs.", "A start of 5.4 runs out of memory.",
    ]  # fmt: skip
    assert "interrupted" in of_recover({**found, "guard": True})[0]
    unread = [
        {"path": f"config/{name}", "reason": "r", "problem": code, "ends": True}
        for name, code in (("a", "CF02"), ("b", "RD10"))
    ]
    of_both, of_one = (
        of_recover({**found, "predictions": [{**sound, "broker": "5.4", "unread_config": each}]})[-1]
        for each in (unread, unread[:1])
    )
    assert of_both.endswith("; rmqtool problems CF02 and rmqtool problems RD10 say more.")
    assert of_one.endswith("; rmqtool problems CF02 says more.")


def test_a_copy_of_the_offsets_replaces_those_that_were_set() -> None:
    """Once reset-offset has set some, the advice to copy the file would undo it without a word."""
    first = offsets_lost_sentence(["CF08 consumerOffset.json and its .bak are missing"])
    later = offsets_lost_sentence(["CF08 the committed offsets of 2 groups are still lost: a, b"])
    assert "Copy consumerOffset.json from a backup" in first
    assert "Copy consumerOffset.json (which replaces the offsets set since) from a backup" in later


def test_after_a_repair_the_next_command_checks_the_store(store_copy: StoreCopy, capfd: Capture) -> None:
    """Both command lines can be pasted: the check finds nothing, and the undo brings the store back."""
    root = store_copy("gap_cl02_zero_hole")
    code, out, _ = run(capfd, "recover", root, "--apply")
    assert code == 0 and verdict(out).startswith(
        "The plan was applied. Check the store before you start a broker."
    )
    (check,), (undo,) = commands(out, "next"), commands(out, "undo")
    assert run(capfd, *shlex.split(check)[1:])[0] == 0
    assert run(capfd, *shlex.split(undo)[1:])[0] == 0
    assert run(capfd, *shlex.split(check)[1:])[0] == 1


_FIRST, _HOLE, _HOLE_END = 1560262, 1560734, 1569258
"""A record, and the 20 records after it, in ok_540_clean."""


def zero(root: Path, start: int, stop: int) -> None:
    """Zero a range of the second log file."""
    base = 1 << 20
    with (root / "commitlog" / f"{base:020}").open("r+b") as file:
        file.seek(start - base)
        file.write(bytes(stop - start))


@pytest.fixture
def torn_copy(store_copy: StoreCopy) -> Path:
    """A store in which the properties of one record end in zeros, and the 20 records after it are lost."""
    root = store_copy("ok_540_clean")
    zero(root, _HOLE - 52, _HOLE_END)
    return root


def test_recover_names_a_message_whose_properties_end_in_zeros(torn_copy: Path, capfd: Capture) -> None:
    """The warning has its code, topic, queue and offsets; the verdict counts it besides the lost ones."""
    _, out, _ = run(capfd, "recover", torn_copy)
    (warning,) = [line for line in out.splitlines() if line.startswith("warning ")]
    assert warning[13:].startswith("CL13: ")
    assert f"LongTopicName- queue 3 offset 58 (at {_FIRST})" in warning and "Keys, tags" in warning
    assert "20 messages (6 of pubTopicEight" in verdict(out)
    assert "1 message of pubLong" in verdict(out) and "keys, tags" in verdict(out)
    assert "lost already 20 messages of 15 queues" in out and "readable" not in out
    lines = out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[:3] == ["topic", "queue_id", "queue_offset"])
    assert lines[at].split()[3:5] == ["physical_offset", "size"] and str(_HOLE) in lines[at + 2]
    assert len({line.split()[3] for line in lines[at + 2 : at + 22]}) == 20
    shutil.rmtree(torn_copy / "consumequeue")  # only gaps between messages show lost ones from now on
    _, out, _ = run(capfd, "recover", torn_copy)
    assert "lost already at least " in out and "; at least " in verdict(out)
    assert lines[at + 22].startswith("keys  ") and not lines[at + 24]
    assert "fill 1 range in commitlog" in out and "replace 1 file in index" in out


def test_verify_does_not_lead_back_to_a_recover_that_repairs_nothing(torn_copy: Path, capfd: Capture) -> None:
    """What is left after the repair cannot be repaired: verify says so, and what it means."""
    _, _, err = run(capfd, "verify", torn_copy)
    assert f"to see the plan of a repair: rmqtool recover {torn_copy}" in err
    assert run(capfd, "recover", torn_copy, "--apply")[0] == 0
    code, _, err = run(capfd, "verify", torn_copy)
    assert code == 1 and "rmqtool recover" not in err
    assert "recover cannot repair what is left; a broker may be started" in err
    assert "CL13: the broker drops" in err and "do not find the message" in err


def test_verify_says_what_a_start_costs(cases: Library, capfd: Capture) -> None:
    """In the words of recover; not where only a part is to be read."""
    path = cases.path("bad_cl04_wrong_length")
    _, _, err = run(capfd, "verify", path)
    _, out, _ = run(capfd, "recover", path)
    (said,) = (line for line in err.splitlines() if line.startswith("Do not start the broker yet."))
    assert said.startswith("Do not start the broker yet. A start of 5.4 gives up 185 sound messages (104 of")
    assert said.partition(" sound messages")[0] in verdict(out)
    for some in (["--sample", "1/2"], ["--io-limit", "100M"]):
        _, _, err = run(capfd, "verify", path, *some)
        assert "before a broker starts, see what its start would do" in err and "A start of" not in err


def test_a_damaged_archive_is_copied_first(torn_copy: Path, tmp_path: Path, capfd: Capture) -> None:
    """Commands that can change a store refuse an archive, so no line leads to them with it."""
    archive = pack(torn_copy, tmp_path / "torn.tar")
    assert "copied to a local disk: rmqtool recover LOCAL_COPY" in run(capfd, "verify", archive)[2]
    assert "rmqtool recover LOCAL_COPY" in run(capfd, "doctor", archive)[1]
    assert f"rmqtool verify {archive}" in run(capfd, "info", archive)[1]


def test_doctor_says_what_is_lost_already(torn_copy: Path, capfd: Capture) -> None:
    """In the words of recover and verify; after the repair nothing more is at stake."""
    _, out, _ = run(capfd, "doctor", torn_copy)
    text = " ".join(out.split())
    assert (
        "20 messages (6 of pubTopicEight, 4 of a%b-c_pub, 4 of pub-Topic_Four and 6 in 2 more topics)" in text
    )
    assert "are damaged or already lost. A start of 5.4 loses nothing more." in text
    _, out, _ = run(capfd, "doctor", torn_copy, "--format", "json")
    assert sum(each["messages"] for each in json.loads(out)["lost"]) == 20
    assert run(capfd, "recover", torn_copy, "--apply")[0] == 0
    _, out, _ = run(capfd, "doctor", torn_copy)
    assert "already lost" not in out and "A start of 5.4 loses nothing." in " ".join(out.split())


def test_diff_recognises_the_fillers_of_recover(
    store_copy: StoreCopy, cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """It counts them, and the line that carries the messages over reads those that are still missing."""
    root, intact = store_copy("ok_540_clean"), cases.path("ok_540_clean")
    zero(root, _HOLE, _HOLE_END)
    assert run(capfd, "recover", root, "--apply")[0] == 0
    for tag, is_noted in (("RMQTOOL_FILLER", False), ("A", True)):
        assert ("a batch record counts as one" in run(capfd, "dump", root, "--tag", tag)[2]) is is_noted
    code, out, _ = run(capfd, "diff", root, intact)
    assert code == 1
    fillers = "20 fillers in A stand where B has the messages."
    assert verdict(out) == f"The stores differ. {fillers} B holds every message of A."
    assert f"{_HOLE} to {_HOLE_END}: 20 fillers in A, 20 messages in B" in out
    for each, has_fillers in ((root, True), (intact, False)):
        line = f"for lost messages: rmqtool dump {each} --tag RMQTOOL_FILLER --fields {FIELDS}\n"
        assert (
            f"20 tagged fillers of recover in 5 topics, {line}" in run(capfd, "verify", each)[2]
        ) is has_fillers
        text = " ".join(run(capfd, "doctor", each, "--no-host")[1].split())
        assert ("fillers: 20 fillers of rmqtool recover in 5 topics" in text) is has_fillers
    assert "two different records" not in out and "sound, a filler of rmqtool recover" in out
    assert "20 messages keep their queue offsets" in " ".join(out.split()) and "stay behind" not in out
    assert commands(out, "undo") == [f"rmqtool recover {root} --undo BACKUP"]
    repair, line = commands(out, "run")
    assert repair == f"rmqtool recover {root} --apply"
    dump, _, append = line.partition(" | ")
    assert shlex.split(append)[:3] == ["rmqtool", "append", str(root)]
    _, out, _ = run(capfd, *shlex.split(dump)[1:])
    assert len(out.splitlines()) == 20 and "RMQTOOL_FILLER" not in out
    _, out, _ = run(capfd, "diff", intact, root)
    assert "20 fillers in B stand where A has the messages." in verdict(out)
    for place, left in ((1_563_000, None), (None, 0)):
        words = shlex.split(dump)[1:] if place is None else [*shlex.split(dump)[1:], "--to-offset", place]
        (tmp_path / "rows").write_text(rows := run(capfd, *words)[1])
        assert run(capfd, "append", root, "--input", tmp_path / "rows")[0] == 0
        _, out, _ = run(capfd, "diff", root, intact)
        if left == 0:
            assert commands(out, "run") == [] and "carry over" not in out
            assert verdict(out).endswith(" where B has the messages; A has them elsewhere, by unique key.")
            assert "20 fillers in A, 20 messages in B; A has 20 from " in out
            break
        count = len(rows.splitlines())
        assert f"; A has {count} of these 20 elsewhere, by unique key." in verdict(out)
        assert f": 20 messages: {count} already in A by unique key, {20 - count} only in B (" in out
        (line,) = commands(out, "run")
        assert commands(out, "copy") == []  # it would bring the messages a second time
        dump = line.partition(" | ")[0]


def test_diff_says_which_messages_the_line_leaves_behind(
    store_copy: StoreCopy, cases: Library, capfd: Capture
) -> None:
    """Half messages that fillers replaced are in no line: their offsets mean nothing elsewhere."""
    root, intact = store_copy("ok_533_clean"), cases.path("ok_533_clean")
    second = sorted((root / "commitlog").iterdir())[1]
    os.truncate(second, 600_000)
    assert run(capfd, "recover", root, "--apply")[0] == 0
    text = " ".join(run(capfd, "diff", root, intact)[1].split())
    assert "10 messages of topics RMQ_SYS* stay behind (half messages, op records)" in text
    assert "recover A: all 159 messages keep their queue offsets." in text
    assert f"copy cp -p {intact / 'commitlog' / second.name} {second}" in text
    assert "if nothing was written to A since its repair: undo that first" in text


def test_diff_of_queues_that_go_on_with_other_messages(tmp_path: Path, capfd: Capture) -> None:
    """Both reach as far: neither is said to reach further."""
    stores = small_store(tmp_path / "a", 8), tmp_path / "b"
    shutil.copytree(*stores)
    for store in stores:
        append_numbered(store, 8, 9)
    _, out, _ = run(capfd, "diff", *stores, "--format", "json")
    (queue,) = [each for each in json.loads(out)["queues"]["queues"] if each["state"] == "more"]
    assert queue["max_offset_a"] == queue["max_offset_b"]
    _, out, _ = run(capfd, "diff", *stores)
    text = " ".join(out.split())
    assert "1 has messages that only one store has" in text and "further" not in text


def test_lookup_of_a_lost_message_says_that_it_is_lost(store_copy: StoreCopy, capfd: Capture) -> None:
    """Before the repair with the next command; after it an exact place leads to the filler there."""
    root = store_copy("ok_540_clean")
    zero(root, _HOLE, _HOLE_END)
    queue = ("--topic", "pub-Topic_Four", "--queue", 2)
    _, _, err = run(capfd, "lookup", root, *queue, "--queue-offset", 127)
    assert "the message is lost or damaged" in err and "rmqtool recover" in err and "has 0 to" not in err
    assert run(capfd, "recover", root, "--apply")[0] == 0
    for words in (("--offset", _HOLE), (*queue, "--queue-offset", 127)):
        _, _, err = run(capfd, "lookup", root, *words)
        assert f"the message is lost: a filler at offset {_HOLE} replaces it (topic pub-Topic_Four)" in err
        assert "may have been" not in err and "has 0 to" not in err
    _, _, err = run(capfd, "lookup", root, *queue, "--queue-offset", 1270)
    assert "queue 2 of pub-Topic_Four has 0 to 147" in err and "is lost" not in err


def test_lookup_of_a_cut_record_leads_to_what_is_left_of_it(store_copy: StoreCopy, capfd: Capture) -> None:
    """Its head can be read; a place in it, or in zeros, leads nowhere."""
    root = store_copy("ok_497_clean")
    os.truncate(sorted((root / "commitlog").iterdir())[1], 600_000)
    _, _, err = run(capfd, "lookup", root, "--offset", 1635462)
    (line,) = [line for line in err.splitlines() if "a damaged record starts at offset 1635462" in line]
    _, out, _ = run(capfd, *shlex.split(line.partition("read of it: ")[2])[1:])
    assert "queue_offset" in out and "pub-Topic_Four" not in line
    assert "no record starts at" in run(capfd, "lookup", root, "--offset", 1635463)[2]


def test_lookup_says_that_the_log_ends_before_a_message(store_copy: StoreCopy, capfd: Capture) -> None:
    """By the unit of the queue; after the repair has deleted the queue, by topics.json."""
    root = store_copy("ok_540_clean")
    os.truncate(root / "commitlog" / f"{3 << 20:020}", 200_000)
    words = ("lookup", root, "--topic", "pubOrder", "--queue", 0, "--queue-offset", 5)
    _, _, err = run(capfd, *words)
    assert "leads to offset 3383178, but the log ends at 3290319: the message is lost" in err
    assert run(capfd, "recover", root, "--apply")[0] == 0
    _, _, err = run(capfd, *words)
    assert "topics.json has queue 0 of pubOrder" in err and "the end of the log is lost" in err


def test_recover_of_a_cut_log_counts_messages_and_queues(
    cases: Library, store_copy: StoreCopy, tmp_path: Path, capfd: Capture
) -> None:
    """A row stands for the lost messages of a queue: the counts of rows and head are those of the plan."""
    root = store_copy("ok_540_clean")
    os.truncate(root / "commitlog" / f"{3 << 20:020}", 200_000)
    _, out, _ = run(capfd, "recover", root, "--format", "json")
    found = json.loads(out)
    _, out, _ = run(capfd, "recover", root)
    queues = len({(row["topic"], row["queue_id"]) for row in found["lost"]})
    reused = "new messages reuse their queue offsets"
    assert f"lost already {found['lost_messages']} messages of {queues} queues; {reused}\n" in out
    assert "".join(_fates(found["lost"])) == f"; {reused}"
    cut, filled = (dict(found["lost"][0], count=1, fate=fate, topic="T") for fate in ("cut", "filled"))
    assert "".join(_fates([cut])) == "; new messages reuse its queue offset"
    assert "".join(_fates([filled, cut])).endswith("; new messages reuse the queue offsets of 1 of them")
    lines = out.splitlines()
    header = next(line for line in lines if line.startswith("topic ") and "messages" in line)
    assert header.split() == ["topic", "queues", "messages", "first_physical_offset", "from_time"]
    assert "--all shows the ranges of each queue, and each lost message, with queue and offsets" in lines
    rows = [line.split() for line in lines[lines.index(header) + 2 :][:10]]
    lost: Counter[str] = Counter()
    for each in found["lost"]:
        lost[each["topic"]] += each["count"]
    assert [(row[0], int(row[2])) for row in rows] == lost.most_common(10)
    assert "1 committed offset is past" in out and "1 delay offset is outside" in out
    assert "replace checkpoint" in out
    assert lines[-1] == f"slave        for the lost messages: rmqtool diff {root} SLAVE"
    elsewhere = tmp_path / "else where"
    (root / "commitlog").rename(elsewhere)
    _, out, _ = run(capfd, "recover", root, "--commitlog", elsewhere)
    line = out.splitlines()[-1].removeprefix("slave        for the lost messages: rmqtool ")
    code, out, _ = run(capfd, *shlex.split(line.replace("SLAVE", str(cases.path("ok_540_clean")))))
    assert code == 1 and f"--commitlog {shlex.quote(str(elsewhere))}" in out  # it has read this log
    elsewhere.rename(root / "commitlog")
    _, out, _ = run(capfd, "recover", root, "--all")
    lines = out.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("topic ") and "size" in line)
    assert lines[header].split()[:5] == ["topic", "queue_id", "queue_offset", "messages", "physical_offset"]
    rows = [line.split()[:5] for line in lines[header + 2 :][: len(found["lost"])]]
    names = ("topic", "queue_id", "queue_offset", "count", "physical_offset")
    assert rows == [[str(each[name]) for name in names] for each in found["lost"]]
    assert "--all shows" not in out
    _, out, _ = run(capfd, "recover", root, "--apply")
    assert f"each lost message: rmqtool recover {root} --all, after --undo\n" in out and "\nslave " not in out


def test_a_copy_of_a_short_or_missing_file_comes_first(store_copy: StoreCopy, capfd: Capture) -> None:
    """The short doctor and the verdict of recover say so: nothing else brings the messages back."""
    root = store_copy("ok_497_clean")
    short = sorted((root / "commitlog").iterdir())[1]
    os.truncate(short, 600_000)
    says = "a slave's file has the same name and bytes"
    text = " ".join(run(capfd, "doctor", root, "--no-host")[1].split())
    assert f"if a slave or a backup has this file, put it back first: {says}" in text
    _, out, _ = run(capfd, "recover", root)
    assert (
        f"If a slave or a backup has commitlog/{short.name}, put it back first and plan again: {says}." in out
    )
    short.unlink()
    sorted((root / "commitlog").iterdir())[1].unlink()
    names = [f"{number << 20:020}" for number in (1, 2)]
    _, out, _ = run(capfd, "verify", root, "--pass", "files", "--format", "jsonl")
    (gone,) = [row for row in map(json.loads, out.splitlines()) if row["problem"] == "CL20"]
    assert gone["message"] == f"2 files are missing between two others: {', '.join(names)}"
    _, out, err = run(capfd, "recover", root)
    assert (
        "If a slave, a backup or an archive of rmqtool expire has"
        f" {' and '.join(f'commitlog/{name}' for name in names)}, put them back first and plan again: a"
        " slave's files have the same names and bytes."
    ) in verdict(out)
    assert ", copy them into the store and plan again; without one," in err
    text = " ".join(run(capfd, "verify", root, "--pass", "files")[1].split())
    assert (
        "if a slave, a backup or an archive of rmqtool expire has what is missing, put it back first" in text
    )


def test_brokers_that_do_the_same_share_a_column(cases: Library, capfd: Capture) -> None:
    """The table of a store in which 5.3 and 5.4 do the same; its first row has a label, too."""
    brokers = [f"--broker={name}" for name in ("4.9", "5.3", "5.4")]
    _, out, _ = run(capfd, "recover", cases.path("ok_540_clean"), *brokers)
    head, _, first = out[out.index("a start would") :].splitlines()[:3]
    assert head.split("  ")[0] == "a start would" and "5.3, 5.4" in head
    assert first.split() == ["load", "the", "store", "yes", "yes"]


@pytest.mark.parametrize(
    ("name", "words", "following"),
    [("ok_540_clean", "no damage", "verify"), ("gap_cp04_abort", "not stopped cleanly", "recover")],
)
def test_info_says_what_to_run_next(
    cases: Library, tmp_path: Path, capfd: Capture, name: str, words: str, following: str
) -> None:
    root = cases.copy("ok_540_clean", tmp_path / "a store")
    if name != "ok_540_clean":
        (root / "abort").touch()
    _, out, _ = run(capfd, "info", root)
    assert words in verdict(out)
    (command,) = commands(out, "next")
    assert shlex.split(command) == ["rmqtool", following, str(root)]


def test_info_of_a_store_that_names_and_sizes_show_to_be_damaged(
    cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    root = cases.copy("ok_540_clean", tmp_path / "store")
    (root / "commitlog" / f"{1 << 20:020}").unlink()
    _, out, _ = run(capfd, "info", root)
    assert "1 error: a file is missing between two others (CL20)." in verdict(out)
    assert commands(out, "next") == [f"rmqtool recover {root}"]


def test_a_log_that_is_elsewhere_is_asked_for_first(store_copy: StoreCopy, capfd: Capture) -> None:
    """By all commands; no line applies a plan without it, and applying it anyway is not called a repair."""
    root, question = (
        store_copy("gap_cl26_log_missing"),
        "The commit log was not found: is storePathCommitLog ",
    )
    assert verdict(run(capfd, "info", root)[1]).startswith(question)
    assert run(capfd, "doctor", root, "--no-host")[1].startswith(f"verdict   {question[:40]}")
    assert run(capfd, "verify", root)[2].splitlines()[0].startswith(question)
    _, out, err = run(capfd, "recover", root)
    assert (
        verdict(out).startswith(question) and "every sound message" not in out and "no message is" not in out
    )
    assert "--apply is refused without --force: the commit log was not found" in err and "to apply" not in err
    assert "to apply the plan: " in run(capfd, "recover", root, "--force")[2]
    code, out, _ = run(capfd, "recover", root, "--apply", "--force")
    assert code == 0 and verdict(out).startswith(question)
    assert "but CL26 (queues or an index exist, but the commit log has no files) remains: do not start" in out
    assert "elsewhere" in run(capfd, "rebuild", root)[2]


def test_one_next_step_for_lost_committed_offsets(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """No command repairs it: all four commands lead to what to do by hand, and exit with 1."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    explains = "rmqtool help recovery"
    code, out, _ = run(capfd, "info", root)
    assert "the committed offsets of all groups are lost (CF08)" in verdict(out)
    assert (code, commands(out, "next")) == (1, [explains])
    code, out, err = run(capfd, "verify", root)
    assert code == 1 and err.endswith(f"recover cannot repair this; all steps: {explains}\n")
    assert "A start of 5.4 loses no message. But committed offsets of groups are lost: after a start, " in err
    code, out, _ = run(capfd, "recover", root)
    assert (code, commands(out, "next")) == (1, [explains])
    code, out, _ = run(capfd, "doctor", root, "--no-host")
    assert (code, out.splitlines()[-2].split(maxsplit=1)) == (1, ["next", explains])
    assert out.splitlines()[-1].strip() == f"section: {SECTION_OF_CONFIG}"
    text = run(capfd, *explains.split()[1:])[1]
    assert f"\n{SECTION_OF_CONFIG}\n" in text
    assert "from a backup, from the host that the store came from, or from a slave" in " ".join(text.split())
    assert cure(["UN01", "CL01"], "RECOVER") is None
    assert cure(["CF09", "CL12"], "RECOVER") == "rmqtool problems CL12"
    assert cure(["CF07"], "RECOVER") == "RECOVER" and cure(["CF07"], None) == explains
    (root / "commitlog/stray").touch()
    assert run(capfd, "verify", root)[2].endswith(f"to see the plan of a repair: rmqtool recover {root}\n")


def cut_log(root: Path) -> None:
    """The last log file ends early, and has its size again, as after a copy that was not complete."""
    last = max((root / "commitlog").iterdir())
    size = last.stat().st_size
    os.truncate(last, 100_000)
    os.truncate(last, size)


@pytest.mark.parametrize(
    ("damage", "code", "lines", "words"),
    [
        (lambda root: shutil.rmtree(root / "consumequeue/pubRetry"), "CQ13",
         "dispatch     the other queues and index level with the log, queues missing: pubRetry",
         "groups have consumed from this queue, but it has no files"),
        (cut_log, "CQ03", "dispatch     43 queues ahead of the log, index ahead of the log",
         "the index points past the last record of the log (IX04)"),
        (lambda root: shutil.rmtree(root / "index"), "IX10", "index        none",
         "the checkpoint has the time of an index, but there is no index"),
    ],
)  # fmt: skip
def test_info_of_queues_and_index_that_are_gone_or_ahead(
    cases: Library, tmp_path: Path, capfd: Capture, damage: Callable[[Path], None], code: str, lines: str,
    words: str,
) -> None:  # fmt: skip
    """What the ends of queues and index show; verify finds the same codes."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    assert run(capfd, "info", root)[0] == 0
    damage(root)
    exit_code, out, _ = run(capfd, "info", root)
    assert exit_code == 1 and lines in out.splitlines()
    assert words in verdict(out) and "no damage" not in out
    assert commands(out, "next") == [f"rmqtool recover {root}"]
    found = json.loads(run(capfd, "info", root, "--json")[1])["problems"]
    verified = json.loads(run(capfd, "verify", root, "--format", "json")[1])
    codes = {row["problem"] for row in found}
    assert code in codes <= {row["problem"] for row in verified}


def test_offsets_of_a_deleted_topic_are_no_missing_queue(
    cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """A broker of 4.x keeps them."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    shutil.rmtree(root / "consumequeue/pubRetry")
    for path in (root / "config").glob("topics.json*"):
        path.write_text(path.read_text().replace('"pubRetry"', '"pubOther"'))
    assert "CQ13" not in run(capfd, "info", root)[1]


def test_info_names_the_topics_without_a_queue(cases: Library, capfd: Capture) -> None:
    """As many as lookup searches; and what is counted inside of batch records."""
    root = cases.path("ok_540_clean")
    line = "topics       25 of 39 have queues: 57 with 4129 messages (batches unpacked)"
    assert line in run(capfd, "info", root)[1].splitlines()
    assert "39 topics" in run(capfd, "lookup", root, "--key", "NOPE")[2]


def test_a_disk_with_blocks_for_root() -> None:
    """What only root may use explains the rest of the disk."""
    assert disk_text(0.2, 73 << 30, 1 << 30) == "20% used, 73.0 GiB free"
    text = disk_text(0.2, 73 << 30, 160 << 30, " (assumed)")
    assert text == "20% used (assumed), 73.0 GiB free, 160.0 GiB reserved for root"


def test_expire_says_what_is_lost(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    root = cases.copy("ok_540_clean", tmp_path / "store")
    _, out, _ = run(capfd, "expire", root, "--before", str(3 << 20))
    text = verdict(out)
    assert text.startswith("Would delete 3 of 4 log files with 3567 messages, which frees 3.0 MiB.")
    assert "Groups have not consumed 1542 messages (1101 of pub_group_one" in text
    _, out, _ = run(capfd, "expire", root, "--before", "0")
    assert verdict(out).startswith("No file expires.")


def consumed(root: Path) -> None:
    """Groups have consumed the first log file, and delayed messages were delivered."""
    folder = root / "config"
    for path in folder.glob("consumerOffset.json*"):
        document = config_json.parse(path.read_bytes())
        table = document["offsetTable"]
        for topic in [each.name for each in (root / "consumequeue").glob("%RETRY%*")]:
            table[f"{topic}@{topic.removeprefix('%RETRY%')}"] = {"0": 1000}
        for name in ("pubTopicOne@pub_group_one", "pub-Topic_Four@pub_group_four"):
            table[name] = dict.fromkeys("0123", 1400)
        table["pub-Topic_Four@pub_group_four"]["3"] = 130
        path.write_text(json.dumps(document))
    for path in folder.glob("delayOffset.json*"):
        path.write_text(json.dumps({"offsetTable": dict.fromkeys("12345", 1000)}))


@pytest.mark.parametrize("prepare", [consumed, lambda root: None])
def test_expire_says_what_is_free_to_go(
    cases: Library, tmp_path: Path, capfd: Capture, prepare: Callable[[Path], None]
) -> None:
    """As --before of each offset agrees: what is refused there, is not free here."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    prepare(root)
    starts = sorted(int(path.name) for path in (root / "commitlog").iterdir())
    free = [
        start
        for start in starts[1:]
        if not json.loads(run(capfd, "expire", root, "--before", start, "--json")[1])["refusals"]
    ]
    found = json.loads(run(capfd, "expire", root, "--disk-used", "92%", "--json")[1])
    assert found["free_before"] == max(free, default=0) and bool(free) == (prepare is consumed)
    out = run(capfd, "expire", root, "--disk-used", "92%")[1]
    assert "6 files in all" in out
    assert json.loads(run(capfd, "expire", root, "--json")[1])["free_before"] == found["free_before"]
    files = [path for path in root.rglob("*") if path.is_file()]
    assert sum(row["bytes"] for row in found["usage"]) == sum(path.stat().st_blocks * 512 for path in files)
    assert f"the store takes {format_size(sum(row['bytes'] for row in found['usage']))}: commitlog " in out
    if free:
        known = f"free to go   the log files before offset {free[-1]}: nothing there is known to be needed"
        assert known in out
        assert f"Up to offset {free[-1]} nothing is still needed: --before {free[-1]}." in verdict(out)
    else:
        assert "free to go   no file\n" in out and "Even the first log file holds" in verdict(out)
        who = "group pub_group_one has not consumed 1101 messages of pubTopicOne queue 0, from offset 299 on"
        assert f"the first log file is needed: {who}" in out
        assert "to store such messages again at the end of the log: rmqtool help recovery" in out
    assert out.index("free to go") < out.index("refused ")


def test_expire_of_lost_offsets_says_so_without_files_to_delete(
    cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """What if rows do not show what groups would lose."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    at = ("--at", "2026-11-21T09:00:00Z")
    assert "committed offsets" not in run(capfd, "expire", root, *at)[1]
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    code, out, _ = run(capfd, "expire", root, *at)
    assert code == 0 and "warning      what groups would lose is unknown: config/consumerOffset.json" in out
    assert verdict(out) == (
        "No file expires. Committed offsets are lost: before any file is deleted, copy consumerOffset.json"
        " from a backup or a slave; without a copy, rmqtool reset-offset sets them."
    )


def test_a_start_loses_no_more_messages_than_are_lost(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """The last log file is missing, and so are the committed offsets."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    max((root / "commitlog").iterdir()).unlink()
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    _, out, err = run(capfd, "recover", root)
    assert "loses no more messages." in " ".join((out + err).split())


def test_a_printed_line_has_whole_hours_as_they_were_typed(
    cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    root = cases.copy("ok_540_clean", tmp_path / "store")
    for typed in ("72", "72.5"):
        _, out, err = run(capfd, "expire", root, "--keep-hours", typed, "--at", "2040-01-01")
        assert f"--keep-hours {typed} " in out + err


def test_expire_names_the_database_of_lost_offsets(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """A copy of consumerOffset.json would not be read, and reset-offset does not write RocksDB."""
    root = cases.copy("kind_rocksdb_540", tmp_path / "store")
    shutil.rmtree(root / "config" / "consumerOffsets")
    code, out, _ = run(capfd, "expire", root, "--keep-hours", 1)
    assert code == 0
    assert (
        "copy the folder config/consumerOffsets (RocksDB) from a backup or a slave; without a copy, do what"
        in (verdict(out))
    )


def test_expire_counts_what_waits_in_the_broker(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """--force deletes half and delayed messages too: the verdict says so, before and afterwards."""
    root = cases.copy("ok_533_clean", tmp_path / "store")
    what = "5 delayed messages and 10 half messages that still"
    _, out, _ = run(capfd, "expire", root, "--before", 2097152)
    assert f"This deletes {what} wait." in verdict(out)
    code, out, _ = run(capfd, "expire", root, "--before", 2097152, "--apply", "--force")
    assert code == 0 and f"That deleted {what} waited." in verdict(out)


def test_sizes_that_files_have_and_take() -> None:
    """The sum is that of the sizes in the table."""
    assert _sizes_text({"size_bytes": 3 << 20, "allocated_bytes": 3 << 20}) == "3.0 MiB"
    assert (
        _sizes_text({"size_bytes": 3 << 20, "allocated_bytes": 1 << 20}) == "3.0 MiB with 1.0 MiB on the disk"
    )


def test_stats_and_expire_count_the_same_groups(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Also groups that have only a retry topic, and never committed an offset."""
    root = cases.path("ok_540_clean")
    found = json.loads(run(capfd, "expire", root, "--disk-used", "92%", "--json")[1])
    _, out, err = run(capfd, "stats", root, "--by", "group", "--format", "jsonl")
    rows = {row["group"]: row for row in map(json.loads, out.splitlines())}
    groups = {row["group"] for row in found["unconsumed"]}
    assert len(groups) == 4 and groups <= rows.keys()
    unread = {row["group"]: row["messages"] for row in found["unconsumed"] if row["committed"] is None}
    assert len(unread) == 2 and unread == {group: rows[group]["lag_messages"] for group in unread}
    assert all(rows[group]["status"] == ["never_committed"] for group in unread)
    assert "6 of 8 groups lag by " in err and "unknown" not in err
    _, _, err = run(capfd, "stats", root, "--by", "group", "--topic", "%RETRY%*", "--format", "jsonl")
    assert " groups lag by " in err
    offsets = {"TopicTest@a": {"0": 20}, "TopicTest@b": {"0": 20}}
    write_whole(tmp_path, keyed(40))
    write_config(tmp_path, "consumerOffset.json", {"offsetTable": offsets})
    _, _, err = run(capfd, "stats", tmp_path, "--by", "group", "--queue", "1")
    assert "The lag of 2 more groups is unknown: they have no offset there." in err


def test_texts_name_their_subject(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Who starts a queue at 0 again, and who fills a range."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    shutil.rmtree(root / "consumequeue/pubRetry")
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(8192)
        file.write(bytes(4096))
    out = " ".join(run(capfd, "doctor", root, "--no-host", "--all")[1].split())
    assert "cost the broker starts the queue at 0 again" in out
    assert "rmqtool recover fills the range so that brokers skip it" in out
    text = " ".join(run(capfd, "problems", "CL08")[1].split())
    assert "if a broker's start examines this place, it ends the log" in text
    assert "a consumer's pull that meets this place loses the rest of its answer" in text


def test_export_of_nothing(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """An empty list is not Python's."""
    times = ("--since", "2020-01-01", "--until", "2020-01-02")
    target = ("--output", f"{tmp_path}/new/", "--output-format", "jsonl")
    code, out, _ = run(capfd, "export", cases.path("ok_540_clean"), *target, *times)
    assert code == 0 and ["files", "none"] in [line.split() for line in out.splitlines()]


def test_diff_says_which_side_is_sound(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    a, b = (cases.copy("ok_540_clean", tmp_path / name) for name in "ab")
    assert run(capfd, "diff", a, b)[1].rstrip().endswith("Identical.")
    with (a / "commitlog" / f"{3 << 20:020}").open("r+b") as file:
        file.seek(366_045 + 100)
        file.write(b"\xff" * 8)
    _, out, _ = run(capfd, "diff", a, b)
    said = "In 1 differing range only B is sound: A is damaged there."
    assert verdict(out).endswith(f"{said} B holds every message of A.")
    with (b / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(4200)
        file.write(b"\xff" * 8)
    _, out, _ = run(capfd, "diff", a, b)
    assert said in verdict(out) and "holds every message" not in out


def with_key(each: Message, key: str | None) -> Message:
    """The record with another unique key, and stored a millisecond later."""
    found = properties.decode(each.properties_bytes)
    found = {name: value for name, value in found.items() if name != properties.UNIQ_KEY}
    stored = properties.encode(found | ({properties.UNIQ_KEY: key} if key else {}), dialect="5.x")
    return record(
        each.topic, each.body, stored, queue_id=each.queue_id, queue_offset=each.queue_offset,
        born_timestamp=each.born_timestamp + 1, store_timestamp=each.store_timestamp + 1,
    )  # fmt: skip


def carry(line: str) -> None:
    """Run a printed line."""
    tool = f"{shlex.quote(sys.executable)} -m rmqtool "
    subprocess.run(line.replace("rmqtool ", tool), shell=True, check=True, capture_output=True, timeout=300)


def lines_of(out: str, label: str) -> tuple[str, list[str]]:
    """What is said of one direction, and its command lines."""
    lines = out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(f"{label:<13}"))
    rest = takewhile(lambda line: line.startswith((" " * 13, "run ")), lines[place + 1 :])
    return lines[place][13:], [line[13:] for line in rest if line.startswith("run          rmqtool dump ")]


@pytest.mark.sweep
@pytest.mark.parametrize("resent", [range(0), range(50, 80, 2), *in_sweeps([range(50, 60), range(70, 80)])])
def test_diverged_stores_are_brought_together(tmp_path: Path, capfd: Capture, resent: range) -> None:
    """The printed lines add the messages of one store to the other: those that it has not, by unique key.

    Where these lie between others, the number of messages that arrive twice is said.
    """
    records = [with_key(each, f"KEY{number}") for number, each in enumerate(keyed(80))]
    other = [
        each if number < 50 else with_key(each, f"KEY{number}" if number in resent else f"NEW{number}")
        for number, each in enumerate(records)
    ]
    for name, content in (("a", records), ("b b", other)):
        write_whole(tmp_path / name, content, log_file_size=8192, shape=Shape(50, 600))
    _, out, _ = run(capfd, "diff", tmp_path / "a", tmp_path / "b b")
    assert "their logs have diverged" in verdict(out) and "\nfirst  " not in out
    assert "Run only what is printed for that store, and only once" in out
    for label, source in (("if A stays", "B"), ("if B stays", "A")):
        said, lines = lines_of(out, label)
        assert f"30 messages{f': {len(resent)} already in' if resent else ' only in'}" in said
        assert f" only in {source}" in said and f"{30 - len(resent)} of TopicTest" in said
        twice = len(resent) if resent.step == 2 else 0
        assert (f"the line adds {twice} messages a second time" in out) == bool(twice)
    from_a = lines_of(out, "if B stays")[1]
    for line in lines_of(out, "if A stays")[1]:
        carry(line)
    both = "".join(run(capfd, *shlex.split(line.partition(" | ")[0])[1:])[1] for line in from_a)
    assert len(both.splitlines()) == 30 - len(resent) + twice  # not what came from B meanwhile
    _, out, _ = run(capfd, "dump", tmp_path / "a", "--fields", "uniq_key", "--format", "jsonl")
    assert len(out.splitlines()) == 80 + 30 - len(resent) + twice
    assert len(set(out.splitlines())) == 80 + 30 - len(resent)
    assert run(capfd, "verify", tmp_path / "a", "--severity", "error")[1] == ""
    _, out, _ = run(capfd, "diff", tmp_path / "a", tmp_path / "b b")
    assert "A holds every message of B, by unique key; B lacks " in verdict(out)
    said, lines = lines_of(out, "if A stays")
    assert said.endswith("Empty B before it becomes a slave of A.") and not lines  # it would add them again


def test_new_topics_are_carried_over_with_their_queues(
    cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """As many as in the source, or numbers that differ are named. Config is shown as its file has it."""
    for name, topics in (("a", [("New", 2)]), ("b", [("Other", 3), ("Third", 5)])):
        root = cases.copy("ok_540_small_ipv6", tmp_path / name)
        for topic, queues in topics:
            rows = "".join(f'{{"topic": "{topic}", "body": "{name}{number}"}}\n' for number in range(6))
            (tmp_path / "rows").write_text(rows)
            arguments = ("--create-topic", "--queues", str(queues), "--input", str(tmp_path / "rows"))
            assert main(["append", str(root), *arguments]) == 0
    capfd.readouterr()
    _, out, _ = run(capfd, "diff", tmp_path / "a", tmp_path / "b")
    assert "their logs have diverged" in verdict(out) and "by its queues" not in out
    assert "3 entries of topics.json differ" in out
    assert "topics.json New: only in A: readQueueNums 2, writeQueueNums 2, perm 6" in out
    assert " append creates a topic with 4 queues, but B has other numbers (Other 3, Third 5): create" in out
    (line,) = lines_of(out, "if B stays")[1]
    assert "--create-topic --queues 2 " in line and "--queues" not in lines_of(out, "if A stays")[1][0]
    carry(line)
    _, out, _ = run(capfd, "info", tmp_path / "b", "--json")
    assert [each["queue_count"] for each in json.loads(out)["topics"] if each["topic"] == "New"] == [2]
    topics = json.loads((tmp_path / "b/config/topics.json").read_text())["topicConfigTable"]
    assert topics["New"]["writeQueueNums"] == 2


def test_a_damaged_side_is_repaired_before_anything_is_carried(tmp_path: Path, capfd: Capture) -> None:
    """Damage past the place where the logs part, messages without unique keys, and a filler."""
    records = keyed(80)
    mine = [each if n < 50 else with_key(each, None) for n, each in enumerate(records)]
    for name, content in (("a", records), ("b", mine)):
        write_whole(tmp_path / name, content, log_file_size=1 << 20, shape=Shape(50, 600))
    _, out, _ = run(capfd, "diff", tmp_path / "a", tmp_path / "b")
    assert lines_of(out, "if A stays")[0].endswith(
        "30 messages: 0 only in B, 30 without a unique key may be in both (30 of TopicTest)"
    )
    with Store.open(tmp_path / "b") as store:
        place = [each.physical_offset for each in store.messages()][60]
    with (tmp_path / "b/commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 20)
    _, out, _ = run(capfd, "diff", tmp_path / "a", tmp_path / "b")
    lines = out.splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith("first  ")]
    assert "B is damaged in 1 place" in lines[first]
    assert lines[first + 1][13:] == f"rmqtool recover {tmp_path / 'b'} --apply"
    assert first < next(number for number, line in enumerate(lines) if line.startswith("if A stays"))
    assert (
        main(["recover", str(tmp_path / "b"), "--apply", "--yes", "--backup-dir", str(tmp_path / "kept")])
        == 0
    )
    capfd.readouterr()
    _, out, _ = run(capfd, "diff", tmp_path / "a", tmp_path / "b", "--json")
    found = json.loads(out)["commit_log"]["diverged"]["b"]["carried"]
    assert (found["messages"], found["damaged_places"]) == (29, 0)  # the filler is no message
    assert len(found["ranges"]) == 2


def test_verify_names_the_topics_at_stake(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Of damage of the log by the queues that lead there, as many as recover then gives up; and of queues."""
    root = cases.copy("ok_540_clean", tmp_path / "store")
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(602_112)
        file.write(bytes(4096))
    _, _, err = run(capfd, "verify", root)
    (said,) = [line for line in err.splitlines() if line.startswith("at stake in the log: ")]
    _, out, _ = run(capfd, "recover", root, "--format", "json")
    found = json.loads(out)
    topics = {each["topic"] for each in found["lost"]}
    assert said == f"at stake in the log: {found['lost_messages']} messages of {topics.pop()}" and not topics
    shutil.copytree(root, tmp_path / "without", ignore=shutil.ignore_patterns("*consumequeue"))
    _, _, err = run(capfd, "verify", tmp_path / "without")
    assert "at stake in the log: unknown, no queue leads there; rmqtool recover names lost messages\n" in err
    assert " ".join(said.split()[5:]) + " are damaged or already lost" in " ".join(
        run(capfd, "doctor", root)[1].split()
    )
    lost = max(found["lost"], key=lambda each: int(each["queue_offset"]))
    first, place = divmod(lost["queue_offset"] * 20, 20_000)
    queue = root / "consumequeue" / lost["topic"] / str(lost["queue_id"]) / f"{first * 20_000:020}"
    whole = queue.read_bytes()
    queue.write_bytes(whole[:place] + bytes(20) + whole[place + 20 :])
    few = found["lost_messages"] - 1
    text = f"at least {few} message{'s' * (few > 1)} of {lost['topic']}"
    assert f"at stake in the log: {text}" in run(capfd, "verify", root)[2]
    assert f"A{text[1:]} {'are' if few > 1 else 'is'} damaged" in " ".join(
        run(capfd, "doctor", root)[1].split()
    )
    queue.write_bytes(whole)
    shutil.rmtree(root / "consumequeue/pubTx/0")
    _, _, err = run(capfd, "verify", root)
    assert "affected: consumers of pubTx (" in err
    assert "at stake" not in run(capfd, "verify", cases.path("ok_540_clean"))[2]


def test_a_trace_says_it_in_words(cases: Library, capfd: Capture) -> None:
    """The table and the sentences; JSON keeps the words that scripts know."""
    root = cases.path("ok_540_clean")
    _, out, err = run(capfd, "lookup", root, "--key", "o88", "--trace")
    offsets = [line.split(" not yet ")[1].split()[0] for line in out.splitlines() if " not yet " in line]
    assert "(299)" in offsets  # the committed offset
    assert "consumed" not in out + err.replace("It has consumed", "")
    assert err.count("passed by a group: its committed offset, in parentheses, is past the message") == 1
    assert "did not stop cleanly" not in err
    killed = run(capfd, "lookup", cases.path("torn_540_killed"), "--key", "o88", "--trace")[2]
    assert "so a group may have consumed a few seconds more" in " ".join(killed.split())
    assert len({line.split()[0] for line in out.splitlines()[2:]}) == 5
    _, out, _ = run(capfd, "lookup", root, "--key", "o88", "--trace", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    states = {row["state"] for row in rows if row["kind"] == "group"}
    assert states == {"passed", "not_passed"}
    table = Table(table_fields(rows), width=80)
    lines = table.lines([row | {"state": GROUP_STATES.get(row["state"], row["state"])} for row in rows])
    assert max(map(len, lines)) <= 80 and " state " in lines[0]  # never left out: it is the answer
    keys = {line.split()[0] for line in lines if "stored" in line}
    assert len(keys) == 5 and all(key.startswith("…") for key in keys)  # not cut to the same text
    many = [row | {"queue_offset": 298, "group": row["group"] and "pub_group_one"} for row in rows]
    table = Table(table_fields(many), width=80)
    lines = table.lines(
        [*many, many[0] | {"topic": "SCHEDULE_TOPIC_XXXX"}, many[0] | {"topic": "%RETRY%pub_group"}]
    )
    assert max(map(len, lines)) <= 80 and "state" in lines[0] and "queue_offset" in table.left_out
    _, out, err = run(capfd, "lookup", root, "--key", "ORDER_5", "--max", "1", "--trace")
    assert "stored" in out and not [line for line in out.splitlines() if line.startswith("group ")]
    assert (out + err).count("no group has an offset for topic pubOrder") == 1
    _, out, err = run(capfd, "lookup", root, "--key", "ORDER_1", "--trace")
    assert err.count("no group has an offset for topic pubOrder (15 messages): no group in clustering") == 1
    assert err.count("no group has an offset") == 1
    _, out, err = run(capfd, "lookup", root, "--key", "rty0", "--trace")
    assert out.count("gave up after 2 attempts") == 2 and err.count("gave up: dead letter queue of ") == 2
    assert out.count("delivered, level 1") == 2 and out.count("attempt 2 ") == 2
    passed = [line.split("passed ")[1].split()[0] for line in out.splitlines() if " passed " in line]
    assert (passed.count("(12)"), passed.count("(4)")) == (3, 1)


def test_lag_in_words(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    row: dict[str, Any] = {
        "group": "g", "lag_messages_max": 3, "oldest_timestamp_ms": 5, "oldest_time": "then",
    }  # fmt: skip
    assert of_lag([]) == []
    assert of_lag([{**row, "lag_messages_max": 0}]) == ["No group lags (1 group with offsets)."]
    assert of_lag([row], lost=2) == [
        "The lag of 2 groups is unknown: their offsets are lost.",
        "g lags by 3 messages; the oldest was stored then.",
    ]
    assert of_lag([{**row, "group": None, "lag_messages_max": None}]) == []
    lost = {**row, "lag_messages_max": None, "lag_messages_min": 0, "lost_queues": ["a/b/0", "a/b/1"]}
    assert of_lag([lost]) == [
        "The lag of g is unknown: queue 0 of a/b and 1 more queue have no files; rmqtool recover shows how to"
        " build them from the log. A queue of which the log has no message is only in consumerOffset.json."
    ]
    assert of_lag([row, {**row, "group": "h", "lag_messages_max": 0}]) == [
        "1 of 2 groups lags: g by 3 messages; the oldest was stored then."
    ]
    _, out, err = run(capfd, "stats", cases.path("ok_540_clean"), "--by", "group,topic", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    total = sum(each["lag_messages"] or 0 for each in rows)
    assert f"lag by {total} messages" in err


def test_a_trace_in_words(cases: Library, capfd: Capture) -> None:
    """Who has passed the message, and that one group had it again."""
    _, out, err = run(capfd, "lookup", cases.path("ok_540_clean"), "--key", "rty1", "--trace", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    (line,) = [line for line in err.splitlines() if "passed by pub" in line]
    assert "and pub_retry_group; sent again to pubGroupLong" in line
    assert rows[0]["uniq_key"] in line


@pytest.mark.parametrize(("file", "size", "expected"), [(1, 1 << 19, 281), (3, (1 << 20) // 3, 298)])
def test_a_short_log_file_puts_at_stake_what_it_lacks(
    store_copy: StoreCopy, capfd: Capture, file: int, size: int, expected: int
) -> None:
    """The messages that recover names: those of batch records singly, and its last record, which is cut."""
    root = store_copy("ok_540_clean")
    os.truncate(root / "commitlog" / f"{file << 20:020}", size)
    _, out, _ = run(capfd, "recover", root, "--format", "json")
    found = json.loads(out)
    count = found["lost_messages"] + len(found["incomplete"])
    assert count == expected
    _, out, err = run(capfd, "verify", root, "--format", "table")
    assert f"at stake in the log: {count} messages (" in err
    alike = [line for line in out.splitlines() if line.startswith("CQ03")]
    rows = [json.loads(line) for line in run(capfd, "verify", root, "--json")[1].splitlines()]
    total = sum(row["problem"] == "CQ03" and row["path"].startswith("consumequeue/") for row in rows)
    assert (f"{total - 5} more of CQ03: --all shows each" in out) == (total > 5)  # noqa: PLR2004
    _, every, _ = run(capfd, "verify", root, "--format", "table", "--all")
    assert sum(" consumequeue/" in line for line in every.splitlines() if line.startswith("CQ03")) == total
    assert len(alike) <= 12 and sum(line.startswith("CL") for line in out.splitlines()) > 0  # noqa: PLR2004
    assert f"{count} messages (" in " ".join(run(capfd, "doctor", root)[1].split())


def test_nobody_broadcasts_a_retry_topic() -> None:
    """Broadcasting consumers are mentioned only of topics that they can read."""
    reason = "no group has an offset for topic "
    plain, retry = of_topics_without_groups({f"{reason}Orders": 2, f"{reason}%RETRY%g": 1})
    unless = "unless it had not committed yet or was deleted with its offsets"
    assert plain == (
        f"{reason}Orders (2 messages): no group in clustering mode has consumed them, {unless}; broadcasting"
        " consumers keep their offsets themselves, so the store cannot show whether one has read them"
    )
    assert retry == f"{reason}%RETRY%g (1 message): its group has not consumed it, {unless}"


def test_a_structure_is_not_selected_with_limit(cases: Library, capfd: Capture) -> None:
    _, _, err = run(capfd, "dump", cases.path("ok_540_clean"), "--explain", "0", "--limit", "3")
    assert (
        "--explain shows one structure: options that select, limit or order others do not go with it" in err
    )


def test_each_number_of_a_loss_says_what_it_counts(store_copy: StoreCopy, capfd: Capture) -> None:
    """Lost messages, those that consumers receive fillers for, and fillers."""
    root = store_copy("ok_540_clean")
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder)
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.write(bytes(501_000))
    found = json.loads(run(capfd, "recover", root, "--json")[1])
    lost = [(each["topic"], each["count"]) for each in found["lost"]]
    own = sum(count for topic, count in lost if topic is not None and is_system_topic(topic))
    unknown = sum(not count for _, count in lost)
    messages = found["lost_messages"]
    text = " ".join(run(capfd, "recover", root)[1].split())
    assert own and unknown
    assert f"RMQTOOL_FILLER instead of {messages - own} of them ({own} of the broker's own topics" in text
    whole = f"{messages + unknown} fillers ({unknown} of them for unknown messages) instead of"
    assert any(each["reason"].startswith(whole) for each in found["actions"])


def test_what_consumers_do_with_fillers_is_said(torn_copy: Path, capfd: Capture) -> None:
    _, out, _ = run(capfd, "recover", torn_copy)
    assert "receive a message tagged RMQTOOL_FILLER instead of each, and should ignore it" in out
