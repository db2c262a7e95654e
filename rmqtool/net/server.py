"""Connections: frames in, answers out, and the limits that keep a client from harming the others.

One thread runs the loop: small reads of a local store are made in it. What may take long, and every read of a
remote store, is done by one other thread with a view of its own.

A client that does not read its answers is not read from either, and is closed when it makes no progress.
Bytes that are not a frame close the connection.

Source: NettyRemotingServer, NettyRemotingAbstract#processRequestCommand, NettyServerConfig (idle times).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rmqtool.errors import FormatError, InputError, RmqtoolError, UnwritableError
from rmqtool.formats.remoting import ONE_WAY, Command, Frames, encode
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.lazy_dataclass import dataclass
from rmqtool.net.context import Context, Refusal
from rmqtool.net.ha_connection import Address
from rmqtool.net.pulls import HeldPulls, Outcome, Pull, read_pull, run_pull, timed_out
from rmqtool.net.requests import HANDLERS, PULLS, Needs, answer, error_answer, refused
from rmqtool.net.view import View

_POLL_S = 0.01  # how often a live store is looked at, for pulls that wait
_POLL_SHARE = 10  # a look that takes long is made seldom: it may take a tenth of the time
_DUE_S = 0.1
_HOUSEKEEPING_S = 1.0
_SAVE_S = 5.0
_ARRIVING_BYTES = 256 << 10  # read at once
VIP_DISTANCE = 2
"""So far below its port a broker listens too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client, and all of them, may take."""

    connections: int = 1000
    held_pulls: int = 100_000
    held_pulls_of_one: int = 20_000
    unsent_bytes: int = 1 << 20
    pending_bytes: int = 64 << 20  # incomplete frames of all connections
    all_unsent_bytes: int = 256 << 20  # answers of all connections that were not taken
    lookups: int = 256  # requests that wait for the other thread
    lookups_of_one: int = 16
    stalled_s: float = 30.0
    idle_s: float = 120.0
    handshake_s: float = 10.0  # of TLS


async def turns() -> None:
    """Let the event loop do all that is due, and what follows: a connection has its task after four turns."""
    for _ in range(8):
        await asyncio.sleep(0)


async def stop_listening(server: asyncio.Server) -> None:
    """Close the listening sockets; what was accepted before has become a connection when this returns.

    Accepting ends first, and the sockets are closed afterwards: Python 3.11 cannot make a connection for a
    server that is closed, and would leave the accepted socket open.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await turns()
    server.close()


class Server:
    """A store for clients, on one port, or on the two that a broker has.

    Args:
        context: names, offsets, clients.
        view: the store; of a local one, for the loop.
        open_view: makes another view of a local store, for the other thread.
        note: takes texts for the operator.
    """

    def __init__(
        self,
        context: Context,
        view: View,
        open_view: Callable[[], View],
        *,
        note: Callable[[str], None],
        limits: Limits | None = None,
    ) -> None:
        self.context = context
        self.view = view
        self.limits = limits or Limits()
        self.held = HeldPulls(self.limits.held_pulls, self.limits.held_pulls_of_one)
        self.connections: set[Connection] = set()
        self.pending_bytes = 0
        self.unsent_bytes = 0
        self.arriving = memoryview(bytearray(_ARRIVING_BYTES))
        self._open_view = open_view
        self._is_local = view.store.is_local
        self._other_view: View | None = None
        self.note = note
        self._executor = ThreadPoolExecutor(1, "rmqtool-lookups")
        self._lookups: set[asyncio.Future[Any]] = set()
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None

    @property
    def lookups(self) -> int:
        """How many requests wait for the other thread, or are answered by it."""
        return len(self._lookups)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port. Raises OSError."""
        found = await self._listen(host, port, tls)
        self._ticker = asyncio.create_task(self._tick())
        if self._is_local:
            self._loading = asyncio.create_task(asyncio.to_thread(self.context.whole.load))
        return found

    async def start_vip_channel(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen on the second port of a server that listens on `port`, as a broker does. Raises OSError.

        Clients with vipChannelEnabled, of which the dashboard is one, ask there. Routes name `port` to them
        too: they find the other one themselves.

        Source: MixAll#brokerVIPChannel, BrokerController (fastRemotingServer).
        """
        await self._listen(host, port - VIP_DISTANCE, tls, named_port=port)

    async def _listen(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, named_port: int | None = None
    ) -> int:
        patience = None if tls is None else self.limits.handshake_s
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self, named_port), host, port, ssl=tls, ssl_handshake_timeout=patience,
            backlog=128,
        )  # fmt: skip
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End all connections and look-ups, and save what has been committed."""
        for server in self._servers:
            await stop_listening(server)
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        for connection in list(self.connections):
            connection.abort()
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._lookups:  # one is being made, the others are cancelled
            await asyncio.wait(self._lookups)
        if self._loading is not None:
            await self._loading
        for server in self._servers:
            await server.wait_closed()
        await turns()  # a connection closes its socket a turn after it was aborted
        if self._other_view is not None:
            self._other_view.close()
        await self.save()

    # requests

    def receive(self, request: Command, peer: Connection) -> None:
        """Answer a request, now or later."""
        self.context.counters.request(request.code)
        if request.is_response:
            return  # to a notice, which wants none
        if self.unsent_bytes > self.limits.all_unsent_bytes:
            peer.answer(request, request.answer(Response.SYSTEM_BUSY, "too many answers were not taken"))
            return
        if request.code in PULLS:
            self._pull(request, peer)
            return
        entry = HANDLERS.get(request.code)
        if entry is None:
            peer.answer(request, refused(request))
        elif entry.needs is Needs.MEMORY or (entry.needs is Needs.STORE and self._is_local):
            peer.answer(request, answer(self.context, self.view, request, peer, entry.handler))
        else:
            handler = entry.handler
            self._in_other_thread(
                request,
                peer,
                lambda view: answer(self.context, view, request, peer, handler),
                lambda found: peer.answer(request, found),
            )

    def _in_other_thread(
        self, request: Command, peer: Connection, work: Callable[[View], Any], done: Callable[[Any], None]
    ) -> None:
        if len(self._lookups) >= self.limits.lookups:
            peer.answer(request, request.answer(Response.SYSTEM_BUSY, "too many look-ups wait"))
            return
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._with_view, work)
        self._lookups.add(future)
        peer.begin_lookup()

        def ended(future: asyncio.Future[Any]) -> None:
            self._lookups.discard(future)
            peer.end_lookup()
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                done(future.result())
            elif isinstance(error, Refusal | RmqtoolError):
                peer.answer(request, error_answer(request, error))
            else:
                self.report_bug(request, error)
                peer.abort()

        future.add_done_callback(ended)

    def _with_view(self, work: Callable[[View], Any]) -> Any:
        """Run in the other thread; the view of a remote store is used there only."""
        if not self._is_local:
            return work(self.view)
        if self._other_view is None:
            self._other_view = self._open_view()
        return work(self._other_view)

    def report_bug(self, request: Command, error: BaseException) -> None:
        """Say that a request ended in an error that was not expected; the server goes on."""
        self.note(f"a bug in rmqtool: request {request.code} ended in {error!r}; please report it")

    # pulls

    def _pull(self, request: Command, peer: Connection) -> None:
        try:
            pull = read_pull(self.context, self.view, request, peer)
        except (Refusal, RmqtoolError) as error:
            peer.answer(request, error_answer(request, error))
            return
        self._run(pull, peer)

    def _run(self, pull: Pull, peer: Connection) -> None:
        if self._is_local and pull.wanted.filter is None:
            try:
                outcome = run_pull(self.context, self.view, pull)
            except RmqtoolError as error:
                peer.answer(pull.request, error_answer(pull.request, error))
                return
            self._finish(pull, peer, outcome)
            return
        self._in_other_thread(
            pull.request,
            peer,
            lambda view: run_pull(self.context, view, pull),
            lambda outcome: self._finish(pull, peer, outcome),
        )

    def _finish(self, pull: Pull, peer: Connection, outcome: Outcome) -> None:
        if peer.is_closed:
            return
        waited = outcome.answer.code == Response.PULL_RETRY_IMMEDIATELY and pull.is_waiting
        if (outcome.may_wait or waited) and pull.suspend_ms > 0 and pull.deadline > time.monotonic():
            if waited:
                pull.offset = outcome.next_offset
            pull.is_waiting = True
            if not self.held.hold(pull):
                peer.answer(pull.request, pull.request.answer(Response.SYSTEM_BUSY, "too many pulls wait"))
            return
        peer.answer(pull.request, outcome.answer)

    def forget(self, peer: Connection) -> None:
        """A connection is closed."""
        self.connections.discard(peer)
        self.held.drop(peer)
        self.context.clients.drop(peer)

    # what happens by itself

    async def _tick(self) -> None:
        due = housekeeping = save = 0.0
        pause = _POLL_S
        while True:
            await asyncio.sleep(pause if self.view.live else _DUE_S)
            now = time.monotonic()
            if self.view.live:
                self._poll()
                pause = max(_POLL_S, _POLL_SHARE * (time.monotonic() - now))
            if now >= due:
                due = now + _DUE_S
                self._answer_due(now)
                self._notify()
            if now >= housekeeping:
                housekeeping = now + _HOUSEKEEPING_S
                self._keep_house(now)
            if now >= save:
                save = now + _SAVE_S
                await self.save()

    def _poll(self) -> None:
        """Look at the queues for which pulls wait."""
        for key in self.held.queues():
            queue = self.view.queue(*key)
            if queue is None:
                continue
            try:
                queue.poll()
            except InputError:
                pass  # the pull that is run now says what is wrong
            for pull in self.held.of(*key):
                if peer_of(pull).is_blocked or self.unsent_bytes > self.limits.all_unsent_bytes:
                    continue  # it is answered once its client takes answers
                if pull.offset < queue.window.high or pull.offset < queue.window.low:
                    self.held.release(pull)
                    self._run(pull, peer_of(pull))

    def _answer_due(self, now: float) -> None:
        for pull in list(self.held.due(now)):
            self.held.release(pull)
            peer_of(pull).answer(pull.request, timed_out(self.view, pull))

    def _notify(self) -> None:
        """Tell the members of groups that have changed: they divide the queues again.

        Not at once, and not those that do not read: many changes are one notice. Who misses it divides the
        queues 20 s later.
        """
        for group in self.context.clients.take_changed():
            notice = Command(Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}, flag=ONE_WAY)
            for peer in {id(member.peer): member.peer for member in group.members.values()}.values():
                if not peer.is_blocked:
                    peer.send(notice)

    def _keep_house(self, now: float) -> None:
        self.context.clients.expire(now)
        for connection in list(self.connections):
            connection.check(now)

    async def save(self) -> None:
        """Write the committed offsets into their file; an error is reported, and tried again later."""
        offsets = self.context.offsets
        if not offsets.is_changed:
            return
        table = offsets.to_save()  # of a million offsets the text takes a second: it is made in a thread
        try:
            saving = asyncio.get_running_loop().run_in_executor(None, offsets.save, table)
            await asyncio.shield(saving)  # cancelled before it begins, at the end, it would never be written
        except UnwritableError as error:
            self.note(f"the committed offsets cannot be written: {error.in_one_line}")


def peer_of(pull: Pull) -> Connection:
    """The connection that a pull came from."""
    assert isinstance(pull.peer, Connection)
    return pull.peer


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: Server, named_port: int | None = None) -> None:
        """Of a server; `named_port` is the port of its address, if not the one that the client reaches."""
        self._server = server
        self._named_port = named_port
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._is_full = False  # answers pile up
        self._is_handling = False
        self._lookups = 0
        self._pending = 0
        self._received = self._progress = self._frame_since = time.monotonic()
        self._unsent = self._buffered = 0
        self.address = self.local_address = ""
        self.is_closed = False

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        server, counters = self._server, self._server.context.counters
        if len(server.connections) >= server.limits.connections:
            counters.refused_connections += 1
            self.is_closed = True
            transport.abort()
            return
        counters.connections += 1
        server.connections.add(self)
        transport.set_write_buffer_limits(high=server.limits.unsent_bytes)
        self.address = _address(transport.get_extra_info("peername"))
        self.local_address = _address(transport.get_extra_info("sockname"), self._named_port)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio. What comes is taken out at once, so all connections share one buffer."""
        return self._server.arriving

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self._received = time.monotonic()
        self._server.context.counters.bytes_received += nbytes
        self._handle(self._server.arriving[:nbytes])
        self._note_unsent()

    def _handle(self, data: bytes | memoryview) -> None:
        """Handle the requests that have come, as long as their answers are taken."""
        if self._is_handling or self.is_closed:
            return
        self._is_handling = True
        request = None
        try:
            commands = self._frames.feed(data)
            while not self.is_blocked and (request := next(commands, None)) is not None:
                self._server.receive(request, self)
        except FormatError:
            self._server.context.counters.bad_frames += 1
            self.abort()
        except Exception as error:  # noqa: BLE001 - one request must not end the server
            self._server.report_bug(request or Command(-1), error)
            self.abort()
        finally:
            self._is_handling = False
        self._note_pending()
        if self.is_blocked and self._transport is not None and not self.is_closed:
            self._transport.pause_reading()

    @property
    def is_blocked(self) -> bool:
        """Whether the client does not take its answers, is gone, or has too many look-ups under way."""
        return self._is_full or self.is_closed or self._lookups >= self._server.limits.lookups_of_one

    def _note_pending(self) -> None:
        server, pending = self._server, 0 if self.is_closed else self._frames.pending_bytes
        if not (pending and self._pending):
            self._frame_since = time.monotonic()
        server.pending_bytes += pending - self._pending
        self._pending = pending
        while server.pending_bytes > server.limits.pending_bytes:
            largest = max(server.connections, key=lambda each: each._pending)  # noqa: SLF001
            largest.abort()
            largest._note_pending()  # noqa: SLF001

    def _note_unsent(self) -> None:
        unsent = 0 if self.is_closed or self._transport is None else self._transport.get_write_buffer_size()
        self._server.unsent_bytes += unsent - self._buffered
        self._buffered = unsent

    def _go_on(self) -> None:
        if self.is_blocked or self._transport is None:
            return
        self._handle(b"")
        if not self.is_blocked and not self.is_closed:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._is_full = True
        self._progress = time.monotonic()
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._is_full = False
        self._note_unsent()
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self.is_closed = True
        self._note_pending()
        self._note_unsent()
        self._server.forget(self)

    # for those who answer

    def answer(self, request: Command, command: Command) -> None:
        """Send the answer to a request, unless none is wanted."""
        self._server.context.counters.answers[command.code] += 1
        if not request.is_one_way:
            self.send(command)

    def send(self, command: Command) -> None:
        """Send a command, unless the connection is closed."""
        if self.is_closed or self._transport is None:
            return
        command.version = self._server.context.names.version
        try:
            data = encode(command)
        except FormatError as error:
            data = encode(command.answer(Response.SYSTEM_ERROR, error.message))
        self._server.context.counters.bytes_sent += len(data)
        self._transport.write(data)
        if self._is_full:
            self._note_unsent()

    def begin_lookup(self) -> None:
        """A request of this connection waits for the other thread."""
        self._lookups += 1

    def end_lookup(self) -> None:
        """It waits no longer."""
        was_blocked = self.is_blocked
        self._lookups -= 1
        if was_blocked:
            asyncio.get_running_loop().call_soon(self._go_on)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None and not self.is_closed:
            self.is_closed = True
            self._transport.abort()

    def check(self, now: float) -> None:
        """Close it if it is silent, or if its answers have not moved for too long."""
        limits = self._server.limits
        self._note_unsent()
        if self._pending and now - self._frame_since > limits.idle_s:
            self.abort()  # byte by byte
        elif self._is_full and self._transport is not None:
            unsent = self._transport.get_write_buffer_size()
            if unsent < self._unsent:
                self._progress = now
            self._unsent = unsent
            if now - self._progress > limits.stalled_s:
                self.abort()
        elif now - self._received > (limits.stalled_s if self._pending else limits.idle_s):
            self.abort()


def _address(name: Any, named_port: int | None = None) -> str:
    host, port = name[:2] if isinstance(name, tuple) else ("", 0)
    return str(Address(host, named_port or port))
