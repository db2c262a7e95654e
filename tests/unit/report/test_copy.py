"""`rmqtool copy`: a subset of a store is a sound store with the same messages."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import UnwritableError
from rmqtool.formats import properties
from rmqtool.formats.message import INNER_BATCH, Message
from rmqtool.message.system_topics import is_system_topic
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report import copy as engine
from rmqtool.report.copy import topics_of
from rmqtool.report.stats import pending
from rmqtool.storage import durable as disk
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.exports import Ran, kept, messages, ran, small_store
from tests.support.stores import Library
from tests.support.sweep import sample
from tests.support.trees import tree_digest

pytestmark = pytest.mark.sweep

Run = Callable[..., Ran]
STORES = ("ok_497_small_ipv6", "ok_533_small_propcrc", "ok_540_clean")


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `copy`."""

    def run(store: Path, output: Path, *arguments: object) -> Ran:
        given = ["copy", str(store), "--output", str(output), "--no-reserve", "--format", "json"]
        code = main([*given, *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return ran(code, captured.out, captured.err)

    return run


def check(store: Path, *, lost: Sequence[str] = ()) -> list[Message]:
    """The messages of a store that `verify` finds sound, its queues without gaps from 0 on.

    `lost` are the problems of what it does not know of delivered messages.
    """
    with Store.open(store) as opened:
        found = [each.problem for each in verify(opened) if each.problem.severity != "note"]
        assert sorted(each.code for each in found) == sorted(lost)
        for queue in opened.queues.values():
            assert next(iter(queue.units()))[0] == 0
    return messages(store)


def without_inner(found: list[Message]) -> list[Message]:
    """The messages without those whose property string holds a queue offset."""
    return [each for each in found if not each.sys_flag & INNER_BATCH]


@pytest.mark.parametrize("name", sample(STORES, 2))
def test_every_message_of_users(cases: Library, run: Run, tmp_path: Path, name: str) -> None:
    """With the settings of its topic, in the broker's version, byte for byte but for its places."""
    store = cases.path(name)
    found = run(store, tmp_path / "new")
    wanted = [each for each in messages(store) if not is_system_topic(each.topic)]
    copied = check(tmp_path / "new")
    assert (found.code, found.out["messages"], found.out["left_out_damaged"]) == (0, len(wanted), 0)
    without = ("properties_bytes",) if "propcrc" in name else ()  # they end with a CRC over the whole record
    assert kept(without_inner(copied), without=without) == kept(without_inner(wanted), without=without)
    assert [each.body for each in copied] == [each.body for each in wanted]
    with Store.open(store) as old, Store.open(tmp_path / "new") as new:
        assert new.profile.name == old.profile.name
        assert new.layout.commit_log_file_size == old.layout.commit_log_file_size
        ours = topics_of(new, pytest.fail)
        for topic in {each.topic for each in wanted} & set(topics_of(old, pytest.fail)):
            assert replace(ours[topic], read_queue_nums=0, write_queue_nums=0) == replace(
                topics_of(old, pytest.fail)[topic], read_queue_nums=0, write_queue_nums=0
            )
            most = max(each.queue_id for each in wanted if each.topic == topic)
            assert ours[topic].write_queue_nums > most
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


def test_a_selection_under_another_name(cases: Library, run: Run, tmp_path: Path) -> None:
    store = cases.path("ok_540_clean")
    found = run(store, tmp_path / "new", "--topic", "pubTopicOne", "--topic", "pubOrder", "--rename-topic",
                "pubTopicOne=One", "--limit", 700)  # fmt: skip
    wanted = messages(store, Selection(topics=("pubTopicOne", "pubOrder"), limit=700))
    copied = check(tmp_path / "new")
    assert (found.code, len(copied)) == (0, 700)
    assert kept(copied, without=("topic",)) == kept(wanted, without=("topic",))
    names = {"pubTopicOne": "One"}
    assert [each.topic for each in copied] == [names.get(each.topic, each.topic) for each in wanted]
    assert {row["topic"] for row in found.out["topics"]} == {"One", "pubOrder"}


@pytest.mark.parametrize("bad", [b"a\x01\xff\xfe\x02", b"a\x01long value\0\0\0"])
def test_properties_that_cannot_be_read_are_copied_and_told(bad: bytes, tmp_path: Path, run: Run) -> None:
    """The copy has the same damage; of messages that stay behind nothing is said."""
    store = small_store(tmp_path / "s", 3)
    with StoreWriter.open(store, auto_create_queues=1, reserve=False) as writer:
        place = writer.put(NewMessage("T", b"x", properties=bad, queue_id=0)).physical_offset
        writer.put(NewMessage("Other", b"x", properties=b"no name end", queue_id=0))
        writer.put(NewMessage("T", b"the last", queue_id=0))
    found = run(store, tmp_path / "new", "--topic", "T")
    assert (found.code, found.out["messages"], found.out["left_out"]) == (1, 5, 0)
    assert found.err.count("CL13") == 1 and f"offset {place}" in found.err
    assert messages(tmp_path / "new")[-2].properties_bytes == bad


def test_two_topics_become_one(tmp_path: Path, run: Run) -> None:
    """In the order of the log."""
    with StoreWriter.open(small_store(tmp_path / "s"), auto_create_queues=1, reserve=False) as writer:
        for number in range(20):
            writer.put(NewMessage("AB"[number % 2], f"{number}".encode()))
    run(tmp_path / "s", tmp_path / "new", "--rename-topic", "A=C", "--rename-topic", "B=C")
    assert [(each.topic, each.body, each.queue_offset) for each in check(tmp_path / "new")] == [
        ("C", f"{number}".encode(), number) for number in range(20)
    ]


def test_properties_that_name_a_topic_follow(tmp_path: Path, run: Run) -> None:
    store = small_store(tmp_path / "s", 1)
    stored = b"RETRY_TOPIC\x01T\x02other\x01T\x02REAL_TOPIC\x01U\x02"
    with StoreWriter.open(store, auto_create_queues=1, reserve=False) as writer:
        writer.put(NewMessage("%RETRY%g", b"back", properties=stored, queue_id=0))
    run(store, tmp_path / "new", "--rename-topic", "T=New")
    assert properties.decode(check(tmp_path / "new")[1].properties_bytes) == {
        "RETRY_TOPIC": "New", "other": "T", "REAL_TOPIC": "U",
    }  # fmt: skip


def test_system_topics_only_by_name(cases: Library, run: Run, tmp_path: Path) -> None:
    store = cases.path("ok_540_clean")
    found = run(store, tmp_path / "delayed", "--topic", "SCHEDULE_TOPIC_XXXX")
    copied = check(tmp_path / "delayed", lost=["CF07"])
    assert (found.code, {each.topic for each in copied}) == (0, {"SCHEDULE_TOPIC_XXXX"})
    assert kept(copied) == kept(messages(store, Selection(topics=("SCHEDULE_TOPIC_XXXX",))))
    refused = run(store, tmp_path / "half", "--topic", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert (refused.code, (tmp_path / "half").exists()) == (4, False)


def test_a_delay_that_no_unit_shows_is_told(
    store_copy: Callable[[str], Path], run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """As recover tells it, when only the log is left: the copy gets the broker's default."""
    store = store_copy("ok_540_clean")
    delayed = ("--topic", "SCHEDULE_TOPIC_XXXX")
    assert "delivery time" not in run(store, tmp_path / "known", *delayed).err
    shutil.rmtree(store / "consumequeue")
    copied = run(store, tmp_path / "new", *delayed)
    assert main(["recover", str(store), "--json"]) in (0, 1)
    warnings = json.loads(capfdbinary.readouterr().out)["warnings"]
    assumed = [each for each in warnings if "is assumed: no unit shows" in each]
    assert len(assumed) == 4 and copied.err.count("is assumed: no unit shows") == 4  # noqa: PLR2004
    assert not [each for each in assumed if each not in copied.err]
    conf = tmp_path / "broker.conf"
    conf.write_text("messageDelayLevel=1s 5s 10s 1h\n")
    assert "delivery time" not in run(store, tmp_path / "conf", *delayed, "--broker-conf", str(conf)).err


@pytest.mark.parametrize(
    ("name", "selection"),
    [
        ("ok_540_clean", ()),
        ("bad_cl03_body_crc", ()),
        ("ok_540_small_ipv6", ("--topic", "*")),
        ("ok_540_small_ipv6", ("--limit", "5")),
        ("ok_540_small_ipv6", ("--exclude-topic", "RMQ_*")),
    ],
)
def test_what_is_left_out_is_counted_by_topic(
    cases: Library, run: Run, tmp_path: Path, name: str, selection: tuple[str, ...]
) -> None:
    """The messages that are copied and those that are not are all that the selection has."""
    store = cases.path(name)
    found = run(store, tmp_path / "new", *selection)
    excluded = (selection[1],) if selection[:1] == ("--exclude-topic",) else ()
    every = messages(store, Selection(exclude_topics=excluded))
    counts = {row["topic"]: row["messages"] for row in found.out["left_out_topics"]}
    inside = [each.topic for each in every if is_system_topic(each.topic)]
    assert counts == {topic: inside.count(topic) for topic in inside}
    parts = found.out["left_out_damaged"] + found.out["left_out_refused"] + len(inside)
    assert found.out["left_out"] == parts
    if "--limit" not in selection:
        assert found.out["messages"] + found.out["left_out"] == len(every)
    assert not inside or f"not copied: {len(inside)} messages" in found.err


def test_a_named_topic_leaves_nothing_out(cases: Library, run: Run, tmp_path: Path) -> None:
    found = run(cases.path("ok_540_clean"), tmp_path / "new", "--topic", "pubTx")
    assert (found.out["left_out"], found.out["left_out_topics"]) == (0, [])
    assert found.out["messages"] > 0 and "not copied:" not in found.err


def waiting_in(store: Path) -> list[tuple[str, object, int]]:
    """Kind, level and due time of each message that waits."""
    with Store.open(store) as opened:
        found = [*pending.delayed(opened), *pending.timers(opened)]
    return sorted(((each.kind, each.level, due) for each in found for due in each.due.tolist()), key=str)


@pytest.mark.parametrize("name", ["kind_dledger_540", "kind_rocksdb_533", "kind_combine_index_timer_540"])
def test_what_waits_is_counted_and_the_printed_lines_take_it_along(
    cases: Library, run: Run, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the printed line waits for the same messages, at the same times, once recover has run."""
    monkeypatch.setenv("COLUMNS", "1000")
    store = cases.path(name)
    found = run(store, tmp_path / "new")
    pop = ", 4 records of POP" if "combine" in name else ""
    timer = "4 timer messages" + (pop or "")
    counts = f"still waiting and not copied: 1 delayed message, {timer} and 1 half message of open"
    assert counts in found.err
    lines = [line.rpartition(": ")[2] for line in found.err.splitlines() if ": rmqtool " in line]
    assert f"--output {tmp_path / 'new-2'} --topic '*' --topic SCHEDULE_TOPIC_XXXX" in lines[0]
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0
    assert waiting_in(tmp_path / "new-2") == waiting_in(store)
    assert bool(pop) == ("records of POP name the queue offsets" in found.err)


def test_without_what_waits_there_is_no_line(cases: Library, run: Run, tmp_path: Path) -> None:
    """Also where it is only not known; a broker of 4.9 has no timer."""
    nothing = run(small_store(tmp_path / "s", 3), tmp_path / "new")
    assert "still waiting" not in nothing.err and "recover" not in nothing.err
    store = cases.path("kind_dledger_540")
    found = run(store, tmp_path / "old", "--profile", "4.9")
    assert "has no timer" in found.err and "rmq_sys_wheel_timer\n" not in found.err
    log = run(cases.path("kind_rocksdb_533") / "commitlog", tmp_path / "of-log", "--profile", "5.3")
    assert "at most 3 delayed messages, at most 7 timer messages" in log.err


def test_for_another_version(cases: Library, run: Run, tmp_path: Path) -> None:
    """What that version does not know is left out and told."""
    found = run(cases.path("ok_540_clean"), tmp_path / "new", "--profile", "4.9", "--topic", "pub*")
    copied = check(tmp_path / "new")
    with Store.open(tmp_path / "new") as opened:
        assert opened.profile.name == "4.9"
    wanted = messages(cases.path("ok_540_clean"), Selection(topics=("pub*",)))
    assert kept(copied) == kept(without_inner(wanted))
    assert (found.code, found.out["left_out"]) == (1, len(wanted) - len(copied))


def test_damage_stays_behind(cases: Library, run: Run, tmp_path: Path) -> None:
    for name, count in (("bad_cl03_body_crc", 1), ("bad_cl09_property_crc", 1), ("bad_cl04_wrong_length", 1)):
        found = run(cases.path(name), tmp_path / name)
        assert (found.code, found.out["left_out_damaged"]) == (1, count), found.err
        assert name[4:8].upper() in found.err
        check(tmp_path / name)


def test_each_damaged_range_counts(cases: Library, run: Run, tmp_path: Path) -> None:
    """By the queues' units, those of other topics not; without queues each range counts once."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    with Store.open(store) as opened:
        lost = opened.get_by_queue_offset("TopicA", 0, 10)
        assert lost is not None
    with (store / "dledger-n0/data" / "0".zfill(20)).open("r+b") as file:
        file.seek(lost.physical_offset + 80)
        file.write(b"\xee" * 40)
    for topic, damaged in (("*", 1), ("TopicA", 1), ("TopicB", 0)):
        found = run(store, tmp_path / f"new-{damaged}{len(topic)}", "--topic", topic)
        assert found.out["left_out_damaged"] == damaged
        assert ("not in the copy: 1 damaged message of TopicA" in found.err) == bool(damaged)
    shutil.rmtree(store / "consumequeue")
    found = run(store, tmp_path / "without")
    assert (found.code, found.out["left_out_damaged"]) == (1, 1)
    assert "not in the copy: 1 damaged range that no queue leads to" in found.err


def test_the_copy_goes_on(tmp_path: Path, run: Run) -> None:
    """It is a store like any other."""
    store = small_store(tmp_path / "s", 300)
    run(store, tmp_path / "new", "--since", "1970-01-01T00:00:00Z", "--commitlog-file-size", "128K")
    with StoreWriter.open(tmp_path / "new", reserve=False) as writer:
        assert writer.options.commit_log_file_size == 128 << 10
        assert writer.put(NewMessage("T", b"more")).queue_offset > 0
    assert len(check(tmp_path / "new")) == 301


def test_a_log_too_small_for_every_message_is_not_made(tmp_path: Path, run: Run) -> None:
    """It was, and was then in the way of the next attempt."""
    found = run(small_store(tmp_path / "s", 3), tmp_path / "new", "--commitlog-file-size", "100")
    assert found.code == 1 and "a broker would reject all of them: no store was created" in found.err
    assert not (tmp_path / "new").exists()


def test_what_is_there_stays(tmp_path: Path, run: Run) -> None:
    store = small_store(tmp_path / "s", 3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    before = tree_digest(tmp_path)
    assert run(store, store).code == 4
    assert run(store, store / "inside").code == 4
    assert run(store, tmp_path / "full").code == 4
    assert run(store, tmp_path / "new", "--rename-topic", "T=a/b").code == 2
    assert run(store, tmp_path / "new", "--rename-topic", "T=TBW102").code == 2
    assert run(store, tmp_path / "new", "--rename-topic", "T").code == 2
    assert run(store, tmp_path / "new", "--rename-topic", "T=a", "--rename-topic", "T=b").code == 2
    found = run(store, tmp_path / "new", "--rename-topic", "NOSUCH=x")
    assert found.code == 2 and "no topic with this name" in found.err
    found = run(store, tmp_path / "new", "--rename-topic", "T=x", "--exclude-topic", "T")
    assert found.code == 2 and "excludes this topic" in found.err and not (tmp_path / "new").exists()
    assert tree_digest(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert run(store, tmp_path / "empty").code == 0
    assert run(store, tmp_path / "e2", "--topic", "nobody").code == 1
    assert not (tmp_path / "e2").exists()


def test_an_error_leaves_nothing(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **named: object) -> None:
        raise UnwritableError("No space left on device", path=tmp_path)

    store = small_store(tmp_path / "s", 30)
    monkeypatch.setattr(engine.TableAppender, "append", full)
    assert run(store, tmp_path / "new").code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("is_removed", [True, False])
def test_an_error_says_what_to_do(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """What the copy has left, if anything, is to be deleted; it is not a store to be recovered."""
    store, part = small_store(tmp_path / "s", 30), tmp_path / f"new{engine.PART}"
    real = disk.write

    def fails(descriptor: int, data: disk.Data, offset: int, path: disk.Name) -> None:
        if "commitlog" in str(path):
            raise UnwritableError("cannot write: Input/output error", path=path)
        real(descriptor, data, offset, path)

    def stays(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "write", fails)
    if not is_removed:
        monkeypatch.setattr(shutil, "rmtree", stays)
    found = run(store, tmp_path / "new")
    assert found.code == 3 and "Input/output error" in found.err
    assert "recover" not in found.err
    assert (f"delete {part}" in found.err) == part.exists() == (not is_removed)


def test_a_killed_copy_is_in_the_way_by_name(tmp_path: Path, run: Run) -> None:
    store = small_store(tmp_path / "s", 3)
    shutil.copytree(store, tmp_path / f"new{engine.PART}")
    with StoreWriter.open(tmp_path / f"new{engine.PART}"):  # that of another copy
        found = run(store, tmp_path / "new")
        assert (found.code, "another process is writing this copy" in found.err) == (4, True)
    found = run(store, tmp_path / "new")
    assert (found.code, f"delete {tmp_path}/new{engine.PART}" in found.err) == (4, True)
    assert (tmp_path / f"new{engine.PART}" / "commitlog").is_dir()


@pytest.mark.parametrize("damage", ["cut", "pipe"])
def test_topics_that_cannot_be_read_are_told(tmp_path: Path, run: Run, damage: str) -> None:
    """Their settings are lost, the messages are not."""
    store = small_store(tmp_path / "s", 4)
    path = store / "config/topics.json"
    text = path.read_bytes()
    path.unlink()
    path.with_name("topics.json.bak").unlink(missing_ok=True)
    if damage == "cut":
        path.write_bytes(text[:40])
    else:
        os.mkfifo(path)
    found = run(store, tmp_path / "new")
    assert found.code == 1 and "CF02" in found.err and "config/topics.json" in found.err
    assert len(check(tmp_path / "new")) == 4


def test_a_store_is_not_written_to_standard_output(
    cases: Library, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(cases.path("ok_540_small_ipv6"), Path("-"))
    assert found.code == 2 and "standard output" in found.err
    assert not list(tmp_path.iterdir())
