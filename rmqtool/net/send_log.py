"""A master without a broker: the log of a store, to slaves in classic or controller mode. Nothing is changed.

Each slave has a thread. What is sent are whole, sound records: a log that grows is followed, and nothing is
sent beyond damage. A slave that asks for what this log does not have is refused by closing its connection,
with a line that says why: a broker would be silent, or stream from the middle of a record.

Source: HAConnection, DefaultHAConnection; spec 04 3, 5, 8.
"""

from __future__ import annotations

import os
import socket
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.errors import (
    FormatError,
    RefusedError,
    RmqtoolError,
    UnreadableError,
    UnsupportedStoreError,
    UnwritableError,
)
from rmqtool.formats import epoch
from rmqtool.formats import replication as wire
from rmqtool.formats.epoch import Entry
from rmqtool.formats.remoting_codes import Request
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.arriving import PAD, Arriving, Stop
from rmqtool.net import broker_client
from rmqtool.net.ha_connection import HEARTBEAT_SECONDS, SILENCE_SECONDS, Address
from rmqtool.net.log_end import find_log_end, sound_end
from rmqtool.storage import config_files
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.next_command import command_on
from rmqtool.storage.open_files import opened

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

FRAME_BYTES = 32 << 10
"""haTransferBatchSize: slaves of all versions take such bodies."""
_READ_BYTES = 1 << 20
_LOOK_SECONDS = 0.1
_SLAVES_MAX = 64
_STATE_BYTES = 4
_REMEMBERED = 1000  # slaves
_STALLED_SECONDS = 60.0  # a slave that takes nothing for so long is gone


class SentLog:
    """The log of a store that may grow: its range, and its bytes. For several threads.

    `epochs` are those of its epoch file, or one for all. `start` and `end` are physical offsets. The file
    that holds the end has sound records only; each other file is checked before its first byte is read.
    """

    def __init__(self, layout: StoreLayout) -> None:
        if layout.ledger is not None:
            raise UnsupportedStoreError(
                "the commit log is in DLedger, in a form that no slave takes", path=layout.ledger.folder,
                hint="rmqtool copy takes the messages to a store without DLedger",
            )  # fmt: skip
        found = find_log_end(layout, is_unclean=layout.abort is not None)
        if found is None:
            raise UnreadableError("the store has no commit log file", path=layout.root)
        self.file_size = layout.commit_log_file_size
        self.start, self.end = found.start, found.end
        self._layout = layout
        self._files = {file.file_from_offset: file for file in layout.commit_log}
        self._arriving = Arriving()
        self._lock, self._checking = Lock(), Lock()
        self._sound_ends: dict[int, int] = {}  # of files before the end, by their start
        self.epochs = _epochs(layout, self.start)
        self._is_full = found.is_blank

    @property
    def reach(self) -> int:
        """How far a slave may have got: a full file belongs to the log once the next one is begun."""
        return self._next_start() if self._is_full else self.end

    def _next_start(self) -> int:
        return -(-self.end // self.file_size) * self.file_size

    def read(self, offset: int, length: int) -> bytes:
        """Bytes before `end`, of one file; at most `length`.

        Raises:
            RefusedError: the file has damage there, or before.
            UnreadableError: it cannot be read.
        """
        start = offset - offset % self.file_size
        end = self.end
        if start < end - end % self.file_size:
            end = self._sound_end(start, offset)
        return self._read(start, offset, min(length, end - offset))

    def _sound_end(self, start: int, offset: int) -> int:
        """How far the file that begins at `start` may be sent, if that is beyond `offset`."""
        file = self._file(start)
        with self._checking:
            if start not in self._sound_ends and file is not None:
                self._sound_ends[start] = sound_end(self._layout, file)
        end = self._sound_ends.get(start, offset + 1)  # without a file, reading it says so
        if offset >= end:
            raise RefusedError(
                "damage in the commit log: nothing is sent from there on",
                path=None if file is None else file.path, physical_offset=end,
                hint=command_on(self._layout, "recover"),
            )  # fmt: skip
        return end

    def _read(self, start: int, offset: int, length: int) -> bytes:
        file = self._file(start)
        if file is None:
            raise UnreadableError("no file of the commit log holds this offset", physical_offset=offset)
        try:
            with opened(file.path) as descriptor:
                data = os.pread(descriptor, length, offset - start)
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
        if len(data) < length:
            raise UnreadableError("the file has become shorter", path=file.path, physical_offset=offset)
        return data

    def _file(self, start: int) -> StoreFile | None:
        if start not in self._files:
            for folder in self._layout.commit_log_folders:
                path = folder / f"{start:020}"
                if path.is_file() and path.stat().st_size == self.file_size:
                    self._files[start] = StoreFile(path, start, self.file_size)
        return self._files.get(start)

    def look(self) -> None:
        """Move `end` after records that were appended since the last look. Raises UnreadableError."""
        with self._lock:
            while self._look_once():
                pass

    def _look_once(self) -> bool:
        """One piece; whether there may be more."""
        if self._is_full:  # a blank was last
            start = self._next_start()
            if self._file(start) is None or not any(self._read(start, start, PAD)):
                return False
            self._sound_ends[start - self.file_size] = start
            self.end, self._is_full = start, False
        start = self.end - self.end % self.file_size
        if self._file(start) is None:
            return False
        size = _READ_BYTES
        while True:
            length = min(size, start + self.file_size - self.end)
            data = np.frombuffer(self._read(start, self.end, length) + bytes(PAD), np.uint8)
            if self.end + length == start + self.file_size:
                data = data[:length]
            position = self.end - start
            for _ in self._arriving.rows(data, length, position, start, self.file_size):
                pass
            moved = self._arriving.position - position
            self.end += moved
            self._is_full = self._arriving.stop is Stop.BLANK
            if moved or self._arriving.stop is not Stop.MORE or length < size:
                return moved > 0 or self._is_full
            size *= 4  # one record is longer


def _epochs(layout: StoreLayout, start: int) -> list[Entry]:
    if layout.epoch is None:
        return [Entry(1, start)]
    found = epoch.decode(config_files.read_file(layout.epoch))
    if not found or not epoch.is_ordered(found):
        raise FormatError("its epochs do not rise: a slave could not follow them", path=layout.epoch)
    return found


@dataclass(slots=True)
class Slave:
    """A slave that is, or was, connected. Offsets are physical; -1: not yet."""

    address: Address
    asked: int = -1
    sent: int = -1
    acknowledged: int = -1
    bytes: int = 0
    is_connected: bool = True
    reason: str = ""


class LogSender:
    """Listens for slaves, and serves each of them in a thread. A context manager.

    Attributes:
        slaves: all that have connected, in order; of those that have gone, the newest ones.
        address: where it listens.
        failure: why the log could not be sent to one of them; the last such reason.
    """

    def __init__(
        self,
        log: SentLog,
        address: Address,
        *,
        note: Callable[[str], None],
        frame_bytes: int = FRAME_BYTES,
        controller: bool = False,
    ) -> None:
        """Listen; `controller` for slaves in controller mode.

        Raises UnwritableError if the address cannot be had.
        """
        self.log = log
        self.slaves: list[Slave] = []
        self.failure: RmqtoolError | None = None
        self._note = note
        self._frame_bytes = frame_bytes
        self._kind = _ControllerSlaveConnection if controller else _SlaveConnection
        self._stop = Event()
        self._threads: list[Thread] = []
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family, backlog=_SLAVES_MAX)
        except OSError as error:
            raise UnwritableError(f"cannot listen on {address}: {error.strerror or error}") from error
        self.address = Address(*self._socket.getsockname()[:2])
        self._socket.settimeout(_LOOK_SECONDS)

    def __enter__(self) -> LogSender:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._stop.set()
        self._socket.close()
        for thread in self._threads:
            thread.join()

    def run(self, tick: Callable[[], bool] = lambda: False) -> None:
        """Accept slaves until `tick`, called several times a second, returns True.

        Raises UnreadableError if the log cannot be read.
        """
        while not tick():
            self.log.look()
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            try:
                connection, peer = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:  # too many open files, or the peer has gone already
                self._note(f"a connection cannot be accepted: {error.strerror or error}")
                self._stop.wait(_LOOK_SECONDS)
                continue
            slave = Slave(Address(*peer[:2]))
            if len(self._threads) >= _SLAVES_MAX:
                connection.close()
                continue
            self._remember(slave)
            thread = Thread(
                target=self._serve, args=(connection, slave), name=f"slave {peer[1]}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _remember(self, slave: Slave) -> None:
        """Keep a slave, and forget the oldest of those that have gone, if there are many."""
        self.slaves.append(slave)
        if len(self.slaves) > _REMEMBERED:
            gone = next((each for each in self.slaves if not each.is_connected), slave)
            self.slaves.remove(gone)

    def _serve(self, connection: socket.socket, slave: Slave) -> None:
        try:
            with closing(connection):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._note(f"{slave.address} has connected")
                self._kind(connection, slave, self.log, self._stop, self._frame_bytes).run()
        except OSError as error:
            slave.reason = error.strerror or str(error)
        except RmqtoolError as error:
            slave.reason = error.message
            self.failure = error
        finally:
            slave.is_connected = False
            self._note(f"{slave.address} has gone: {slave.reason or 'this is the end'}")


def lead(slave: Address, sender: LogSender) -> None:
    """Tell a running 5.x slave, by the port that clients use, to connect to `sender`.

    Raises: as `broker_client.ask`; a 4.x broker refuses.

    Source: AdminBrokerProcessor#exchangeBrokerHaInfo, DefaultMessageStore#updateHaMasterAddress.
    """
    broker_client.ask(
        slave,
            Request.EXCHANGE_BROKER_HA_INFO,
        {"masterHaAddress": str(sender.address), "masterAddress": str(sender.address),
         "masterFlushOffset": str(sender.log.end), "brokerId": "0"},
    )  # fmt: skip


class _SlaveConnection:
    """One slave's connection, in classic mode."""

    def __init__(
        self, connection: socket.socket, slave: Slave, log: SentLog, stop: Event, frame_bytes: int
    ) -> None:
        self._socket = connection
        self._slave = slave
        self._log = log
        self._stop = stop
        self._frame_bytes = frame_bytes
        self._reports = bytearray()
        self._has_said_end = False
        self._heard_at = self._sent_at = time.monotonic()

    def run(self) -> None:
        """Serve until one side ends; `slave.reason` says why. Raises OSError, UnreadableError."""
        while not self._stop.is_set() and self._is_heard():
            if self._slave.asked < 0:
                continue
            if self._slave.sent < self._log.end:
                self._send_frames()
            elif not self._has_said_end or time.monotonic() - self._sent_at >= HEARTBEAT_SECONDS:
                self._send(self._head(self._slave.sent, 0))
                self._has_said_end = True  # at once: who wants only what is there need not wait

    def _is_heard(self) -> bool:
        """Read the reports that are there, and wait for one if there is nothing to send."""
        is_idle = not 0 <= self._slave.sent < self._log.end
        self._socket.settimeout(_LOOK_SECONDS if is_idle else 0.0)
        try:
            data = self._socket.recv(1 << 16)
        except (BlockingIOError, TimeoutError):
            if time.monotonic() - self._heard_at > SILENCE_SECONDS:
                return self._ends(f"it was silent for {SILENCE_SECONDS:.0f} s")
            return True
        if not data:
            return self._ends("it closed the connection")
        self._heard_at = time.monotonic()
        self._reports += data
        return self._take_reports()

    def _take_reports(self) -> bool:
        """Take what has come whole; of several reports the last one counts."""
        whole = len(self._reports) - len(self._reports) % wire.REPORT.size
        if not whole:
            return True
        (offset,) = wire.REPORT.unpack(self._reports, whole - wire.REPORT.size)
        del self._reports[:whole]
        return self._is_report(offset)

    def _is_report(self, offset: int) -> bool:
        slave, log = self._slave, self._log
        if slave.asked < 0 and offset != -1:
            if offset != 0 and not log.start <= offset <= log.reach:
                return self._ends(f"it asks for {offset}, the log has {log.start} to {log.end}")
            slave.asked = offset
            # An empty slave puts the first byte at the start of a file; brokers send their last one.
            slave.sent = self._start_of_all() if offset == 0 else offset
        elif offset > max(slave.sent, 0):
            return self._ends(f"it acknowledges {offset}, and was sent the log up to {slave.sent}")
        slave.acknowledged = offset
        return True

    def _ends(self, reason: str) -> bool:
        self._slave.reason = reason
        return False

    def _send_frames(self) -> None:
        data = memoryview(self._log.read(self._slave.sent, _READ_BYTES))
        while data and not self._stop.is_set():
            body = data[: self._body_size(self._slave.sent)]
            self._send(self._head(self._slave.sent, len(body)), body)
            self._slave.sent += len(body)
            self._slave.bytes += len(body)
            data = data[len(body) :]
        self._has_said_end = False

    def _head(self, offset: int, size: int) -> bytes:
        return wire.FRAME.pack(offset, size)

    def _body_size(self, offset: int) -> int:
        return self._frame_bytes

    def _start_of_all(self) -> int:
        """What 0 asks for: the start of a file. A broker in classic mode sends its last one."""
        return self._log.start

    def _send(self, head: bytes, body: memoryview | bytes = b"") -> None:
        self._socket.settimeout(_STALLED_SECONDS)
        self._socket.sendall(b"".join((head, body)))
        self._sent_at = time.monotonic()


class _ControllerSlaveConnection(_SlaveConnection):
    """A slave in controller mode: it says hello first, and may do so again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._from_last_file = False
        self._is_greeted = False

    def _take_reports(self) -> bool:
        """Take all messages that have come whole, one by one: their sizes differ."""
        while len(self._reports) >= _STATE_BYTES:
            state = int.from_bytes(self._reports[:_STATE_BYTES], signed=True)
            layout = {wire.STATE_HANDSHAKE: wire.HANDSHAKE, wire.STATE_TRANSFER: wire.TRANSFER_REPORT}.get(
                state
            )
            if layout is None or (layout is wire.TRANSFER_REPORT and not self._is_greeted):
                return self._ends(f"a message of state {state}: it is not in controller mode")
            if len(self._reports) < layout.size:
                break
            values = layout.unpack(self._reports)
            del self._reports[: layout.size]
            if layout is wire.HANDSHAKE:
                self._greet(from_last_file=values[1] == 1)
            elif not self._is_report(values[1]):
                return False
        return True

    def _greet(self, *, from_last_file: bool) -> None:
        self._is_greeted = True
        self._from_last_file = from_last_file
        self._slave.asked = self._slave.sent = -1
        self._send(wire.encode_answer(self._log.epochs, self._log.end))

    def _start_of_all(self) -> int:
        log = self._log
        return max(log.end - log.end % log.file_size, log.start) if self._from_last_file else log.start

    def _epoch_at(self, offset: int) -> int:
        """The index of the epoch that holds an offset."""
        return max(bisect_right(self._log.epochs, offset, key=lambda entry: entry.start_offset) - 1, 0)

    def _head(self, offset: int, size: int) -> bytes:
        entry = self._log.epochs[self._epoch_at(offset)]
        return wire.TRANSFER_FRAME.pack(wire.STATE_TRANSFER, size, offset, *entry, self._log.end)

    def _body_size(self, offset: int) -> int:
        """A frame never crosses the start of an epoch."""
        following = self._log.epochs[self._epoch_at(offset) + 1 :]
        return min([self._frame_bytes, *(entry.start_offset - offset for entry in following[:1])])
