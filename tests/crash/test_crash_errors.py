"""A writer on a system that refuses: a clear error, and the store is sound, before and after."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import IO, Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import EXIT_INPUT, EXIT_OK, EXIT_REFUSED, RefusedError, UnwritableError
from rmqtool.read.store import Store
from rmqtool.write.store_writer import StoreWriter
from tests.support.crash_check import KILLED, Told, check_store, only_notes
from tests.support.crash_child import Scenario, Tell, in_child, message, number_of, work
from tests.support.disk_calls import watched
from tests.support.hard_limits import mounted, reachable, size_limit
from tests.support.ordinary_user import as_nobody
from tests.support.programs import RMQTOOL, started
from tests.support.sweep import IS_WHOLE
from tests.support.trees import unchanged

__all__ = ["reachable"]

SCENARIO = Scenario()
OPTIONS = SCENARIO.options()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with some messages, closed cleanly."""
    tmp_path.chmod(0o755)
    with StoreWriter.create(tmp_path / "store", **OPTIONS) as writer:
        for number in range(20):
            writer.put(message(number))
    return tmp_path / "store"


def feed(pipe: IO[bytes], text: bytes) -> None:
    """Write `text` again and again until nobody reads any more."""
    with suppress(BrokenPipeError):
        while True:
            pipe.write(text)
    with suppress(BrokenPipeError):
        pipe.close()


def put_until_refused(writer: StoreWriter, tell: Tell, first: int = 100, stop: int = 300) -> int:
    """Put messages until one is refused; the number of that one, or `stop`."""
    for number in range(first, stop):
        tell(["want", [number]])
        try:
            result = writer.put(message(number))
        except UnwritableError:
            return number
        tell(["stored", number, result.physical_offset, result.size, result.topic, result.queue_id,
              result.queue_offset, result.flushed])  # fmt: skip
    return stop


class TestFullDisk:
    def test_the_writer_goes_on_when_there_is_space_again(self, store: Path) -> None:
        """No log file can be made: the put is refused, and the next one finds the log as it was."""
        rows: list[list[Any]] = [["want", list(range(20))]]
        with StoreWriter.open(store, **OPTIONS) as writer:
            with size_limit(8191):
                number = put_until_refused(writer, rows.append)
                assert number < 300
            rows += [["want", [500]]]
            writer.put(message(500))
        told = Told.of(rows)
        assert told.stored
        check_store(store, told)
        with Store.open(store) as opened:
            bodies = [stored.message.body for stored in opened.messages()]
            assert message(number).body not in bodies
            assert bodies[-1] == message(500).body
            assert only_notes(verify(opened, jobs=1))

    @pytest.mark.parametrize("part", ["commitlog/", "consumequeue/", "index/", "checkpoint", "config/"])
    def test_a_half_write_is_mended_when_there_is_space_again(self, store: Path, part: str) -> None:
        rows: list[list[Any]] = [["want", list(range(20))]]
        with watched(store) as calls:
            writer = StoreWriter.open(store, **{**OPTIONS, "checkpoint_interval_ms": 60_000})
            put_until_refused(writer, rows.append, 100, 110)
            writer.flush()  # nothing is left that the writer's own thread would write half
            calls.short = f"{store}/{part}"
            large = next(number for number in range(200, 300) if len(message(number).body) > 1000)
            rows.append(["want", [large, 301]])
            with pytest.raises(UnwritableError, match="No space left"):
                writer.put(replace(message(large), topic="NewTopic"))
                writer.flush()
            assert calls.refused == 1
            writer.close()
        with StoreWriter.open(store, **OPTIONS) as writer:
            writer.put(message(301))
        check_store(store, Told.of(rows))
        assert not (store / "abort").exists()
        with Store.open(store) as opened:
            numbers = [number_of(stored.message.body) for stored in opened.messages()]
        assert numbers[:30] == [*range(20), *range(100, 110)]
        assert numbers[30:] == ([301] if part in ("commitlog/", "config/") else [large, 301])

    @pytest.mark.parametrize("size", ["48k", "64k", "80k", "96k", "128k"])
    def test_a_small_file_system(self, tmp_path: Path, size: str) -> None:
        """Full at another place each time: log, queue, index, checkpoint or topics.json."""
        folder = tmp_path / "small"
        with mounted(folder, f"size={size}"):
            status, rows = in_child(lambda tell: work(folder / "store", Scenario(steps=200), tell))
            assert status == 3
            told = Told.of(rows)
            assert told.failed[0] == "UnwritableError"
            assert told.failed[1].endswith("No space left on device")
            check_store(folder / "store", told)

    def test_the_small_file_system_becomes_larger(self, tmp_path: Path) -> None:
        folder = tmp_path / "small"
        with mounted(folder, "size=64k"):
            rows: list[list[Any]] = []
            writer = StoreWriter.create(folder / "store", **OPTIONS)
            assert put_until_refused(writer, rows.append) < 300
            subprocess.run(["mount", "-o", "remount,size=4m", folder], check=True)
            writer.close()
            check_store(folder / "store", Told.of(rows))
            with Store.open(folder / "store") as opened:
                assert opened.layout.abort is None


class TestFailedSync:
    """The device has lost bytes: what a second flush says is not to be believed."""

    @pytest.mark.parametrize("flush", ["sync", "async"])
    @pytest.mark.parametrize("part", ["commitlog/", "consumequeue/", "index", "index/"])
    def test_nothing_is_flushed_after_it(self, tmp_path: Path, part: str, flush: str) -> None:
        root = tmp_path / "store"
        options = {**OPTIONS, "checkpoint_interval_ms": 60_000, "flush": flush}
        options |= {"flush_interval_ms": 60_000, "flush_thorough_interval_ms": 60_000}
        with watched(root) as calls:
            writer = StoreWriter.create(root, **options)
            assert writer.put(message(0)).flushed == (flush == "sync")
            calls.failing = f"{root}/{part}"
            rows: list[list[Any]] = [["want", list(range(9))]]
            with pytest.raises(UnwritableError, match="cannot flush") as caught:
                for _ in range(2):  # the first put of a writer that is not `sync` flushes nothing
                    writer.put(replace(message(1), topic="Topic2"))
                    writer.flush()
            for action in (writer.flush, writer.close):
                with pytest.raises(UnwritableError) as again:
                    action()
                assert again.value is caught.value
            writer.close()  # it is closed
        assert calls.refused == 1
        check_store(root, Told.of(rows))
        with pytest.raises(RefusedError, match="not closed cleanly"):
            StoreWriter.open(root, **OPTIONS)

    @pytest.mark.parametrize("name", ["checkpoint", "config/topics.json.tmp", "config"])
    def test_a_small_file_is_written_anew(self, store: Path, name: str) -> None:
        rows: list[list[Any]] = [["want", list(range(40))]]
        with watched(store) as calls:
            writer = StoreWriter.open(store, **{**OPTIONS, "checkpoint_interval_ms": 60_000})
            calls.failing = f"{store}/{name}"
            with pytest.raises(UnwritableError, match="cannot flush"):
                writer.put(replace(message(20), topic="NewTopic"))
                writer.flush()
            assert calls.refused == 1
            writer.close()
        check_store(store, Told.of(rows))
        assert not (store / "abort").exists()


class TestRefused:
    def test_who_may_not_write_changes_nothing(self, store: Path) -> None:
        for path in (store, *store.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

        def action() -> None:
            with pytest.raises(UnwritableError, match="Permission denied"):
                StoreWriter.open(store, **OPTIONS)
            with pytest.raises(UnwritableError, match="Permission denied"):
                StoreWriter.create(store / "below", **OPTIONS)

        with unchanged(store):
            as_nobody(action)

    def test_a_read_only_file_system(self, tmp_path: Path) -> None:
        folder = tmp_path / "small"
        with mounted(folder, "size=1m"):
            with StoreWriter.create(folder / "store", **OPTIONS) as writer:
                writer.put(message(0))
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            with unchanged(folder), pytest.raises(UnwritableError, match="Read-only file system"):
                StoreWriter.open(folder / "store", **OPTIONS)

    @pytest.mark.parametrize(
        "name",
        ["commitlog", "consumequeue", "consumequeue/Topic0", "consumequeue/Topic0/0", "index", "config",
         "commitlog/00000000000000008192", "consumequeue/Topic0/0/00000000000000000000", "checkpoint"],
    )  # fmt: skip
    def test_nothing_is_written_through_a_symbolic_link(self, store: Path, name: str) -> None:
        elsewhere = store.parent / "elsewhere"
        (store / name).rename(elsewhere)
        (store / name).symlink_to(elsewhere)

        def put_many() -> None:
            with StoreWriter.open(store, **OPTIONS) as writer:
                for number in range(20, 60):
                    writer.put(message(number))

        with unchanged(elsewhere), pytest.raises((RefusedError, UnwritableError), match="symbolic link"):
            put_many()

    def test_the_root_may_be_a_symbolic_link(self, store: Path) -> None:
        link = store.parent / "link"
        link.symlink_to(store)
        with StoreWriter.open(link, **OPTIONS) as writer:
            writer.put(message(20))
        check_store(store, Told(wanted=set(range(21))))


def test_queues_behind_the_log_are_made_level_first(store: Path) -> None:
    """Units are missing at the end of every queue, without a crash: queue offsets go on behind the log's."""
    with Store.open(store) as opened:
        newest = sorted(stored.physical_offset for stored in opened.messages())[-6]
        places = [
            (stored.message.topic, stored.message.queue_id, stored.message.queue_offset)
            for stored in opened.messages() if stored.physical_offset >= newest
        ]  # fmt: skip
    for topic, queue_id, queue_offset in places:
        files = sorted((store / "consumequeue" / topic / str(queue_id)).iterdir())
        file, place = divmod(queue_offset, 15)
        with files[file].open("r+b") as queue:
            queue.seek(place * 20)
            queue.write(bytes(20))
    with StoreWriter.open(store, **OPTIONS) as writer:
        for number in range(20, 40):
            writer.put(message(number))
    told = Told(wanted=set(range(40)))
    check_store(store, told)


@pytest.mark.parametrize("bad", [b"", b"{"])
def test_what_a_killed_run_left_of_a_config_file(store: Path, bad: bytes) -> None:
    """A half-written topics.json.tmp is no hindrance."""
    (store / "config" / "topics.json.tmp").write_bytes(bad)
    with StoreWriter.open(store, **OPTIONS) as writer:
        writer.topics.add("NewTopic")
    assert "NewTopic" in (store / "config" / "topics.json").read_text()
    assert not (store / "config" / "topics.json.tmp").exists()


class TestCommand:
    """`rmqtool append` on such a system: exit code, and what it says."""

    SIZES = ("--create", "--create-topic", "--commitlog-file-size", "8k", "--queue-file-size", "300",
             "--index-slots", "10", "--index-entries", "40")  # fmt: skip

    @pytest.fixture
    def rows(self, tmp_path: Path) -> Path:
        path = tmp_path / "rows.jsonl"
        lines = [
            {"topic": f"Topic{number % 3}", "body": "x" * 300, "keys": f"k{number}"} for number in range(900)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def run(self, capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
        code = main(["append", *map(str, arguments)])
        return code, capfd.readouterr().err

    def test_a_full_disk(self, tmp_path: Path, rows: Path, capfd: pytest.CaptureFixture[str]) -> None:
        folder = tmp_path / "small"
        with mounted(folder, "size=160k"):
            code, text = self.run(capfd, folder / "store", *self.SIZES, "--input", rows)
            assert code == EXIT_INPUT
            assert "No space left on device" in text
            assert "Traceback" not in text
            with Store.open(folder / "store") as store:
                stored = [one.message.body for one in store.messages()]
                assert 100 < len(stored) < 900
                assert set(stored) == {b"x" * 300}
            if (folder / "store" / "abort").exists():
                code, text = self.run(capfd, folder / "store", "--topic", "Topic0", "--body", "y")
                assert code == EXIT_REFUSED
                assert "rmqtool recover" in text

    @pytest.mark.sweep
    @pytest.mark.parametrize("kind", ["new", "old"])
    def test_a_full_disk_says_what_to_do(
        self, tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str], kind: str
    ) -> None:
        """Whichever call meets it first: recover where the store is left open, delete what was only begun."""
        seen = set()
        for full in range(1, 200):
            root = tmp_path / str(full)
            if kind == "old":
                shutil.copytree(store, root)
            sizes = self.SIZES if kind == "new" else ("--create-topic",)
            with watched(root, full=full):
                code, text = self.run(capfd, root, *sizes, "--topic", "Full", "--key", "k", "--body", "x")
            if code == EXIT_OK:
                break
            assert code == EXIT_INPUT and "No space left on device" in text
            recover, begun = f"rmqtool recover {root}\n" in text, f"delete {root} and run it again" in text
            has_log = any((root / "commitlog").glob("0*"))
            assert begun == (root.exists() and any(root.iterdir()) and not has_log)
            assert recover == (has_log and (root / "abort").exists())
            assert len(text.splitlines()) <= 3
            seen.add((recover, begun))
            if recover and (IS_WHOLE or full % 3 == 0):
                assert main(["recover", str(root), "--apply"]) == EXIT_OK
                code, _ = self.run(capfd, root, "--create-topic", "--topic", "Full", "--body", "y")
                assert code == EXIT_OK
        assert code == EXIT_OK
        assert seen >= ({(True, False), (False, True)} if kind == "new" else {(True, False)})

    def test_no_permission(self, store: Path, capfd: pytest.CaptureFixture[str]) -> None:
        for path in (store, *store.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

        def action() -> None:
            code, text = self.run(capfd, store, "--topic", "Topic0", "--body", "y")
            assert code == EXIT_INPUT
            assert "Permission denied" in text

        with unchanged(store):
            as_nobody(action)

    def test_a_killed_process(self, tmp_path: Path, rows: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """A real one, at no chosen moment: while the rows still come in."""
        store = tmp_path / "store"
        command = [*RMQTOOL, "append", store, *self.SIZES, "--input", "-",
                   "--show", "messages", "--format", "jsonl"]  # fmt: skip
        text = rows.read_bytes()
        with started(command, stderr=None) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            feeder = Thread(target=feed, args=(child.stdin, text))
            feeder.start()
            told = [json.loads(child.stdout.readline()) for _ in range(50)]
            child.kill()
            told += [json.loads(line) for line in child.stdout if line.endswith(b"\n")]
            feeder.join()
        with Store.open(store) as opened:
            places = {one.physical_offset: one.message for one in opened.messages()}
            codes = {item.problem.code for item in verify(opened)}
        for row in told:
            record = places[row["physical_offset"]]
            assert (record.topic, record.queue_id, record.queue_offset) == (
                row["topic"], row["queue_id"], row["queue_offset"])  # fmt: skip
        # CQ13, IX10: the process may be killed before it has dispatched anything.
        assert codes <= {*KILLED, "CQ13", "IX10"}, codes
        code, message_text = self.run(capfd, store, "--topic", "Topic0", "--body", "y")
        assert code == EXIT_REFUSED
        assert "rmqtool recover" in message_text
