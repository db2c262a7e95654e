"""`rmqtool dump`: records as rows and as bytes, what is selected, and that nothing changes."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.formats import message
from rmqtool.scan.columns import NAMES
from rmqtool.store import Store
from tests.dumps import SMALL, Dump, Row, facts_of, flip
from tests.stores import Library


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
    assert result.err == ""


def test_gaps_leave_no_byte_out(cases: Library, dump: Dump) -> None:
    """With blanks the rows cover the log from its start to its end."""
    store = cases.path("ok_540_clean")
    end = 0
    for row in dump(store, "--gaps", "--fields", "physical_offset,size").rows:
        assert row["physical_offset"] == end
        end += row["size"]
    with Store.open(store) as opened:
        assert end == opened.end_offset()


def test_reverse_is_the_other_order(cases: Library, dump: Dump) -> None:
    """Newest first, with the same rows; and the newest alone by --limit."""
    store = cases.path("ok_540_clean")
    fields = ("--fields", "physical_offset,size,blank", "--gaps")
    forwards = dump(store, *fields).out.splitlines()
    assert dump(store, *fields, "--reverse").out.splitlines() == forwards[::-1]
    assert dump(store, *fields, "--reverse", "--limit", 1).out.splitlines() == forwards[-1:]


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
    assert dump(store, "--topic", "nothing*").code == 0


def test_a_topic_that_the_store_does_not_have_is_told(cases: Library, dump: Dump) -> None:
    """With the nearest names, and exit code 1; a known one without messages is just empty."""
    store = cases.path("ok_540_clean")
    result = dump(store, "--topic", "pubTopicOme")
    assert (result.code, result.out) == (1, b"")
    assert "no topic pubTopicOme; nearest: pubTopicOne" in result.err
    assert dump(store, "--topic", "TBW102").code == 0


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


def test_the_delay_table_of_broker_conf_is_used(cases: Library, dump: Dump, tmp_path: Path) -> None:
    """Delivery times depend on messageDelayLevel."""
    store = cases.path("ok_540_clean")
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
    assert dump(store, "--output", target).code == 2


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
    beside = dump(store, "--explain", fact["physicalOffset"] + 1)
    assert beside.code == 1
    assert "no message magic" in beside.err
    assert dump(store, "--explain", 10**12).code == 3


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
     ("--what", "config", "--explain", "0"), ("--what", "checkpoint", "--topic", "T"),
     ("--what", "timer", "--tag", "T"), ("--what", "consumequeue", "--since", "1"),
     ("--since", "soon"), ("--since", "2", "--until", "1")],
)  # fmt: skip
def test_what_makes_no_sense_is_a_usage_error(options: tuple[str, ...], cases: Library, dump: Dump) -> None:
    """Exit code 2, and nothing on stdout."""
    result = dump(cases.path(SMALL), *options)
    assert (result.code, result.out) == (2, b"")


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
        assert main(["dump", str(store)]) == 130
    assert len([json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]) == 3
