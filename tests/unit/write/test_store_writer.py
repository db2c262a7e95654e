"""The writer of a store: opening, putting, rolling, flushing, closing, and what it refuses."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.check.verify import verify
from rmqtool.errors import (
    EXIT_FINDINGS,
    IllegalMessageError,
    RefusedError,
    StoreInUseError,
    UnreadableError,
    UnwritableError,
    UsageError,
)
from rmqtool.formats import checkpoint, message, properties
from rmqtool.formats.config_json import TopicConfig
from rmqtool.log.events import Blank
from rmqtool.write import log_writer
from rmqtool.write.dispatcher import Dispatcher
from rmqtool.write.options import MAPPED_SIZE_MAX, WriteOptions
from rmqtool.write.store_writer import StoreWriter
from rmqtool.write.topics import TopicTable
from tests.support.build_store import patch
from tests.support.programs import until
from tests.support.trees import unchanged

SMALL: dict[str, Any] = {
    "auto_create_queues": 4, "commit_log_file_size": 64 << 10, "consume_queue_file_size": 2000,
    "index_slots": 100, "index_entries": 400,
}  # fmt: skip
PROFILES = ("4.9", "5.3", "5.4")


def small(path: Path, profile: str = "5.4", **options: Any) -> StoreWriter:
    """A new store of small files."""
    return StoreWriter.create(path / "store", profile, **{**SMALL, **options})


def messages(count: int, *, body: int = 300, topic: str = "TopicTest") -> list[NewMessage]:
    """Messages with tag and key, one like no other."""
    return [
        NewMessage(topic, f"{n:08d}".encode() * (body // 8), tags=f"Tag{n % 3}", keys=[f"key-{n}"])
        for n in range(count)
    ]


def bad_findings(path: Path) -> list[str]:
    """The codes that `verify` finds, notes left out."""
    with Store.open(path) as store:
        return [f.problem.code for f in verify(store) if f.problem.severity != "note"]


def stored(path: Path) -> list[bytes]:
    """Bodies in the order of the log."""
    with Store.open(path) as store:
        return [found.message.body for found in store.messages()]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_put_is_read(tmp_path: Path, profile: str) -> None:
    sent = messages(1000)
    with small(tmp_path, profile) as writer:
        results = [writer.put(one) for one in sent]
    root = writer.root
    assert stored(root) == [one.body for one in sent]
    assert bad_findings(root) == []
    with Store.open(root) as store:
        assert store.profile.name == profile
        assert not store.live and store.layout.abort is None
        assert len(store.layout.commit_log) > 4 and len(store.layout.index_files) > 1
        assert store.dispatched_end() == store.end_offset() == results[-1].physical_offset + results[-1].size
        for one, result in zip(sent, results, strict=True):
            found = store.get_by_queue_offset("TopicTest", result.queue_id, result.queue_offset)
            assert found is not None and found.physical_offset == result.physical_offset
            assert found.message.body == one.body
            assert store.get_by_id(result.message_ids[0]).message == found.message
        assert [store.max_offset("TopicTest", n) for n in range(4)] == [250] * 4
        fields = checkpoint.decode((root / "checkpoint").read_bytes())
        last = results[-1].store_timestamp
        assert (fields.physic_msg_timestamp, fields.logics_msg_timestamp) == (last, last)
        assert 0 < fields.index_msg_timestamp <= last


def test_files_roll_with_blanks(tmp_path: Path) -> None:
    """A record fits iff 8 bytes are left behind it; the file made ahead is gone after the close."""
    with small(tmp_path) as writer:
        for one in messages(500):
            writer.put(one)
        end = writer.log.end
    with Store.open(writer.root) as store:
        blanks = [event for event in store.events() if isinstance(event, Blank)]
        files = store.layout.commit_log
        sizes = {event.physical_offset: event for event in store.messages()}
    assert len(blanks) == len(files) - 1 > 0
    for blank, file in zip(blanks, files, strict=False):
        assert blank.physical_offset + blank.size == file.end
        following = sizes[file.end]
        assert following.message.total_size + message.BLANK_SIZE > blank.size
    assert files[-1].file_from_offset <= end < files[-1].end
    assert {file.size for file in files} == {64 << 10}


@pytest.mark.parametrize("has_next", [False, True])
def test_it_goes_on_behind_a_blank(tmp_path: Path, has_next: bool) -> None:
    """The record that made a crashed writer roll was lost, or its whole file."""
    with small(tmp_path) as writer:
        results = [writer.put(one) for one in messages(30)]
        end, size = writer.log.end, 64 << 10
    log = writer.root / "commitlog"
    patch(log / f"{0:020}", end, message.encode_blank(size - end))
    if has_next:
        (log / f"{size:020}").write_bytes(bytes(size))
    before = (log / f"{0:020}").read_bytes()
    with StoreWriter.open(writer.root, auto_create_queues=4) as writer:
        results += [writer.put(one) for one in messages(300)]
    assert results[30].physical_offset == size
    assert (log / f"{0:020}").read_bytes() == before
    assert bad_findings(writer.root) == []
    assert len(stored(writer.root)) == len(results)


def test_a_blank_of_another_size_is_refused(tmp_path: Path) -> None:
    """A broker looks for records where such a blank says that the file ends."""
    with small(tmp_path) as writer:
        writer.put(messages(1)[0])
        end = writer.log.end
    patch(writer.root / "commitlog" / f"{0:020}", end, message.encode_blank(1000))
    with unchanged(writer.root), pytest.raises(RefusedError, match="continues after its last sound record"):
        StoreWriter.open(writer.root)


def test_a_record_that_just_fits(tmp_path: Path) -> None:
    plain = NewMessage("T", b"", queue_id=0, properties=b"", born_timestamp=1)
    for spare, files in ((8, 1), (7, 2)):
        with small(tmp_path / str(spare)) as writer:
            rest = message.record_size(1, 0, 0, 1, 0)  # of a record without its body
            writer.put(replace(plain, body=b"a" * 1000))
            writer.put(replace(plain, body=b"b" * ((64 << 10) - 1000 - 2 * rest - spare)))
            writer.put(replace(plain, body=b"c"))
        with Store.open(writer.root) as store:
            placed = [found.physical_offset for found in store.messages()]
        assert placed[1] // (64 << 10) == files - 1
        assert bad_findings(writer.root) == []


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    root = tmp_path / "store"
    expected: list[bytes] = []
    with small(tmp_path):
        pass
    for _ in range(4):
        with StoreWriter.open(root, auto_create_queues=4) as writer:
            for one in messages(130):
                writer.put(one)
                expected.append(one.body)
    assert stored(root) == expected
    assert bad_findings(root) == []
    with Store.open(root) as store:
        assert sum(store.max_offset("TopicTest", n) for n in range(4)) == 4 * 130


def test_a_batch_stays_together(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        results = [writer.put_batch([replace(one, queue_id=1) for one in messages(20)]) for _ in range(20)]
        assert len(results[0].message_ids) == 20
    with Store.open(writer.root) as store:
        for number, result in enumerate(results):
            assert result.queue_offset == 20 * number
            assert len({offset // (64 << 10) for offset in result.physical_offsets}) == 1
            found = store.get_by_queue_offset("TopicTest", 1, result.queue_offset + 19)
            assert found is not None and found.physical_offset == result.physical_offsets[19]
    assert bad_findings(writer.root) == []


def test_sync_writers_share_their_flushes(tmp_path: Path) -> None:
    """Every acknowledged message of a sync writer is flushed, WAIT=false is not waited for."""
    with small(tmp_path, flush="sync") as writer:
        assert writer.put(NewMessage("T", b"waits")).flushed
        assert not writer.put(NewMessage("T", b"does not", wait=False)).flushed
        for text, other in (("true", False), ("false", True)):  # the property counts, not the field
            one = NewMessage("T", b"by its property", properties={"WAIT": text}, wait=other)
            assert (writer.put(one).flushed, writer.put_many([one])[0].flushed) == (not other, not other)
        unflushed: list[int] = []

        def work() -> None:
            for one in messages(40):
                result = writer.put(one)
                if not result.flushed or writer.log.flushed < result.physical_offset + result.size:
                    unflushed.append(result.physical_offset)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert unflushed == []
    assert len(stored(writer.root)) == 6 + 8 * 40
    assert bad_findings(writer.root) == []


def test_async_is_flushed_in_the_background(tmp_path: Path) -> None:
    with small(tmp_path, flush_interval_ms=1, flush_least_pages=1) as writer:
        end = [writer.put(one) for one in messages(100)][-1]
        until(lambda: writer.log.flushed > end.physical_offset - 4096)
        assert writer.flush() == writer.log.end


def test_queues_are_written_while_messages_keep_coming(tmp_path: Path) -> None:
    """There is always something left to dispatch, and never enough of it for a run of its own."""
    seen, pause = 0, threading.Event()
    with small(tmp_path, commit_log_file_size=4 << 20, consume_queue_file_size=200_000) as writer:
        for number in range(1500):
            writer.put(NewMessage("T", b"x", queue_id=0))
            pause.wait(0.002)
            if number % 100 == 99 and not seen:
                with Store.open(writer.root) as reader:
                    seen = reader.max_offset("T", 0)
    assert seen


def test_the_write_buffer_shows_committed_bytes_only(tmp_path: Path) -> None:
    with small(tmp_path, write_buffer=True, commit_interval_ms=10**9, flush_interval_ms=10**9) as writer:
        first = writer.put(NewMessage("T", b"first"))
        path = writer.root / "commitlog" / f"{0:020d}"
        assert writer.log.committed == 0 and not any(path.read_bytes())
        with writer.read() as store:
            assert [found.message.body for found in store.messages()] == [b"first"]
        assert writer.log.committed == first.size
        for one in messages(1000):
            writer.put(one)
        assert writer.flush() == writer.log.end == writer.log.committed
    assert len(stored(writer.root)) == 1001
    assert bad_findings(writer.root) == []


def test_warm_files(tmp_path: Path) -> None:
    with small(tmp_path, warm=True, reserve=False) as writer:
        for one in messages(500):
            writer.put(one)
    assert len(stored(writer.root)) == 500
    assert (writer.root / "commitlog" / f"{0:020d}").stat().st_blocks * 512 >= 64 << 10


@pytest.mark.skipif(sys.platform != "linux", reason="blocks of sparse files are asked on Linux only")
def test_space(tmp_path: Path) -> None:
    """Log files are reserved, queue and index files are sparse."""
    big = {"commit_log_file_size": 8 << 20, "consume_queue_file_size": 6_000_000}
    with small(tmp_path, **big) as writer:
        writer.put(NewMessage("T", b"x", keys=["k"]))
        writer.dispatch()
        assert (writer.root / "commitlog" / f"{0:020d}").stat().st_blocks * 512 >= 8 << 20
        assert (writer.root / "consumequeue/T/0" / f"{0:020d}").stat().st_blocks * 512 < 100_000
        assert (writer.root / "consumequeue/T/0" / f"{0:020d}").stat().st_size == 6_000_000
    with small(tmp_path / "sparse", reserve=False, **big) as writer:
        writer.put(NewMessage("T", b"x"))
        assert (writer.root / "commitlog" / f"{0:020d}").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("profile", PROFILES)
def test_abort_while_open(tmp_path: Path, profile: str) -> None:
    with small(tmp_path, profile) as writer:
        text = (writer.root / "abort").read_bytes()
        assert text == (b"" if profile == "4.9" else str(os.getpid()).encode())
        assert (writer.root / "abort.bak").exists() == (profile != "4.9")
        assert (writer.root / "lock").read_bytes() == b"lock"
    assert not (writer.root / "abort").exists()


def test_only_one_writer(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        with pytest.raises(StoreInUseError):
            StoreWriter.open(writer.root)
        script = f"from rmqtool import StoreWriter; StoreWriter.open({str(writer.root)!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "StoreInUseError" in done.stderr
        with writer.read() as store:
            assert store.live
        writer.put(NewMessage("T", b"still writable"))
    assert stored(writer.root) == [b"still writable"]


def test_a_store_that_was_not_closed_is_refused(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        pass
    (writer.root / "abort").write_bytes(b"1")
    before = sorted(writer.root.rglob("*"))
    with pytest.raises(RefusedError, match="not closed cleanly") as caught:
        StoreWriter.open(writer.root)
    assert caught.value.hint is not None and "rmqtool recover" in caught.value.hint
    assert sorted(writer.root.rglob("*")) == before


def test_damage_is_refused(tmp_path: Path) -> None:
    """A torn tail, queues beyond the log, a file of another size: nothing is written over it."""
    with small(tmp_path) as writer:
        for one in messages(50):
            writer.put(one)
        end = writer.log.end
    root = writer.root
    path = root / "commitlog" / f"{0:020d}"
    sound = path.read_bytes()
    path.write_bytes(sound[:end] + b"\0\0\1\0torn" + sound[end + 8 :])
    with pytest.raises(RefusedError, match="after its last sound record"):
        StoreWriter.open(root)
    path.write_bytes(sound[: end - 600] + bytes(len(sound) - end + 600))
    with pytest.raises(RefusedError, match="reach to"):
        StoreWriter.open(root)
    path.write_bytes(sound)
    (root / "commitlog" / f"{64 << 10:020d}").write_bytes(b"x")
    with pytest.raises(RefusedError):
        StoreWriter.open(root)


def test_no_store_is_made_over_something(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(RefusedError, match="not empty"):
        StoreWriter.create(tmp_path / "full")
    with small(tmp_path):
        pass
    with pytest.raises(RefusedError, match="is already a store"):
        StoreWriter.create(tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(RefusedError):
        StoreWriter.create(tmp_path / "link")


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"commit_log_file_size": MAPPED_SIZE_MAX + 1}, str(MAPPED_SIZE_MAX)),
        ({"commit_log_file_size": 50}, "99"),
        ({"consume_queue_file_size": 6_000_010}, "20"),
        ({"batch_queue_file_size": 100}, "46"),
        ({"index_slots": 5_000_000, "index_entries": 200_000_000}, str(MAPPED_SIZE_MAX)),
        ({"commit_log_file_size": 1 << 20, "max_message_size": 4 << 20}, "1048477"),
        ({"property_crc": True, "profile": "4.9"}, "4.9"),
    ],
)
def test_sizes_that_no_broker_could_use(tmp_path: Path, options: dict[str, Any], limit: str) -> None:
    with pytest.raises(UsageError, match=limit):
        StoreWriter.create(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_record_larger_than_a_file_is_refused(tmp_path: Path) -> None:
    """And burns no file, as it does in a broker."""
    with small(tmp_path) as writer:
        with pytest.raises((RefusedError, ValueError), match="at most"):
            writer.put_batch(messages(100, body=3000))
        writer.put(NewMessage("T", b"fits"))
    assert stored(writer.root) == [b"fits"]
    assert len(list((writer.root / "commitlog").iterdir())) == 1


def test_a_new_store_keeps_its_file_size(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        pass
    assert bad_findings(writer.root) == []
    with StoreWriter.open(writer.root) as again:
        assert again.options.commit_log_file_size == 64 << 10


def test_many_threads_and_topics(tmp_path: Path) -> None:
    with small(tmp_path) as writer:

        def work(number: int) -> None:
            for one in messages(200, topic=f"Topic{number}"):
                writer.put(one)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bad_findings(writer.root) == []
    with Store.open(writer.root) as store:
        for number in range(4):
            bodies = [
                found.message.body
                for queue in range(4)
                for found in store.queue_messages(f"Topic{number}", queue)
            ]
            assert sorted(bodies) == sorted(one.body for one in messages(200))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_kinds_of_bytes(tmp_path: Path, kind: Callable[[bytes], bytes]) -> None:
    with small(tmp_path) as writer:
        for body in (kind(b"one"), kind(b"two")):
            writer.put(NewMessage("T", body))
        with pytest.raises(IllegalMessageError, match="must be bytes"):
            writer.put(NewMessage("T", "text"))  # type: ignore[arg-type]
    assert stored(writer.root) == [b"one", b"two"]


def test_no_put_is_lost_in_a_close(tmp_path: Path) -> None:
    """What another thread was told is stored is there, with its unit, when the close is through."""
    for attempt in range(5):
        writer = small(tmp_path / str(attempt))
        acknowledged: list[bytes] = []

        def work(writer: StoreWriter = writer, acknowledged: list[bytes] = acknowledged) -> None:
            with contextlib.suppress(UsageError):
                for number in range(100_000):
                    body = str(number).encode()
                    writer.put(NewMessage("T", body))
                    acknowledged.append(body)

        thread = threading.Thread(target=work)
        thread.start()
        while len(acknowledged) < 100:
            pass
        writer.close()
        thread.join()
        assert stored(writer.root) == acknowledged
        assert bad_findings(writer.root) == []


def test_closed_is_closed(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        pass
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.put(NewMessage("T", b"x"))


def test_an_error_in_the_block_closes_cleanly(tmp_path: Path) -> None:
    with pytest.raises(KeyError), small(tmp_path) as writer:
        writer.put(NewMessage("T", b"before"))
        raise KeyError
    assert not (tmp_path / "store" / "abort").exists()
    assert stored(tmp_path / "store") == [b"before"]


def test_property_crc_is_kept_up(tmp_path: Path) -> None:
    with small(tmp_path, property_crc=True) as writer:
        writer.put(NewMessage("T", b"one"))
    with StoreWriter.open(writer.root) as writer:
        assert writer.options.property_crc
        writer.put(NewMessage("T", b"two"))
    with Store.open(writer.root) as store:
        for found in store.messages():
            assert properties.property_crc_ok(message.encode(found.message))


@pytest.mark.parametrize("flush", ["SYNC", "no", ""])
def test_a_flush_that_is_none(tmp_path: Path, flush: str) -> None:
    """Not taken for async: nothing is made."""
    with pytest.raises(UsageError, match="it must be async or sync"):
        small(tmp_path, flush=flush)
    assert not (tmp_path / "store").exists()


def test_options_come_from_store_and_broker_conf(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        writer.put(NewMessage("T", b"x", store_host=bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])))
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "flushDiskType=SYNC_FLUSH\nmessageDelayLevel=1s 2m\nbrokerClusterName=c\nmaxMessageSize=1000\n"
    )
    with StoreWriter.open(writer.root, broker_conf=conf, max_message_size=2000) as again:
        options: WriteOptions = again.options
    assert options.commit_log_file_size == 64 << 10 and options.consume_queue_file_size == 2000
    assert options.index_shape == (100, 400)
    assert options.flush == "sync" and options.delays_ms == (1000, 120_000) and options.cluster == "c"
    assert options.store_host[:4] == bytes([10, 0, 0, 1])
    assert options.max_message_size == 2000


def test_a_slave_is_not_written(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        pass
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=SLAVE\n")
    with pytest.raises(RefusedError, match="SLAVE"):
        StoreWriter.open(writer.root, broker_conf=conf)


def test_several_commit_log_folders(tmp_path: Path) -> None:
    """Files are spread over them by the broker's rule; read-only ones get none."""
    with small(tmp_path) as writer:
        writer.put(NewMessage("T", b"first"))
    folders = [writer.root / "commitlog", tmp_path / "second", tmp_path / "archive"]
    for folder in folders[1:]:
        folder.mkdir()
    with StoreWriter.open(
        writer.root, commitlog_paths=folders[:2], read_only_paths=folders[2:], auto_create_queues=4
    ) as writer:
        for one in messages(1000):
            writer.put(one)
    assert len(list(folders[0].iterdir())) > 1 and len(list(folders[1].iterdir())) > 1
    assert list(folders[2].iterdir()) == []
    with Store.open(writer.root, commitlog_paths=folders[:2]) as store:
        assert len(list(store.messages())) == 1001


def test_read_only_folder_of_a_copy(tmp_path: Path) -> None:
    """broker.conf names the folder where the store was first; in a copy too it gets no files."""
    with small(tmp_path) as writer:
        writer.put(NewMessage("T", b"first"))
    archive = writer.root / "archive"
    archive.mkdir()
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "storePathRootDir=/first\nstorePathCommitLog=/first/commitlog\nreadOnlyCommitLogStorePaths=/first/archive\n"
    )
    with StoreWriter.open(writer.root, broker_conf=conf, auto_create_queues=4) as writer:
        for one in messages(1000):
            writer.put(one)
    assert len(list((writer.root / "commitlog").iterdir())) > 2
    assert list(archive.iterdir()) == []


def test_new_store_whose_log_is_named_by_another_way(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={tmp_path}/new/commitlog\n")
    with StoreWriter.create(tmp_path / "link" / "new", broker_conf=conf, **SMALL) as writer:
        writer.put(NewMessage("T", b"first"))
    assert stored(tmp_path / "new") == [b"first"]


@pytest.mark.parametrize(
    "name",
    [
        "consumequeue/New", "consumequeue/T/1", "consumequeue/T/0/00000000000000002000",
        "index/20300101000000000", "config/topics.json", "checkpoint", "lock",
        "commitlog/00000000000000065536",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_nothing_odd_is_opened(tmp_path: Path, name: str, kind: str) -> None:
    """Found before the log is written, and nothing outside of the store is touched."""
    with small(tmp_path) as writer:
        writer.put(NewMessage("T", b"x", queue_id=0))
    path, outside = writer.root / name, tmp_path / "outside"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        if kind == "link":
            outside.mkdir()
        path.symlink_to(outside)
    with pytest.raises((RefusedError, UnreadableError, UnwritableError)):
        StoreWriter.open(writer.root)
    assert not (writer.root / "abort").exists()
    assert not outside.exists() or list(outside.iterdir()) == []


def test_a_child_process_does_not_have_its_parent_s_store(tmp_path: Path) -> None:
    with small(tmp_path) as writer:
        writer.put(NewMessage("T", b"before"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: that is the point
            child = os.fork()
        if child == 0:
            status = 1
            try:
                with contextlib.suppress(UsageError):
                    writer.put(NewMessage("T", b"from the child"))
                    status = 2
                writer.close()
                status = status - 1 if status == 1 else status
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (writer.root / "abort").exists()
        writer.put(NewMessage("T", b"after"))
    assert stored(writer.root) == [b"before", b"after"]
    assert bad_findings(writer.root) == []


class _Alarm(Exception):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a thread's start was hit
def test_signals_in_the_middle_of_puts(tmp_path: Path) -> None:
    """Either nothing is wrong, or nothing more is put and the store is left as after a crash."""
    armed = broken = False

    def ring(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise _Alarm

    before = signal.signal(signal.SIGALRM, ring)
    bodies = []
    try:
        for attempt in range(10):
            writer = small(tmp_path / str(attempt))
            signal.setitimer(signal.ITIMER_REAL, 0.003 + attempt / 10_000, 0.0007)
            for number in range(500):
                one = NewMessage("T", b"%06d" % number * 50, delay_level=0 if number % 3 else 1)
                try:
                    armed = True
                    writer.put(one)
                    armed = False
                    bodies.append(one.body)
                except _Alarm:
                    continue
                except UnwritableError:
                    broken = True
                    break
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            writer.close()
            assert set(bodies) <= set(stored(writer.root))
            bodies.clear()
            if not (writer.root / "abort").exists():
                assert bad_findings(writer.root) == []
                assert not broken
            broken = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def interrupted(method: str, line: int) -> Iterator[None]:
    """Raise _Alarm before line number `line`, from 0, that `method` of the log executes; trace no further."""
    lines = count()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name != method or frame.f_globals["__name__"] != log_writer.__name__:
            return None
        if event == "line" and next(lines) == line:
            raise _Alarm
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("method", ["roll", "abandon"])
def test_a_signal_at_any_line(tmp_path: Path, method: str) -> None:
    """Each file of the log is closed once, and none with records is deleted."""
    for line in count():
        writer = small(tmp_path / str(line))
        put = []
        try:
            with interrupted(method, line):
                while writer.log.end < 3 * SMALL["commit_log_file_size"]:
                    writer.put(NewMessage("T", b"%06d" % len(put) * 50))
                    put.append(b"%06d" % len(put) * 50)
                writer.close()
        except _Alarm:
            writer.close()
        else:
            assert line > 5
            return
        assert stored(writer.root)[: len(put)] == put
        assert bad_findings(writer.root) == []


def test_the_log_of_another_store_is_refused(tmp_path: Path) -> None:
    with small(tmp_path / "a") as first, small(tmp_path / "b"):
        pass
    other = tmp_path / "b" / "store" / "commitlog"
    with pytest.raises(RefusedError, match="belongs to another store"):
        StoreWriter.open(first.root, commitlog_paths=[other])


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean"])
def test_a_broker_s_store_is_gone_on_with(store_copy: Callable[[str], Path], name: str) -> None:
    root = store_copy(name)
    with Store.open(root) as store:
        before = list(store.messages())
        profile = store.profile.name
        queue_offset = store.max_offset("pubRetry", 0)
    with StoreWriter.open(root) as writer:
        assert writer.options.profile.name == profile
        result = writer.put(NewMessage("pubRetry", b"more", tags="TagA", queue_id=0))
        assert result.queue_offset == queue_offset
    with Store.open(root) as store:
        after = list(store.messages())
        assert [found.message for found in after[:-1]] == [found.message for found in before]
        assert after[-1].message.body == b"more"
        assert not store.live
    assert bad_findings(root) == []


@pytest.mark.parametrize("name", ["bad_cl03_body_crc", "gap_cl02_zero_hole", "gap_cl08_zeroed_page"])
def test_nothing_is_appended_behind_damage_in_the_last_file(
    store_copy: Callable[[str], Path], name: str
) -> None:
    """A broker's start would end the log before what was appended."""
    root = store_copy(name)
    with unchanged(root), pytest.raises(RefusedError, match="damage in the file that the log ends in"):
        StoreWriter.open(root)


def test_queue_offsets_are_not_given_out_twice(store_copy: Callable[[str], Path]) -> None:
    """Queues that were lost, while a batch queue says that all was dispatched."""
    root = store_copy("ok_540_clean")
    shutil.rmtree(root / "consumequeue")
    with pytest.raises(RefusedError, match="lacks its unit") as refused:
        StoreWriter.open(root)
    assert not (root / "consumequeue").exists() and not (root / "abort").exists()
    assert refused.value.hint is not None and "rmqtool rebuild" in refused.value.hint


def test_the_round_robin_of_a_topic_with_very_many_queues_begins_at_once(tmp_path: Path) -> None:
    """Topics.json may say any number; the queues that there are tell where it goes on."""
    with small(tmp_path) as writer:
        writer.topics.adopt(TopicConfig("T", (1 << 31) - 1, (1 << 31) - 1))
    for expected in range(3):
        with StoreWriter.open(writer.root) as writer:
            assert writer.put(NewMessage("T", b"")).queue_id == expected


def test_sizes_are_whole_numbers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="commit log file size 1000000.0: it must be an integer"):
        small(tmp_path, commit_log_file_size=1e6)
    assert not list(tmp_path.iterdir())


def test_a_fault_in_dispatch_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the next try would succeed: what the failed one did is not known. `abort` stays."""
    writer = small(tmp_path)
    run, failed = Dispatcher.run, threading.Event()

    def faulty(self: Dispatcher, stop: int) -> int:
        if failed.is_set():
            return run(self, stop)
        failed.set()
        raise ZeroDivisionError

    monkeypatch.setattr(Dispatcher, "run", faulty)
    writer.put(messages(1)[0])
    assert failed.wait(60)
    with pytest.raises(ZeroDivisionError):
        for one in messages(50_000):
            writer.put(one)
    with pytest.raises(ZeroDivisionError):
        writer.dispatch()
    with pytest.raises(ZeroDivisionError):
        writer.close()
    assert (writer.root / "abort").exists()


def test_a_slow_device_leaves_no_topic_unnamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash behind the first record of a topic finds it in topics.json."""
    save = TopicTable.save

    def slowly(self: TopicTable) -> None:
        time.sleep(0.05)
        save(self)

    monkeypatch.setattr(TopicTable, "save", slowly)
    with small(tmp_path) as writer:
        for name in ("One", "Two", "Three"):
            writer.put(NewMessage(name, b""))
            assert f'"{name}"' in (writer.root / "config" / "topics.json").read_text()


def test_a_wrong_queue_offset_in_a_record_stops_no_writer(tmp_path: Path) -> None:
    """A broker counts its queue's units too."""
    with small(tmp_path) as writer:
        results = [writer.put(one) for one in messages(20)]
    patch(writer.root / "commitlog" / f"{0:020}", results[-1].physical_offset + 20, (77).to_bytes(8, "big"))
    with StoreWriter.open(writer.root) as writer:
        after = writer.put(replace(messages(1)[0], queue_id=results[-1].queue_id))
    assert after.queue_offset == results[-1].queue_offset + 1


@pytest.mark.parametrize("count", [1, 3000])  # read by plain code, by compiled code
def test_a_queue_offset_below_zero_stops_no_writer(tmp_path: Path, count: int) -> None:
    """No dispatch makes a unit of such a record, and recover has nothing to mend."""
    with small(tmp_path, commit_log_file_size=8 << 20, auto_create_queues=1) as writer:
        results = [writer.put(one) for one in messages(count, body=800)]
    patch(writer.root / "commitlog" / f"{0:020}", results[-1].physical_offset + 20, b"\x80" + bytes(7))
    shutil.rmtree(writer.root / "consumequeue")
    done = subprocess.run([sys.executable, "-m", "rmqtool", "recover", writer.root, "--apply"])
    assert done.returncode == (0 if count > 1 else EXIT_FINDINGS)  # it changes nothing of the only record
    with StoreWriter.open(writer.root) as writer:
        assert writer.put(messages(1)[0]).queue_offset == count - 1


@pytest.mark.parametrize("queue_id", [-1, 0, 77])
def test_a_record_that_names_another_queue_than_its_unit(tmp_path: Path, queue_id: int) -> None:
    """Rebuild leaves such a queue as it is."""
    with small(tmp_path, auto_create_queues=2) as writer:
        results = [writer.put(one) for one in messages(20)]
    assert results[-1].queue_id == 1
    where = results[-1].physical_offset + 12
    patch(writer.root / "commitlog" / f"{0:020}", where, queue_id.to_bytes(4, "big", signed=True))
    with pytest.raises(RefusedError, match=f"queue {queue_id} of TopicTest lacks its unit") as refused:
        StoreWriter.open(writer.root)
    assert refused.value.hint == f"rmqtool recover {writer.root}"
    subprocess.run([sys.executable, "-m", "rmqtool", "recover", writer.root, "--apply"], check=True)
    StoreWriter.open(writer.root).close()


def test_a_queue_that_lacks_a_unit_in_its_middle_is_refused(tmp_path: Path) -> None:
    """The units behind it have moved up: the next message would get a number that is taken."""
    with small(tmp_path) as writer:
        for one in messages(20):
            writer.put(one)
    path = writer.root / "consumequeue" / "TopicTest" / "1" / f"{0:020}"
    patch(path, 20, path.read_bytes()[40:] + bytes(20))
    with unchanged(writer.root), pytest.raises(RefusedError, match="queue 1 of TopicTest lacks its unit"):
        StoreWriter.open(writer.root)


@pytest.mark.parametrize("count", [50, 3000])  # read by plain code, by compiled code
def test_one_queue_that_was_lost_is_missed(tmp_path: Path, count: int) -> None:
    """Of every queue the last record in the last file is looked for; the log is sound until then."""
    with StoreWriter.create(tmp_path / "store", auto_create_queues=2, commit_log_file_size=8 << 20) as writer:
        for number in range(count):
            writer.put(NewMessage(f"T{number % 3}", bytes(1000)))
    with StoreWriter.open(tmp_path / "store") as writer:
        assert writer.put(NewMessage("T1", b"")).queue_offset > 5
    shutil.rmtree(tmp_path / "store" / "consumequeue" / "T0" / "1")
    with pytest.raises(RefusedError, match="queue 1 of T0 lacks its unit") as refused:
        StoreWriter.open(tmp_path / "store")
    assert "--topic T0" in str(refused.value.hint)  # without, rebuild leaves a topic that was deleted
    path = next((tmp_path / "store" / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(2000)
        file.write(b"x")
    with pytest.raises(RefusedError, match="damage in the file that the log ends in"):
        StoreWriter.open(tmp_path / "store")
