"""Both ends of a replication connection on loopback: senders, proxies that cut, masters that misbehave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from rmqtool import NewMessage, StoreWriter
from rmqtool.formats import remoting
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.net.ha_connection import Address
from rmqtool.net.receive import Progress, Receiver, ReceiveRequest
from rmqtool.net.send_log import LogSender, SentLog
from rmqtool.storage.layout import detect
from tests.support.programs import PATIENCE_S

FILE_SIZE = 16 << 10


def make_master(root: Path, count: int = 60, *, file_size: int = FILE_SIZE, size: int = 700) -> Path:
    """A store of `count` messages in several log files, closed."""
    with StoreWriter.create(root, auto_create_queues=2, commit_log_file_size=file_size) as writer:
        put(writer, count, size)
    return root


def put(writer: StoreWriter, count: int, size: int = 700) -> None:
    """Put messages of sizes up to `size`."""
    for number in range(count):
        body = bytes((number + place) % 251 for place in range(1 + number * 37 % size))
        writer.put(NewMessage("Topic", body, keys=[f"key{number}"]))


def log_of(root: Path) -> bytes:
    """All files of a commit log, one after another, without what was made ahead."""
    files = sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


@contextmanager
def sending(root: Path, *, frame_bytes: int = 32 << 10, controller: bool = False) -> Iterator[LogSender]:
    """`send-log` of a store, in a thread."""
    done = threading.Event()
    with LogSender(
        SentLog(detect(root)),
        Address("127.0.0.1", 0),
        note=lambda text: None,
        frame_bytes=frame_bytes,
        controller=controller,
    ) as sender:
        thread = threading.Thread(target=sender.run, args=(done.is_set,))
        thread.start()
        try:
            yield sender
        finally:
            done.set()
            thread.join()


def receive(
    address: Address, root: Path, *, tick: Callable[[Progress], None] = lambda progress: None, **request: Any
) -> Progress:
    """Receive once from an HA port; `request` are fields of ReceiveRequest that differ."""
    values: dict[str, Any] = {"ha_only": True, "once": True, "file_size": FILE_SIZE, "retries": False}
    found = ReceiveRequest(address, **(values | request))
    return Receiver(found, root, note=lambda text: None, tick=tick).run()


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A server on loopback that calls `serve` with each connection, one after another, and closes it."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def run() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    with closing(connection), suppress(OSError):
                        connection.settimeout(PATIENCE_S)
                        serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield Address(*server.getsockname()[:2])
        finally:
            ended.set()
            thread.join()


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """`count` bytes; fewer where the peer has closed."""
    data = b""
    while len(data) < count and (piece := connection.recv(count - len(data))):
        data += piece
    return data


@contextmanager
def saying(
    *pieces: bytes, then: Callable[[socket.socket], Any] = lambda connection: None
) -> Iterator[Address]:
    """A master that reads the first report, sends these bytes, does `then`, and closes."""

    def serve(connection: socket.socket) -> None:
        read_exactly(connection, 8)
        for piece in pieces:
            connection.sendall(piece)
        then(connection)

    with listening(serve) as address:
        yield address


@contextmanager
def cutting(target: Address, cuts: Iterator[int]) -> Iterator[Address]:
    """A proxy to a master: each connection is cut after as many bytes from the master as `cuts` gives next.

    After the last of them nothing is cut.
    """

    def serve(connection: socket.socket) -> None:
        limit = next(cuts, None)
        with socket.create_connection(target) as master:
            forth = threading.Thread(target=_copy, args=(connection, master, None))
            forth.start()
            _copy(master, connection, limit)
            for each in (master, connection):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            forth.join()

    with listening(serve) as address:
        yield address


def _copy(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    left = 1 << 62 if limit is None else limit
    with suppress(OSError):
        while left and (data := source.recv(min(left, 65536))):
            target.sendall(data)
            left -= len(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class FakeBroker:
    """What a broker answers by remoting about a log that `sending` sends; a context manager.

    Attributes:
        table: its runtime information.
        properties: its configuration.
        documents: JSON by request code.
        asked: the codes of all requests, in order.
        samples_missing: so many requests for its runtime information fail, as in its first second.
        documents_refused: so many requests for documents fail.
    """

    def __init__(self, sender: LogSender) -> None:
        log = sender.log
        self.table = {"commitLogMinOffset": str(log.start), "commitLogMaxOffset": str(log.end),
                      "brokerVersionDesc": "V5_4_0"}  # fmt: skip
        self.properties = {"brokerName": "broker-a", "brokerClusterName": "c", "brokerRole": "ASYNC_MASTER",
                           "mappedFileSizeCommitLog": str(log.file_size),
                           "haListenPort": str(sender.address.port)}  # fmt: skip
        self.documents: dict[int, bytes] = {
            Request.GET_ALL_TOPIC_CONFIG: b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},'
            b'"topicConfigTable":{"Topic":{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",'
            b'"topicName":"Topic","topicSysFlag":0,"writeQueueNums":2}},"topicQueueMappingDetailMap":{}}',
            Request.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"Topic@group":{0:5,1:7}}}',
            Request.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:1}}',
            Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'{"dataVersion":{"counter":1,"timestamp":1},'
            b'"subscriptionGroupTable":{}}',
        }
        self.asked: list[int] = []
        self.samples_missing = 0
        self.documents_refused = 0
        self._stack = ExitStack()

    def __enter__(self) -> Address:
        return self._stack.enter_context(listening(self._serve))

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _serve(self, connection: socket.socket) -> None:
        frames = remoting.Frames()
        while data := connection.recv(65536):
            for command in frames.feed(data):
                connection.sendall(remoting.encode(self._answer(command)))

    def _answer(self, command: remoting.Command) -> remoting.Command:
        self.asked.append(command.code)
        if command.code in self.documents:
            if self.documents_refused:
                self.documents_refused -= 1
                return command.answer(Response.SYSTEM_ERROR, "refused")
            return command.answer(0, body=self.documents[command.code])
        if command.code == Request.GET_BROKER_CONFIG:
            text = "".join(f"{name}={value}\n" for name, value in self.properties.items())
            return command.answer(0, body=text.encode())
        if command.code == Request.GET_BROKER_RUNTIME_INFO:
            if self.samples_missing:
                self.samples_missing -= 1
                return command.answer(Response.SYSTEM_ERROR, "java.util.NoSuchElementException")
            return command.answer(0, body=json.dumps({"table": self.table}).encode())
        return command.answer(3, "not supported")
