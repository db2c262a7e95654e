"""`rmqtool tail --follow`: every message once, in order, while a store is written, expired or cut."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.log.events import StoredMessage
from rmqtool.read.selection import Selection
from rmqtool.report.tail.follower import Follower
from rmqtool.report.tail.start import StartPosition
from rmqtool.report.tail.subscription import Subscription
from rmqtool.report.tail.topics import open_tail
from rmqtool.write.store_writer import StoreWriter
from tests.support.programs import PATIENCE_S, ROOT, started, surroundings, until
from tests.support.tail_writer import SMALL, message
from tests.support.trees import tree_digest

pytestmark = pytest.mark.usefixtures("json_lines")


def follower(
    path: Path, start: StartPosition, wanted: Subscription | None = None, **selection: Any
) -> Follower:
    """One that looks around at every pause."""
    with Store.open(path) as store:
        return open_tail(store, Selection(**selection), start, wanted, follow=True)


def followed(
    tail: Follower, steps: Iterator[object], monkeypatch: pytest.MonkeyPatch, idle: int = 3
) -> list[StoredMessage]:
    """What comes while each pause does the next step; ends some pauses after the last one."""
    monkeypatch.setattr("rmqtool.report.tail.follower.REFRESH_S", 0)
    found: list[StoredMessage] = []
    left = idle

    def wait(_: float) -> None:
        nonlocal left
        if next(steps, done) is done:
            left -= 1

    done = object()
    tail.wait = wait
    for item in tail.messages(follow=True):
        if item is not None:
            found.append(item)
        elif left <= 0:
            break
    return found


def places(messages: list[StoredMessage]) -> list[int]:
    """Their physical offsets."""
    return [item.physical_offset for item in messages]


def put(writer: StoreWriter, first: int, stop: int, topic: str = "TopicTest") -> None:
    """Puts messages and waits until they have units."""
    for number in range(first, stop):
        writer.put(message(number, topic))
    writer.dispatch()


def all_places(path: Path) -> list[int]:
    """Every record of the log."""
    with Store.open(path) as store:
        return [item.physical_offset for item in store.messages()]


def test_across_files_new_queues_and_new_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of an empty store; queue and log files roll many times."""
    path = tmp_path / "store"
    with StoreWriter.create(path, "5.4", **SMALL) as writer:

        def steps() -> Iterator[None]:
            for number in range(0, 1200, 40):
                put(writer, number, number + 40, f"Topic{number // 400}")
                yield

        tail = follower(path, StartPosition(position="latest"))
        found = followed(tail, steps(), monkeypatch)
    assert places(found) == all_places(path) and len(found) == 1200
    assert {item.message.topic for item in found} == {"Topic0", "Topic1", "Topic2"}
    assert len(list((path / "commitlog").iterdir())) > 5


def test_only_what_is_wanted_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags, queues, globs over topics that appear later, a filter."""
    path = tmp_path / "store"
    from rmqtool.read.filter import parse

    with StoreWriter.create(path, "5.4", **SMALL) as writer:
        put(writer, 0, 50)

        def steps() -> Iterator[None]:
            for number in range(50, 450, 50):
                put(writer, number, number + 50, "TopicTest" if number < 250 else "TopicNew")
                yield

        wanted = Subscription.of(["Tag1"], parse("size >= 100"))
        tail = follower(path, StartPosition(position=0), wanted, topics=("Topic*",), queues=(0, 2))
        found = followed(tail, steps(), monkeypatch)
    with Store.open(path) as store:
        expected = [item.physical_offset for item in store.messages(Selection(tags=("Tag1",), queues=(0, 2)))]
        numbers = {item.physical_offset: int(item.message.body[:8]) for item in store.messages()}
    assert places(found) == [place for place in expected if numbers[place] >= 100] and len(found) > 30


@contextmanager
def changing(path: Path) -> Iterator[StoreWriter]:
    """A store of one queue that is written."""
    with StoreWriter.create(path, "5.4", **{**SMALL, "auto_create_queues": 1}) as writer:
        yield writer


def test_files_that_expire_in_front_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone unread is passed over and told; the rest comes."""
    path = tmp_path / "store"
    notes: list[str] = []
    with changing(path) as writer:
        put(writer, 0, 50)
    tail = follower(path, StartPosition(position="earliest"))
    tail.events.note = notes.append

    def steps() -> Iterator[None]:
        with StoreWriter.open(path) as writer:
            put(writer, 50, 1000)
        with Store.open(path) as store:
            logs = [file.path for file in store.commit_log.files]
            queues = [file.path for file in store.layout.consume_queues["TopicTest", 0].files]
        for file in (*logs[:3], *queues[:3]):
            file.unlink()
        yield
        with StoreWriter.open(path) as writer:
            put(writer, 1000, 1010)
        yield

    found = followed(tail, steps(), monkeypatch)
    with Store.open(path) as store:
        low = store.commit_log.min_offset
        left = [item.physical_offset for item in store.messages()]
    first = [place for place in places(found) if place < low]
    assert len(first) == 50 and [place for place in places(found) if place >= low] == left
    assert any("expired unread" in note for note in notes) and tail.removed > 0


def test_a_store_that_is_cut_behind_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back to an earlier state and written on: the new messages come, from the place of the cut."""
    path, kept = tmp_path / "store", tmp_path / "kept"
    notes: list[str] = []

    def steps() -> Iterator[None]:
        with StoreWriter.open(path) as writer:
            put(writer, 100, 140)
            yield
        for name in ("commitlog", "consumequeue"):
            shutil.rmtree(path / name)
            shutil.copytree(kept / name, path / name)
        shutil.copy(kept / "checkpoint", path / "checkpoint")
        yield
        with StoreWriter.open(path) as writer:
            put(writer, 500, 560)
            yield

    with changing(path) as writer:
        put(writer, 0, 100)
    shutil.copytree(path, kept)
    tail = follower(path, StartPosition(position="earliest"))
    tail.events.note = notes.append
    found = followed(tail, steps(), monkeypatch)
    numbers = [int(item.message.body[:8]) for item in found]
    assert numbers == [*range(140), *range(500, 560)]
    assert len(notes) == 1 and "continues at 100, 40 before" in notes[0]


def test_what_comes_while_queues_are_read_keeps_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message for a queue that was just read and one for the next: the first comes first."""
    path = tmp_path / "store"
    with changing(path) as writer:
        put(writer, 0, 1, "TopicA")
        put(writer, 1, 2, "TopicB")
        tail = follower(path, StartPosition(position="latest"))
        assert [each.topic for each in tail.tails] == ["TopicA", "TopicB"]
        second, numbers = tail.tails[1], iter(range(2, 42, 2))
        fill = second.fill

        def put_and_fill(limit: int) -> bool:
            number = next(numbers, None)
            if number is not None:
                put(writer, number, number + 1, "TopicA")
                put(writer, number + 1, number + 2, "TopicB")
            return fill(limit)

        monkeypatch.setattr(second, "fill", put_and_fill)
        found = followed(tail, iter(()), monkeypatch, idle=30)
    assert [int(item.message.body[:8]) for item in found] == [*range(2, 42)]


def test_a_cut_in_place_is_seen_at_the_next_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files, cut and written on: the unit that was read last is another one; no pause is needed."""
    path, kept = tmp_path / "store", tmp_path / "kept"

    def steps() -> Iterator[None]:
        with StoreWriter.open(path) as writer:
            put(writer, 10, 20)
        yield
        for file in kept.rglob("*"):
            if file.is_file():
                (path / file.relative_to(kept)).write_bytes(file.read_bytes())
        with StoreWriter.open(path, auto_create_queues=1) as writer:
            put(writer, 0, 1, "Other")
            put(writer, 30, 45)
        yield

    with changing(path) as writer:
        put(writer, 0, 10)
    shutil.copytree(path, kept)
    tail = follower(path, StartPosition(position="earliest"), topics=("TopicTest",))
    monkeypatch.setattr(tail, "_look_around", lambda: None)
    found = followed(tail, steps(), monkeypatch)
    assert [int(item.message.body[:8]) for item in found] == [*range(20), *range(30, 45)]


def test_units_overwritten_with_the_same_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut and written again in one go, so that only the records differ."""
    path, kept = tmp_path / "store", tmp_path / "kept"

    def steps() -> Iterator[None]:
        with StoreWriter.open(path) as writer:
            put(writer, 100, 140)
            yield
        shutil.rmtree(path)
        shutil.copytree(kept, path)
        with StoreWriter.open(path) as writer:
            put(writer, 200, 240)
        yield

    with changing(path) as writer:
        put(writer, 0, 100)
    shutil.copytree(path, kept)
    found = followed(follower(path, StartPosition(position="latest")), steps(), monkeypatch)
    assert [int(item.message.body[:8]) for item in found] == [*range(100, 140), *range(200, 240)]


def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue begins anew, so does the reader."""
    path = tmp_path / "store"

    def steps() -> Iterator[None]:
        yield
        shutil.rmtree(path)
        with changing(path) as writer:
            put(writer, 700, 720)
            yield

    with changing(path) as writer:
        put(writer, 0, 100)
    found = followed(follower(path, StartPosition(position=-10)), steps(), monkeypatch)
    assert [int(item.message.body[:8]) for item in found] == [*range(90, 100), *range(700, 720)]


def test_a_unit_that_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest unit is believed only with its record: size first, then the place, the tags at last."""
    path = tmp_path / "store"
    with changing(path) as writer:
        put(writer, 0, 4)
    queue = next((path / "consumequeue/TopicTest/0").iterdir())
    whole = queue.read_bytes()
    at = 3 * UNIT_SIZE
    torn = bytearray(whole)
    torn[at : at + UNIT_SIZE] = bytes(UNIT_SIZE)

    def steps() -> Iterator[None]:
        torn[at + 8 : at + 12] = whole[at + 8 : at + 12]
        queue.write_bytes(torn)
        yield
        torn[at : at + 8] = whole[at : at + 8]
        queue.write_bytes(torn)
        yield
        queue.write_bytes(whole)
        yield

    queue.write_bytes(torn)
    tail = follower(path, StartPosition(position="earliest"), Subscription.of(["Tag0"]))
    bad: list[object] = []
    tail.events.report = bad.append
    found = followed(tail, steps(), monkeypatch)
    assert [int(item.message.body[:8]) for item in found] == [0, 3] and not bad


def test_a_record_that_is_late_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for, and the one that takes its place after a cut as long again."""
    path, kept = tmp_path / "store", tmp_path / "kept"
    with changing(path) as writer:
        put(writer, 0, 3)
    shutil.copytree(path, kept)
    clock = Clock()

    def steps() -> Iterator[None]:
        whole = without_last_record(path)
        yield
        clock.now += 1.5  # of two seconds
        log_file(path).write_bytes(whole)
        yield
        shutil.rmtree(path)
        shutil.copytree(kept, path)
        with StoreWriter.open(path, auto_create_queues=1) as writer:
            put(writer, 40, 41)
        whole = without_last_record(path)
        yield
        clock.now += 1.5
        yield
        log_file(path).write_bytes(whole)
        yield

    with StoreWriter.open(path, auto_create_queues=1) as writer:
        put(writer, 3, 4)
    monkeypatch.setattr("rmqtool.report.tail.follower.time", clock)
    tail = follower(path, StartPosition(position=3))
    bad: list[object] = []
    tail.events.report = bad.append
    stepping = steps()
    next(stepping)
    found = followed(tail, stepping, monkeypatch)
    assert [int(item.message.body[:8]) for item in found] == [3, 40] and not bad


def test_a_late_record_is_no_end(tmp_path: Path) -> None:
    """Without `follow` too it is waited for, and when it has come that is the end."""
    path = tmp_path / "store"
    with changing(path) as writer:
        put(writer, 0, 3)
    whole = without_last_record(path)
    with Store.open(path) as store:
        tail = open_tail(store, Selection(), StartPosition(position="earliest"))
    pauses = 0

    def wait(_: float) -> None:
        nonlocal pauses
        pauses += 1
        assert pauses < 10, "it does not end"
        log_file(path).write_bytes(whole)

    tail.wait, tail.patience_s = wait, 60  # as of a store that a broker has open
    found = [item for item in tail.messages(follow=False) if item is not None]
    assert [int(item.message.body[:8]) for item in found] == [0, 1, 2] and pauses


def log_file(path: Path) -> Path:
    """The one file of the log."""
    return next((path / "commitlog").iterdir())


def without_last_record(path: Path) -> bytes:
    """Zeros in place of the last record; the log as it was."""
    with Store.open(path) as store:
        last = all_places(path)[-1]
        assert len(store.layout.commit_log) == 1
    whole = log_file(path).read_bytes()
    log_file(path).write_bytes(whole[:last].ljust(len(whole), b"\0"))
    return whole


class Clock:
    """Time that stands still until it is moved on."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        """S."""
        return self.now


# the command


def running(*arguments: object, command: str = "rmqtool") -> AbstractContextManager[subprocess.Popen[str]]:
    """A program in a process of its own, ended at the end."""
    return started([sys.executable, "-m", command, *arguments], text=True)


def test_every_message_of_a_writer_comes_at_once(tmp_path: Path) -> None:
    """Another process writes; rows are flushed as they come; SIGTERM ends with 0; nothing is touched."""
    path, count = tmp_path / "store", 2000
    with running(path, count, 1, command="tests.support.tail_writer") as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        names = "queue_id,queue_offset,physical_offset,keys"
        with running("tail", path, "-f", "--from", "earliest", "--fields", names) as reader:
            rows: list[dict[str, Any]] = []

            def read() -> None:
                assert reader.stdout is not None
                rows.extend(json.loads(line) for line in reader.stdout)

            thread = threading.Thread(target=read)
            thread.start()
            until(lambda: len(rows) >= count)
            assert writer.stdout.readline() == "done\n"
            writer.communicate()  # it closes the store: until then its flushes move the checkpoint
            before = tree_digest(path)
            time.sleep(0.3)
            assert tree_digest(path) == before
            reader.send_signal(signal.SIGTERM)
            assert reader.wait(PATIENCE_S) == 0
            thread.join()
            assert reader.stderr is not None and reader.stderr.read() == ""
    # The writer's queues do not get their units at the same moment.
    assert sorted(row["keys"] for row in rows) == sorted([f"key-{number}"] for number in range(count))
    for queue in range(4):
        offsets = [row["queue_offset"] for row in rows if row["queue_id"] == queue]
        assert offsets == [*range(len(offsets))]


def test_how_it_ends(tmp_path: Path) -> None:
    """A limit, a time, a reader that goes away, an interrupt."""
    path = tmp_path / "store"
    with changing(path) as writer:
        put(writer, 0, 3000)
    command = [sys.executable, "-m", "rmqtool", "tail", str(path)]
    environment = surroundings()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    done = run("--follow", "--from", "earliest", "--limit", "5", "--body", "none")
    assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (0, 5, "")
    done = run("--follow", "--last", "2", "--max-duration", "300ms", "--format", "table")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4
    shell = f"{' '.join(command)} --body none | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[1:] == ["0"] and done.stderr == ""
    with running("tail", path, "--follow", "--last", "1") as reader:
        assert reader.stdout is not None and json.loads(reader.stdout.readline())["queue_offset"] == 2999
        reader.send_signal(signal.SIGINT)
        assert reader.wait(PATIENCE_S) == 0


def test_a_topic_to_come_is_waited_for(tmp_path: Path) -> None:
    """It is told that it is not there, and shown when it is."""
    path = tmp_path / "store"
    with changing(path) as writer:
        put(writer, 0, 3)
        with running("tail", path, "-f", "--topic", "Later", "--fields", "topic,keys") as reader:
            assert reader.stderr is not None and "no topic Later" in reader.stderr.readline()
            writer.put(NewMessage("Later", b"x", keys=["k"]))
            assert reader.stdout is not None
            assert json.loads(reader.stdout.readline()) == {"topic": "Later", "keys": ["k"]}
