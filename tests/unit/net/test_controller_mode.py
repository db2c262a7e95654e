"""Controller mode: handshake, epochs and their file, frames at the start of an epoch; both ends are ours."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from rmqtool.errors import FormatError, InputError, RefusedError
from rmqtool.formats import epoch, replication
from rmqtool.formats.epoch import Entry
from rmqtool.net import ha_connection
from rmqtool.net.ha_connection import ConnectionLostError
from tests.support.programs import until
from tests.support.replication import (
    FILE_SIZE,
    FakeBroker,
    listening,
    log_of,
    make_master,
    read_exactly,
    receive,
    sending,
)
from tests.support.trees import tree_digest

EPOCHS = [Entry(1, 0), Entry(3, 5000), Entry(4, FILE_SIZE + 3000)]


@pytest.fixture
def master(tmp_path: Path) -> Path:
    """A store with three epochs; their starts are not starts of records, which a slave does not mind."""
    root = make_master(tmp_path / "master")
    (root / "epochFileCheckpoint").write_bytes(epoch.encode(EPOCHS))
    return root


def epochs_of(root: Path) -> list[Entry]:
    """The epochs of a store."""
    return epoch.decode((root / "epochFileCheckpoint").read_bytes())


def test_log_and_epochs_are_received(master: Path, tmp_path: Path) -> None:
    """From byte 0, as a learner; a second run has nothing to do."""
    copy = tmp_path / "copy"
    with sending(master, frame_bytes=999, controller=True) as sender:
        progress = receive(sender.address, copy, controller=True)
        assert log_of(copy) == log_of(master)
        assert epochs_of(copy) == EPOCHS
        assert (progress.epoch, progress.confirmed) == (4, sender.log.end)
        until(lambda: sender.slaves[0].acknowledged == sender.log.end)
        assert receive(sender.address, copy, controller=True).records == 0
    assert epochs_of(copy) == EPOCHS


def test_the_mode_comes_from_the_broker(master: Path, tmp_path: Path) -> None:
    """Of its configuration."""
    with sending(master, controller=True) as sender:
        fake = FakeBroker(sender)
        fake.properties["enableControllerMode"] = "true"
        with fake as address:
            receive(address, tmp_path / "copy", ha_only=False, file_size=None, config_seconds=0)
            last = receive(
                address, tmp_path / "last", ha_only=False, file_size=None, config_seconds=0, begin="last"
            )
    assert log_of(tmp_path / "copy") == log_of(master)
    start = sender.log.end - sender.log.end % FILE_SIZE
    assert last.end == sender.log.end
    assert not (tmp_path / "last" / "commitlog" / f"{start - FILE_SIZE:020}").exists()


@pytest.mark.parametrize(
    ("epochs", "point"),
    [
        ([Entry(1, 0), Entry(2, 6000)], 5000),  # the other part of the pair became master
        ([Entry(1, 0), Entry(3, 5000), Entry(5, FILE_SIZE + 4000)], FILE_SIZE + 3000),
        ([Entry(7, 0)], None),
    ],
)
def test_a_master_that_lacks_the_end_is_refused(
    master: Path, tmp_path: Path, epochs: list[Entry], point: int | None
) -> None:
    """By the epochs alone, with the offset where the logs part; nothing is changed."""
    copy = tmp_path / "copy"
    with sending(master, controller=True) as sender:
        receive(sender.address, copy, controller=True)
    (master / "epochFileCheckpoint").write_bytes(epoch.encode(epochs))
    before = tree_digest(copy)
    with sending(master, controller=True) as sender, pytest.raises(RefusedError) as caught:
        receive(sender.address, copy, controller=True)
    assert caught.value.physical_offset == point
    assert tree_digest(copy) == before


def test_an_epoch_is_written_once_the_log_has_its_start(master: Path, tmp_path: Path) -> None:
    """A frame before a boundary says the next epoch already; a cut there leaves a file without it."""
    data = log_of(master)
    frames = [
        (0, 4000, Entry(1, 0)), (4000, 5000, Entry(3, 5000)), (5000, 9000, Entry(3, 5000)),
        (9000, 9000, Entry(1, 0)),
    ]  # fmt: skip
    seen: list[list[Entry]] = []

    def serve(connection: socket.socket) -> None:
        read_exactly(connection, replication.HANDSHAKE.size)
        connection.sendall(replication.encode_answer([Entry(1, 0)], len(data)))
        read_exactly(connection, replication.TRANSFER_REPORT.size)
        for start, stop, entry in frames:
            head = replication.TRANSFER_FRAME.pack(2, stop - start, start, *entry, 77)
            connection.sendall(head + data[start:stop])
            if stop > start:
                read_exactly(connection, replication.TRANSFER_REPORT.size)
                seen.append(epochs_of(tmp_path / "copy"))

    with listening(serve) as address:
        progress = receive(address, tmp_path / "copy", controller=True)
    assert progress.confirmed == 77
    assert seen == [[Entry(1, 0)], [Entry(1, 0)], [Entry(1, 0), Entry(3, 5000)]]


def test_the_other_mode_is_one_error(master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classic master does not answer a handshake; one in controller mode takes no classic report."""
    monkeypatch.setattr(ha_connection, "SILENCE_SECONDS", 0.2)
    with sending(master) as sender, pytest.raises(ConnectionLostError):
        receive(sender.address, tmp_path / "a", controller=True)
    with sending(master, controller=True) as sender:
        with pytest.raises(ConnectionLostError, match="closed"):
            receive(sender.address, tmp_path / "b")
        assert "not in controller mode" in sender.slaves[0].reason


@pytest.mark.parametrize("seed", range(20))
def test_any_answer_ends_in_an_error(tmp_path: Path, seed: int) -> None:
    """Random bytes, and answers with random numbers."""
    rng = random.Random(seed)
    answer = replication.HANDSHAKE_ANSWER.pack(
        rng.choice((1, 1, 2)), rng.choice((0, 12, 24, 13, -12, 1 << 30)), rng.choice((0, 500, -1)), 1
    )
    data = rng.choice((answer, answer, b"")) + rng.randbytes(rng.choice((0, 24, 300)))

    def serve(connection: socket.socket) -> None:
        read_exactly(connection, replication.HANDSHAKE.size)
        connection.sendall(data)

    with listening(serve) as address, pytest.raises(InputError):
        receive(address, tmp_path / "copy", controller=True, once=False)


def test_epochs_that_do_not_rise_are_not_sent(master: Path) -> None:
    """A slave could not follow them: 5.4 slaves leave such lists."""
    (master / "epochFileCheckpoint").write_bytes(epoch.encode([Entry(1, 500), Entry(2, 0)]))
    with pytest.raises(FormatError, match="rise"), sending(master, controller=True):
        pass


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "common"),
    [
        ([(1, 0)], 100, [(1, 0)], 90, 90),
        ([(1, 0)], 100, [(1, 0)], 120, 100),
        ([(1, 0), (2, 50)], 100, [(1, 0), (3, 70)], 200, 50),
        ([(1, 0), (3, 70)], 100, [(1, 0), (2, 50), (3, 70)], 200, 100),
        ([(1, 0), (2, 50)], 100, [(1, 0), (2, 60)], 200, 50),
        ([(1, 0)], 100, [(2, 50)], 200, None),
        ([], 100, [(1, 0)], 200, None),
        ([(1, 0)], 100, [], 200, None),
    ],
)
def test_where_two_logs_part(
    ours: list[tuple[int, int]],
    our_end: int,
    theirs: list[tuple[int, int]],
    their_end: int,
    common: int | None,
) -> None:
    """The newest epoch that both have with the same start, and the first of its two ends."""
    a, b = [Entry(*each) for each in ours], [Entry(*each) for each in theirs]
    assert epoch.common_end(a, our_end, b, their_end) == common
    assert epoch.common_end(b, their_end, a, our_end) == common
