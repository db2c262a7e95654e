"""The metrics of a server over HTTP, as Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

from rmqtool.errors import UsageError
from rmqtool.net.context import Context
from rmqtool.net.counters import Family, Samples, prometheus_text
from rmqtool.net.server import Server, stop_listening, turns

if TYPE_CHECKING:
    from rmqtool.net.receive import Progress

_REQUEST_LIMIT = 8 << 10
_PATIENCE_S = 5.0
_CONNECTIONS = 16
_LAGS_MAX = 10_000  # lines of lag: a store may have a million of group and queue


def metrics_text(server: Server) -> str:
    """All metrics."""
    return server.context.counters.text(_gauges(server))


def _gauges(server: Server) -> Iterator[Family]:
    clients = server.context.clients
    for name, text, value in (
        ("open_connections", "Connections that are open.", len(server.connections)),
        ("held_pulls", "Pulls that wait for messages.", server.held.count),
        ("groups", "Consumer groups with a member.", len(clients.groups)),
        ("members", "Members of all groups.", clients.member_count),
        ("unsent_bytes", "Bytes of answers that clients have not taken.", server.unsent_bytes),
        ("incomplete_bytes", "Bytes of frames that are not complete.", server.pending_bytes),
        ("lookups", "Requests that wait for the thread of look-ups.", server.lookups),
        ("topics", "Topics that are served.", len(server.view.topics)),
        ("start_timestamp_ms", "When the server started.", server.context.started_ms),
    ):
        yield name, "gauge", text, [({}, value)]
    yield "group_lag", "gauge", "Messages that a group has not committed, by group and topic.", _lags(server)


def _lags(server: Server) -> Samples:
    """Of queues whose end is known: metrics read nothing of the store."""
    context: Context = server.context
    for count, (topic, group, queue_id, offset) in enumerate(context.offsets):
        if count >= _LAGS_MAX:
            return
        high = server.view.known_end(topic, queue_id)
        if high is not None:
            yield {"group": group, "topic": topic}, max(high - offset, 0)


def receive_text(progress: Progress) -> str:
    """The metrics of `receive`; what is not known has no sample."""
    families = (
        ("received_bytes_total", "counter", "Bytes of the log that were received.", progress.bytes),
        ("received_records_total", "counter", "Records that were received.", progress.records),
        ("connections_total", "counter", "Connections to the master.", progress.connections),
        ("configurations_total", "counter", "Times the configuration was written.", progress.configs),
        ("truncated_bytes_total", "counter", "Bytes cut after a failover.", progress.truncated),
        ("expired_bytes_total", "counter", "Bytes of deleted log files.", progress.expired),
        ("connected", "gauge", "Whether the master is connected.", int(progress.is_connected)),
        ("end_offset", "gauge", "Physical offset of the end of the log.", progress.end),
        ("flushed_offset", "gauge", "Physical offset up to which it is on the device.", progress.flushed),
        ("acknowledged_offset", "gauge", "Physical offset that was acknowledged.", progress.acknowledged),
        ("dispatched_offset", "gauge", "Physical offset that queues and index reach.", progress.dispatched),
        ("archived_offset", "gauge", "Physical offset up to which the log is archived.", progress.archived),
        ("master_end_offset", "gauge", "Physical offset of the master's end.", progress.master_end),
        ("confirmed_offset", "gauge", "Physical offset that the master has confirmed.", progress.confirmed),
        ("lag_bytes", "gauge", "How far the master is ahead.", progress.lag_bytes),
        ("store_timestamp_ms", "gauge", "Store time of the newest record.", progress.store_timestamp or None),
    )
    return prometheus_text(
        "receive",
        (
            (name, kind, text, [] if value is None or value < 0 else [({}, value)])
            for name, kind, text, value in families
        ),
    )


@contextmanager
def metrics_in_thread(host: str, port: int, text: Callable[[], str]) -> Iterator[int]:
    """Answer `GET /metrics` in a thread of its own during the block; yields the port.

    Raises UsageError if the port is taken.
    """
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="metrics", daemon=True)
    thread.start()
    try:
        starting = asyncio.run_coroutine_threadsafe(start_metrics(host, port, text), loop)
        try:
            server = starting.result()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", hint="--metrics chooses another"
            ) from error
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            asyncio.run_coroutine_threadsafe(_close(server), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(server: asyncio.Server) -> None:
    await stop_listening(server)  # each connection has its task now, which closes it
    own = asyncio.current_task()
    rest = [task for task in asyncio.all_tasks() if task is not own]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await server.wait_closed()
    await turns()  # a transport closes its socket a turn after it is closed itself


async def start_metrics(host: str, port: int, text: Callable[[], str]) -> asyncio.Server:
    """Answer `GET /metrics`. Raises OSError."""
    open_now = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        try:
            if open_now <= _CONNECTIONS:
                async with asyncio.timeout(_PATIENCE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_response(head, text))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # not a request, or a client that is gone
        except asyncio.CancelledError:
            pass  # the server ends; Python 3.11 would print a traceback
        finally:
            open_now -= 1
            writer.close()

    return await asyncio.start_server(serve, host, port, limit=_REQUEST_LIMIT)


def _response(head: bytes, text: Callable[[], str]) -> bytes:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    found = len(words) == 3 and words[0] == b"GET" and words[1].partition(b"?")[0] == b"/metrics"
    body = text().encode() if found else b"only GET /metrics\n"
    status = "200 OK" if found else "404 Not Found"
    kind = "text/plain; version=0.0.4; charset=utf-8"
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body
