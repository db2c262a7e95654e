"""`receive --dispatch`: queues and index of a received store, level with its log."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Selection, StoreWriter
from rmqtool.check.verify import verify
from rmqtool.errors import FormatError, InputError, RefusedError
from rmqtool.formats import epoch
from rmqtool.formats import index as form
from rmqtool.formats.epoch import Entry
from rmqtool.formats.index import DEFAULT_SHAPE, Shape
from rmqtool.formats.remoting_codes import Request
from rmqtool.net import dispatching
from rmqtool.net import receive as receive_module
from rmqtool.net.marks import CLOSED, DISPATCHED
from rmqtool.net.receive import Progress, Receiver, ReceiveRequest
from rmqtool.net.serve import Options
from rmqtool.read.store import Store
from rmqtool.storage.layout import detect
from rmqtool.write.cut_back import cut_back
from tests.support.programs import until
from tests.support.rebuild_checks import index_entries, queue_files
from tests.support.remoting import RemotingClient, records, served
from tests.support.replication import FILE_SIZE, FakeBroker, log_of, make_master, put, receive, sending
from tests.support.sweep import in_sweeps


def severe(root: Path) -> list[dict[str, Any]]:
    """What `verify` says about queues and index that is more than a note."""
    with Store.open(root) as store:
        found = [item for item in verify(store, jobs=1) if item.problem.code[:2] in ("CQ", "IX", "CP")]
    return [item.row() for item in found if item.problem.severity != "note"]


def entries(root: Path) -> list[tuple[int, int]]:
    """The entries of the index."""
    layout = detect(root)
    return index_entries(root, Shape(layout.index_slots, layout.index_entries))


def check_equal(copy: Path, root: Path) -> None:
    """Queues and index have what those of the master have."""
    assert queue_files(copy) == queue_files(root)
    assert entries(copy) == entries(root)
    assert severe(copy) == []
    assert DISPATCHED.read(copy) == (len(log_of(root)), CLOSED)


def test_queues_and_index_are_those_of_the_master(tmp_path: Path) -> None:
    """Byte for byte the queues; a writer opens the copy, and finds nothing to dispatch."""
    root, copy = make_master(tmp_path / "master"), tmp_path / "copy"
    with sending(root) as sender:
        progress = receive(sender.address, copy, dispatch=True)
    assert progress.dispatched == progress.end == sender.log.end
    check_equal(copy, root)
    with Store.open(copy) as store:
        assert store.newest_units().end == sender.log.end
        assert len(list(store.messages(Selection(keys=["key7"])))) == 1
    with StoreWriter.open(copy) as writer:
        assert writer.dispatch() == sender.log.end


def test_a_run_goes_on_where_queues_end(tmp_path: Path) -> None:
    """Also after a run that did not dispatch, which may have been the first one."""
    root, copy = make_master(tmp_path / "master", 40), tmp_path / "copy"
    for dispatches in (False, True, True, False, False, True):
        with sending(root) as sender:
            progress = receive(sender.address, copy, dispatch=dispatches)
        assert progress.dispatched == (sender.log.end if dispatches else -1)
        with StoreWriter.open(root) as writer:
            put(writer, 7)
    with sending(root) as sender:
        receive(sender.address, copy, dispatch=True)
    check_equal(copy, root)


class EndedError(Exception):
    """The run has come so far."""


def test_what_is_acknowledged_is_dispatched_at_the_end(tmp_path: Path) -> None:
    """Also where the first bytes have just been acknowledged when the run is interrupted."""
    root, copy = make_master(tmp_path / "master", 20), tmp_path / "copy"

    @contextmanager
    def hold() -> Iterator[None]:
        before = receiver.progress.acknowledged
        yield
        if receiver.progress.acknowledged > before:
            raise EndedError

    with sending(root, frame_bytes=4 << 10) as sender:
        request = ReceiveRequest(sender.address, ha_only=True, file_size=FILE_SIZE, dispatch=True)
        receiver = Receiver(request, copy, note=lambda text: None, hold=hold)
        with pytest.raises(EndedError):
            receiver.run()
    assert receiver.progress.dispatched == receiver.progress.end > 0
    assert DISPATCHED.read(copy) == (receiver.progress.end, CLOSED)
    assert severe(copy) == []


def test_a_consumer_waits_at_a_store_that_is_received(tmp_path: Path) -> None:
    """`serve --live` reads it meanwhile: a pull that waits has the next message once it has arrived."""
    root, copy, ended = make_master(tmp_path / "master", 5), tmp_path / "copy", threading.Event()
    with sending(root) as sender, StoreWriter.open(root) as writer:

        def tick(progress: Progress) -> None:
            if ended.is_set():
                raise EndedError

        def run() -> None:
            with suppress(EndedError):
                receive(sender.address, copy, once=False, dispatch=True, tick=tick)

        receiver = threading.Thread(target=run)
        receiver.start()
        try:
            until(lambda: (copy / "consumequeue" / "Topic" / "1").exists())
            with served(copy, Options(live=True)) as server, RemotingClient(server.port) as client:
                at = {"topic": "Topic", "queueId": 0}
                with Store.open(root) as store:
                    end = store.max_offset("Topic", 0)
                until(lambda: client.call(Request.GET_MAX_OFFSET, at).fields["offset"] == str(end))
                wanted = {
                    **at, "consumerGroup": "G", "queueOffset": end, "maxMsgNums": 32, "sysFlag": 6,
                    "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subscription": "*",
                }  # fmt: skip
                number = client.send(Request.PULL_MESSAGE, wanted)
                until(lambda: server.server.held.count == 1)
                writer.put(NewMessage("Topic", b"has arrived", queue_id=0))
                writer.flush()
                assert [each.body for each in records(client.answer(number).body)] == [b"has arrived"]
        finally:
            ended.set()
            receiver.join()


def test_a_log_that_begins_later(tmp_path: Path) -> None:
    """The queues begin at the offsets of their first records, as a broker's."""
    root, copy = make_master(tmp_path / "master", 150), tmp_path / "copy"
    with sending(root) as sender:
        receive(sender.address, copy, dispatch=True, begin=2 * FILE_SIZE)
    with Store.open(copy) as store, Store.open(root) as whole:
        there = [one.message.queue_offset for one in store.messages(Selection(topics=["Topic"]))]
        assert there == [
            one.message.queue_offset
            for one in whole.messages(Selection(topics=["Topic"]))
            if one.physical_offset >= 2 * FILE_SIZE
        ]
    assert severe(copy) == []


def test_settings_of_the_master(tmp_path: Path) -> None:
    """Sizes of queue and index files, delay levels, and whether there is an index."""
    root, copy = make_master(tmp_path / "master"), tmp_path / "copy"
    with sending(root) as sender:
        fake = FakeBroker(sender)
        fake.properties |= {"mappedFileSizeConsumeQueue": "101", "maxHashSlotNum": "11", "maxIndexNum": "30",
                            "messageDelayLevel": "1s 7s"}  # fmt: skip
        with fake as address:
            receive(address, copy, dispatch=True, ha_only=False, file_size=None)
            layout = detect(copy)
            assert (layout.consume_queue_file_size, layout.index_slots, layout.index_entries) == (120, 11, 30)
            assert severe(copy) == []
            fake.properties["maxIndexNum"] = "1"
            with pytest.raises(InputError, match="configuration of 127.*maxIndexNum is 1"):
                receive(address, tmp_path / "other", dispatch=True, ha_only=False, file_size=None)
            fake.properties |= {"maxIndexNum": "30", "messageIndexEnable": "false"}
            receive(address, tmp_path / "none", dispatch=True, ha_only=False, file_size=None)
    assert not any((tmp_path / "none" / "index").iterdir())
    assert queue_files(tmp_path / "none") == queue_files(copy)


def batch_master(root: Path) -> Path:
    """A store with a plain topic and one whose queues are batch queues."""
    from rmqtool import NewMessage

    with StoreWriter.create(root, commit_log_file_size=FILE_SIZE, auto_create_queues=1) as writer:
        writer.put(NewMessage("Plain", b"1"))
        writer.topics.add("Batch", queues=1, attributes={"queue.type": "BatchCQ"})
        writer.put(NewMessage("Batch", b"2"))
    return root


def answer_of(root: Path, *topics: str) -> bytes:
    """The answer of a broker that has these topics."""
    table = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    return json.dumps({"topicConfigTable": {name: table[name] for name in topics}}).encode()


def test_batch_queues_are_known_from_the_master(tmp_path: Path) -> None:
    """A topic that is made later is asked for again: never is a queue of the wrong kind made."""
    root, copy = batch_master(tmp_path / "master"), tmp_path / "copy"
    with sending(root) as sender:
        fake = FakeBroker(sender)
        fake.documents[Request.GET_ALL_TOPIC_CONFIG] = answer_of(root, "Plain", "Batch")
        with fake as address:
            receive(address, copy, dispatch=True, ha_only=False, file_size=None, config_seconds=0)
            assert fake.asked.count(Request.GET_ALL_TOPIC_CONFIG) == 1
    assert queue_files(copy) == queue_files(root)
    assert any(name.startswith("batchconsumequeue/") for name in queue_files(copy))


@pytest.mark.parametrize("count", [3, 4000])
def test_batch_queues_are_known_from_inner_batches(tmp_path: Path, count: int) -> None:
    """No topics.json and no broker state the type; plain and compiled dispatch agree."""
    from rmqtool import NewMessage

    root, copy = tmp_path / "master", tmp_path / "copy"
    with StoreWriter.create(root, commit_log_file_size=1 << 20, auto_create_queues=1) as writer:
        writer.topics.add("Batch", queues=2, attributes={"queue.type": "BatchCQ"})
        for number in range(count):
            writer.put(NewMessage("Plain", b"1"))
            writer.put_batch([NewMessage("Batch", b"%d" % each, queue_id=number % 2) for each in range(4)])
            writer.put(NewMessage("Batch", b"2", queue_id=number % 2))
    with sending(root) as sender:
        receive(sender.address, copy, dispatch=True, file_size=1 << 20)
    assert queue_files(copy) == queue_files(root)
    assert not (copy / "consumequeue" / "Batch").exists()


def test_a_master_that_does_not_say_its_topics(tmp_path: Path) -> None:
    """It is waited for; without --reconnect that is the end, and the log is there."""
    root, copy = batch_master(tmp_path / "master"), tmp_path / "copy"
    with sending(root) as sender:
        fake = FakeBroker(sender)
        del fake.documents[Request.GET_ALL_TOPIC_CONFIG]
        fake.documents[Request.GET_ALL_TOPIC_CONFIG] = b"{nothing"
        request: dict[str, Any] = {"dispatch": True, "ha_only": False, "file_size": None, "config_seconds": 0}
        with fake as address:
            with pytest.raises(FormatError, match="cannot be read"):
                receive(address, copy, **request)
            assert log_of(copy) == log_of(root)
            fake.documents[Request.GET_ALL_TOPIC_CONFIG] = answer_of(root, "Plain", "Batch")
            receive(address, copy, **request)
    assert queue_files(copy) == queue_files(root)


def test_queues_of_unknown_origin_are_refused(tmp_path: Path) -> None:
    """A broker that was killed here: `rebuild` makes them, and the next run goes on."""
    root, copy = make_master(tmp_path / "master"), tmp_path / "copy"
    with sending(root) as sender:
        receive(sender.address, copy, dispatch=True)
        (copy / DISPATCHED.name).unlink()
        (copy / "abort").write_bytes(b"")
        with pytest.raises(RefusedError, match="not known") as caught:
            receive(sender.address, copy, dispatch=True)
        assert caught.value.hint is not None
        assert "rebuild" in caught.value.hint
        (copy / DISPATCHED.name).write_text("12 maybe\n")
        with pytest.raises(FormatError, match="dispatched") as unread:
            receive(sender.address, copy, dispatch=True)
        assert unread.value.path == copy / DISPATCHED.name
        (copy / DISPATCHED.name).unlink()
        receive(sender.address, copy, dispatch=True)
    check_equal(copy, root)


def test_what_a_failover_cuts_leaves_the_queues(tmp_path: Path) -> None:
    """Of a log that is cut, also by a run that does not dispatch, and filled again."""
    root, other = make_master(tmp_path / "master", 40), make_master(tmp_path / "other", 40)
    with Store.open(root) as store:
        point = [one.physical_offset for one in store.messages()][20]
    (root / "epochFileCheckpoint").write_bytes(epoch.encode([Entry(1, 0), Entry(2, point)]))
    (other / "epochFileCheckpoint").write_bytes(epoch.encode([Entry(1, 0), Entry(3, point)]))
    # The logs are equal up to `point`: the same bodies, and store times that nobody compares in between.
    for path in sorted((root / "commitlog").iterdir()):
        data = bytearray((other / "commitlog" / path.name).read_bytes())
        keep = min(max(point - int(path.name), 0), len(data))
        data[:keep] = path.read_bytes()[:keep]
        (other / "commitlog" / path.name).write_bytes(data)
    for first, second in ((True, True), (False, True), (True, False), (False, False)):
        copy = tmp_path / f"copy{first}{second}"
        with sending(root, controller=True) as sender:
            receive(sender.address, copy, controller=True, dispatch=True)
        with sending(other, controller=True) as sender:
            progress = receive(sender.address, copy, controller=True, truncate=True, dispatch=first)
            assert progress.truncated > 0
            receive(sender.address, copy, controller=True, dispatch=second)
            receive(sender.address, copy, controller=True, dispatch=True)
        assert log_of(copy) == log_of(other)
        assert severe(copy) == []
        with Store.open(copy) as store:
            assert len(list(store.messages(Selection(topics=["Topic"])))) == 40
            for number in (3, 30):
                assert len(list(store.messages(Selection(keys=[f"key{number}"])))) == 1


def test_a_mark_beyond_the_log(tmp_path: Path) -> None:
    """It is not known up to where queues are complete: the end of the log is not taken for it."""
    root, copy = make_master(tmp_path / "master", 40), tmp_path / "copy"
    with sending(root) as sender:
        receive(sender.address, copy, dispatch=True)
        for mark in (f"{sender.log.end + 1} closed\n", "999999999999 open\n"):
            (copy / DISPATCHED.name).write_text(mark)
            before = queue_files(copy)
            with pytest.raises(RefusedError, match="but the log ends at") as caught:
                receive(sender.address, copy, dispatch=True)
            assert "rmqtool rebuild" in str(caught.value.hint)
            assert (copy / DISPATCHED.name).read_text() == mark
            assert queue_files(copy) == before
        (copy / DISPATCHED.name).unlink()
        receive(sender.address, copy, dispatch=True)
    check_equal(copy, root)


def test_nothing_expires_before_it_is_dispatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log files whose queues and index are not on the device stay."""
    monkeypatch.setattr(receive_module, "_EXPIRE_SECONDS", 0.0)
    monkeypatch.setattr(dispatching, "_SAVE_MS", 3_600_000)
    root, copy = make_master(tmp_path / "master", 150), tmp_path / "copy"
    with sending(root) as sender:
        progress = receive(sender.address, copy, dispatch=True, max_bytes=1)
        assert progress.expired == 0
        monkeypatch.setattr(dispatching, "_SAVE_MS", 0)
        assert receive(sender.address, copy, dispatch=True, max_bytes=1).expired == 5 * FILE_SIZE
    assert severe(copy) == []


@pytest.mark.sweep
@pytest.mark.parametrize("place", [0, 700, *in_sweeps([1, FILE_SIZE, 3 * FILE_SIZE, 1 << 40])])
def test_cut_back(tmp_path: Path, place: int) -> None:
    """What stays are the units and entries of records before the offset; the slots fit."""
    root = make_master(tmp_path / "master", 120)
    wanted = [entry for entry in entries(root) if entry[0] < place]
    with Store.open(root) as store:
        offsets = [one.physical_offset for one in store.messages() if one.physical_offset < place]
        times = {one.physical_offset: one.message.store_timestamp for one in store.messages()}
        cut_back(store.layout, place, DEFAULT_SHAPE, times.get)
    if not wanted:
        assert not any((root / "index").iterdir())
        assert queue_files(root) == {}
        return
    assert entries(root) == wanted
    with Store.open(root) as store:
        found = [one.physical_offset for one in store.messages(Selection(topics=["Topic"]))]
        assert sorted(found)[: len(offsets)] == offsets
        codes = {item.problem.code for item in verify(store, jobs=1) if item.problem.severity != "note"}
    assert codes <= {"CQ02", "CQ13", "IX10"}  # units and entries are missing, none are wrong


@pytest.mark.parametrize(
    ("size", "begin", "stays"),
    [(100, 5000, False), (100, 4999, True), (0, 0, False), (DEFAULT_SHAPE.size + 20, 5000, True)],
)
def test_an_index_file_of_another_size(tmp_path: Path, size: int, begin: int, stays: bool) -> None:
    """A loss of power leaves a new file short; one with records before the offset has another shape."""
    root = make_master(tmp_path / "master", 5)
    (path,) = (root / "index").iterdir()
    with path.open("r+b") as file:
        file.write(form.encode_header(form.Header(1, 2, begin, 6000, 3, 4)))
        file.truncate(size)
    with Store.open(root) as store:
        cut_back(store.layout, 5000, DEFAULT_SHAPE, dict[int, int]().get)
    assert path.exists() == stays
    if stays:
        return
    for newest, is_kept in (
        (path.name, False),
        ("20190101000000000", True),
    ):  # after a whole one, and before it
        for name, length in ((newest, 100), ("20200101000000000", DEFAULT_SHAPE.size)):
            with path.with_name(name).open("wb") as file:
                file.write(form.encode_header(form.Header(1, 2, 4999, 6000, 3, 4)))
                file.truncate(length)
        with Store.open(root) as store:
            cut_back(store.layout, 5000, DEFAULT_SHAPE, dict[int, int]().get)
        assert path.with_name(newest).exists() == is_kept
