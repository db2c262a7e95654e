"""`rmqtool dump`: records as rows and as bytes, what is selected, and that nothing changes."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.formats import message
from rmqtool.message.columns import NAMES
from rmqtool.message.rows import RowFormat
from rmqtool.read.store import Store
from rmqtool.report.dump import place
from rmqtool.report.dump.log import table_fields
from rmqtool.storage import lock
from rmqtool.table import Table
from rmqtool.times import format_time
from tests.support.dumps import SMALL, Dump, Row, facts_of, flip
from tests.support.hard_limits import size_limit
from tests.support.stores import Library


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes]) -> Dump:
    """`rmqtool dump` with what it wrote."""
    return Dump(capfdbinary)


def log_bytes(store: Path) -> dict[int, bytes]:
    """The commit log files by their first physical offset."""
    return {int(path.name): path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_540_clean", "ok_540_small_ipv6"])
def test_every_record_is_shown_once_and_in_order(name: str, cases: Library, dump: Dump) -> None:
    """All of them, sound, with the fields of a message row."""
    result = dump(cases.path(name))
    facts = facts_of(name)
    assert result.code == 0
    assert [row["physical_offset"] for row in result.rows] == [fact["physicalOffset"] for fact in facts]
    assert all(row["status"] == ["ok"] for row in result.rows)
    assert all(set(row) <= set(NAMES) for row in result.rows)
    notes = [
        line for line in result.err.splitlines() if "6 batch records (BatchCQ) hold 36 messages" not in line
    ]
    assert notes == []


@pytest.mark.parametrize(
    "name", ["ok_540_clean", "torn_540_killed", "torn_497_killed_burst", "bad_cl10_bad_blank"]
)
def test_gaps_leave_no_byte_out(name: str, cases: Library, dump: Dump) -> None:
    """The rows cover every byte of every file: also the zero rest of one, and files made ahead."""
    store = cases.path(name)
    with Store.open(store) as opened:
        log_end, files = opened.end_offset(), opened.layout.commit_log
    end, zeros = files[0].file_from_offset, []
    for row in dump(store, "--gaps", "--fields", "kind,physical_offset,size,file").rows:
        assert row["physical_offset"] == end
        end += row["size"]
        zeros += [row] if row["kind"] == "zeros" else []
    assert end == files[-1].end
    begun = [file for file in files if file.file_from_offset < log_end]
    assert [row["physical_offset"] for row in zeros] == [
        log_end, *(file.file_from_offset for file in files[len(begun) :])
    ]  # fmt: skip


def test_reverse_is_the_other_order(cases: Library, dump: Dump) -> None:
    """Newest first, with the same rows; and the newest alone by --limit."""
    store = cases.path("ok_540_clean")
    fields = ("--fields", "physical_offset,size,blank", "--gaps")
    forwards = dump(store, *fields).out.splitlines()
    assert dump(store, *fields, "--reverse").out.splitlines() == forwards[::-1]
    # The limit counts messages: before the newest one stands the unused rest of its file.
    assert dump(store, *fields, "--reverse", "--limit", 1).out.splitlines() == forwards[:-3:-1]


def selected(rows: Sequence[Row], keep: Callable[[Row], bool]) -> list[int]:
    """Physical offsets of the rows that pass."""
    return [row["physical_offset"] for row in rows if keep(row)]


def test_selections_are_what_they_say(cases: Library, dump: Dump) -> None:
    """Each option alone, against a filter over all rows."""
    store = cases.path("ok_540_clean")
    rows = dump(store).rows
    middle = rows[len(rows) // 2]
    when, where, born = middle["store_timestamp_ms"], middle["physical_offset"], middle["born_timestamp_ms"]
    key = next(row["keys"][0] for row in rows if row["keys"])
    tests: list[tuple[tuple[str | int, ...], Callable[[Row], bool]]] = [
        (("--topic", "pubT*"), lambda row: row["topic"].startswith("pubT")),
        (("--topic", "pubTx", "--topic", "pubRetry"), lambda row: row["topic"] in ("pubTx", "pubRetry")),
        (("--exclude-topic", "pub*"), lambda row: not row["topic"].startswith("pub")),
        (("--queue", "1,3"), lambda row: row["queue_id"] in (1, 3)),
        (("--tag", "TagA"), lambda row: row["tags"] == "TagA"),
        (("--key", key), lambda row: key in row["keys"]),
        (("--key", middle["uniq_key"]), lambda row: row["uniq_key"] == middle["uniq_key"]),
        (("--since", when), lambda row: row["store_timestamp_ms"] >= when),
        (("--until", when), lambda row: row["store_timestamp_ms"] < when),
        (("--until", born, "--time-field", "born"), lambda row: row["born_timestamp_ms"] < born),
        (("--from-offset", where), lambda row: row["physical_offset"] >= where),
        (("--from-offset", where + 1), lambda row: row["physical_offset"] > where),
        (("--to-offset", where), lambda row: row["physical_offset"] < where),
    ]
    for options, keep in tests:
        result = dump(store, *options, "--fields", "physical_offset")
        wanted = selected(rows, keep)
        assert wanted, options
        assert [row["physical_offset"] for row in result.rows] == wanted, options
        assert result.code == 0


def test_a_topic_that_the_store_does_not_have_is_told(cases: Library, dump: Dump) -> None:
    """With the nearest names, and exit code 1; a known one without messages is just empty."""
    store = cases.path("ok_540_clean")
    result = dump(store, "--topic", "pubTopicOme")
    assert (result.code, result.out) == (1, b"")
    assert "no topic pubTopicOme; nearest: pubTopicOne" in result.err
    assert "no topic zzz; topics are: " in dump(store, "--topic", "zzz").err
    both = dump(store, "--topic", "pubTx,pubRetry")
    assert both.code == 1 and "its own: --topic pubTx --topic pubRetry\n" in both.err
    assert dump(store, "--topic", "TBW102").code == 0
    other_case = dump(store, "--topic", "PUBRETRY").err
    assert "no topic PUBRETRY; upper and lower case differ: pubRetry\n" in other_case
    pattern = dump(store, "--topic", "*topicone*")
    assert (pattern.code, pattern.out) == (1, b"")
    assert "no topic that matches *topicone*; upper and lower case differ: pubTopicOne\n" in pattern.err
    assert "matches *TopicOme*; nearest: " in dump(store, "--topic", "*TopicOme*").err
    assert "matches zz*; topics are: " in dump(store, "--topic", "zz*").err
    assert dump(store, "--topic", "TBW*").code == 0  # matches a topic without messages


def test_csv_gives_every_value_back(cases: Library, dump: Dump) -> None:
    """The same values as JSON, whatever is in bodies and properties."""
    store = cases.path(SMALL)
    text = dump(store, "--format", "csv").out.decode()
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    for row, wanted in zip(table, dump(store).rows, strict=True):
        assert row["body"] == wanted["body"]
        assert int(row["physical_offset"]) == wanted["physical_offset"]
        assert json.loads(row["properties"]) == wanted["properties"]
        assert json.loads(row["status"]) == wanted["status"]


def test_fields_and_body_forms(cases: Library, dump: Dump) -> None:
    """Only what is asked for, in that order; bodies in the form asked for."""
    store = cases.path(SMALL)
    row = dump(store, "--fields", "body,topic", "--body", "hex", "--limit", 1).rows[0]
    assert list(row) == ["body", "topic"]
    plain = dump(store, "--fields", "body,body_encoding", "--body", "base64", "--limit", 1).rows[0]
    assert base64.b64decode(plain["body"]) == bytes.fromhex(row["body"])
    wrong = dump(store, "--fields", "bodi")
    assert wrong.code == 2
    assert "body" in wrong.err


def test_system_records_are_decoded(cases: Library, dump: Dump) -> None:
    """Every half, op, delayed, retry and timer record says what it means."""
    rows = dump(cases.path("ok_540_clean")).rows
    kinds = Counter(row["system"]["kind"] for row in rows if "system" in row)
    assert set(kinds) == {
        "half", "op", "committed", "delayed", "delayed_delivered", "timer", "timer_delivered", "retry",
        "dead_letter", "inner_batch",
    }  # fmt: skip
    assert all("system" in row for row in rows if row["topic"].startswith(("RMQ_SYS", "SCHEDULE", "rmq_sys")))


def test_delivery_times_are_those_of_the_units(cases: Library, dump: Dump, tmp_path: Path) -> None:
    """The broker's table is not in the store, its units are; without either nobody knows."""
    store = cases.copy("ok_540_clean", tmp_path / "store")
    topic = ("--topic", "SCHEDULE_TOPIC_XXXX")
    delays_ms = (1_000, 3_000, 5_000, 3_600_000)

    def delays() -> list[tuple[int, int | None]]:
        found = []
        for row in dump(store, *topic).rows:
            told = row["system"]
            due = told["deliver_timestamp_ms"]
            assert (due is None) == (told["deliver_time"] is None)
            found.append((told["level"], None if due is None else due - row["store_timestamp_ms"]))
        return found

    assert {level for level, _ in delays()} == {1, 2, 3, 4}
    for level, delay in delays():
        assert delay is not None and 0 <= delay - delays_ms[level - 1] <= 10
    shutil.rmtree(store / "consumequeue" / "SCHEDULE_TOPIC_XXXX")
    assert {delay for _, delay in delays()} == {None}


def test_the_delay_table_of_broker_conf_is_used(cases: Library, dump: Dump, tmp_path: Path) -> None:
    """Delivery times depend on messageDelayLevel, where the units that hold them are not there."""
    store = cases.copy("ok_540_clean", tmp_path / "store")
    shutil.rmtree(store / "consumequeue" / "SCHEDULE_TOPIC_XXXX")
    conf = tmp_path / "broker.conf"
    conf.write_text("messageDelayLevel=7s 8s 9s 2h\n")
    rows = dump(store, "--topic", "SCHEDULE_TOPIC_XXXX", "--broker-conf", conf).rows
    for row in rows:
        delay = row["system"]["deliver_timestamp_ms"] - row["store_timestamp_ms"]
        assert delay == (7000, 8000, 9000, 7_200_000)[row["system"]["level"] - 1]


def test_counts_per_queue(cases: Library, dump: Dump) -> None:
    """--stats-only: as many as there are, and as many bytes."""
    store = cases.path("ok_540_clean")
    facts = facts_of("ok_540_clean")
    counts = Counter((fact["topic"], fact["queueId"]) for fact in facts)
    rows = dump(store, "--stats-only").rows
    assert {(row["topic"], row["queue_id"]): row["count"] for row in rows} == counts
    assert sum(row["bytes"] for row in rows) == sum(fact["storeSize"] for fact in facts)
    newest = max(fact["storeTimestamp"] for fact in facts)
    assert max(row["last_store_timestamp_ms"] for row in rows) == newest
    for row in rows:
        assert row["first_store_time"] == format_time(row["first_store_timestamp_ms"], UTC)
        assert row["last_store_time"] == format_time(row["last_store_timestamp_ms"], UTC)


def test_raw_is_the_records_byte_for_byte(cases: Library, dump: Dump) -> None:
    """One behind the other, nothing between; also backwards and selected."""
    store = cases.path("ok_540_clean")
    files, parts = log_bytes(store), []
    for fact in facts_of("ok_540_clean"):
        start = fact["physicalOffset"]
        base = max(offset for offset in files if offset <= start)
        parts.append((fact, files[base][start - base : start - base + fact["storeSize"]]))
    assert dump(store, "--raw").out == b"".join(part for _, part in parts)
    chosen = [part for fact, part in parts if fact["topic"] == "pubTx"]
    assert dump(store, "--raw", "--topic", "pubTx", "--reverse").out == b"".join(chosen[::-1])


def test_raw_into_a_file(cases: Library, dump: Dump, tmp_path: Path) -> None:
    """A new file outside the store, never an old one."""
    store, target = cases.path(SMALL), tmp_path / "records"
    assert dump(store, "--raw", "--output", target).code == 0
    assert target.read_bytes() == dump(store, "--raw").out
    assert dump(store, "--raw", "--output", target).code == 4
    assert dump(store, "--raw", "--output", store / "commitlog" / "00000000000001048576").code == 4
    # A part of a store that is read alone: the whole store counts.
    assert dump(store / "commitlog", "--raw", "--output", store / "index" / "new").code == 4
    assert dump(store, "--output", target).code == 2
    with size_limit(5000):
        full = dump(store, "--raw", "--output", tmp_path / "full")
    assert (full.code, "cannot write" in full.err) == (3, True)
    assert {path.name for path in tmp_path.iterdir()} == {"records"}


def test_explain_shows_every_byte_of_a_record(cases: Library, dump: Dump) -> None:
    """The fields of the declaration, one after the other."""
    store = cases.path(SMALL)
    fact = facts_of(SMALL)[5]
    result = dump(store, "--explain", fact["physicalOffset"])
    fields = [row for row in result.rows if "." not in row["field"]]
    assert result.code == 0
    assert sum(row["size"] for row in fields) == fact["storeSize"]
    assert {row["field"]: row["value"] for row in fields}["topic"] == fact["topic"]
    assert all(row["text"] for row in fields)
    values = {row["field"]: row["value"] for row in result.rows}
    assert values["body_crc"].endswith("  matches")
    assert values["properties.__CRC32#"].endswith("  matches")
    nowhere = dump(store, "--explain", 10**12)
    assert nowhere.code == 3
    assert "its files hold 0 to" in nowhere.err


def test_explain_inside_a_record_explains_the_record(cases: Library, dump: Dump) -> None:
    """Whatever byte of it is named, also the first of the next one; and the same for a blank."""
    for name in (SMALL, "ok_540_clean"):
        store, facts = cases.path(name), facts_of(name)
        fact = facts[len(facts) // 2]
        start, size = fact["physicalOffset"], fact["storeSize"]
        whole = dump(store, "--explain", start)
        assert (whole.code, whole.err) == (0, "")
        for offset in (start + 1, start + 4, start + 90, start + size - 1):
            inside = dump(store, "--explain", offset)
            assert (inside.code, inside.out) == (0, whole.out)
            assert inside.err == f"rmqtool: offset {offset} is inside the record at {start}\n"
        assert dump(store, "--explain", start + size).err == ""
    blank = next(row for row in dump(store, "--gaps").rows if row["kind"] == "blank")
    inside = dump(store, "--explain", blank["physical_offset"] + 9)
    assert inside.code == 0
    assert f"inside the blank at {blank['physical_offset']}" in inside.err


def test_explain_without_queues_walks_from_the_start_of_the_file(store_copy: Any, dump: Dump) -> None:
    """As for a commit log file alone; what is too far away is explained as it is."""
    store = store_copy(SMALL)
    log = store / "commitlog" / ("0" * 20)
    fact = facts_of(SMALL)[-1]
    result = dump(log, "--explain", fact["physicalOffset"] + 5)
    assert result.code == 0
    assert f"is inside the record at {fact['physicalOffset']}" in result.err
    with Store.open(log) as opened:
        assert place.explain_log(opened, fact["physicalOffset"] + 5, RowFormat()).problems == ()
    limit, place.WALK_LIMIT = place.WALK_LIMIT, 10
    try:
        assert dump(log, "--explain", fact["physicalOffset"] + 5).code == 1
    finally:
        place.WALK_LIMIT = limit


def test_explain_of_no_record_is_a_finding(store_copy: Any, dump: Dump) -> None:
    """Zeros behind the log, damage, a flipped body: told, with exit code 1."""
    store = store_copy(SMALL)
    path, facts = store / "commitlog" / ("0" * 20), facts_of(SMALL)
    end = facts[-1]["physicalOffset"] + facts[-1]["storeSize"]
    assert end < path.stat().st_size
    behind = dump(store, "--explain", end + 50)
    assert behind.code == 1
    assert f"no record here: zeros from {end} to {path.stat().st_size} to the file's end" in behind.err
    bad = facts[3]["physicalOffset"]
    flip(path, bad + 4)
    flip(path, facts[5]["physicalOffset"] + 90)
    at = dump(store, "--explain", bad)
    assert at.code == 1
    assert "not a message magic" in at.err
    inside = dump(store, "--explain", bad + 7)
    assert inside.code == 1
    assert f"inside bytes without a sound record, from {bad} on" in inside.err
    values = {row["field"]: row["value"] for row in dump(store, "--explain", facts[5]["physicalOffset"]).rows}
    assert "  computed " in values["body_crc"]


def test_explain_names_a_missing_and_a_short_file(store_copy: Any, dump: Dump) -> None:
    """An offset that no file holds: where the log is, and which file should have it."""
    store = store_copy("ok_540_clean")
    first, second, *_ = sorted((store / "commitlog").iterdir())
    second.unlink()
    with first.open("r+b") as file:
        file.truncate(1_000_000)
    gone = dump(store, "--explain", 1_048_580)
    assert gone.code == 3
    assert f"the file {second.name} is missing" in gone.err
    short = dump(store, "--explain", 1_000_000)
    assert f"the file {first.name} is too short: 1000000 bytes, not 1048576" in short.err


def test_explain_shows_a_body_whole_on_request(cases: Library, dump: Dump) -> None:
    """256 bytes of it, or all, or none; never cut without saying so. For a program all of it, once."""
    fact = max(facts_of("ok_540_clean"), key=lambda fact: fact["storedBodyLength"])
    store, size = cases.path("ok_540_clean"), fact["storedBodyLength"]
    assert size > 300
    with Store.open(store) as opened:
        body = opened.find(fact["physicalOffset"]).message.body
    lines = {}
    for form in ("text", "hex", "none"):
        explain = ("--explain", fact["physicalOffset"], "--body", form)
        table = dump(store, *explain, "--format", "table").out.decode().splitlines()
        lines[form] = [line for line in table if " body." in line]
        rows = dump(store, *explain).rows
        (row,) = (row for row in rows if row["field"] == "body" or row["field"].startswith("body."))
        if form == "none":
            assert row["hex"].endswith(" ...")
        else:
            assert bytes.fromhex(row["hex"]) == body
    assert f"{size - 256} more bytes: --body hex shows all" in lines["text"][-1]
    assert len(lines["text"]) == 17 and len(lines["hex"]) == -(-size // 16)
    assert lines["none"] == []


def test_nothing_found_says_what_was_looked_at(cases: Library, dump: Dump) -> None:
    """How many records of which time; exit code 0 all the same, and nothing with --quiet."""
    store, facts = cases.path(SMALL), facts_of(SMALL)
    times = [format_time(pick(fact["storeTimestamp"] for fact in facts), UTC) for pick in (min, max)]
    expected = f"rmqtool: no record matches; searched {len(facts)} records from {times[0]} to {times[1]}\n"
    for options in (
        ("--tag", "none"),
        ("--tag", "none", "--raw"),
        ("--queue", "0", "--until", 1, "--stats-only"),
    ):
        result = dump(store, *options)
        until = "rmqtool: --until is 1970-01-01T00:00:00.001+00:00\n" if "--until" in options else ""
        assert (result.code, result.err) == (0, expected + until)
        assert dump(store, *options, "--quiet").err == ""
    assert dump(store, "--limit", 0).err == ""
    assert dump(store, "--what", "consumequeue", "--tag", "none").err == "rmqtool: no queue unit matches\n"
    assert dump(store, "--what", "epoch").err == "rmqtool: the store has no epoch to show\n"


def test_units_past_the_end_of_the_log(cases: Library, tmp_path: Path, dump: Dump) -> None:
    """Their messages are lost: where nothing is found a note says so; nothing of what was not selected."""
    store = cases.copy("ok_540_clean", tmp_path / "store")
    *_, last = sorted((store / "commitlog").iterdir())
    os.truncate(last, 150_000)
    rest = f"past the end of the log: {{}} lost, or the log's last file is missing; rmqtool recover {store}\n"
    of_all = "rmqtool: 160 units of 4 queues point " + rest.format("their messages are")
    cut = dump(store, "--topic", "pubOrder")
    assert (cut.code, cut.rows) == (1, []) and cut.err.endswith(of_all)
    with Store.open(store) as opened:
        key = next(key for key in opened.queues if key[0] == "pubOrder")
        count, end = opened.queues[key].end(), opened.end_offset()
    one = dump(store, "--topic", "pubOrder", "--queue", key[1])
    assert f"rmqtool: {count} units of 1 queue point " + rest.format("their messages are") in one.err
    single = dump(store, "--topic", "%RETRY%pub_group_one")
    assert "rmqtool: 1 unit of 1 queue points " + rest.format("its message is") in single.err
    for options in ((), ("--topic", "pubOrder", "--to-offset", end), ("--topic", "*", "--limit", 3)):
        assert "past the end of the log" not in dump(store, *options).err
    assert "past the end of the log" in dump(store, "--topic", "*", "--limit", 3, "--reverse").err
    last.unlink()
    missing = dump(store, "--topic", "pubOrder")
    assert (missing.code, missing.rows) == (1, []) and missing.err.endswith(of_all)
    held_lock = lock.acquire(store / "lock")
    try:
        assert "past the end of the log" not in dump(store, "--topic", "pubOrder").err
    finally:
        held_lock.release()
    assert dump(cases.path("ok_540_clean"), "--topic", "*").code == 0


def test_a_queue_that_the_store_does_not_have_is_told(cases: Library, dump: Dump) -> None:
    """With those that there are, and exit code 1; also one of two topics that is not there."""
    store = cases.path("ok_540_clean")
    result = dump(store, "--queue", "900")
    assert (result.code, result.out) == (1, b"")
    assert "the store has no queue 900; there are 0 to" in result.err
    assert dump(store, "--topic", "pubTx", "--queue", "900").code == 1
    both = dump(store, "--topic", "pubTx", "--topic", "pubNone", "--limit", 1)
    assert (both.code, len(both.rows)) == (1, 1)
    assert "no topic pubNone" in both.err


def test_parts_of_fields(cases: Library, dump: Dump) -> None:
    """Dotted names of what a row has, in every format."""
    options = ("--topic", "SCHEDULE_TOPIC_XXXX", "--fields", "system.deliver_time,properties.REAL_TOPIC")
    store = cases.path("ok_540_clean")
    rows = dump(store, *options).rows
    whole = dump(store, *options[:2]).rows
    assert [row["system.deliver_time"] for row in rows] == [row["system"]["deliver_time"] for row in whole]
    table = list(csv.DictReader(io.StringIO(dump(store, *options, "--format", "csv").out.decode())))
    assert table == rows
    assert dump(store, "--fields", "sistem.kind").code == 2


def test_gaps_at_80_columns(cases: Library, dump: Dump) -> None:
    """Offset and size are all that a row between records says."""
    rows = dump(cases.path("gap_cl08_zeroed_page"), "--gaps").rows
    (bad,) = [row for row in rows if row["kind"] == "bad"]
    table = Table(table_fields(rows, gaps=True), width=80)
    lines = table.lines([bad, *rows])
    assert lines[0].split()[:3] == ["kind", "offset", "bytes"]
    assert lines[3].split() == ["bad", str(bad["physical_offset"]), str(bad["size"]), "CL08"]


def test_tables_of_system_topics_say_what_they_mean(cases: Library, dump: Dump) -> None:
    """Kind, real topic and queue, and when it is due, in place of tags and keys."""
    store = cases.path("ok_540_clean")

    def header(*options: object) -> list[str]:
        return dump(store, "--format", "table", *options).out.decode().split("\n")[0].split()

    meaning = ["kind", "real_topic", "real_queue", "due_time"]
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_*", "%RETRY%*", "%DLQ%*", "rmq_sys_wheel_timer"):
        assert header("--topic", topic)[2:6] == meaning, topic
    assert header("--topic", "pubTopicOne")[6:8] == ["tags", "keys"]
    assert header("--topic", "SCHEDULE_TOPIC_XXXX", "--gaps")[::3][:2] == ["kind", "system"]
    units = ("--what", "consumequeue", "--topic")
    assert header(*units, "SCHEDULE_TOPIC_XXXX")[-1] == "deliver_time"
    assert header(*units, "pubTopicOne")[-1] == "tags_code"
    assert header(*units, "*")[-2:] == ["tags_code", "deliver_time"]


def test_single_files_are_taken_for_what_they_are(cases: Library, dump: Dump) -> None:
    """A commit log, queue or index file alone."""
    store = cases.path("ok_540_clean")
    log = dump(store / "commitlog" / f"{1048576:020}", "--limit", 1)
    assert log.rows[0]["physical_offset"] == 1048576
    assert "commit log" in log.err
    queue = dump(store / "consumequeue" / "pubTx" / "0" / ("0" * 20), "--limit", 1)
    assert (queue.rows[0]["topic"], queue.rows[0]["queue_offset"]) == ("pubTx", 0)
    found = dump(sorted((store / "index").iterdir())[0], "--limit", 1)
    assert found.rows[0]["entry"] == 1
    assert found.err == "rmqtool: reading it as an index\n"


@pytest.mark.parametrize(
    ("part", "what"),
    [("checkpoint", "checkpoint"), ("config/topics.json", "config"), ("config", "config"),
     ("consumequeue", "consumequeue"), ("consumequeue/pubTx", "consumequeue"), ("index", "index")],
)  # fmt: skip
def test_a_part_of_a_store_names_what_to_type(part: str, what: str, cases: Library, dump: Dump) -> None:
    """The store root, and the value of --what."""
    store = cases.path("ok_540_clean")
    result = dump(store / part)
    assert result.code == 3
    assert f"give the store root {store}; dump it with --what {what}" in result.err


def test_a_live_store_is_read_to_its_end(
    store_copy: Any, dump: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broker is writing at that moment is not looked at."""
    store = store_copy(SMALL)
    facts = facts_of(SMALL)
    flip(store / "commitlog" / ("0" * 20), facts[-1]["physicalOffset"] + 90)
    monkeypatch.setattr(Store, "live", property(lambda _: True))
    result = dump(store)
    assert result.code == 0
    assert [row["physical_offset"] for row in result.rows] == [fact["physicalOffset"] for fact in facts[:-1]]


@pytest.mark.parametrize(
    "options",
    [("--raw", "--stats-only"), ("--raw", "--explain", "0"), ("--what", "index", "--raw"),
     ("--raw", "--fields", "tags"), ("--raw", "--body", "none"), ("--raw", "--format", "csv"),
     ("--what", "config", "--explain", "0"), ("--what", "checkpoint", "--topic", "T"),
     ("--explain", "0", "--topic", "T"), ("--explain", "0", "--reverse"), ("--raw", "--gaps"),
     ("--what", "config", "--gaps"),
     ("--what", "timer", "--tag", "T"), ("--what", "consumequeue", "--since", "1"),
     ("--since", "soon"), ("--since", "2", "--until", "1"), ("--since", "1772366400")],
)  # fmt: skip
def test_what_makes_no_sense_is_a_usage_error(options: tuple[str, ...], cases: Library, dump: Dump) -> None:
    """Exit code 2, and nothing on stdout."""
    result = dump(cases.path(SMALL), *options)
    assert (result.code, result.out) == (2, b"")


def test_an_error_shows_times_in_the_zone(cases: Library, dump: Dump) -> None:
    """Not as milliseconds."""
    result = dump(cases.path(SMALL), "--since", "1772366400000", "--until", 0)
    assert "ends (1970-01-01T00:00:00.000+00:00) before it starts (2026-03-01T12:00" in result.err


def test_any_bytes_in_a_log_are_survived(store_copy: Any, dump: Dump) -> None:
    """Every record of a small log mutated in its head: the walk goes on, nothing raises."""
    store = store_copy(SMALL)
    places = (fact["physicalOffset"] + number % 88 for number, fact in enumerate(facts_of(SMALL)))
    flip(store / "commitlog" / ("0" * 20), *places, bits=0xFF)
    assert dump(store, "--gaps").code == 1


def test_interruption_keeps_what_was_printed(
    cases: Library, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch,
    unchanged: Callable[[Path], AbstractContextManager[None]],
) -> None:  # fmt: skip
    """Exit code 130, whole lines, and the store as it was."""
    store, real, seen = cases.path(SMALL), message.encode, []

    def interrupt(values: message.Message) -> bytes:
        seen.append(values)
        if len(seen) > 3:
            raise KeyboardInterrupt
        return real(values)

    monkeypatch.setattr(message, "encode", interrupt)
    with unchanged(store):
        assert main(["dump", str(store), "--json"]) == 130
    assert len([json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]) == 3
