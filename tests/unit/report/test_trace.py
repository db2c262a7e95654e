"""What became of a message: its records, their states, groups that passed it, reports of clients."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.formats import config_json, properties, trace
from rmqtool.formats import message as form
from rmqtool.formats.message_id import offset_message_id
from rmqtool.log.events import StoredMessage
from rmqtool.read.store import Store
from rmqtool.report.trace import FIELDS, Fate, message_fate, table_fields
from rmqtool.report.trace.outcome import finder, unreached
from rmqtool.report.trace.steps import steps_of
from tests.support.dumps import facts_of
from tests.support.records import HOST, STORE_TIMESTAMP, record
from tests.support.stores import Library
from tests.support.whole_store import keyed, write_config, write_whole

pytestmark = pytest.mark.usefixtures("json_lines")

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SYSTEM = (HALF, "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "TRANS_CHECK_MAX_TIME_TOPIC")


def by_dictionary(store: Store) -> Callable[[str, Iterable[str]], list[StoredMessage]]:
    """Finds messages by any key in what was read once."""
    found: dict[tuple[str, str], list[StoredMessage]] = {}
    for stored in store.messages():
        told = properties.decode(stored.message.properties_bytes)
        for key in {told.get(properties.UNIQ_KEY, ""), *properties.keys_of(told)}:
            found.setdefault((key, stored.message.topic), []).append(stored)
    return lambda key, topics: [each for topic in topics for each in found.get((key, topic), ())]


def kinds(fate: Fate) -> list[tuple[str, str | None]]:
    """(kind, state) of the steps."""
    return [(step.kind, step.state) for step in fate.steps]


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean"])
def test_records_of_a_message(name: str, cases: Library) -> None:
    """Of every message that went through a system, retry or dead letter topic all records, and no other."""
    facts = facts_of(name)
    records: dict[str, list[int]] = {}
    for fact in facts:
        if fact["topic"] != OP and fact["properties"].get("UNIQ_KEY"):
            records.setdefault(fact["properties"]["UNIQ_KEY"], []).append(fact["physicalOffset"])
    moved = {fact["properties"].get("UNIQ_KEY") for fact in facts
             if fact["topic"] in SYSTEM or fact["topic"].startswith("%")} - {None}  # fmt: skip
    with Store.open(cases.path(name)) as store:
        find = by_dictionary(store)
        for key in sorted(moved):
            for place in {records[key][0], records[key][-1]}:
                stored = store.get(place)
                assert stored is not None
                fate = message_fate(store, stored, find=find)
                assert [step.stored.physical_offset for step in fate.steps] == records[key]
                _check_states(fate, facts)
    assert len(moved) > 50


def _check_states(fate: Fate, facts: list[dict[str, Any]]) -> None:
    """What is said to be delivered or committed has its record, what waits has none."""
    for number, step in enumerate(fate.steps):
        later = [each.kind for each in fate.steps[number + 1 :]]
        if step.kind in ("delayed", "timer"):
            delivered = {"delayed_delivered", "timer_delivered", "retry", "dead_letter"} & set(later)
            assert (step.state == "delivered") == bool(delivered), step
        if step.kind == "half":
            assert (step.state == "committed") == ("committed" in later)


def test_the_ways_that_messages_went(cases: Library) -> None:
    """All the ways of the real store: retried to death, delayed, timed, committed, rolled back, open."""
    seen = set()
    with Store.open(cases.path("ok_540_clean")) as store:
        find = by_dictionary(store)
        for stored in store.messages():
            if stored.message.topic in SYSTEM:
                seen.add(tuple(kinds(message_fate(store, stored, find=find))))
        original = store.get(0)
        assert original is not None
        fate = message_fate(store, original, find=find)
    assert (("half", "committed"), ("committed", None)) in seen
    assert (("half", "rolled_back"),) in seen
    assert (("half", "put_back"), ("half", "open")) in seen
    assert (("timer", "delivered"), ("timer_delivered", None)) in seen
    assert (("timer", "waiting"),) in seen and (("delayed", "waiting"),) in seen
    assert (("delayed", "delivered"), ("delayed_delivered", None)) in seen
    assert [kind for kind, _ in kinds(fate)] == [
        "stored", "delayed", "delayed", "retry", "retry", "dead_letter", "dead_letter",
    ]  # fmt: skip
    groups = {(each.group, each.topic): each.passed for each in fate.groups}
    assert groups["pub_retry_group", "pubRetry"] is True
    assert groups["pub_retry_group", "%RETRY%pub_retry_group"] is True


def test_passed_is_below_the_committed_offset(cases: Library) -> None:
    """For every message of a topic with lag."""
    path = cases.path("ok_540_clean")
    offsets = config_json.consumer_offsets(
        config_json.parse((path / "config/consumerOffset.json").read_bytes())
    )
    committed = offsets["pubTopicOne", "pub_group_one"][0]
    with Store.open(path) as store:
        find = by_dictionary(store)
        for queue_offset in (0, committed - 1, committed, 1399):
            stored = store.get_by_queue_offset("pubTopicOne", 0, queue_offset)
            assert stored is not None
            states = message_fate(store, stored, find=find).groups
            (state,) = [each for each in states if each.topic == "pubTopicOne"]
            assert (state.group, state.passed) == ("pub_group_one", queue_offset < committed)


def test_the_default_finder_is_no_other(cases: Library) -> None:
    """By index or scan the same records are found as by reading everything."""
    with Store.open(cases.path("ok_540_small_propcrc")) as store:
        own, all_of_them = finder(store), by_dictionary(store)
        topics = sorted({topic for topic, _ in store.queues})
        for stored in list(store.messages())[:40:10]:
            key = properties.decode(stored.message.properties_bytes)[properties.UNIQ_KEY]
            assert {each.physical_offset for each in own(key, topics)} == {
                each.physical_offset for each in all_of_them(key, topics)
            }
        assert list(own("nothing", topics)) == []


# -- reports of clients ----------------------------------------------------------------------------------


def traced(root: Path, bodies: list[bytes]) -> list[form.Message]:
    """Four messages of TopicTest, and trace records with these bodies, whose keys name the first message."""
    records = keyed(4)
    records += [
        record(trace.TRACE_TOPIC, body, {"KEYS": "U00000000 order0", "UNIQ_KEY": f"T{n}"}, queue_offset=n)
        for n, body in enumerate(bodies)
    ]
    return write_whole(root, records)


def pub(key: str, **values: str) -> trace.Trace:
    """A report of sending."""
    fields = {
        "timestamp": str(STORE_TIMESTAMP - 9), "region_id": "R", "group_name": "producers",
        "topic": "TopicTest", "msg_id": key, "tags": "", "keys": "order0", "store_host": "127.0.0.1:10911",
        "body_length": "150",
        "cost_time": "7", "msg_type": "0", "offset_msg_id": "", "success": "true", "client_host": "10.0.0.9",
    } | values  # fmt: skip
    return trace.Trace("Pub", tuple(fields[name] for name in trace.KINDS["Pub"]))


def before(key: str, request: str, group: str, retry: int = 0) -> trace.Trace:
    """A report before consuming."""
    values = (str(STORE_TIMESTAMP + 100 + retry), "R", group, request, key, str(retry), "order0")
    return trace.Trace("SubBefore", values)


def after(key: str, request: str, group: str, *, success: bool, code: int) -> trace.Trace:
    """A report after consuming."""
    values = (
        request,
        key,
        "33",
        str(success).lower(),
        "order0",
        str(code),
        str(STORE_TIMESTAMP + 200),
        group,
    )
    return trace.Trace("SubAfter", values)


def test_reports_of_clients(tmp_path: Path) -> None:
    """Who sent it, from where, how long it took; which groups got it, with which result."""
    key = "U00000000"
    traced(tmp_path, [
        trace.encode([pub(key), pub("U00000001", group_name="others")]),
        trace.encode([before(key, "r1", "g1"), before(key, "r2", "g2"), before("U00000002", "r1", "g3")]),
        trace.encode([after(key, "r1", "g1", success=False, code=2), before(key, "r4", "g1", retry=1)]),
        trace.encode([after(key, "r4", "g1", success=True, code=0)]),
        trace.encode([trace.Trace("EndTransaction", (
            str(STORE_TIMESTAMP + 1), "R", "producers", "TopicTest", key, "", "", "h", "1", "x",
            "COMMIT_MESSAGE", "false"))]),
        b"\xff\x02nonsense",
        trace.encode([pub(key, cost_time="soon"), trace.Trace("Later", ("1",))]),
    ])  # fmt: skip
    with Store.open(tmp_path) as store:
        stored = store.get(0)
        assert stored is not None
        fate = message_fate(store, stored)
    (sent,) = fate.reports.sent
    assert (sent["group"], sent["client_host"], sent["cost_ms"], sent["success"]) == (
        "producers", "10.0.0.9", 7, True,
    )  # fmt: skip
    assert [(row["group"], row["result"], row["success"], row["retry_times"], row["cost_ms"])
            for row in fate.reports.consumed] == [
        ("g1", "exception", False, 0, 33), ("g2", None, None, 0, None), ("g1", "success", True, 1, 33),
    ]  # fmt: skip
    assert fate.reports.ended[0]["state"] == "COMMIT_MESSAGE"
    assert any("trace records" in text for text in fate.unknown)
    rows = fate.rows()
    assert all(tuple(row) == FIELDS for row in rows)
    assert [row["kind"] for row in rows] == [
        "sent", "stored", "group", "transaction_end", "consumed", "consumed", "consumed",
    ]  # fmt: skip
    assert [row["cost_ms"] for row in rows if row["kind"] == "consumed"] == [33, None, 33]
    assert "cost_ms" in table_fields(rows) and "cost_ms" not in table_fields(rows[1:3])
    found = json.loads(json.dumps(fate.object()))
    assert [len(found[name]) for name in ("steps", "groups", "sent", "consumed", "ended")] == [1, 1, 1, 3, 1]


# -- what is odd -----------------------------------------------------------------------------------------


def test_a_message_without_a_unique_key(tmp_path: Path) -> None:
    """Only what its own record names; said so."""
    origin = offset_message_id(HOST, 0)
    write_whole(tmp_path, [
        record("T", b"one", {"KEYS": "k"}),
        record("%RETRY%g", b"one", {"ORIGIN_MESSAGE_ID": origin, "RETRY_TOPIC": "T", "KEYS": "k"}),
        record("%RETRY%g", b"one", {"ORIGIN_MESSAGE_ID": "no id", "KEYS": "k"}, queue_offset=1),
    ])  # fmt: skip
    with Store.open(tmp_path) as store:
        first, retry, odd = store.messages()
        assert [step.kind for step in message_fate(store, retry).steps] == ["stored", "retry"]
        assert [step.kind for step in message_fate(store, odd).steps] == ["retry"]
        assert any("unique key" in text for text in message_fate(store, first).unknown)


def test_a_message_of_a_batch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Messages of a batch have one unique key: a trace has this one and its retries, and names the others.

    A message that was sent again has another time.
    """
    told = {"UNIQ_KEY": "A", "TAGS": "t"}
    sent = [
        record("T", b"one", {**told, "KEYS": "k0"}),
        record("T", b"two", {**told, "KEYS": "k1"}, queue_offset=1),
        record("T", b"two", {**told, "KEYS": "k2"}, queue_offset=2, born_timestamp=STORE_TIMESTAMP - 3),
    ]
    places = [0, sent[0].total_size, sent[0].total_size + sent[1].total_size]
    retries = []
    for number, place in enumerate(places[:2]):
        of_retry = {**told, "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": offset_message_id(HOST, place)}
        retries.append(record("%RETRY%g", b"two", of_retry, queue_offset=number))
    write_whole(tmp_path, [*sent, *retries])
    with Store.open(tmp_path) as store:
        *_, again, of_first, of_second = (each.physical_offset for each in store.messages())
        found = {}
        for stored in store.messages():
            fate = message_fate(store, stored)
            found[stored.physical_offset] = {step.stored.physical_offset for step in fate.steps}
            other = places[1] if places[0] in found[stored.physical_offset] else places[0]
            assert fate.batch == (set() if stored.physical_offset == again else {other})
    assert found[places[0]] == found[of_first] == {places[0], again, of_first}
    assert found[places[1]] == found[of_second] == {places[1], again, of_second}
    assert main(["lookup", str(tmp_path), "k1", "--trace"]) == 0
    shown = capfd.readouterr()
    line = f"rmqtool lookup {tmp_path} --uniq-key A --trace"
    assert f"rmqtool: 1 more message of the same batch with this unique key: {line}\n" in shown.err
    assert f'"physical_offset":{places[0]},' not in shown.out
    assert main(["lookup", str(tmp_path), "--uniq-key", "A", "--trace"]) == 0
    shown = capfd.readouterr()
    assert "same batch" not in shown.err and f'"physical_offset":{places[0]},' in shown.out


def test_an_attempt_is_not_another_one(tmp_path: Path) -> None:
    """A retry of another attempt does not deliver a delayed one."""
    told = {"UNIQ_KEY": "A", "DELAY": "3", "REAL_TOPIC": "%RETRY%g"}
    for attempt, state in ((1, "delivered"), (2, "waiting")):
        write_whole(tmp_path / state, [
            record("SCHEDULE_TOPIC_XXXX", b"x", told, reconsume_times=attempt),
            record("%RETRY%g", b"x", told, reconsume_times=1),
        ])  # fmt: skip
        with Store.open(tmp_path / state) as store:
            assert kinds(message_fate(store, next(store.messages())))[0] == ("delayed", state)


def test_hostile_places_and_numbers(tmp_path: Path) -> None:
    """A half message's place that is none, negative or of another message; a level that is no number."""
    write_whole(tmp_path, [
        *(
            record("T", b"x", {"UNIQ_KEY": f"A{n}"}, sys_flag=form.TRANSACTION_COMMIT,
                   prepared_transaction_offset=place, queue_offset=n)
            for n, place in enumerate((-5, 0, 2**62))
        ),
        record("SCHEDULE_TOPIC_XXXX", b"x", {"UNIQ_KEY": "D", "DELAY": "many", "REAL_TOPIC": "T"}),
        record("rmq_sys_wheel_timer", b"x", {"UNIQ_KEY": "E", "TIMER_OUT_MS": "soon"}),
        record(HALF, b"x", {"UNIQ_KEY": "F"}),
        record(OP, b"\xff,,,-1", {"UNIQ_KEY": "G"}),
    ])  # fmt: skip
    found = []
    with Store.open(tmp_path) as store:
        for stored in store.messages():
            found.append(kinds(message_fate(store, stored)))
    assert found == [
        [("committed", None)], [("committed", None)], [("committed", None)], [("delayed", "waiting")],
        [("timer", None)], [("half", "open")], [("op", None)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "states"), [(0, ["put_back", "put_back", "open", "open"]), (4, ["put_back"] * 4),
                           (5, ["put_back", "put_back", "open", "open"])],
)  # fmt: skip
def test_half_messages_by_the_progress_of_checks(tmp_path: Path, offset: int, states: list[str]) -> None:
    """A copy tells it, in the same topic or in that of those given up; an offset past the end does not."""
    keys = ("A", "B", "A", "C")
    halves = [
        record(HALF, b"x", {"UNIQ_KEY": key}, queue_offset=n, store_timestamp=STORE_TIMESTAMP + n)
        for n, key in enumerate(keys)
    ]
    write_whole(tmp_path, [*halves, record("TRANS_CHECK_MAX_TIME_TOPIC", b"x", {"UNIQ_KEY": "B"})])
    table = {"offsetTable": {f"{HALF}@CID_RMQ_SYS_TRANS": {"0": offset}}}
    (tmp_path / "config" / "consumerOffset.json").write_text(json.dumps(table))
    with Store.open(tmp_path) as store:
        found = [dict(enumerate(kinds(message_fate(store, each)))) for each in store.messages()][:4]
        assert [found[0][0], found[1][0], found[2][1], found[3][0]] == [("half", state) for state in states]


def test_what_cannot_be_known_is_said(tmp_path: Path) -> None:
    """Offsets that cannot be read, a folder of log files, a log whose beginning went."""
    write_whole(tmp_path, keyed(30))
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (tmp_path / "config" / name).write_text("{")
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    with Store.open(tmp_path) as store:
        stored = list(store.messages())[-1]
        fate = message_fate(store, stored)
    assert kinds(fate) == [("stored", None)] and fate.groups == ()
    assert any("consumerOffset.json" in text for text in fate.unknown)
    assert any("deleted" in text for text in fate.unknown)
    with Store.open(tmp_path / "commitlog") as store:
        fate = message_fate(store, stored, tz=UTC)
    assert kinds(fate) == [("stored", None)] and any("no store root" in text for text in fate.unknown)


def test_offsets_of_a_group_that_never_committed_there(tmp_path: Path) -> None:
    """A group that has committed for another queue of the topic only."""
    write_whole(tmp_path, keyed(4))
    write_config(
        tmp_path, "consumerOffset.json", {"offsetTable": {"TopicTest@g": {"1": 1}, "Other@h": {"0": 1}}}
    )
    with Store.open(tmp_path) as store:
        states = [message_fate(store, stored).rows()[1]["state"] for stored in store.messages()]
    assert states == ["never_committed", "passed", "never_committed", "not_passed"]


def test_a_table_has_no_empty_column(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a message that no group reads, and that waits: neither a group nor a client, and a state or none."""
    root = str(cases.path("ok_540_clean"))
    for key, heads in (
        ("FD0000000000000000000000000000022CCC4E0E2F2A68E566FC0FAE", "kind time topic queue_id"),
        ("FD0000000000000000000000000000022CCC4E0E2F2A68E566D60F96", "kind time topic queue_id state"),
    ):
        assert main(["lookup", root, "--uniq-key", key, "--trace", "--format", "table"]) == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert first.split() == [*heads.split(), "queue_offset", "physical_offset"]


def test_a_message_that_its_queue_lacks(
    cases: Library, store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """No consumer gets it, whatever the offsets of groups say: the trace leads to what repairs it."""
    root = store_copy("ok_540_clean")
    trace_of = ["lookup", str(root), "--key", "rty1", "--trace"]
    assert main(trace_of) == 0
    shown = capsys.readouterr()
    assert "in_queue" not in shown.out and "rmqtool recover" not in shown.err
    shutil.rmtree(root / "consumequeue/pubRetry")
    assert main(trace_of) == 0
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["kind"] for row in rows if (row["detail"] or {}).get("in_queue") is False] == ["stored"]
    assert ": queue 0 of pubRetry lacks it, so that no consumer gets it; passed by " in shown.err
    (line,) = [line for line in shown.err.splitlines() if "rmqtool recover" in line]
    assert main([*shlex.split(line.partition("repair them: ")[2])[1:], "--apply"]) == 0
    assert main([*trace_of, "--format", "table"]) == 0
    capsys.readouterr()
    assert main(trace_of) == 0
    assert "in_queue" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "topic", "lacks"),
    [("ok_497_expired", None, 0), ("kind_rocksdb_540", None, 0), ("gap_cq02_in_rocksdb", "TopicA", 1),
     ("gap_cq02_unit_missing", "pubipv6A", 1), ("torn_540_killed_burst", "pubBurst", 9497)],
)  # fmt: skip
def test_records_that_no_queue_reaches(name: str, topic: str | None, lacks: int, cases: Library) -> None:
    """In files and in RocksDB; none in a sound store. The one with a hole lacks just the unit there."""
    with Store.open(cases.path(name)) as store:
        steps = [step for stored in store.messages() for step in steps_of(store, [stored], {}, UTC)]
        missing = unreached(store, steps)
    assert len(missing) == lacks
    assert {step.stored.message.topic for step in steps if step.stored.physical_offset in missing} == (
        set() if topic is None else {topic}
    )
    with Store.open(cases.path(name) / "commitlog") as store:
        assert unreached(store, steps) == frozenset()


def test_the_command_lists_the_columns_of_a_trace(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the steps, which --fields takes, and not those of messages."""
    command = ["lookup", str(cases.path("ok_540_clean")), "--key", "rty1", "--trace"]
    assert main([*command, "--fields", "help"]) == 0
    assert capsys.readouterr().out.split() == list(FIELDS)


def test_a_damaged_message_is_reported_with_its_trace(
    cases: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(cases.path("bad_cl03_body_crc"))
    for more in ([], ["--trace"]):
        assert main(["lookup", root, "--offset", "27362", *more]) == 1
        assert "CL03 the body does not match its CRC: commitlog/" in capsys.readouterr().err


OF_WAITING = {
    "tx18": "committed to pubTx 2026-11-21T08:50:13.357+00:00, its producer was not asked",
    "tx19": "rolled back 2026-11-21T08:50:17.491+00:00, for pubTx, its producer was not asked",
    "lateHalf1": "its transaction for pubTx is open, its producer was asked 2 times",
    "pendingTimer2": (
        "due 2026-11-21T09:01:06.000+00:00, delivered to pubDelay 2026-11-21T09:14:21.876+00:00, 13m15s late"
    ),
    "pendingDelay3": "waits to be delivered to pubDelay, due 2026-11-21T09:51:04.530+00:00",
}


@pytest.mark.parametrize("key", OF_WAITING)
def test_the_text_says_what_became_of_what_waited(
    key: str, cases: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(cases.path("torn_540_killed_burst_after_recovery"))
    assert main(["lookup", root, key, "--trace", "--tz", "UTC"]) == 0
    assert OF_WAITING[key] in capsys.readouterr().err
