"""System records decoded: what each kind says, on built records and on those of real brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import UsageError
from rmqtool.formats import batch, message, trace
from rmqtool.message import system_topics
from rmqtool.message.system_topics import (
    DEFAULT_DELAYS_MS,
    deliver_timestamp,
    describe,
    due_by_table,
    parse_delay_levels,
)
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.stores import Library, case
from tests.unit.read.test_ground_truth import raw_records

REAL = {"REAL_TOPIC": "TopicTest", "REAL_QID": "3"}


def say(*arguments: Any, **fields: Any) -> dict[str, Any]:
    """The description of a system record; it must be one, and be JSON."""
    described = describe(record(*arguments, **fields), due_of=due_by_table(DEFAULT_DELAYS_MS))
    assert described is not None
    assert json.loads(json.dumps(described)) == described
    return described


def test_an_ordinary_message_is_not_described() -> None:
    """Also not one whose topic only looks like a system topic."""
    assert describe(record()) is None
    assert describe(record("SCHEDULE_TOPIC_XXXX2")) is None
    assert describe(record(found={"DELAY": "3"})) is None


def test_a_half_message_names_its_real_topic_and_transaction() -> None:
    """4.x: the unique key is the transaction's name; 5.x has a property of its own."""
    found = {**REAL, "UNIQ_KEY": "U", "PGROUP": "g", "TRAN_MSG": "true"}
    assert say("RMQ_SYS_TRANS_HALF_TOPIC", b"", found) == {
        "kind": "half",
        "real_topic": "TopicTest",
        "real_queue_id": 3,
        "transaction_id": "U",
        "producer_group": "g",
        "check_times": 0,
        "first_half_queue_offset": None,
        "check_immunity_s": None,
    }
    found |= {"__transactionId__": "T", "TRANSACTION_CHECK_TIMES": "2", "TRAN_PREPARED_QUEUE_OFFSET": "9"}
    described = say("RMQ_SYS_TRANS_HALF_TOPIC", b"", found)
    assert described["transaction_id"] == "T"
    assert (described["check_times"], described["first_half_queue_offset"]) == (2, 9)
    assert say("TRANS_CHECK_MAX_TIME_TOPIC", b"", found)["kind"] == "half_discarded"


@pytest.mark.parametrize(
    ("stored", "offsets"), [(b"17", [17]), (b"17,18,", [17, 18]), (b"", []), (b"0,", [0])]
)
def test_an_op_message_lists_half_queue_offsets(stored: bytes, offsets: list[int]) -> None:
    """One number in 4.x, a list with a comma behind every number in 5.x."""
    assert say("RMQ_SYS_TRANS_OP_HALF_TOPIC", stored, {"TAGS": "d"}, queue_id=2) == {
        "kind": "op",
        "half_queue_id": 2,
        "half_queue_offsets": offsets,
    }


def test_an_op_message_that_cannot_be_read_in_full_says_so() -> None:
    """The readable numbers are still shown."""
    described = say("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"1,x,3,", {})
    assert described["half_queue_offsets"] == [1, 3]
    assert described["unreadable"] == "1 of 3 pieces are not queue offsets"


def test_a_committed_message_points_at_its_half() -> None:
    """Its physical offset is how a commit is told from a rollback."""
    described = say("pubTx", sys_flag=message.TRANSACTION_COMMIT, prepared_transaction_offset=4711)
    assert (described["kind"], described["half_physical_offset"]) == ("committed", 4711)


def test_a_delayed_message_says_when_and_where_it_is_due() -> None:
    """Store time plus the level's delay, in the real topic and queue."""
    assert say("SCHEDULE_TOPIC_XXXX", b"", {**REAL, "DELAY": "3"}, queue_id=2) == {
        "kind": "delayed",
        "level": 3,
        "deliver_timestamp_ms": STORE_TIMESTAMP + 10_000,
        "deliver_time": "2023-11-14T22:13:30.123+00:00",
        "real_topic": "TopicTest",
        "real_queue_id": 3,
    }


def test_the_queue_tells_the_level_where_delay_cannot_be_read() -> None:
    """Level n is queue n - 1."""
    assert say("SCHEDULE_TOPIC_XXXX", b"", {**REAL, "DELAY": "x"}, queue_id=4)["level"] == 5


def test_a_delayed_retry_says_both() -> None:
    """Every consumer retry waits in SCHEDULE_TOPIC_XXXX first."""
    found = {"REAL_TOPIC": "%RETRY%g", "REAL_QID": "0", "DELAY": "1"}
    found |= {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "M"}
    retry = {"group": "g", "origin_topic": "T", "origin_message_id": "M", "reconsume_times": 1}
    assert say("SCHEDULE_TOPIC_XXXX", b"", found, reconsume_times=1)["retry"] == retry
    assert say("%RETRY%g", b"", found, reconsume_times=1) == {"kind": "retry", **retry}
    assert say("%DLQ%g", b"", found, reconsume_times=1) == {"kind": "dead_letter", **retry}


def test_a_delivered_delayed_message_keeps_its_level() -> None:
    """DELAY and REAL_TOPIC stay in the stored properties."""
    assert say("TopicTest", b"", {**REAL, "DELAY": "2"}) == {"kind": "delayed_delivered", "level": 2}


def test_a_timer_message_says_when_and_where_it_is_due() -> None:
    """TIMER_OUT_MS is the time, rounded to the wheel's precision."""
    found = {**REAL, "TIMER_OUT_MS": "1700000010000", "TIMER_ROLL_TIMES": "1"}
    described = say("rmq_sys_wheel_timer", b"", found)
    assert described == {
        "kind": "timer",
        "deliver_timestamp_ms": 1_700_000_010_000,
        "deliver_time": "2023-11-14T22:13:30.000+00:00",
        "real_topic": "TopicTest",
        "real_queue_id": 3,
        "roll_times": 1,
        "deletes_uniq_key": None,
    }
    found |= {"TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "2"}
    delivered = say("TopicTest", b"", found)
    assert (delivered["kind"], delivered["dequeue_timestamp_ms"]) == ("timer_delivered", 2)


def test_an_inner_batch_shows_its_messages() -> None:
    """One record holds several queue offsets."""
    stored = batch.encode_items([batch.item(b"one", b"TAGS\x01a", flag=7), batch.item(b"\xff", b"", flag=0)])
    found = {"INNER_BASE": "40", "INNER_NUM": "2"}
    described = say("T", stored, found, sys_flag=message.INNER_BATCH)
    assert (described["base_queue_offset"], described["count"]) == (40, 2)
    assert described["messages"] == [
        {"queue_offset": 40, "flag": 7, "body_length": 3, "body": "one", "body_encoding": "utf-8",
         "properties": {"TAGS": "a"}},
        {"queue_offset": 41, "flag": 0, "body_length": 1, "body": "/w==", "body_encoding": "base64",
         "properties": {}},
    ]  # fmt: skip
    bare = describe(record("T", stored, found, sys_flag=message.INNER_BATCH), bodies=False)
    assert bare is not None
    assert "body" not in bare["messages"][0]


def test_a_torn_inner_batch_shows_what_is_whole() -> None:
    """And says that there is more."""
    stored = batch.encode_items([batch.item(b"one", b""), batch.item(b"two", b"")])[:-1]
    described = say("T", stored, {}, sys_flag=message.INNER_BATCH)
    assert len(described["messages"]) == 1
    assert "byte 25" in described["unreadable"]


def test_a_trace_record_shows_its_traces() -> None:
    """What clients report about sending and consuming, field by field."""
    values = ("1700000000123", "region", "group", "T", "ID", "tag", "key", "127.0.0.1:10911", "5", "3", "0",
              "OFFSET", "true", "127.0.0.1")  # fmt: skip
    stored = trace.encode([trace.Trace("Pub", values), trace.Trace("SubBefore", ("x",))])
    sent, broken = say(trace.TRACE_TOPIC, stored)["traces"]
    assert (sent["kind"], sent["topic"], sent["success"]) == ("Pub", "T", True)
    assert (sent["timestamp_ms"], sent["time"]) == (1_700_000_000_123, "2023-11-14T22:13:20.123+00:00")
    assert broken == {
        "kind": "SubBefore",
        "values": ["x"],
        "unreadable": "trace: timestamp 'x' is not a number",
    }
    torn = say(trace.TRACE_TOPIC, stored, sys_flag=message.COMPRESSED)
    assert torn["traces"] == []
    assert torn["unreadable"]


def test_delay_levels_are_parsed_as_the_broker_does() -> None:
    """Numbers with s, m, h or d, separated by spaces."""
    assert parse_delay_levels("1s 3s 5s 1h") == (1000, 3000, 5000, 3_600_000)
    assert parse_delay_levels("2d") == (172_800_000,)
    assert len(system_topics.DEFAULT_DELAYS_MS) == 18
    assert system_topics.DEFAULT_DELAYS_MS[2] == 10_000
    for wrong in ("5", "s", "5x", "-1s", "1.5h"):
        with pytest.raises(UsageError):
            parse_delay_levels(wrong)


def test_a_level_above_the_table_is_the_highest() -> None:
    """As a broker caps it; without any table one second."""
    assert deliver_timestamp(0, 99, (1000, 2000)) == 2000
    assert deliver_timestamp(0, 1, ()) == 1000


@given(
    st.sampled_from([*system_topics._BY_TOPIC, "%RETRY%g", "%DLQ%", "T"]),
    st.binary(max_size=60),
    st.dictionaries(
        st.sampled_from(["DELAY", "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "INNER_BASE", "INNER_NUM"]),
        st.text("0123456789-x", min_size=1, max_size=40),
    ),
    st.integers(0, 2047),
    st.integers(-(2**63), 2**63 - 1),
)
def test_any_record_can_be_described(
    topic: str, stored: bytes, found: dict[str, str], flags: int, number: int
) -> None:
    """Properties and bodies come from disk: nothing in them is an exception."""
    flags &= ~(message.BORN_HOST_V6 | message.STORE_HOST_V6)
    values = record(topic, stored, found, sys_flag=flags, store_timestamp=number, queue_id=number % 100)
    json.dumps(describe(values))


@pytest.mark.parametrize("version", ["497", "533", "540"])
def test_real_transactions_delays_and_retries_fit_together(version: str, cases: Library) -> None:
    """Halves, ops and commits of a real broker point at each other; delays arrive when they say."""
    name = f"ok_{version}_clean"
    this = case(name)
    delays = parse_delay_levels(this.settings["messageDelayLevel"])
    messages = [
        (fact["physicalOffset"], message.decode(raw)) for fact, raw in raw_records(cases.path(name), this)
    ]
    described = [(place, each, describe(each, due_of=due_by_table(delays))) for place, each in messages]
    by_kind: dict[str, list[tuple[int, message.Message, dict[str, Any]]]] = {}
    for place, each, what in described:
        if what is not None:
            assert "unreadable" not in what
            by_kind.setdefault(what["kind"], []).append((place, each, what))
    halves = {place: what for place, _, what in by_kind["half"]}
    half_queue_offsets = {each.queue_offset for _, each, _ in by_kind["half"]}
    for _, each, what in by_kind["committed"]:
        half = halves[what["half_physical_offset"]]
        assert half["transaction_id"] == what["transaction_id"]
        assert (half["real_topic"], half["real_queue_id"]) == (each.topic, each.queue_id)
    finished = [offset for _, _, what in by_kind["op"] for offset in what["half_queue_offsets"]]
    assert set(finished) <= half_queue_offsets
    assert len(finished) == len(set(finished))
    places = {place for place, _ in messages}
    for _, each, what in by_kind["delayed"]:
        assert each.queue_id == what["level"] - 1
        assert what["deliver_timestamp_ms"] == each.store_timestamp + delays[what["level"] - 1]
    for _, _, what in by_kind["retry"] + by_kind["dead_letter"]:
        assert int(what["origin_message_id"][-16:], 16) in places
        assert what["group"]
    assert by_kind["delayed_delivered"]
    if version != "497":
        assert all(len(what["messages"]) == what["count"] for _, _, what in by_kind["inner_batch"])
        assert {what["real_topic"] for _, _, what in by_kind["timer"]} == {"pubDelay"}
        assert all(what["dequeue_timestamp_ms"] for _, _, what in by_kind["timer_delivered"])
