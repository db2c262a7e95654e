"""A slave's end of an HA connection, in classic or controller mode: reports out, frames in.

One blocking socket with timeouts, for one thread. Whatever a peer sends ends in a frame, or in one error;
memory is bounded by the size of the buffer.

Source: HAService.HAClient, DefaultHAClient, AutoSwitchHAClient; spec 04 3, 5, 9.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from rmqtool.errors import FormatError, InputError
from rmqtool.formats import replication as wire
from rmqtool.formats.epoch import Entry

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 20.0
"""haHousekeepingInterval: a peer that has been silent for so long is gone."""
HEARTBEAT_SECONDS = 5.0
"""haSendHeartbeatInterval: so often at least something is sent."""
_LEARNER_ID = 1 << 62  # no id that a controller gives: it counts from 1
_BUFFER_BYTES = 8 << 20
_REPORT_SECONDS = 10.0  # a report is 8 bytes: a peer that does not take it is stalled


class Address(NamedTuple):
    """A host, or its address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectionLostError(InputError):
    """The peer closed the connection, or it was cut, or the peer is silent: connecting again may help."""


class HaConnection:
    """A connection to a master's HA port in classic mode; closed by `close`."""

    mode = "classic"
    _head = wire.FRAME
    _decode = staticmethod(wire.decode_frame)

    def __init__(self, address: Address) -> None:
        """Connect. Raises ConnectionLostError."""
        self.address = address
        self._filled = 0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        try:
            self._socket = socket.create_connection(address, CONNECT_SECONDS)
        except (OSError, OverflowError) as error:  # a port above 65535 is the latter
            raise ConnectionLostError(f"cannot connect to {address}: {_reason(error)}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read_at = self._sent_at = time.monotonic()
        self.reported = -1

    def report(self, offset: int) -> None:
        """Say that the log is held before `offset`; the first report asks for the bytes from there.

        Raises ConnectionLostError.
        """
        self._send(self._report(offset))
        self.reported = offset

    def _report(self, offset: int) -> bytes:
        return wire.REPORT.pack(offset)

    def keep_alive(self) -> None:
        """Repeat the last report if nothing was sent for a while. Raises ConnectionLostError."""
        if self.reported >= 0 and time.monotonic() - self._sent_at >= HEARTBEAT_SECONDS:
            self.report(self.reported)

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(_REPORT_SECONDS)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(_reason(error)) from error
        self._sent_at = time.monotonic()

    def frames(self, seconds: float) -> Iterator[tuple[wire.Frame, memoryview]]:
        """Wait for bytes, at most so long, and yield the frames that are complete; often none.

        A body holds until the iteration ends.

        Raises:
            ConnectionLostError: see there.
            FormatError: the peer is not a master: no master sends such bytes.
        """
        if not self._receive(seconds):
            return
        position = 0
        try:
            while self._filled - position >= self._head.size:
                frame = self._decoded(position)
                start = position + self._head.size
                if self._filled - start < frame.body_size:
                    break
                position = start + frame.body_size
                yield frame, self._view[start:position]
        finally:
            rest = self._filled - position
            if position:
                self._view[:rest] = self._view[position : self._filled]
            self._filled = rest

    def _receive(self, seconds: float) -> bool:
        """Wait for bytes, at most so long; whether some came. Raises ConnectionLostError."""
        try:
            self._socket.settimeout(seconds)
            count = self._socket.recv_into(self._view[self._filled :])
        except TimeoutError:
            if time.monotonic() - self._read_at > SILENCE_SECONDS:
                raise self._lost(f"it was silent for {SILENCE_SECONDS:.0f} s") from None
            return False
        except OSError as error:
            raise self._lost(_reason(error)) from error
        if count == 0:
            raise self._lost("it closed the connection")
        self._read_at = time.monotonic()
        self._filled += count
        return True

    def _decoded(self, position: int) -> wire.Frame:
        try:
            return self._decode(self._buffer, position)
        except FormatError as error:
            raise self._foreign(error) from error

    def _foreign(self, error: FormatError) -> FormatError:
        return FormatError(
            f"{self.address} sends {error.message}: it is not the HA port of a master in {self.mode} mode"
        )

    def _lost(self, reason: str) -> ConnectionLostError:
        return ConnectionLostError(f"the connection to {self.address} is lost: {reason}")

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()


class ControllerConnection(HaConnection):
    """The same to a master in controller mode (5.x), as a learner: never a member of the sync-state set.

    A slave that is not registered at the controller and is not a learner would make producers wait for it
    even after it has gone.
    """

    mode = "controller"
    _head = wire.TRANSFER_FRAME
    _decode = staticmethod(wire.decode_transfer_frame)

    def _report(self, offset: int) -> bytes:
        return wire.TRANSFER_REPORT.pack(wire.STATE_TRANSFER, offset)

    def handshake(self, *, from_last_file: bool) -> tuple[list[Entry], int]:
        """Say hello; returns the epochs of the master, and where its log ends.

        Raises:
            ConnectionLostError: no answer.
            FormatError: the answer is not that of a master in controller mode.
        """
        self._send(wire.HANDSHAKE.pack(wire.STATE_HANDSHAKE, from_last_file, True, _LEARNER_ID))
        answer = self._take(wire.HANDSHAKE_ANSWER.size)
        try:
            size, max_offset = wire.decode_answer(answer)
        except FormatError as error:
            raise self._foreign(error) from error
        return wire.decode_epochs(self._take(size)), max_offset

    def _take(self, size: int) -> bytes:
        end = time.monotonic() + SILENCE_SECONDS
        while self._filled < size:
            if not self._receive(max(end - time.monotonic(), 0.001)) and time.monotonic() > end:
                raise self._lost("it does not answer: perhaps it is in classic mode")
        data = bytes(self._view[:size])
        self._filled -= size
        self._view[: self._filled] = self._view[size : size + self._filled]
        return data


def _reason(error: OSError | OverflowError) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
