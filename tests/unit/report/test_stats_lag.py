"""`stats`: lag of consumer groups, delayed and timer messages that wait, and all that at an earlier time."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.commands.verdicts import of_lag, resets_of_lag
from rmqtool.errors import InputError, UsageError
from rmqtool.formats import config_json, timer
from rmqtool.formats.consume_queue import Unit
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.browse.groups import group_rows
from rmqtool.report.stats.lag import Broker, QueueLag, group_lags, look_back, offset_at
from tests.support.build_store import write_queue
from tests.support.dumps import facts_of
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.stats import NOW_MS, look, rows_of
from tests.support.stores import Library, case
from tests.support.whole_store import keyed, write_config, write_whole

QUEUE_BY = ("group", "topic", "queue")


def committed(path: Path) -> dict[tuple[str, str], dict[int, int]]:
    """The committed offsets of a store."""
    return config_json.consumer_offsets(config_json.parse((path / "config/consumerOffset.json").read_bytes()))


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean", "ok_540_expired"])
def test_lag_is_javas_end_minus_committed(name: str, cases: Library) -> None:
    """Messages, bytes, oldest message and distance, from Java's queue ends and records."""
    path = cases.path(name)
    ends = {(row["topic"], row["queueId"]): row["maxOffset"] for row in case(name).queues}
    facts = facts_of(name)
    records: dict[tuple[str, int], dict[int, Any]] = {}
    for fact in facts:
        records.setdefault((fact["topic"], fact["queueId"]), {})[fact["queueOffset"]] = fact
    log_end = facts[-1]["physicalOffset"] + facts[-1]["storeSize"]
    rows = rows_of(look(path, lag_by=QUEUE_BY), "lag")
    found = {(row["topic"], row["group"], row["queue_id"]): row for row in rows}
    for (topic, group), offsets in committed(path).items():
        for queue_id, offset in offsets.items():
            row = found.pop((topic, group, queue_id))
            if (topic, queue_id) not in ends:  # a retry topic without messages: the group is healthy
                assert offset == 0 and row["status"] == ["ok"] and row["lag_messages"] == 0
                continue
            there = records.get((topic, queue_id), {})
            end, first = ends[topic, queue_id], min(there, default=ends[topic, queue_id])
            waiting = [there[each] for each in range(max(offset, first), end)]
            assert row["max_offset"] == end and row["committed_offset"] == offset
            assert row["lag_messages"] == row["lag_messages_min"] == row["lag_messages_max"] == len(waiting)
            assert row["lag_bytes"] == sum(fact["storeSize"] for fact in waiting)
            assert row["lost_messages"] == max(first - offset, 0)
            assert row["ahead_messages"] == max(offset - end, 0)
            if waiting:
                assert row["oldest_timestamp_ms"] == waiting[0]["storeTimestamp"]
                assert row["age_ms"] == NOW_MS - waiting[0]["storeTimestamp"]
                assert row["distance_bytes"] == log_end - waiting[0]["physicalOffset"]
            else:
                assert row["oldest_timestamp_ms"] is row["distance_bytes"] is row["reads_from"] is None
    assert all(row["status"] == ["never_committed"] for row in found.values())
    (note,) = (each for each in look(path, lag_by=QUEUE_BY).notes if "subscriptionGroup.json" in each)
    start = "groups of subscriptionGroup.json with neither an offset nor a retry topic: "
    assert note.startswith(start)
    named = set(note.removeprefix(start).split(", "))
    assert "pub_static_group" in named and not named & {row["group"] for row in rows}


def test_lag_adds_up(cases: Library) -> None:
    """By group and topic, and by group: sums of the queues; the oldest of all."""
    path = cases.path("ok_540_clean")
    queues = rows_of(look(path, lag_by=QUEUE_BY), "lag")
    for by in (("group",), ("group", "topic")):
        for row in rows_of(look(path, lag_by=by), "lag"):
            mine = [each for each in queues if all(each[name] == row[name] for name in by)]
            assert row["queues"] == len(mine)
            for name in ("lag_messages", "lag_bytes", "lost_messages", "ahead_messages"):
                known = [each[name] for each in mine if each[name] is not None]
                assert row[name] == (sum(known) if known or row["status"] == ["ok"] else None)
            oldest = [each["oldest_timestamp_ms"] for each in mine if each["oldest_timestamp_ms"] is not None]
            assert row["oldest_timestamp_ms"] == min(oldest, default=None)


def test_lag_of_a_selection(cases: Library) -> None:
    """Topics and queues of the selection."""
    rows = rows_of(
        look(cases.path("ok_540_clean"), Selection(topics=["pub-*"], queues=[1]), lag_by=QUEUE_BY), "lag"
    )
    assert {(row["topic"], row["queue_id"]) for row in rows} == {("pub-Topic_Four", 1)}


def test_memory_or_disk(cases: Library) -> None:
    """The broker's estimate: 40 percent of its memory, or what broker.conf says."""
    assert Broker(1000).reads_from(400) == "memory"
    assert Broker(1000).reads_from(401) == "disk"
    assert Broker(1000, 10).reads_from(101) == "disk"
    assert Broker(None).reads_from(1) is None
    path = cases.path("ok_540_clean")
    for memory, where in ((1 << 30, "memory"), (1 << 20, "disk")):
        rows = rows_of(look(path, lag_by=("group",), memory_bytes=memory), "lag")
        assert {
            row["reads_from"] for row in rows if row["lag_messages"] and row["distance_bytes"] > 1 << 20
        } <= {where}
        assert any(row["reads_from"] == where for row in rows)


def lagging(root: Path, offsets: dict[str, dict[str, int]], count: int = 40) -> None:
    """A store of one topic with 2 queues of 20 messages each, one millisecond apart."""
    write_whole(root, keyed(count))
    write_config(root, "consumerOffset.json", {"offsetTable": offsets})


def test_odd_offsets(tmp_path: Path) -> None:
    """Ahead of the end, below 0, of a queue or topic that is not there, and no offset at all."""
    lagging(
        tmp_path,
        {
            "TopicTest@ahead": {"0": 25, "1": 20},
            "TopicTest@below": {"0": -3},
            "TopicTest@elsewhere": {"0": 18, "9": 1},
            "Gone@group": {"0": 5},
            "no-group": {"0": 5},
        },
    )
    rows = {(row["group"], row["topic"], row["queue_id"]): row
            for row in rows_of(look(tmp_path, lag_by=QUEUE_BY), "lag")}  # fmt: skip
    assert rows["ahead", "TopicTest", 0]["ahead_messages"] == 5
    assert rows["ahead", "TopicTest", 0]["status"] == ["ahead"]
    of_queue = [rows["ahead", "TopicTest", 0][f"lag_messages{end}"] for end in ("", "_min", "_max")]
    assert of_queue == [None, 0, 20]  # a consumer that gets nothing there does not lag by 0
    assert rows["ahead", "TopicTest", 1]["lag_messages"] == 0
    assert rows["below", "TopicTest", 0]["lag_messages"] == 20
    assert rows["below", "TopicTest", 1]["status"] == ["never_committed"]
    assert rows["below", "TopicTest", 1]["lag_messages"] is None
    assert rows["elsewhere", "TopicTest", 9]["status"] == ["queue_lost"]
    assert rows["group", "Gone", 0]["status"] == ["no_topic"]
    found = look(tmp_path, lag_by=("group",))
    total = {row["group"]: row for row in rows_of(found, "lag")}
    assert (total["ahead"]["lag_messages"], total["ahead"]["lag_messages_max"]) == (0, 20)
    assert total["ahead"]["ahead_queues"] == ["TopicTest/0"]
    beyond = (
        "ahead is beyond the end of queue 0 of TopicTest: its lag there is unknown, and it stalls or skips"
    )
    assert any(each.startswith(beyond) for each in of_lag([total["ahead"]]))
    assert "No other group lags (1 group with offsets)." in of_lag([total["ahead"]])
    ((_, words),) = resets_of_lag(found.lags)
    assert words == ["--group", "ahead", "--topic", "TopicTest", "--queue", "0", "--from", "earliest"]
    assert total["below"]["lag_messages"] == 20
    assert total["elsewhere"]["lag_messages"] is None and total["elsewhere"]["lag_messages_min"] == 2
    assert total["elsewhere"]["lost_queues"] == ["TopicTest/9"] and found.exit_code == 1
    sentences = of_lag(list(total.values()), "rmqtool recover S")
    unknown = "The lag of elsewhere is unknown: queue 9 of TopicTest has no files; rmqtool recover S shows"
    assert any(each.startswith(unknown) for each in sentences)


def test_the_retry_topic_of_a_group_without_an_offset_there(tmp_path: Path) -> None:
    """Its consumers begin with the first message, so that the group lags by all of them.

    That holds for a group with offsets elsewhere too, and at an earlier time. Another topic's lag is unknown.
    """
    write_whole(tmp_path, [*keyed(40), *keyed(6, topic="%RETRY%g", first=40)])
    write_config(tmp_path, "consumerOffset.json", {"offsetTable": {"TopicTest@g": {"0": 20}}})
    rows = {(row["topic"], row["queue_id"]): row for row in rows_of(look(tmp_path, lag_by=QUEUE_BY), "lag")}
    for queue_id in (0, 1):
        row = rows["%RETRY%g", queue_id]
        assert (row["lag_messages"], row["committed_offset"]) == (3, None)
        assert (row["lost_messages"], row["status"]) == (0, ["never_committed"])
    assert rows["TopicTest", 1]["lag_messages"] is None
    [group] = rows_of(look(tmp_path, lag_by=("group",)), "lag")
    assert group["lag_messages"] == 6 and group["lag_bytes"] > 0
    of_topics = rows_of(look(tmp_path, lag_by=("group", "topic")), "lag")
    statuses = {row["topic"]: tuple(row["status"]) for row in of_topics}
    assert group["status"] == ["partial"], "it has an offset in one queue"
    assert statuses == {"%RETRY%g": ("never_committed",), "TopicTest": ("partial",)}
    with Store.open(tmp_path) as store:
        assert {row.topic: row.status for row in group_rows(store)} == statuses, "browse uses the same words"


def test_lag_leads_to_reset_offset(cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """For the group that missed most; the line shows what it would receive. Nobody is told to skip."""
    expired, words = (
        cases.path("ok_540_expired"),
        ["stats", str(cases.path("ok_540_expired")), "--by", "group"],
    )
    assert main(words) == 0
    (begin,) = (line for line in capfd.readouterr().err.splitlines() if "reset-offset" in line)
    assert "to let pub_group_one begin with the oldest message that is left of pubTopicOne (" in begin
    command = begin.partition("first): ")[2]
    assert main(shlex.split(command)[1:]) == 1 and str(expired) in command
    assert " receives 0 messages again and skips 0\n" in capfd.readouterr().err
    for more in (["--at", "2026-11-21T08:50:20Z"], ["--topic", "pubRetry"], ["--queue", "0"]):
        main([*words, *more])
        assert "reset-offset" not in capfd.readouterr().err
    assert main(["stats", str(cases.path("kind_config_v2_540")), "--by", "group"]) == 0
    assert "reset-offset" not in capfd.readouterr().err  # only the broker's own group lags
    write_whole(tmp_path, keyed(40))
    write_config(tmp_path, "consumerOffset.json", {"offsetTable": {"TopicTest@g": {"0": 20, "1": 20}}})
    assert main(["stats", str(tmp_path), "--by", "group"]) == 0
    assert "reset-offset" not in capfd.readouterr().err


def test_the_line_for_expired_messages_names_only_the_queues_that_lost_some() -> None:
    """In the others the group would receive all messages again."""
    lags = [QueueLag("g", "T", queue_id, messages=0, lost=lost) for queue_id, lost in enumerate((3, 0, 2))]
    ((text, words),) = resets_of_lag([*lags, QueueLag("CID_RMQ_SYS_TRANS", "H", 0, messages=9, lost=9)])
    assert text == "to let g begin with the oldest message that is left of T"
    assert words == ["--group", "g", "--topic", "T", "--queue", "0,2", "--from", "earliest"]


def test_offsets_that_cannot_be_read(tmp_path: Path) -> None:
    """No file: a row says so. Neither file nor .bak can be understood, or no store root: one clear error."""
    lagging(tmp_path, {})
    (tmp_path / "config/consumerOffset.json").unlink()
    (tmp_path / "config/consumerOffset.json.bak").unlink()
    [row] = rows_of(look(tmp_path, lag_by=("group",)), "lag")
    assert (row["group"], row["status"]) == (None, ["offsets_missing"])
    (tmp_path / "config/consumerOffset.json").write_text("{")
    (tmp_path / "config/consumerOffset.json.bak").write_text("[")
    with pytest.raises(InputError):
        look(tmp_path, lag_by=("group",))
    (tmp_path / "config/consumerOffset.json.bak").unlink()
    with pytest.raises(InputError, match="no .bak"):
        look(tmp_path, lag_by=("group",))
    with pytest.raises(UsageError):
        look(tmp_path / "commitlog", lag_by=("group",))
    write_config(tmp_path, "consumerOffset.json", {"offsetTable": {"T@g": {"0": "x"}}})
    with pytest.raises(InputError):
        look(tmp_path, lag_by=("group",))


# -- as of an earlier time -----------------------------------------------------------------------------


def test_bounds_of_lag_in_the_past(tmp_path: Path) -> None:
    """The ends of queues at any time are known, committed offsets only from the file's last change on."""
    lagging(tmp_path, {"TopicTest@group": {"0": 7}})
    at = STORE_TIMESTAMP + 20  # messages 0 to 19 are there: ten in each queue
    row = rows_of(look(tmp_path, lag_by=QUEUE_BY, at_ms=at), "lag")[0]
    assert (row["max_offset"], row["lag_messages"]) == (10, None)
    assert (row["lag_messages_min"], row["lag_messages_max"]) == (3, 10)
    assert row["status"] == ["committed_later"]
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        os.utime(tmp_path / "config" / name, (1_600_000_000, 1_600_000_000))
    found = look(tmp_path, lag_by=QUEUE_BY, at_ms=at)
    row = rows_of(found, "lag")[0]
    assert (row["max_offset"], row["lag_messages"], row["status"]) == (10, 3, ["ok"])
    assert row["age_ms"] == at - (STORE_TIMESTAMP + 14)
    assert found.as_of is not None and found.as_of["unknown"] == []
    assert rows_of(look(tmp_path, lag_by=QUEUE_BY, at_ms=STORE_TIMESTAMP), "lag")[0]["lag_messages"] == 0


@pytest.mark.parametrize("after_ms", [0, 5, 20, 39, 1000])
def test_messages_of_the_past(after_ms: int, tmp_path: Path) -> None:
    """Only what was stored before; the log's end then."""
    lagging(tmp_path, {})
    found = look(tmp_path, by=("topic",), at_ms=STORE_TIMESTAMP + after_ms)
    assert sum(row["count"] for row in rows_of(found, "messages")) == min(after_ms, 40)
    with Store.open(tmp_path) as store:
        before = [
            each for each in store.messages() if each.message.store_timestamp < STORE_TIMESTAMP + after_ms
        ]
        then = look_back(store, STORE_TIMESTAMP + after_ms)
        assert then.log_end == (before[-1].end if before else 0)
        queue = store.queue("TopicTest", 0)
        assert queue is not None
        assert offset_at(store, queue, STORE_TIMESTAMP + after_ms) == sum(
            each.message.queue_id == 0 for each in before
        )


def test_past_of_a_store_whose_files_went(cases: Library) -> None:
    """What was deleted is said; born times and the past do not go together."""
    found = look(cases.path("ok_540_expired"), by=("topic",), at_ms=1_795_251_030_000)
    assert any("deleted" in note for note in found.notes)
    with pytest.raises(UsageError):
        look(cases.path("ok_540_clean"), Selection(since=5, time_field="born"), by=("topic",), at_ms=1)


# -- what waits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean"])
def test_delayed_messages_of_a_broker(name: str, cases: Library) -> None:
    """Those behind the level's offset, by level; due at store time plus the level's delay (1s 3s 5s 1h)."""
    path = cases.path(name)
    offsets = config_json.delay_offsets(config_json.parse((path / "config/delayOffset.json").read_bytes()))
    delays = (1000, 3000, 5000, 3_600_000)
    waiting: Counter[int] = Counter()
    due: dict[int, list[int]] = {}
    for fact in facts_of(name):
        level = fact["queueId"] + 1
        if fact["topic"] == "SCHEDULE_TOPIC_XXXX" and fact["queueOffset"] >= offsets.get(level, 0):
            waiting[level] += 1
            due.setdefault(level, []).append(fact["storeTimestamp"] + delays[level - 1])
    rows = [row for row in rows_of(look(path, delayed=True), "delayed") if row["kind"] == "delayed"]
    counts: Counter[int] = Counter()
    for row in rows:
        counts[row["level"]] += row["count"]
    assert counts == waiting
    for level, times in due.items():
        mine = [row for row in rows if row["level"] == level]
        assert min(row["first_due_timestamp_ms"] for row in mine) == min(times)
        assert max(row["last_due_timestamp_ms"] for row in mine) == max(times)
        assert all(row["overdue"] == row["count"] for row in mine)  # now is long after


@pytest.mark.parametrize("name", ["ok_533_clean", "ok_540_clean"])
def test_timer_messages_of_a_broker(name: str, cases: Library) -> None:
    """Timer records without a delivered twin, and due after the wheel's time."""
    facts = facts_of(name)
    delivered = {fact["properties"].get("UNIQ_KEY") for fact in facts
                 if "TIMER_DEQUEUE_MS" in fact["properties"]}  # fmt: skip
    expected = [fact for fact in facts if fact["topic"] == "rmq_sys_wheel_timer"
                and fact["properties"]["UNIQ_KEY"] not in delivered]  # fmt: skip
    rows = [row for row in rows_of(look(cases.path(name), delayed=True), "delayed") if row["kind"] == "timer"]
    assert sum(row["count"] for row in rows) == len(expected)
    assert sum(row["bytes"] for row in rows) == sum(fact["storeSize"] for fact in expected)
    times = sorted(int(fact["properties"]["TIMER_OUT_MS"]) for fact in expected)
    assert min(row["first_due_timestamp_ms"] for row in rows) == pytest.approx(times[0], abs=1000)
    assert max(row["last_due_timestamp_ms"] for row in rows) == pytest.approx(times[-1], abs=1000)


def timer_store(root: Path) -> None:
    """Timer messages: one in the wheel, one delivered, one rolled, one to be deleted, one not read yet."""
    out = STORE_TIMESTAMP + 50_000
    records = [
        record("rmq_sys_wheel_timer", b"t", {"UNIQ_KEY": f"K{n}", "TIMER_OUT_MS": str(out + n), **more},
               queue_offset=n, store_timestamp=STORE_TIMESTAMP + n)
        for n, more in enumerate([{}, {}, {}, {"TIMER_DEL_UNIQKEY": "K9"}, {}, {"TIMER_DEL_UNIQKEY": "K8"}])
    ]  # fmt: skip
    stored = write_whole(root, records)

    def unit(number: int, magic: int, delay: int) -> bytes:
        item = stored[number]
        return timer.encode_log_unit(
            timer.LogUnit(52, -1, magic, STORE_TIMESTAMP, delay, item.physical_offset, item.total_size, 0, 0)
        )

    units = [unit(0, 1, 50_000), unit(1, 1, 10), unit(2, 3, 40_000), unit(3, 5, 50_000), unit(0, 1, 50_000)]
    (root / "timerlog").mkdir()
    (root / "timerlog" / f"{0:020}").write_bytes(b"".join(units).ljust(1 << 12, b"\0"))
    check = timer.Check(STORE_TIMESTAMP + 1000, 0, 4, 4, 0, 0, 0)
    (root / "config" / "timercheck").write_bytes(timer.encode_check(check).ljust(4096, b"\0"))


def test_timer_units(tmp_path: Path) -> None:
    """Each message once, a rolled one by its own time, delete requests never."""
    timer_store(tmp_path)
    rows = rows_of(look(tmp_path, delayed=True, now_ms=STORE_TIMESTAMP), "delayed")
    assert sum(row["count"] for row in rows) == 3
    assert min(row["first_due_timestamp_ms"] for row in rows) == STORE_TIMESTAMP + 50_000
    assert max(row["last_due_timestamp_ms"] for row in rows) == STORE_TIMESTAMP + 50_004
    assert all(row["overdue"] == 0 for row in rows)
    (tmp_path / "config" / "timercheck").write_bytes(b"\1" * 10)
    with pytest.raises(InputError):
        look(tmp_path, delayed=True)


def test_without_files_of_the_timer_all_of_its_queue_waits(tmp_path: Path) -> None:
    """A broker takes the queue from its start; what is to be deleted does not wait."""
    timer_store(tmp_path)
    (tmp_path / "config" / "timercheck").unlink()
    shutil.rmtree(tmp_path / "timerlog")
    rows = rows_of(look(tmp_path, delayed=True, now_ms=STORE_TIMESTAMP), "delayed")
    assert [(row["kind"], row["count"]) for row in rows] == [("timer", 4)]


def test_when_the_next_are_due(
    cases: Library, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 columns show the first due times; records of POP are counted apart, also in the last line."""
    monkeypatch.setenv("COLUMNS", "80")
    store = str(cases.path("kind_combine_index_timer_540"))
    assert main(["stats", store, "--delayed", "--format", "table", "--tz", "UTC"]) == 0
    shown = capfd.readouterr()
    assert "2026-11-23T07:54:22.438" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines()[-6:]] == ["delayed", *["timer"] * 4, "pop"]
    notes = " ".join(shown.err.split())
    assert (
        "next due: 2026-11-23T07:54:22.000+00:00 (of 5 messages, 5 overdue);"
        " 2026-11-23T07:04:22.000+00:00 (of 4 records of POP, 4 overdue)" in notes
    )
    assert main(["dump", store, "--what", "timer", "--format", "table"]) == 0
    assert "delivered" in capfd.readouterr().out


def test_delayed_in_the_past(tmp_path: Path) -> None:
    """At a time waited what was stored before and due later, delivered since or not; in its hour."""
    stored = write_whole(tmp_path, [
        record("SCHEDULE_TOPIC_XXXX", b"d", {"DELAY": "3", "UNIQ_KEY": f"K{n}"}, queue_id=2, queue_offset=n,
               store_timestamp=STORE_TIMESTAMP + n * 1000)
        for n in range(20)
    ])  # fmt: skip
    units = [Unit(item.physical_offset, item.total_size, item.store_timestamp + 10_000) for item in stored]
    folder = tmp_path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2"
    for path in folder.iterdir():
        path.unlink()
    write_queue(folder, units)
    write_config(tmp_path, "delayOffset.json", {"offsetTable": {"3": 15}})
    now = rows_of(look(tmp_path, delayed=True), "delayed")
    assert [(row["level"], row["count"]) for row in now] == [(3, 5)]
    then = rows_of(look(tmp_path, delayed=True, at_ms=STORE_TIMESTAMP + 12_000), "delayed")
    # Messages 0 to 11 are there; 0 and 1 were due before.
    assert [(row["count"], row["overdue"]) for row in then] == [(10, 1)]
    assert then[0]["due_hour_timestamp_ms"] == STORE_TIMESTAMP // 3_600_000 * 3_600_000


def test_lag_by_library(tmp_path: Path) -> None:
    """The functions are for programs too: rows come one by one."""
    lagging(tmp_path, {"TopicTest@group": {"0": 7}})
    with Store.open(tmp_path) as store:
        first = next(group_lags(store, Selection()))
    assert (first.group, first.messages, first.status) == ("group", 13, set())
    assert json.dumps(sorted(first.status)) == "[]" and UTC is not None
