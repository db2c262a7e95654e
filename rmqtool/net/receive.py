"""A slave without a broker: the log of a master into a store, byte for byte, for as long as wanted.

Order of everything that happens to a byte: it arrives, its record is whole and sound, it is written, it is
flushed, it is acknowledged. After each connection the end of the log is compared with the master's bytes
before anything is appended, so that the log of another broker, or of a master that has lost messages, is
refused. The first report of a connection is an acknowledgement too: it never goes beyond what is flushed.

Source: HAService.HAClient, DefaultHAClient, AutoSwitchHAClient; spec 04 3 to 6, 9, 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rmqtool.errors import FormatError, RefusedError, RmqtoolError
from rmqtool.formats import epoch
from rmqtool.formats import message as form
from rmqtool.formats import replication as wire
from rmqtool.formats.epoch import Entry
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.arriving import PAD
from rmqtool.net import broker_client
from rmqtool.net.broker_client import BrokerFacts, RequestRefusedError
from rmqtool.net.config_sync import ConfigSync
from rmqtool.net.dispatching import Dispatching
from rmqtool.net.ha_connection import (
    HEARTBEAT_SECONDS,
    Address,
    ConnectionLostError,
    ControllerConnection,
    HaConnection,
)
from rmqtool.net.log_archive import LogArchive
from rmqtool.net.log_end import UNSYNCED_BYTES
from rmqtool.net.marks import archive_name
from rmqtool.net.replica import Replica, open_replica
from rmqtool.repair.expire.own_rules import OwnRules

if TYPE_CHECKING:
    from pathlib import Path

    Array = np.ndarray[Any, Any]

Ack = Literal["flushed", "written", "none"]
From = Literal["oldest", "last"] | int
_BATCH_BYTES = 8 << 20
"""Bytes that are written and flushed together at most, besides the rest of one record."""
_FLUSH_SECONDS = 1.0  # without --ack flushed
_UNFLUSHED_BYTES = UNSYNCED_BYTES // 2 - _BATCH_BYTES
_TICK_SECONDS = 0.2
_LEVEL_SECONDS = 0.02
_HEAD_BYTES = max(layout.size for layout in form.HEADS.values())
_RETRY_SECONDS = (0.2, 1.0, 2.0, 5.0)
_EXPIRE_SECONDS = 10.0
"""CleanCommitLogService: so often a broker looks for old files."""
_EPOCHS_MAX = 10 * wire.EPOCHS_MAX


@dataclass(slots=True)
class ReceiveRequest:
    """What is to be received.

    Attributes:
        address: of the broker; its HA port is known from its configuration.
        ha_only: `address` is the HA port: nothing else of the broker is asked.
        controller: with `ha_only`: the master is in controller mode.
        ack: what is reported to the master as safe.
        begin: where the log of a new store begins: an offset means the file that holds it.
        once: end when all that the master had at the start has been received.
        until_ms: end before the first record that was stored at this time or later.
        file_size: bytes of a commit log file; None: as the master says.
        reserve: take the space of log files when they are made.
        config_seconds: between two looks at the master's configuration; 0: never.
        retries: connect again when the connection is lost.
        max_age_seconds: delete log files that were last written at least so long ago; None: none.
        max_bytes: delete the oldest log files while those that follow hold so many bytes; None: none. With
            `dispatch`, the files of queues and index that refer only to deleted ones are deleted too.
        archive: place where full log files are shipped to, a path or URL; None: none.
        dispatch: keep queues and index too.
        truncate: in controller mode: cut what the log has after the last epoch that both logs have.
    """

    address: Address
    ha_only: bool = False
    controller: bool = False
    ack: Ack = "flushed"
    begin: From = "oldest"
    once: bool = False
    until_ms: int | None = None
    file_size: int | None = None
    reserve: bool = True
    config_seconds: float = 60.0
    retries: bool = True
    truncate: bool = False
    max_age_seconds: float | None = None
    max_bytes: int | None = None
    dispatch: bool = False
    archive: str | None = None

    @property
    def expires(self) -> bool:
        """Whether old files are deleted."""
        return self.max_age_seconds is not None or self.max_bytes is not None


@dataclass(slots=True)
class Progress:
    """What has been received by this run. Offsets are physical, -1 if unknown; times ms since 1970."""

    bytes: int = 0
    records: int = 0
    end: int = -1
    flushed: int = -1
    acknowledged: int = -1
    master_end: int = -1
    store_timestamp: int = 0
    confirmed: int = -1
    epoch: int = -1
    connections: int = 0
    is_connected: bool = False
    configs: int = 0
    truncated: int = 0
    expired: int = 0
    dispatched: int = -1
    archived: int = -1

    @property
    def lag_bytes(self) -> int | None:
        """How far the master is ahead; None if unknown."""
        return None if self.master_end < 0 or self.end < 0 else max(self.master_end - self.end, 0)


class Receiver:
    """Receives into one store, in the calling thread.

    Args:
        request: what.
        path: the store.
        note: called with lines for the user.
        hold: a block that a signal must not interrupt.
    """

    def __init__(
        self,
        request: ReceiveRequest,
        path: Path,
        *,
        note: Callable[[str], None],
        tick: Callable[[Progress], None] = lambda progress: None,
        hold: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.progress = Progress()
        self._request = request
        self._path = path
        self._note = note
        self._tick = tick
        self._hold = hold
        self._replica: Replica | None = None
        self._facts: BrokerFacts | None = None
        self._config: ConfigSync | None = None
        self._dispatching: Dispatching | None = None
        self._archive: LogArchive | None = None
        self._archive_failure: RmqtoolError | None = None  # that was reported
        self._flushed_at = self._expired_at = 0.0
        self._is_done = False
        self._has_reached = False  # the HA port of a broker that has said that it is one

    def run(self) -> Progress:
        """Receive until there is a reason to end; returns what was received.

        The first connection must succeed; after it, a lost one is made again.

        Raises:
            ConnectionLostError: the broker cannot be reached at the start, or later without `retries`.
            RefusedError: the logs do not belong together, or the store must not be written.
            StoreInUseError: its lock is held.
            FormatError: the master sends what no master sends, or a damaged record.
            UsageError, UnreadableError, UnwritableError: see `open_replica` and `LogArchive`.
        """
        request = self._request
        if request.archive is not None:
            archive_name(request.archive)  # a name that cannot be is an error before the broker is asked
        try:
            self._look()
            facts = self._facts
            replica = open_replica(
                self._path, profile=_profile_of(facts), reserve=request.reserve,
                file_size=facts.commit_log_file_size if facts is not None else request.file_size,
            )  # fmt: skip
            self._replica = replica
            replica.master = str(request.address)
            if facts is not None:
                self._config = ConfigSync(request.address, replica.root, replica.profile, self._safe_end,
                                          request.config_seconds)  # fmt: skip
            if request.dispatch:
                self._dispatching = Dispatching(
                    replica, None if facts is None else facts.settings,
                    None if facts is None else request.address, lambda: self.progress.confirmed,
                    expires=request.expires,
                )  # fmt: skip
            if request.archive is not None:
                self._archive = LogArchive(request.archive, replica, self._confirmed_end)
            self._receive(replica)
            self._finish_dispatch()
            self._finish_archive()
        finally:
            self._close()
        return self.progress

    def _confirmed_end(self) -> int:
        """Up to where the log is on the device, and no failover takes it back."""
        end, confirmed = self._safe_end(), self.progress.confirmed
        return end if confirmed < 0 else min(end, confirmed)

    def _safe_end(self) -> int:
        return 0 if self._replica is None else max(self._replica.flushed, 0)

    def _close(self) -> None:
        with self._hold():
            if self._config is not None:
                self._config.stop()
            if self._archive is not None:
                self._archive.stop()
                self.progress.archived = self._archive.archived
            if self._replica is not None:
                replica, self._replica = self._replica, None
                is_sound = False
                try:
                    if self._dispatching is not None:
                        replica.flush()
                        self._dispatching.stop()
                        self.progress.dispatched = self._dispatching.position
                    is_sound = True
                finally:
                    replica.close(is_sound=is_sound)
                    self.progress.flushed = replica.flushed

    def _finish_dispatch(self) -> None:
        """Wait until queues and index are level with the log. Raises as `run`."""
        dispatching = self._dispatching
        if dispatching is None or self._replica is None:
            return
        self._flush(self._replica)
        while not dispatching.is_level:
            dispatching.raise_failure(waits=self._request.retries)
            self._pause(_LEVEL_SECONDS)
        dispatching.raise_failure(waits=False)

    def _finish_archive(self) -> None:
        """Wait until all full files are in the archive, and delete old ones.

        Raises as `run`, also what made that fail.
        """
        archive, replica = self._archive, self._replica
        if archive is None or replica is None:
            return
        self._wait_for_archive(archive, lambda: archive.is_complete)
        self._expire(replica)
        self._wait_for_archive(archive, lambda: not archive.is_looking)
        self._expire(replica)

    def _wait_for_archive(self, archive: LogArchive, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if archive.failure is not None:
                raise archive.failure
            self._pause(_LEVEL_SECONDS)

    def _look(self) -> None:
        """Ask the broker what it is. Raises as `run`."""
        if self._request.ha_only:
            return
        self._facts = facts = broker_client.facts_of(self._request.address)
        self.progress.master_end = facts.max_offset

    # connections

    def _receive(self, replica: Replica) -> None:
        failures = 0
        while not self._is_done:
            try:
                if failures:
                    self._look()
                self._connection(replica)
            except (ConnectionLostError, RequestRefusedError) as error:
                # A peer that has been a master is one that stops or starts; another one is a mistake.
                is_master = self.progress.connections or self._has_reached
                if not is_master or not self._request.retries:
                    raise
                if self.progress.is_connected:
                    failures = 0
                self.progress.is_connected = False
                if not failures:
                    self._note(f"{error.message}; connecting again")
                self._pause(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _TICK_SECONDS))
            self._show()

    def _show(self) -> None:
        if self._dispatching is not None:
            self._dispatching.raise_failure()
            self.progress.dispatched = self._dispatching.position
        if self._archive is not None:
            self._archive.raise_bug()
            self.progress.archived, failure = self._archive.archived, self._archive.failure
            if failure is not None and failure is not self._archive_failure:
                self._note(f"archive: {failure.message}; no file that is not there is deleted; trying again")
            self._archive_failure = failure
        self._tick(self.progress)

    def _connection(self, replica: Replica) -> None:
        """One connection, until it is lost or there is a reason to end."""
        facts, address = self._facts, self._request.address
        if facts is not None:
            self._check_range(replica, facts)
            if self._request.once and not facts.max_offset:
                self._take_configuration(replica)
                return
            if self._is_over() and not facts.max_offset:
                self._is_done = True
                return
            address = Address(address.host, facts.ha_port)
        is_controller = self._request.controller if facts is None else facts.is_in_controller_mode
        connection = ControllerConnection(address) if is_controller else HaConnection(address)
        self._has_reached |= facts is not None  # a 4.9 master without messages closes the connection
        try:
            asked = _first_report(replica, facts, self._request.begin, is_controller=is_controller)
            epochs: list[Entry] = []
            if isinstance(connection, ControllerConnection):
                epochs, end = connection.handshake(from_last_file=self._request.begin == "last")
                self._check_epochs(replica, epochs, end)
                self._check_end(replica, end)
                asked = _first_report(replica, facts, self._request.begin, is_controller=True)
            oldest = facts.min_offset if facts and self._request.begin == "oldest" else None
            stream = _Stream(self.progress, replica, address, asked, oldest, epochs)
            connection.report(stream.asked)
            while not self._is_done:
                self._step(replica, connection, stream)
        finally:
            connection.close()
            if self._archive is not None:
                self._archive.forget()

    def _take_configuration(self, replica: Replica) -> None:
        """All that there is of a master without messages: 4.9 closes every HA connection until it has one.

        If messages arrive meanwhile, the HA connection is made to receive them.
        """
        replica.make()
        self._has_reached = True
        config = self._config
        if config is not None and self._request.config_seconds:
            config.start()
            while not config.written:
                config.raise_failure()
                if config.master_end > 0:
                    self._look()
                    return
                self._pause(_LEVEL_SECONDS)
            self._look_at_config()
        self._is_done = True

    def _step(self, replica: Replica, connection: HaConnection, stream: _Stream) -> None:
        got = False
        for frame, body in connection.frames(_TICK_SECONDS):
            has_bytes = stream.frame(frame, body)
            if not self.progress.is_connected:
                self._is_a_master(replica)
            if has_bytes:
                got = True
                if stream.is_full:
                    self._store(replica, connection, stream)
        if got:
            self._store(replica, connection, stream)
        elif self._request.ack != "flushed" and self._is_flush_due(replica):
            self._flush(replica)
        connection.keep_alive()
        self._look_at_config()
        with self._hold():
            self._start_followers(stream)
        if stream.is_compared and self._is_expiry_due():
            self._expire(replica)
        self._show()
        self._end_if_done(replica, stream)

    def _start_followers(self, stream: _Stream) -> None:
        """Begin to dispatch and to archive, unless that has begun, once the logs are compared."""
        if stream.is_compared:
            if self._dispatching is not None:
                self._dispatching.start()
            if self._archive is not None:
                self._archive.start()

    def _is_a_master(self, replica: Replica) -> None:
        """The first frame of a connection has come, and is one that can be."""
        self.progress.is_connected = True
        self.progress.connections += 1
        if self._config is not None:
            replica.make()
            self._config.start()

    def _store(self, replica: Replica, connection: HaConnection, stream: _Stream) -> None:
        """Append what has arrived, flush it, acknowledge it."""
        ack = self._request.ack
        with self._hold():
            try:
                stream.store(self._request.until_ms)
            finally:
                if ack == "flushed" or self._is_flush_due(replica):
                    self._flush(replica)
            if stream.is_compared:
                replica.save_epochs(stream.epochs)
            self._start_followers(stream)
            self.progress.end, self.progress.flushed = replica.end, replica.flushed
            safe = {"flushed": replica.flushed, "written": replica.end, "none": -1}[ack]
            if safe > max(connection.reported, 0) and stream.is_compared:
                connection.report(safe)
                self.progress.acknowledged = safe
        if stream.is_cut:
            self._is_done = True

    def _is_expiry_due(self) -> bool:
        """As often as a broker, and when it is known which files have copies in the archive."""
        has_answer = self._archive is not None and self._archive.has_answer
        return has_answer or time.monotonic() - self._expired_at >= _EXPIRE_SECONDS

    def _expire(self, replica: Replica) -> None:
        """Delete old files; with an archive, those whose copies it has found, and have it look for others."""
        self._expired_at = time.monotonic()
        request, rules = self._request, []
        if request.max_age_seconds is not None:
            rules.append(OwnRules(keep_hours=request.max_age_seconds / 3600))
        if request.max_bytes is not None:
            rules.append(OwnRules(before_offset=replica.flushed - request.max_bytes))
        if rules and replica.flushed > replica.start:
            with self._hold():
                now_ms = time.time_ns() // 1_000_000
                saved = until = replica.flushed if self._dispatching is None else self._dispatching.saved
                if self._archive is not None:
                    until = min(saved, self._archive.take_answer())
                self.progress.expired += replica.expire(rules, until, now_ms)
                if self._archive is not None and not self._archive.is_looking:
                    going = replica.expired(rules, min(saved, self._archive.archived), now_ms)
                    if going:
                        self._archive.look_for(going[-1].end)

    def _is_flush_due(self, replica: Replica) -> bool:
        """Bytes that are not flushed must not reach beyond what is compared after a loss of power."""
        unflushed = replica.end - replica.flushed
        return unflushed > _UNFLUSHED_BYTES or time.monotonic() - self._flushed_at > _FLUSH_SECONDS

    def _flush(self, replica: Replica) -> None:
        replica.flush()
        self._flushed_at = time.monotonic()
        self.progress.flushed = replica.flushed

    def _look_at_config(self) -> None:
        if self._config is not None:
            self._config.raise_failure()
            self.progress.configs = self._config.written
            self.progress.master_end = max(self.progress.master_end, self._config.master_end)

    def _end_if_done(self, replica: Replica, stream: _Stream) -> None:
        """End where `once` does, at the end that the master had when its configuration was fetched.

        Or where a master that has nothing more can only send what is too late for `until_ms`.
        """
        request, facts = self._request, self._facts
        is_over = self._is_over()
        if (request.once or is_over) and stream.has_nothing and (facts is None or facts.max_offset > 0):
            raise RefusedError(
                f"{replica.master} sends nothing from {stream.asked} on: its log is empty, or begins later",
                hint="without --once or --until the command waits for messages; --from last begins with the"
                " last file",
            )
        self._is_done |= is_over and (stream.is_at_end or stream.has_nothing)
        if not (request.once and (stream.is_compared or stream.has_nothing)):
            return
        if facts is None:
            self._is_done |= stream.is_at_end
        elif request.config_seconds:
            self._is_done |= self.progress.configs > 0
        else:
            self._is_done |= replica.end >= facts.max_offset

    def _is_over(self) -> bool:
        """Whether a message that is stored from now on is too late for `until_ms`."""
        return self._request.until_ms is not None and time.time() * 1000 >= self._request.until_ms

    def _check_epochs(self, replica: Replica, epochs: list[Entry], end: int) -> None:
        """Cut the log, or raise RefusedError, where by its epochs it has what the master does not have."""
        own = replica.epochs if replica.end > replica.start else []
        if not own:
            return
        point = epoch.common_end(own, replica.end, epochs, end)
        hint = "receive into a new folder, and keep this one"
        if point is None:
            raise RefusedError(f"this log and that of {replica.master} have no epoch in common",
                               path=replica.root, hint=hint)  # fmt: skip
        if point >= replica.end:
            return
        if not self._request.truncate:
            raise RefusedError(
                f"this log ends at {replica.end}, but by their epochs it and that of {replica.master} part at"
                f" {point}: a new master does not have what follows",
                path=replica.root, physical_offset=point, hint=f"{hint}; or cut it with --truncate",
            )  # fmt: skip
        with self._hold():
            length = replica.end - point
            if self._dispatching is not None:
                self._dispatching.stop()
            if self._archive is not None:
                self._archive.stop()
            replica.cut(point)
            if self._config is not None:
                self._config.fetch_again()
            self.progress.truncated += length
            self.progress.end = self.progress.flushed = point
        self._note(
            f"cut {length} bytes at {point}: {replica.master}, a new master, does not have them"
            + ("" if self._request.dispatch else "; `rmqtool rebuild` cuts queues and index")
        )

    def _check_end(self, replica: Replica, end: int) -> None:
        """Raise RefusedError if this log goes on after the `end` of the master's."""
        if replica.end > end:
            raise RefusedError(
                f"this log ends at {replica.end}, that of {replica.master} at {end}: the master has lost"
                " messages, or is another broker",
                path=replica.root, hint="receive into a new folder, and keep this one",
            )  # fmt: skip

    def _check_range(self, replica: Replica, facts: BrokerFacts) -> None:
        """Raise RefusedError unless the master's log can continue this one."""
        size = facts.commit_log_file_size
        if size != replica.file_size:
            raise RefusedError(f"the commit log files of {replica.master} have {size} bytes, those of this"
                               f" store {replica.file_size}", path=replica.root)  # fmt: skip
        if replica.end < 0:
            return
        if not facts.is_in_controller_mode:  # else the epochs say more
            self._check_end(replica, facts.max_offset)
        if replica.end < facts.min_offset or replica.start < replica.end == facts.min_offset:
            raise RefusedError(
                f"this log ends at {replica.end}, that of {replica.master} begins at {facts.min_offset}: the"
                " master has deleted what follows",
                path=replica.root, hint="receive into a new folder, and keep this one",
            )  # fmt: skip


def _first_report(
    replica: Replica, facts: BrokerFacts | None, begin: From, *, is_controller: bool = False
) -> int:
    """The offset that the first report asks from. It is at most what is flushed, because it acknowledges.

    0 asks for the last file of the master, so that the start of a log at 0 is had by asking for 1. In
    controller mode 0 asks for the oldest file, unless the handshake has asked for the last one.
    """
    if replica.end >= 0:
        low = 0 if facts is None else facts.min_offset
        return max(replica.compared_from, low, 1)
    if begin == "last":
        return 0
    if begin != "oldest":
        start = begin - begin % replica.file_size
        if facts is not None and not facts.min_offset <= start <= facts.max_offset:
            raise RefusedError(
                f"--from {begin}: the master's log has {facts.min_offset} to {facts.max_offset}"
            )
        return start if is_controller else max(start, 1)
    if is_controller:
        return 0
    if facts is None:
        return 1
    last_file = facts.max_offset - facts.max_offset % replica.file_size
    return 0 if last_file == facts.min_offset else max(facts.min_offset, 1)


def _profile_of(facts: BrokerFacts | None) -> str | None:
    """The profile of a broker of this version; None if it says none that is known."""
    from rmqtool.formats.versions import BROKERS

    if facts is None:
        return None
    numbers = facts.version.lstrip("vV").split("_")
    name = ".".join(numbers[:2])
    if name in BROKERS:
        return name
    return "4.9" if numbers[0] == "4" else None


class _Stream:
    """The bytes of one connection: compared with the log up to its end, and gathered after it.

    Attributes:
        asked: the offset of the first report.
        is_compared: the end of the log was reached, and all before it was equal.
        is_cut: the time at which the log is to end was reached.
        epochs: those of the master, as far as it has said; none in classic mode.
        is_at_end: a heartbeat came at the end of what was received: the master has nothing more.
        has_nothing: a heartbeat came before any byte to an empty store: the master has nothing to send.
    """

    def __init__(
        self,
        progress: Progress,
        replica: Replica,
        address: Address,
        asked: int,
        oldest: int | None,
        epochs: list[Entry],
    ) -> None:
        """Begin; `oldest` is where an empty store must begin, if `asked` does not say so."""
        self.asked = asked
        self.epochs = epochs
        self.is_cut = False
        self.is_at_end = False
        self.has_nothing = False
        self._progress = progress
        self._replica = replica
        self._address = address
        self._oldest = oldest
        self._next = asked
        self._is_first = True
        self._short_since: float | None = None
        self._data: Array = np.zeros(_BATCH_BYTES + PAD, np.uint8)
        self._filled = 0
        self._is_mended = False  # the first byte is one that was not sent
        self.is_compared = replica.end >= 0 and asked >= replica.end
        if self.is_compared:
            self._next = replica.end
            if asked > replica.end:  # the start of a log at 0, asked for by 1
                self._put_first_byte()
            replica.compared()

    @property
    def is_full(self) -> bool:
        """Whether what has arrived is to be stored now."""
        return self._filled >= _BATCH_BYTES

    def _put_first_byte(self) -> None:
        """The byte at 0, which cannot be asked for: it is 0 unless the first record has 16 MiB or more."""
        self._append(memoryview(b"\0"))
        self._next = 1
        self._is_mended = True

    def frame(self, frame: wire.Frame, body: memoryview) -> bool:
        """Take a frame; whether it has brought bytes to store.

        Raises:
            FormatError: it does not follow the one before it.
            RefusedError: the logs differ, or the master's is shorter.
        """
        offset = frame.physical_offset
        self._progress.confirmed = frame.confirm_offset
        if not frame.body_size:
            self._heartbeat(offset)
            return False
        if self._is_first and self._replica.end < 0:
            self._begin(offset)
        self._is_first = self.has_nothing = False
        self._short_since = None
        if offset != self._next:
            what = "a gap" if offset > self._next else "bytes again"
            raise FormatError(f"{self._address} sends {what}: {offset} where {self._next} follows",
                              physical_offset=self._next)  # fmt: skip
        self._next += len(body)
        self.is_at_end = False
        if frame.epoch is not None:
            self._note_epoch(frame.epoch)
        if not self.is_compared:
            body = self._compare(offset, body)
            if not body:
                return self.is_compared
        self._append(body)
        self._progress.bytes += len(body)
        return True

    def _note_epoch(self, found: Entry) -> None:
        """A frame before a boundary has the next epoch already, and a 5.3 master the former one after it."""
        self._progress.epoch = found.epoch
        if not self.epochs or (found.epoch > self.epochs[-1].epoch
                               and found.start_offset > self.epochs[-1].start_offset):  # fmt: skip
            if len(self.epochs) >= _EPOCHS_MAX:
                raise FormatError(f"{self._address} sends more than {_EPOCHS_MAX} epochs")
            self.epochs.append(found)

    def _begin(self, offset: int) -> None:
        """The first bytes of an empty store."""
        if self.asked == 1 == offset:
            self._replica.begin(0)
            self._put_first_byte()
        else:
            if self.asked and offset != self.asked:
                raise FormatError(f"{self._address} sends {offset} where {self.asked} was asked for")
            if self._oldest is not None and offset != self._oldest:
                self._progress.connections += 1  # it is a master, and is asked again
                raise ConnectionLostError(f"{self._address} has just begun a new file")
            self._replica.begin(offset)
            self._next = offset
        self.is_compared = True

    def _heartbeat(self, offset: int) -> None:
        if self._replica.end < 0:
            if self.asked and offset != self.asked:
                raise FormatError(
                    f"{self._address} sends a heartbeat at {offset} where {self.asked} was asked for"
                )
            self.has_nothing = True
            return
        if offset != self._next:
            raise FormatError(f"{self._address} sends a heartbeat at {offset} where {self._next} follows",
                              physical_offset=self._next)  # fmt: skip
        self.is_at_end = self.is_compared
        if self.is_compared:
            return
        # The master has less than this log, unless it only takes its time.
        now = time.monotonic()
        self._short_since = self._short_since or now
        if now - self._short_since > HEARTBEAT_SECONDS:
            raise RefusedError(
                f"this log ends at {self._replica.end}, that of {self._address} at {offset}: the master has"
                " lost messages, has deleted what follows, or is another broker",
                path=self._replica.root, hint="receive into a new folder, and keep this one",
            )  # fmt: skip

    def _compare(self, offset: int, body: memoryview) -> memoryview:
        """Compare what lies before the end of the log; returns the rest."""
        known = min(self._replica.end - offset, len(body))
        self._replica.compare(offset, body[:known])
        if self._next >= self._replica.end:
            self.is_compared = True
            self._replica.compared()
        return body[known:]

    def _append(self, body: memoryview) -> None:
        needed = self._filled + len(body) + PAD
        if needed > len(self._data):
            larger = np.zeros(max(needed, 2 * len(self._data)), np.uint8)
            larger[: self._filled] = self._data[: self._filled]
            self._data = larger
        self._data[self._filled : self._filled + len(body)] = np.frombuffer(body, np.uint8)
        self._filled += len(body)

    def store(self, until_ms: int | None) -> None:
        """Append what has arrived to the log, as far as it is whole. Raises as `Replica.take`."""
        if not self._filled:
            return
        self._data[self._filled : self._filled + PAD] = 0
        data = self._data.view()
        data.flags.writeable = False
        if self._is_mended:
            self._mend_first_byte()
        taken, reached = self._replica.take(data, self._filled, until_ms=until_ms)
        progress = self._progress
        progress.records += reached.records
        progress.store_timestamp = max(progress.store_timestamp, reached.store_timestamp)
        self.is_cut = reached.is_cut
        self._is_mended &= not taken
        rest = self._filled - taken
        self._data[:rest] = self._data[taken : self._filled].copy()
        self._filled = rest

    def _mend_first_byte(self) -> None:
        """The highest byte of the first record's size, from the size of its body."""
        first = missing_first_byte(self._data[: min(self._filled, _HEAD_BYTES)].tobytes())
        if first is not None:
            self._data[0] = first


def missing_first_byte(head: bytes) -> int | None:
    """The first byte of a record, from the others of its head; None if there are too few of them."""
    if len(head) < form.HEAD_SIZE_V4:
        return None
    layout = form.head_layout(
        int.from_bytes(head[form.SYS_FLAG_OFFSET : form.SYS_FLAG_OFFSET + 4], signed=True)
    )
    if len(head) < layout.size:
        return None
    body = max(int(layout.unpack(head)[-1]), 0)
    low = int.from_bytes(head[1:4])
    least = layout.size + body + 3  # with the lengths of topic and properties
    return min(max(-(-(least - low) // (1 << 24)), 0), 255)
