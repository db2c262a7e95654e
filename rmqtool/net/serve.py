"""Serve a store: as name server and broker at once, to stock clients, and read-only.

    with serving(path, Options(port=0)) as served:     # in a thread of its own
        ... served.port

`run` serves until a signal comes, for the command.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rmqtool.errors import FormatError, UnreadableError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.net.clients import Clients
from rmqtool.net.context import STARTS, Context, Names, Start, transfer_limits
from rmqtool.net.counters import Counters
from rmqtool.net.ha_connection import Address
from rmqtool.net.metrics import metrics_text, start_metrics
from rmqtool.net.offsets import CommittedOffsets
from rmqtool.net.server import VIP_DISTANCE, Limits, Server, stop_listening
from rmqtool.net.view import View
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.tail.get_message import BROKER_LIMITS
from rmqtool.report.tail.topics import behind_texts
from rmqtool.storage.config_files import now_ms

__all__ = ["DEFAULT_PORT", "STARTS", "Limits", "Options", "Served", "Start", "run", "serving"]

DEFAULT_PORT = 10_911
_VERSIONS = {"4.9": 407, "5.3": 479, "5.4": 493}  # MQVersion of 4.9.7, 5.3.3 and 5.4.0
_OTHER_FILES = 512  # of the store, of the interpreter, of the metrics
_TICK_S = 0.5
_DEFAULT_CLUSTER = "DefaultCluster"
_DEFAULT_BROKER = "broker-a"
_ADDRESS = pattern(r"(?:\[[^\s\]]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?")

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How a store is served.

    Attributes:
        host: the address to listen on.
        port: the port; 0 takes a free one.
        advertise: host, or host:port, that routes name; None: the address that each client has reached.
        cluster: the name of the cluster; None: that of the broker.conf, else DefaultCluster.
        broker: the name of the broker; None: that of the broker.conf, else broker-a.
        offsets: the file of committed offsets; None keeps them in memory.
        start: where a group without an offset begins.
        live: follow a store that another program writes.
        max_messages: most messages in the answer to a pull.
        metrics_port: the port of the metrics; None: none.
        tls: certificate and key files; None: no TLS.
        vip_channel: also listen two ports below `port`, if that one is free and `port` is not 0.
        limits: what clients may take.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    advertise: str | None = None
    cluster: str | None = None
    broker: str | None = None
    offsets: Path | None = None
    start: Start = "earliest"
    live: bool = False
    max_messages: int = BROKER_LIMITS.memory_count
    metrics_port: int | None = None
    tls: tuple[Path, Path] | None = None
    vip_channel: bool = False
    limits: Limits | None = None


class Served:
    """A store that is being served."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.port = 0
        self.metrics_port: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def stop(self) -> None:
        """End it; may be called from any thread."""
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _main(
        self, options: Options, started: Callable[[Served], None], *, signals: bool,
        tick: Callable[[Served], None] | None = None,
    ) -> None:  # fmt: skip
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        metrics = None
        caught = _catch_signals(self._loop, self._stop.set) if signals else []
        try:
            tls = None if options.tls is None else _tls_context(*options.tls)
            self.port = await _listening(
                options.host, options.port, self.server.start(options.host, options.port, tls)
            )
            names = self.server.context.names
            if names.advertised is not None and ":" not in names.advertised.rpartition("]")[2]:
                object.__setattr__(names, "advertised", f"{names.advertised}:{self.port}")
            if options.metrics_port is not None:
                text = lambda: metrics_text(self.server)  # noqa: E731
                starting = start_metrics(options.host, options.metrics_port, text)
                metrics = await _listening(options.host, options.metrics_port, starting)
                self.metrics_port = int(metrics.sockets[0].getsockname()[1])
            if options.vip_channel and options.port > VIP_DISTANCE:
                await self._start_vip_channel(options.host, tls)
            started(self)
            while not self._stop.is_set():
                if tick is not None:
                    tick(self)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), None if tick is None else _TICK_S)
        finally:
            for number in caught:
                self._loop.remove_signal_handler(number)
            if metrics is not None:
                await stop_listening(metrics)
            await self.server.close()

    async def _start_vip_channel(self, host: str, tls: ssl.SSLContext | None) -> None:
        """The port may be in use: then all other clients are served."""
        try:
            await self.server.start_vip_channel(host, self.port, tls)
        except OSError as error:
            self.server.note(
                f"cannot listen on {Address(host, self.port - VIP_DISTANCE)} too: {error.strerror or error};"
                " clients with vipChannelEnabled find no broker: start the dashboard with"
                " rocketmq.config.isVIPChannel=false"
            )


async def _listening(host: str, port: int, starting: Any) -> Any:
    try:
        return await starting
    except OSError as error:
        raise UsageError(
            f"cannot listen on {Address(host, port)}: {error.strerror or error}",
            hint="--port and --bind choose another",
        ) from error


def _catch_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> list[signal.Signals]:
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
            caught.append(number)
    return caught


def _tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise FormatError(f"not a certificate with its key: {error}", path=certificate) from error
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=error.filename or certificate) from error
    return context


def _prepared(open_store: Callable[[], Store], options: Options, note: Note) -> Server:
    if not 1 <= options.max_messages <= 1024:
        raise UsageError(f"--max-messages {options.max_messages} is not within 1 and 1024")
    found = _ADDRESS.fullmatch("localhost" if options.advertise is None else options.advertise)
    if found is None or not 0 < int(found[1] or 1) < 1 << 16:
        raise UsageError(
            f"--advertise {options.advertise!r} is not HOST or HOST:PORT", hint="an IPv6 address: [::1]"
        )
    view = View(open_store, live=options.live, note=note)
    try:
        _check(view.store, options, note)
        offsets = CommittedOffsets.of(view.store, options.offsets, note)
    except BaseException:
        view.close()
        raise
    context = Context(
        _names(view.store, options), offsets, Clients(), Counters(note), options.start,
        transfer_limits(options.max_messages), now_ms(),
    )  # fmt: skip
    open_view = partial(View, open_store, live=options.live, note=note)
    return Server(context, view, open_view, note=note, limits=options.limits)


def _check(store: Store, options: Options, note: Note) -> None:
    """Raises UsageError or UnsupportedStoreError for what cannot be served; notes what is not served."""
    layout = store.layout
    if layout.kind != "store" or layout.root is None:
        raise UsageError("only a store has topics, queues and a log to serve")
    if options.live and not store.is_local:
        raise UsageError("only a store on a disk of this machine can be followed", hint="omit --live")
    layout.check_forms(log=True, queues=True)
    for text in behind_texts(store, Selection()):
        note(text)
    if not _is_loopback(options.host):
        note(f"who reaches {options.host} can read all messages: serve checks neither users nor permissions")
    if not options.live and store.live:
        note("the store is in use: messages that come from now on are served only with --live")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(store: Store, options: Options) -> Names:
    conf = store.layout.broker_conf
    cluster = options.cluster or (conf.text("brokerClusterName") if conf else None) or _DEFAULT_CLUSTER
    broker = options.broker or (conf.text("brokerName") if conf else None) or _DEFAULT_BROKER
    version = store.profile.name
    return Names(cluster, broker, _VERSIONS[version], not version.startswith("4."), options.advertise)


def run(
    open_store: Callable[[], Store],
    options: Options,
    *,
    note: Note,
    started: Callable[[Served], None],
    tick: Callable[[Served], None] | None = None,
) -> Served:
    """Serve until SIGINT, SIGTERM or SIGHUP; returns what was served.

    Args:
        open_store: opens the store; a live one is opened again.
        options: see there.
        note: takes texts for the operator.
        started: called when clients can come.
        tick: called then, and every half second.

    Raises:
        UsageError: no store root; a port that is taken.
        RefusedError: the file of offsets lies in the store, or another run uses it.
        InputError: see `Store.open`.
    """
    _allow_connections(options.limits or Limits())
    server = _prepared(open_store, options, note)
    served = Served(server)
    try:
        asyncio.run(served._main(options, started, signals=True, tick=tick))  # noqa: SLF001
    finally:
        server.context.offsets.close()
        server.view.close()
    return served


def _allow_connections(limits: Limits) -> None:
    """Raise the limit of open files, as far as the system lets: it may be below that of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # macOS has a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))


@contextmanager
def serving(
    open_store: Callable[[], Store], options: Options, note: Note = lambda _: None
) -> Iterator[Served]:
    """Serve in a thread of its own during the block. Raises as `run`."""
    server = _prepared(open_store, options, note)
    served = Served(server)
    ready = threading.Event()
    failed: list[BaseException] = []

    def main() -> None:
        try:
            asyncio.run(served._main(options, lambda _: ready.set(), signals=False))  # noqa: SLF001
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="rmqtool-serve")
    try:
        thread.start()
        ready.wait()
        if not failed:
            yield served
    finally:
        served.stop()
        thread.join()
        server.context.offsets.close()
        server.view.close()
    if failed:
        raise failed[0]
