"""`receive` against our own sender, and against masters that misbehave: equal logs, or one clear error."""

from __future__ import annotations

import random
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest

from rmqtool import NewMessage, Store, StoreWriter
from rmqtool.errors import FormatError, InputError, RefusedError, StoreInUseError, UnwritableError, UsageError
from rmqtool.formats import message, replication
from rmqtool.formats.remoting_codes import Request
from rmqtool.net import ha_connection
from rmqtool.net import receive as receive_module
from rmqtool.net.ha_connection import Address, ConnectionLostError
from rmqtool.net.receive import Progress, missing_first_byte
from rmqtool.storage import lock
from tests.support.hard_limits import size_limit
from tests.support.programs import PATIENCE_S, RMQTOOL, started, until
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.remoting import RemotingClient, served
from tests.support.replication import (
    FILE_SIZE,
    cutting,
    log_of,
    make_master,
    put,
    read_exactly,
    receive,
    saying,
    sending,
)
from tests.support.trees import tree_digest


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three files of log."""
    return make_master(tmp_path_factory.mktemp("master") / "store")


def newest_file(root: Path) -> Path:
    """The log file that holds the end."""
    return next(path for path in sorted((root / "commitlog").iterdir())[::-1] if any(path.read_bytes()))


def frame(offset: int, body: bytes = b"") -> bytes:
    """One frame of a master."""
    return replication.FRAME.pack(offset, len(body)) + body


def records(count: int, *, start: int = 0, body: bytes = b"hello") -> list[bytes]:
    """Sound records that follow each other."""
    found: list[bytes] = []
    for number in range(count):
        place = start + sum(map(len, found))
        found.append(message.encode(record(body=body, physical_offset=place, queue_offset=number)))
    return found


def test_a_received_log_is_equal(master: Path, tmp_path: Path) -> None:
    """Of several files, from byte 0; nothing but the log is made, and a broker may start."""
    with sending(master) as sender:
        progress = receive(sender.address, tmp_path / "copy")
    assert log_of(tmp_path / "copy") == log_of(master)
    assert progress.records == 60
    assert progress.flushed == progress.acknowledged == progress.end == sender.log.end
    assert sender.slaves[0].acknowledged == sender.log.end
    assert not (tmp_path / "copy" / "abort").exists()
    with Store.open(tmp_path / "copy") as store:
        assert len(list(store.messages())) == 60


def test_it_continues_where_it_ended(tmp_path: Path) -> None:
    """A second run receives only what was appended since, and compares some of what it has."""
    root, copy = make_master(tmp_path / "master"), tmp_path / "copy"
    with sending(root) as sender:
        receive(sender.address, copy)
        assert receive(sender.address, copy).records == 0
    assert log_of(copy) == log_of(root)
    with StoreWriter.open(root) as writer:
        put(writer, 50)
    with sending(root) as sender:
        assert receive(sender.address, copy).records == 50
    assert log_of(copy) == log_of(root)


def test_it_follows_a_store_that_is_being_written(tmp_path: Path) -> None:
    """The sender sends what is appended, over the ends of files."""
    root = make_master(tmp_path / "master", 5)
    writer = StoreWriter.open(root)

    def tick(progress: Progress) -> None:
        if progress.end == sender.log.end and progress.records < 65:
            put(writer, 20)

    def enough(progress: Progress) -> None:
        tick(progress)
        if progress.records >= 65:
            raise KeyboardInterrupt

    with sending(root) as sender, pytest.raises(KeyboardInterrupt):
        receive(sender.address, tmp_path / "copy", tick=enough, once=False)
    writer.close()
    assert log_of(root).startswith(log_of(tmp_path / "copy"))
    with Store.open(tmp_path / "copy") as store:
        assert len(list(store.messages())) >= 65


def test_a_log_that_begins_later(tmp_path: Path) -> None:
    """Files that the master has deleted: its oldest is the first of the copy, its last with `last`."""
    root = make_master(tmp_path / "master")
    (root / "commitlog" / f"{0:020}").unlink()
    with sending(root) as sender:
        receive(sender.address, tmp_path / "copy", begin=FILE_SIZE + 7)
        assert receive(sender.address, tmp_path / "last", begin="last").records
    assert log_of(tmp_path / "copy") == log_of(root)
    with pytest.raises(ConnectionLostError), sending(root) as sender:
        receive(sender.address, tmp_path / "other", begin=5 * FILE_SIZE)


@pytest.mark.parametrize("place", ["end", "start"])
def test_logs_that_differ_are_refused(master: Path, tmp_path: Path, place: str) -> None:
    """In the newest part; nothing is changed, and the sender was told of nothing new."""
    copy = tmp_path / "copy"
    with sending(master) as sender:
        receive(sender.address, copy)
        path = sorted((copy / "commitlog").iterdir())[0]
        if place == "end":
            path = newest_file(copy)
        data = bytearray(path.read_bytes())
        offset = data.rindex(b"key") if place == "end" else data.index(b"key")
        data[offset : offset + 3] = b"yek"
        path.write_bytes(data)
        before = tree_digest(copy)
        with pytest.raises(RefusedError, match="differ") as caught:
            receive(sender.address, copy)
    assert caught.value.physical_offset == int(path.name) + offset
    assert tree_digest(copy) == before


def test_a_master_that_has_less_is_refused(
    master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lost messages, or is another broker: its heartbeats come before the end of the copy."""
    monkeypatch.setattr(receive_module, "HEARTBEAT_SECONDS", 0.0)
    copy, short = tmp_path / "copy", make_master(tmp_path / "short", 3)
    with sending(master) as sender:
        receive(sender.address, copy)
    before = tree_digest(copy)
    data = log_of(copy)
    beat = frame(len(data) - 100)

    def beats(connection: socket.socket) -> None:
        connection.settimeout(0.01)
        for _ in range(1000):  # until the other side has had enough
            connection.sendall(beat)
            with suppress(TimeoutError):
                if not connection.recv(1):
                    return

    offset = max(len(data) - (64 << 10), 1)
    end = len(data) - 100
    with (
        saying(frame(offset, data[offset:end]), then=beats) as address,
        pytest.raises(RefusedError) as caught,
    ):
        receive(address, copy)
    assert "the master has lost messages" in caught.value.message
    assert tree_digest(copy) == before
    with sending(short) as sender, pytest.raises((RefusedError, ConnectionLostError)):
        receive(sender.address, copy)
    assert tree_digest(copy) == before


@pytest.mark.parametrize("seed", range(6))
def test_what_a_killed_run_left_is_cleared(master: Path, tmp_path: Path, seed: int) -> None:
    """A write that was torn, pages that were lost: all within the bytes that nobody was told of."""
    rng, copy = random.Random(seed), tmp_path / "copy"
    whole = log_of(master)
    with sending(master) as sender:
        receive(sender.address, copy)
        last = sorted(path for path in (copy / "commitlog").iterdir())[1]
        (copy / "abort").write_bytes(b"")
        for path in (copy / "commitlog").iterdir():
            if path.name > last.name:
                path.unlink()
        data = bytearray(last.read_bytes())
        cut = rng.randrange(100, FILE_SIZE)
        data[cut:] = bytes(FILE_SIZE - cut)
        for _ in range(rng.randrange(3)):
            place = rng.randrange(0, FILE_SIZE, 512)
            data[place : place + 512] = bytes(512)
        last.write_bytes(data)
        receive(sender.address, copy)
    assert log_of(copy) == whole
    assert not (copy / "abort").exists()


def test_damage_that_no_killed_run_leaves_is_refused(master: Path, tmp_path: Path) -> None:
    """In a store that was closed cleanly."""
    copy = tmp_path / "copy"
    with sending(master) as sender:
        receive(sender.address, copy)
        last = newest_file(copy)
        data = bytearray(last.read_bytes())
        data[100:164] = bytes(64)
        last.write_bytes(data)
        before = tree_digest(copy)
        with pytest.raises(RefusedError, match="damage"):
            receive(sender.address, copy)
    assert tree_digest(copy) == before


@pytest.mark.parametrize("controller", [False, True])
def test_a_connection_that_is_cut_at_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controller: bool
) -> None:
    """Of heads, bodies, records and files: each cut leaves whole records, and the next goes on."""
    monkeypatch.setattr(receive_module, "_RETRY_SECONDS", (0.0,))
    root = make_master(tmp_path / "master", 4, file_size=512, size=60)
    # The answer to the handshake, and the head of a frame.
    answer, head = (replication.HANDSHAKE_ANSWER.size + 12, 36) if controller else (0, 12)
    with sending(root, frame_bytes=40, controller=controller) as sender:
        frame_size = head + 40
        total = answer + len(log_of(root)) * frame_size // 40
        # A first frame, each byte of a frame, then places in all others.
        cuts = iter(
            [answer + frame_size + 8, *range(answer + frame_size + 2), *range(answer + frame_size, total, 19)]
        )
        with cutting(sender.address, cuts) as address:
            progress = receive(address, tmp_path / "copy", retries=True, file_size=512, controller=controller)
    assert next(cuts, None) is None
    assert progress.connections > 20
    assert log_of(tmp_path / "copy") == log_of(root)


def test_a_damaged_record_is_not_stored(tmp_path: Path) -> None:
    """What came before it is kept and acknowledged; the error names its offset."""
    sound = records(4)
    bad = bytearray(sound[3])
    bad[-1] ^= 1
    bad[90] ^= 1
    reports: list[bytes] = []
    data = b"".join([*sound[:3], bytes(bad)])[1:]
    with (
        saying(frame(1, data), then=lambda connection: reports.append(connection.recv(100))) as address,
        pytest.raises(FormatError) as caught,
    ):
        receive(address, tmp_path / "copy")
    end = sum(map(len, sound[:3]))
    assert caught.value.physical_offset == end
    assert log_of(tmp_path / "copy") == b"".join(sound[:3]).rstrip(b"\0")
    with sending(tmp_path / "copy") as sender:
        assert sender.log.end == end


@pytest.mark.parametrize(
    "pieces",
    [
        (frame(1, b"x" * 100),),
        (frame(5, b"x"),),
        (struct.pack(">qi", 1, -1),),
        (struct.pack(">qi", 1, 4 << 20),),
        (struct.pack(">qi", -9, 5), b"12345"),
        (struct.pack(">qi", 1, 20), struct.pack(">i", 1 << 30)[1:], bytes(17)),
        (frame(1, records(1)[0][1:]), frame(1, records(1)[0][1:])),
        (frame(1, records(1)[0][1:]), frame(9999, b"abc")),
        (frame(1, message.encode_blank(77)[1:]),),
        (frame(1, bytes(200)),),
    ],
)  # fmt: skip
def test_what_no_master_sends_is_one_error(tmp_path: Path, pieces: tuple[bytes, ...]) -> None:
    """Sizes, gaps, repetitions, zeros, blanks of a wrong size."""
    with saying(*pieces, then=lambda connection: connection.recv(100)) as address:
        with pytest.raises(FormatError):
            receive(address, tmp_path / "copy")
    if (tmp_path / "copy" / "commitlog").exists():
        assert len(log_of(tmp_path / "copy")) <= len(records(1)[0])


def test_any_bytes_end_in_an_error(tmp_path: Path) -> None:
    """Random bytes, and frames with random bodies and heads."""
    rng = random.Random(7)
    for number in range(25):
        pieces = []
        for _ in range(rng.randrange(1, 6)):
            head = struct.pack(
                ">qi", rng.choice((1, 1, 0, rng.getrandbits(63))), rng.choice((0, 8, 300, 1 << 22))
            )
            pieces += [rng.choice((head, head, rng.randbytes(12))), rng.randbytes(rng.choice((0, 8, 300)))]
        with saying(*pieces) as address, pytest.raises(InputError):
            receive(address, tmp_path / str(number), once=False)


def test_a_silent_peer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, and then nothing comes, not even a heartbeat."""
    monkeypatch.setattr(ha_connection, "SILENCE_SECONDS", 0.0)
    with saying(then=lambda connection: connection.recv(1)) as address:
        with pytest.raises(ConnectionLostError, match="silent"):
            receive(address, tmp_path / "copy")


def test_what_is_acknowledged(tmp_path: Path) -> None:
    """Ends of whole records that are flushed; with `none` only the first report, again and again."""
    sound = records(3)
    data = b"".join(sound)
    ends = [len(sound[0]), len(sound[0] + sound[1]), len(data)]
    got: list[int] = []

    def serve(connection: socket.socket) -> None:
        place = 1
        for end in ends:
            connection.sendall(frame(place, data[place : end + 10]))
            place = min(end + 10, len(data))
            got.append(*struct.unpack(">q", read_exactly(connection, 8)))
        connection.sendall(frame(len(data)))
        connection.recv(1)

    for ack in ("flushed", "written"):
        got.clear()
        with saying(then=serve) as address:
            progress = receive(address, tmp_path / ack, ack=ack)
        assert got == ends
        assert progress.flushed == progress.end == len(data)
    with saying(
        frame(1, data[1:]), frame(len(data)), then=lambda each: got.append(len(each.recv(9)))
    ) as address:
        assert receive(address, tmp_path / "none", ack="none").acknowledged == -1
    assert got[-1] == 0


def test_what_is_not_flushed_is_bounded(
    master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --ack flushed too: after a loss of power only so much is compared with the master."""
    monkeypatch.setattr(receive_module, "_FLUSH_SECONDS", 1e9)
    monkeypatch.setattr(receive_module, "_UNFLUSHED_BYTES", 2000)
    monkeypatch.setattr(receive_module, "_BATCH_BYTES", 1000)
    unflushed: list[int] = []

    def tick(progress: Progress) -> None:
        unflushed.append(progress.end - progress.flushed)

    with sending(master, frame_bytes=500) as sender:
        progress = receive(sender.address, tmp_path / "copy", ack="written", tick=tick)
    assert max(unflushed) <= 2000
    assert progress.end == progress.flushed > 20_000


def test_until_ends_before_a_message(tmp_path: Path) -> None:
    """All that was stored before the time, and nothing after it."""
    stored = [
        record(body=b"abc", store_timestamp=STORE_TIMESTAMP + 1000 * number) for number in range(5)
    ]  # fmt: skip
    place, data = 0, b""
    for each in stored:
        data += message.encode(
            record(body=b"abc", store_timestamp=each.store_timestamp, physical_offset=place)
        )
        place = len(data)
    with saying(frame(1, data[1:]), then=lambda connection: connection.recv(1)) as address:
        progress = receive(address, tmp_path / "copy", until_ms=STORE_TIMESTAMP + 3000, once=False)
    assert (progress.records, progress.end) == (3, 3 * len(data) // 5)


def test_the_clock_of_the_host_jumps(master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By years, at each look: what waits goes by another clock, at every end of a connection."""
    jumps = cycle((0, 10**9, -(10**9), 3 * 10**8))
    true, true_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: true() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + next(jumps) * 10**9)
    with sending(master, frame_bytes=500) as sender, cutting(sender.address, iter((9000, 12_000))) as address:
        progress = receive(address, tmp_path / "copy", ack="written", retries=True, dispatch=True)
    assert log_of(tmp_path / "copy") == log_of(master)
    assert progress.connections == 3
    with served(tmp_path / "copy") as server, RemotingClient(server.port) as client:
        end = int(client.call(Request.GET_MAX_OFFSET, {"topic": "Topic", "queueId": 0}).fields["offset"])
        assert client.pull("Topic", 0, end - 1).code == 0
        began = time.monotonic()
        assert client.pull("Topic", 0, end, sysFlag=6, suspendTimeoutMillis=300).code == 19
        assert 0.3 <= time.monotonic() - began < PATIENCE_S


def test_stores_that_must_not_be_changed(master: Path, tmp_path: Path) -> None:
    """One in use, one under repair, a folder of something else, another file size, no size."""
    nobody = Address("127.0.0.1", 1)
    with sending(master) as sender:
        receive(sender.address, tmp_path / "copy")
        held = lock.acquire(tmp_path / "copy" / "lock")
        with pytest.raises(StoreInUseError):
            receive(sender.address, tmp_path / "copy")
        held.release()
        guard = tmp_path / "copy" / "commitlog" / "rmqtool-repair"
        guard.write_bytes(b"x")
        with pytest.raises(RefusedError, match="repair"):
            receive(sender.address, tmp_path / "copy")
        guard.unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(RefusedError, match="neither empty nor a store"):
        receive(nobody, tmp_path / "other")
    with pytest.raises(RefusedError, match="the files of this log have"):
        receive(nobody, tmp_path / "copy", file_size=4096)
    with pytest.raises(UsageError, match="size"):
        receive(nobody, tmp_path / "new", file_size=None)
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        receive(nobody, tmp_path / "new")


def test_paths_of_one_store(master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `..`, or through a linked folder above it, it is the same store."""
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "here")
    for path in (Path("../copy"), Path("../copy"), tmp_path / "link" / "copy", tmp_path / "copy"):
        with sending(master) as sender:
            receive(sender.address, path, dispatch=True)
    assert log_of(tmp_path / "copy") == log_of(master)


def test_a_full_disk(master: Path, tmp_path: Path) -> None:
    """The error names the file; what is whole stays, and the next run goes on."""
    copy = tmp_path / "copy"
    with sending(master) as sender:
        with size_limit(FILE_SIZE - 1), pytest.raises(UnwritableError):
            receive(sender.address, copy, reserve=False)
        receive(sender.address, copy)
    assert log_of(copy) == log_of(master)


def test_the_missing_first_byte() -> None:
    """It is the highest of the size of the first record: 0 below 16 MiB, else known from its body."""
    for size in (0, 5, (16 << 20) - 91, (16 << 20) - 90, 16 << 20, (40 << 20) + 7):
        for flags in (0, message.BORN_HOST_V6):
            host = bytes(20) if flags else bytes(8)
            head = message.encode(record(body=b"", sys_flag=flags, born_host=host))
            layout = message.head_layout(flags)
            total = len(head) + size
            head = struct.pack(">i", total) + head[4 : layout.size - 4] + struct.pack(">i", size)
            assert missing_first_byte(head) == total >> 24
    assert missing_first_byte(bytes(20)) is None


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A master with 24 MB of log."""
    root = tmp_path / "master"
    with StoreWriter.create(root, auto_create_queues=2, commit_log_file_size=1 << 20) as writer:
        for number in range(400):
            writer.put(NewMessage("Topic", bytes(range(256)) * (number % 470), keys=[f"k{number}"]))
    return root


def files_of(copy: Path) -> int:
    """How many files its log has."""
    folder = copy / "commitlog"
    return len(list(folder.iterdir())) if folder.exists() else 0


def wait_for_files(program: subprocess.Popen[bytes], copy: Path, wanted: int) -> None:
    """Until the log has so many files, or the program has ended."""
    until(lambda: program.poll() is not None or files_of(copy) >= wanted)


def test_killed_again_and_again(large: Path, tmp_path: Path) -> None:
    """SIGKILL at some moment of a run; the runs after it receive the rest, and all is equal."""
    copy, rng = tmp_path / "copy", random.Random(3)
    with sending(large, frame_bytes=4096) as sender, cutting(sender.address, iter(())) as address:
        options = ["--ha-only", "--commitlog-file-size", "1M", "--once"]
        command = [*RMQTOOL, "receive", str(address), copy, *options]
        for _ in range(2):
            wanted = files_of(copy) + rng.randrange(1, 6)
            with started(command) as program:
                wait_for_files(program, copy, wanted)
                program.send_signal(signal.SIGKILL)
                program.wait(PATIENCE_S)
        with started(command) as program:
            errors = program.communicate(timeout=PATIENCE_S)[1]
            assert program.returncode == 0, errors
    assert log_of(copy) == log_of(large)
    assert not (copy / "abort").exists()
