"""Delayed messages: which are due, the records they become, and what `rmqtool deliver` says and does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import IllegalMessageError
from rmqtool.formats import config_json, properties
from rmqtool.formats.message import PROPERTY_CRC_SIZE, Message
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.storage import config_files
from rmqtool.write import schedule
from rmqtool.write.options import WriteOptions
from rmqtool.write.schedule import Delivery, deliver, plan, redelivered
from rmqtool.write.store_writer import StoreWriter
from tests.support.disk_calls import watched
from tests.support.hard_limits import no_reader
from tests.support.stores import Library, case, real_cases
from tests.support.trees import copy_tree

pytestmark = pytest.mark.usefixtures("json_lines")

T0 = 1_700_000_000_000
DELAYS = (1_000, 60_000, 3_600_000)
SIZES: dict[str, Any] = {"commit_log_file_size": 1 << 20, "consume_queue_file_size": 20_000}
CONF = "messageDelayLevel=1s 1m 1h\n"
ALL_DUE = 4_000_000_000_000


def offsets(root: Path) -> dict[int, int]:
    """What delayOffset.json says."""
    document = config_files.read_config(root / "config", "delayOffset.json").document
    return config_json.delay_offsets(document)


def of_topic(root: Path, topic: str) -> list[Message]:
    """The records of a topic, in the order of the log."""
    with Store.open(root) as store:
        return [found.message for found in store.messages() if found.message.topic == topic]


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 5.4 with delayed messages; for reading only.

    Bodies are `level-number`, number 0 to 2; the store times of all are T0 + 10,000 * number.
    """
    root = tmp_path_factory.mktemp("delayed") / "store"
    with StoreWriter.create(root, auto_create_queues=4, delays_ms=DELAYS, **SIZES) as writer:
        for number in range(3):
            for level in (1, 2, 3):
                body = f"{level}-{number}".encode()
                at = T0 + 10_000 * number
                writer.put(NewMessage("T", body, tags="A", keys=["k"], queue_id=level, delay_level=level,
                                      born_timestamp=at, store_timestamp=at, wait=False))  # fmt: skip
    return root


@pytest.fixture
def store(delayed: Path, tmp_path: Path) -> Path:
    """A copy of that store, free to be changed."""
    return copy_tree(delayed, tmp_path / "store")


def planned(root: Path, now_ms: int, **options: Any) -> list[tuple[str, str, int]]:
    """(state, body, due time behind T0) of what is due."""
    with Store.open(root) as opened:
        return [
            (each.state, each.message.body.decode() if each.message else "", each.due_timestamp - T0)
            for each in plan(opened, now_ms, **options)
        ]


def applied(root: Path, now_ms: int, **options: Any) -> list[Delivery]:
    """What became of everything that was due."""
    with StoreWriter.open(root, delays_ms=DELAYS) as writer, writer.read() as opened:
        return list(deliver(writer, plan(opened, now_ms, **options)))


def assert_sound(root: Path) -> None:
    """`verify` finds nothing."""
    with Store.open(root) as opened:
        assert [finding.row() for finding in verify(opened)] == []


# -- what is due -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", real_cases())
def test_plan_of_a_broker(name: str, cases: Library) -> None:
    """What the broker has delivered is not due; what still waits is, when its time has come."""
    with Store.open(cases.path(name)) as store:
        found = {level.level: level for level in schedule.levels(store, None)}
        waiting = sum(level.end_offset - level.next_offset for level in found.values())
        due = list(plan(store, ALL_DUE))
        assert {each.state for each in due} <= {"due"} and len(due) == waiting
        for each in due:
            assert each.queue_offset >= offsets(cases.path(name)).get(each.level, 0)
            # The last level waits an hour: what its units say is the store time and that.
            assert each.message is not None
            if each.level == 4 and case(name).state in ("clean", "expired"):
                assert each.due_timestamp - each.message.store_timestamp == 3_600_000
        first = min((each.due_timestamp for each in due), default=0)
        assert list(plan(store, first - 1)) == []
        assert [each.due_timestamp for each in due] == sorted(each.due_timestamp for each in due)


def test_due_by_time(delayed: Path) -> None:
    """Exactly what is due at a time, the earliest first."""
    level_1 = [("due", f"1-{number}", 1_000 + 10_000 * number) for number in range(3)]
    level_2 = [("due", f"2-{number}", 60_000 + 10_000 * number) for number in range(3)]
    level_3 = [("due", f"3-{number}", 3_600_000 + 10_000 * number) for number in range(3)]
    assert planned(delayed, T0 + 999) == []
    assert planned(delayed, T0 + 1_000) == level_1[:1]
    assert planned(delayed, T0 + 10_999) == level_1[:1]
    assert planned(delayed, T0 + 70_000) == level_1 + level_2[:2]
    assert planned(delayed, T0 + 4_000_000) == level_1 + level_2 + level_3


def test_levels_that_were_changed(delayed: Path) -> None:
    """With messageDelayLevel known, what waits longer than its level is due now; unknown levels stay."""
    level_1 = [("due", "1-0", 1_000), ("due", "1-1", 11_000), ("due", "1-2", 21_000)]
    now = T0 + 30_000
    assert planned(delayed, now, delays_ms=(1_000, 60_000, 1_000)) == [
        *level_1, ("due", "3-0", 30_000), ("due", "3-1", 30_000), ("due", "3-2", 30_000),
    ]  # fmt: skip
    assert planned(delayed, now, delays_ms=DELAYS) == level_1
    assert len(planned(delayed, ALL_DUE, delays_ms=DELAYS[:2])) == 6
    # A clock that went back: what was stored behind it does not wait, where the level's delay is known.
    assert [body for _, body, _ in planned(delayed, T0 + 5_000, delays_ms=DELAYS)] == ["1-0", "1-1", "1-2"]
    assert [body for _, body, _ in planned(delayed, T0 + 5_000)] == ["1-0"]


@pytest.mark.parametrize(("said", "bodies"), [(-5, ["1-0"]), (1, ["1-1"]), (3, []), (99, [])])
def test_offsets_out_of_range(said: int, bodies: list[str], store: Path) -> None:
    """What delayOffset.json says is brought into the range of the queue."""
    (store / "config/delayOffset.json").write_text(f'{{"offsetTable":{{1:{said}}}}}')
    level_1 = [body for _, body, _ in planned(store, T0 + 100_000) if body.startswith("1-")]
    assert level_1[:1] == bodies


# -- the record --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in real_cases() if name.startswith("ok_")])
def test_redelivered_record_of_a_broker(name: str, cases: Library) -> None:
    """Every delayed record that a broker has delivered gives the broker's record, field by field."""
    twins = 0
    with Store.open(cases.path(name)) as store:
        records = [found.message for found in store.messages()]
        options = WriteOptions(profile=store.profile)
        waiting: dict[tuple[Any, ...], Message] = {}
        for record in records:
            found = properties.decode(record.properties_bytes)
            real, key = found.get("REAL_TOPIC"), found.get("UNIQ_KEY")
            if record.topic == SCHEDULE_TOPIC:
                waiting[key, real, record.reconsume_times] = record
                continue
            twin = waiting.get((key, record.topic, record.reconsume_times))
            if twin is None or real != record.topic or "DELAY" not in found:
                continue
            twins += 1
            made = redelivered(twin, record.topic, int(found["REAL_QID"]), options)
            stored = record.properties_bytes
            if "__CRC32#" in found:
                stored = stored[:-PROPERTY_CRC_SIZE]
            assert made == NewMessage(
                record.topic, record.body, properties=stored, queue_id=record.queue_id, flag=record.flag,
                sys_flag=record.sys_flag, born_timestamp=record.born_timestamp, born_host=record.born_host,
                store_host=record.store_host, reconsume_times=record.reconsume_times, wait=False,
            )  # fmt: skip
            assert record.prepared_transaction_offset == 0
    assert twins >= 2


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean", "ok_540_small_propcrc"])
def test_delivered_in_a_broker_s_store(name: str, store_copy: Callable[[str], Path]) -> None:
    """What waits in a broker's store is delivered once, as it is; the store stays sound."""
    root = store_copy(name)
    with Store.open(root) as opened:
        due = list(plan(opened, ALL_DUE))
        ends = {level.level: level.end_offset for level in schedule.levels(opened, None)}
        log_end = opened.end_offset()
    with StoreWriter.open(root) as writer, writer.read() as opened:
        done = list(deliver(writer, plan(opened, ALL_DUE)))
    assert [replace(each, state="due", stored=None) for each in done] == [
        replace(each, message=None) for each in due
    ]
    assert offsets(root) == {**ends}
    with Store.open(root) as opened:
        assert list(plan(opened, ALL_DUE)) == []
        for before, after in zip(due, done, strict=True):
            assert after.state == "delivered" and after.stored is not None and before.message is not None
            found = opened.get(after.stored.physical_offset)
            assert found is not None and found.physical_offset >= log_end
            assert found.message.topic == before.topic and found.message.queue_id == before.queue_id
            assert found.message.body == before.message.body
            names = properties.decode(found.message.properties_bytes)
            assert names["DELAY"] and names["UNIQ_KEY"] == before.uniq_key
            assert before.topic is not None and before.queue_id is not None
            queued = opened.get_by_queue_offset(before.topic, before.queue_id, after.stored.queue_offset)
            assert queued == found
    assert_sound(root)


@pytest.mark.parametrize(("profile", "wait"), [("4.9", None), ("5.4", "false")])
def test_redelivered_to_light_queues(profile: str, wait: str | None, tmp_path: Path) -> None:
    """Where light queues take part the string is that of the map as the broker has it by then."""
    root = tmp_path / "store"
    options: dict[str, Any] = {"multi_dispatch": True, "delays_ms": DELAYS}
    with StoreWriter.create(root, profile=profile, auto_create_queues=4, **options, **SIZES) as writer:
        light = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
        writer.put(NewMessage("T", b"x", properties=light, delay_level=1, store_timestamp=T0))
        writer.put(NewMessage("T", b"y", delay_level=1, store_timestamp=T0))
    with StoreWriter.open(root, profile=profile, **options) as writer, writer.read() as opened:
        assert [each.state for each in deliver(writer, plan(opened, ALL_DUE))] == ["delivered"] * 2
    first, second = (properties.decode(record.properties_bytes) for record in of_topic(root, "T"))
    assert "DELAY" not in first and first.get("WAIT") == wait and first["REAL_TOPIC"] == "T"
    assert len(first["INNER_MULTI_QUEUE_OFFSET"].split(",")) == 2
    assert second["DELAY"] == "1" and second.get("WAIT") != "false"


# -- delivery ----------------------------------------------------------------------------------------


def test_in_steps(store: Path) -> None:
    """Each run delivers what has become due, no message twice."""
    bodies = []
    for now_ms in (T0 + 1_000, T0 + 1_000, T0 + 70_000, ALL_DUE):
        applied(store, now_ms)
        bodies.append([record.body.decode() for record in of_topic(store, "T")])
    one = ["1-0"]
    two = [*one, "1-1", "1-2", "2-0", "2-1"]
    assert bodies == [one, one, two, [*two, "2-2", "3-0", "3-1", "3-2"]]
    assert offsets(store) == {1: 3, 2: 3, 3: 3}
    assert {record.queue_id for record in of_topic(store, "T")} == {1, 2, 3}
    assert_sound(store)


def test_table_follows_the_messages(store: Path) -> None:
    """delayOffset.json is written behind the flush of what was delivered, and never says more."""
    with StoreWriter.open(store, delays_ms=DELAYS) as writer, writer.read() as opened:
        due = plan(opened, T0 + 1_000)
        with watched(store) as calls:
            assert len(list(deliver(writer, due))) == 1
    names = [(call.name, Path(call.path).name) for call in calls.done]
    table = names.index(("rename", "delayOffset.json.tmp"))
    written = max(i for i, call in enumerate(calls.done) if call.name == "write" and "commitlog" in call.path)
    synced = [i for i, (name, _) in enumerate(names) if name.startswith("sync") and i > written]
    assert written < synced[0] < table


def test_what_was_put_before_a_failure(store: Path) -> None:
    """A failure in the middle: what was put is on the device and noted, the rest is due the next time."""

    def failing(deliveries: Iterator[Delivery]) -> Iterator[Delivery]:
        yield next(deliveries)
        yield next(deliveries)
        raise InterruptedError

    with StoreWriter.open(store, delays_ms=DELAYS) as writer, writer.read() as opened:
        with pytest.raises(InterruptedError):
            list(deliver(writer, failing(plan(opened, ALL_DUE))))
        assert offsets(store) == {1: 2}
    assert [record.body for record in of_topic(store, "T")] == [b"1-0", b"1-1"]
    applied(store, ALL_DUE)
    assert len(of_topic(store, "T")) == 9


def test_saved_in_between(store: Path) -> None:
    """Of many messages the offsets are saved again and again, and yielded when they are."""
    seen = []
    with StoreWriter.open(store, delays_ms=DELAYS) as writer, writer.read() as opened:
        for each in deliver(writer, plan(opened, ALL_DUE), save_every=4):
            assert each.state == "delivered"
            seen.append(sum(offsets(store).values()))
    assert seen == [4] * 4 + [8] * 4 + [9]


def grow(root: Path) -> None:
    """Go on into another log file: nothing is appended behind damage in the last one."""
    with StoreWriter.open(root, auto_create_queues=1) as writer:
        while writer.log.end < SIZES["commit_log_file_size"] + 1000:
            writer.put(NewMessage("Other", bytes(100_000)))


def damage(root: Path, body: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change the record of `body` in the log of a small store."""
    path = root / "commitlog" / ("0" * 20)
    with Store.open(root) as opened:
        found = next(each for each in opened.messages() if each.message.body == body)
    data = bytearray(path.read_bytes())
    start, stop = found.physical_offset, found.physical_offset + found.message.total_size
    data[start:stop] = change(bytes(data[start:stop]))
    path.write_bytes(data)


def test_damaged_body_holds_its_level(store: Path) -> None:
    """A body that does not match its CRC is not stored again as a sound one; nothing passes it.

    In an older file, which a broker's start does not look at either.
    """
    grow(store)
    damage(store, b"1-1", lambda record: record.replace(b"1-1", b"1-x"))
    assert planned(store, T0 + 100_000)[:3] == [
        ("due", "1-0", 1_000), ("damaged", "1-x", 11_000), ("due", "2-0", 60_000),
    ]  # fmt: skip
    done = applied(store, T0 + 100_000)
    assert [(each.level, each.state) for each in done if each.level == 1] == [
        (1, "delivered"),
        (1, "damaged"),
    ]
    assert offsets(store) == {1: 1, 2: 3}


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("missing", lambda record: record[:4] + b"\0\0\0\0" + record[8:]),
        ("unreadable", lambda record: record.replace(b"REAL_TOPIC", b"REAL_TOPIX")),
        ("unreadable", lambda record: record.replace(b"REAL_QID\x01", b"REAL_QID\x02")),
    ],
)
def test_passed_over(state: str, change: Callable[[bytes], bytes], store: Path) -> None:
    """What cannot be delivered at all is passed over, as the broker passes it over."""
    damage(store, b"1-1", change)
    states = [state_ for state_, _, due in planned(store, T0 + 50_000) if due < 50_000]
    assert states == ["due", state, "due"]


def test_half_message(tmp_path: Path) -> None:
    """A delayed half message is dropped, as by the broker."""
    root = tmp_path / "store"
    text = properties.encode({"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"}, dialect="5.x")
    with StoreWriter.create(root, delays_ms=DELAYS, **SIZES) as writer:
        writer.put(NewMessage(SCHEDULE_TOPIC, b"h", properties=text, queue_id=0, store_timestamp=T0))
    assert [each.state for each in applied(root, ALL_DUE)] == ["half"]
    assert offsets(root) == {1: 1}
    assert planned(root, ALL_DUE) == []


def test_unknown_topic(tmp_path: Path) -> None:
    """A topic that the store does not know holds the level, or is made with the queue that it needs."""
    root = tmp_path / "store"
    with StoreWriter.create(root, delays_ms=DELAYS, **SIZES) as writer:
        for topic in ("Gone", "%RETRY%group"):
            text = properties.encode({"REAL_TOPIC": topic, "REAL_QID": "6"}, dialect="5.x")
            writer.put(NewMessage(SCHEDULE_TOPIC, b"x", properties=text, queue_id=0, store_timestamp=T0))
    with StoreWriter.open(root, delays_ms=DELAYS) as writer, writer.read() as opened:
        held = list(deliver(writer, plan(opened, ALL_DUE, knows=writer.topics.is_known)))
        assert [(each.state, each.topic) for each in held] == [("unknown_topic", "Gone")]
        assert offsets(root) == {}
        done = list(deliver(writer, plan(opened, ALL_DUE), create_topics=True))
    assert [each.state for each in done] == ["delivered", "delivered"]
    made = config_json.topics(config_files.read_config(root / "config", "topics.json").document)
    assert made["Gone"].write_queue_nums == made["Gone"].read_queue_nums == 7
    assert set(made) == {"Gone", "%RETRY%group"}


# -- the command -------------------------------------------------------------------------------------


class Run:
    """Runs `rmqtool deliver` in this process: (exit code, rows, standard error)."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str | Path) -> tuple[int, list[dict[str, Any]], str]:
        code = main(["deliver", *map(str, arguments), "--tz", "UTC"])
        captured = self._capture.readouterr()
        return code, [json.loads(line) for line in captured.out.splitlines()], captured.err.decode()


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """The command."""
    return Run(capsysbinary)


def test_command(run: Run, store: Path, unchanged: Callable[[Path], AbstractContextManager[None]]) -> None:
    """Plan, apply, nothing left: rows, notes and exit codes."""
    with unchanged(store):
        code, rows, note = run(store, "--at", str(T0 + 1_000))
        assert run(store, f"--now={T0 + 1_000}") == (code, rows, note)  # its name before 0.2
    line = f"rmqtool deliver {store} --at 2023-11-14T22:13:21.000+00:00 --apply"
    assert code == 1 and note == (
        "rmqtool: 1 due at 2023-11-14T22:13:21.000+00:00\n"
        f"rmqtool: nothing was changed; to deliver them: {line}\n"
    )
    (row,) = rows
    uniq_key = row.pop("uniq_key")
    assert len(uniq_key) == 32
    assert row == {
        "state": "due", "level": 1, "queue_offset": 0, "physical_offset": 0, "due_timestamp_ms": T0 + 1_000,
        "due_time": "2023-11-14T22:13:21.000+00:00", "topic": "T", "queue_id": 1,
        "delivered_queue_offset": None, "delivered_physical_offset": None, "reason": None,
    }  # fmt: skip
    code, rows, note = run(store, "--at", str(T0 + 1_000), "--apply")
    assert code == 0 and note == "rmqtool: 1 delivered at 2023-11-14T22:13:21.000+00:00\n"
    assert [(each["state"], each["uniq_key"], each["delivered_queue_offset"]) for each in rows] == [
        ("delivered", uniq_key, 0)
    ]
    (record,) = of_topic(store, "T")
    assert record.physical_offset == rows[0]["delivered_physical_offset"] and record.body == b"1-0"
    code, rows, note = run(store, "--at", str(T0 + 1_000), "--apply")
    assert (code, rows) == (0, []) and "nothing is due" in note


@pytest.mark.parametrize("name", ["store", "store/../store", "link"])
def test_command_of_a_store_however_it_is_named(
    run: Run, store: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    Path("link").symlink_to("store")
    _, _, shown = run(name, "--at", str(ALL_DUE))
    assert "belongs to another store" not in shown
    assert f"to deliver them: rmqtool deliver {name} " in shown


def test_command_with_broker_conf(run: Run, store: Path, tmp_path: Path) -> None:
    """The broker's messageDelayLevel counts where it is given."""
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF.replace("1h", "1s"))
    found = run(store, "--at", str(T0 + 30_000), "--broker-conf", conf)[1]
    assert [row["level"] for row in found] == [1, 1, 1, 3, 3, 3]


def test_command_exit_codes(run: Run, store: Path) -> None:
    """Held: 1 when planned, 4 when applied; passed over: 1; in use: 5; not closed cleanly: 4; no root: 2."""
    grow(store)
    damage(store, b"1-0", lambda record: record.replace(b"1-0", b"1-x"))
    now = str(T0 + 50_000)
    assert run(store, "--at", now)[0] == 1
    assert run(store, "--at", now, "--apply")[0] == 4
    assert offsets(store) == {}
    (store / "abort").touch()
    code, _, error = run(store, "--at", now)
    assert code == 1 and "--apply is refused: rmqtool recover" in error and "to deliver them" not in error
    (store / "abort").unlink()
    damage(store, b"1-x", lambda record: record.replace(b"REAL_TOPIC", b"REAL_TOPIX"))
    code, rows, _ = run(store, "--at", now, "--apply")
    assert code == 1 and [row["state"] for row in rows] == ["unreadable", "delivered", "delivered"]
    with StoreWriter.open(store, delays_ms=DELAYS):
        assert run(store, "--apply")[0] == 5
        assert "delivers these messages itself" in run(store, "--at", now)[2]
    (store / "abort").touch()
    code, _, error = run(store, "--apply")
    assert code == 4 and "rmqtool recover" in error
    assert run(store / "commitlog", "--at", now)[0] == 2


@pytest.mark.parametrize("name", [b"/", b".", b" ", b"&"])
def test_one_poisoned_message_does_not_hold_the_others(run: Run, store: Path, name: bytes) -> None:
    """A real topic that none can be called: named with its offsets and passed over, the rest is delivered."""
    grow(store)
    damage(store, b"1-0", lambda record: record.replace(b"REAL_TOPIC\x01T", b"REAL_TOPIC\x01" + name))
    now = str(T0 + 50_000)
    code, rows, error = run(store, "--at", now)
    assert code == 1 and [row["state"] for row in rows] == ["illegal", "due", "due"]
    code, rows, error = run(store, "--at", now, "--apply", "--create-topic")
    assert code == 1 and [row["state"] for row in rows] == ["illegal", "delivered", "delivered"]
    assert "no topic can be called" in rows[0]["reason"] and rows[1]["reason"] is None
    assert "queue offset 0 of level 1, the record at physical offset 0, is illegal: no topic can" in error
    assert [record.body for record in of_topic(store, "T")] == [b"1-1", b"1-2"]
    assert offsets(store) == {1: 3}
    assert_sound(store)
    assert run(store, "--at", now, "--apply")[:2] == (0, [])


def test_what_the_writer_refuses(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no broker stores is passed over, what the topic does not let in now holds its level alone."""
    put = StoreWriter.put
    statuses = {b"1-0": "MESSAGE_ILLEGAL", b"2-0": "NO_PERMISSION"}

    def refusing(writer: StoreWriter, message: Any) -> Any:
        if message.body in statuses:
            raise IllegalMessageError("not this one", status=statuses[message.body])
        return put(writer, message)

    monkeypatch.setattr(StoreWriter, "put", refusing)
    found = applied(store, ALL_DUE)
    assert [(each.level, each.state) for each in found if each.state != "delivered"] == [
        (1, "illegal"), (2, "refused"),
    ]  # fmt: skip
    assert [each.reason for each in found if each.reason] == [
        "not this one (MESSAGE_ILLEGAL)", "not this one (NO_PERMISSION)",
    ]  # fmt: skip
    assert offsets(store) == {1: 3, 3: 3}
    monkeypatch.undo()
    assert [each.level for each in applied(store, ALL_DUE)] == [2, 2, 2]


def test_command_whose_rows_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan ends there; with --apply all is delivered, more than goes into the buffer of the output."""
    monkeypatch.setattr(schedule, "deliver", partial(deliver, save_every=10))
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=1, delays_ms=DELAYS, **SIZES) as writer:
        for number in range(100):
            writer.put(NewMessage("T", b"%d" % number, delay_level=1, store_timestamp=T0))
    arguments = ["deliver", str(root), "--at", str(T0 + 1_000), "--format", "jsonl"]
    for more in ([], ["--apply"]):
        with no_reader():
            assert main([*arguments, *more]) == 0
    assert len(of_topic(root, "T")) == 100 and offsets(root) == {1: 100}


def test_command_wants_its_store_spelled_out(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that changes stores takes none from the environment."""
    monkeypatch.setenv("RMQTOOL_STORE", str(store))
    code, rows, error = run()
    assert (code, rows) == (2, []) and "RMQTOOL_STORE is ignored here" in error
    assert run(store, "--at", str(T0))[0] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("garbage", "there is no .bak"),
        ("", "there is no .bak: the file is empty"),
        ("[1]", "there is no .bak: JSON: no object"),
        ('{"offsetTable":{"x":"y"}}', "is not an integer"),
        ('{"offsetTable":{1:"x"}}', "is not an integer"),
        ('{"offsetTable":{1:1,2:null}}', "2 is not an integer"),
        ('{"offsetTable":null}', "is not a JSON object"),
    ],
)
def test_offsets_that_cannot_be_understood(text: str, reason: str, store: Path, run: Run) -> None:
    """A plan says so and takes none for delivered; nothing is delivered again."""
    path = store / "config/delayOffset.json"
    path.write_text(text)
    path.with_name("delayOffset.json.bak").unlink(missing_ok=True)
    code, rows, told = run(store, "--at", str(ALL_DUE))
    assert (code, len(rows)) == (3, 9) and reason in told and str(path) in told
    before = len(of_topic(store, "T"))
    code, rows, told = run(store, "--at", str(ALL_DUE), "--apply")
    assert (code, rows) == (3, []) and reason in told and str(path) in told
    assert len(of_topic(store, "T")) == before and path.read_text() == text


def test_missing_offsets(store: Path, run: Run) -> None:
    """Nothing is delivered a second time without --force; the log shows what was."""
    due = ("--at", str(T0 + 60_000))
    assert run(store, "--at", str(T0 + 30_000), "--apply")[0] == 0  # the three of level 1
    before = len(of_topic(store, "T"))
    for path in (store / "config").glob("delayOffset.json*"):
        path.unlink()
    code, rows, told = run(store, *due)
    said = "Of 4 that are due the log has a later copy of 3"
    assert (code, len(rows)) == (1, 4) and said in told and "refused without --force" in told
    code, rows, told = run(store, *due, "--apply")
    assert (code, rows) == (4, []) and said in told and "--force" in told
    assert len(of_topic(store, "T")) == before and not (store / "config/delayOffset.json").exists()
    assert run(store, "--at", str(T0), "--apply")[:2] == (0, [])  # nothing is due
    assert not (store / "config/delayOffset.json").exists()
    code, rows, told = run(store, *due, "--apply", "--force")
    assert (code, len(rows)) == (0, 4) and "warning: delayOffset.json and its .bak are missing" in told
    assert len(of_topic(store, "T")) == before + 4 and offsets(store) == {1: 3, 2: 1}


def test_what_waits_behind_an_unknown_topic(store: Path, run: Run) -> None:
    """Counted, without --apply and with it; what was delivered before counts behind it too."""
    due = ("--at", str(T0 + 60_000))
    assert run(store, "--at", str(T0 + 30_000), "--apply")[0] == 0  # the three of level 1
    for name in ("delayOffset", "topics"):
        for path in (store / "config").glob(f"{name}.json*"):
            path.unlink()
    code, rows, told = run(store, *due)
    assert code == 1 and {(row["state"], row["level"]) for row in rows} == {
        ("unknown_topic", 1),
        ("unknown_topic", 2),
    }
    assert "Of 4 that are due the log has a later copy of 3" in told
    waiting = "; 2 levels stop there and keep 2 more waiting; --create-topic delivers to unknown topics"
    assert f"{waiting}; topics.json is missing, see rmqtool recover {store}" in told
    code, rows, told = run(store, *due, "--apply", "--force")
    assert code == 4 and waiting in told
    assert run(store, *due, "--create-topic", "--apply", "--force")[0] == 0


def test_offsets_behind_the_end_are_told(store: Path, run: Run) -> None:
    (store / "config/delayOffset.json").write_text('{"offsetTable":{2:99}}')
    for more in ([], ["--apply"]):
        _, rows, told = run(store, "--at", str(ALL_DUE), *more)
        assert len(rows) == 6 and "level 2 delivered up to offset 99, but its queue ends at 3" in told


def test_offsets_below_zero_are_told(store: Path, run: Run) -> None:
    """A broker takes the queue's start for them, and says nothing."""
    (store / "config/delayOffset.json").write_text('{"offsetTable":{1:3,2:-7}}')
    for more in ([], ["--apply"]):
        _, rows, told = run(store, "--at", str(ALL_DUE), *more)
        assert [row["queue_offset"] for row in rows if row["level"] == 2] == [0, 1, 2]
        assert "level 2 delivered up to offset -7, which is not an offset" in told and "level 1" not in told
