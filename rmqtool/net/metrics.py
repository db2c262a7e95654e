"""The metrics of a server over HTTP, as Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from rmqtool.net.context import Context
from rmqtool.net.server import Server

_REQUEST_LIMIT = 8 << 10
_PATIENCE_S = 5.0
_CONNECTIONS = 16
_LAGS_MAX = 10_000  # lines of lag: a store may have a million of group and queue

Samples = Iterable[tuple[dict[str, str], float]]
Family = tuple[str, str, str, Samples]


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
