"""A client of the remoting protocol over a plain socket, and a store that is served to it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import message as form
from rmqtool.formats.fastjson import parse
from rmqtool.formats.remoting import JSON, Command, Frames, encode
from rmqtool.formats.remoting_codes import Request
from rmqtool.net.serve import Options, Served, serving
from rmqtool.read.store import Store
from tests.support.programs import PATIENCE_S

JAVA_5_4, JAVA_4_9 = 493, 407


class RemotingClient:
    """One connection; requests of either header type, one after the other."""

    def __init__(self, port: int, *, header_type: int = JSON, version: int = JAVA_5_4) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.header_type = header_type
        self.version = version
        self.notices: list[Command] = []
        self._frames = Frames()
        self._ready: list[Command] = []
        self._numbers = count(1)

    def __enter__(self) -> RemotingClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", flag: int = 0) -> int:
        """Send a request; returns its number."""
        number = next(self._numbers)
        texts = {name: str(value) for name, value in (fields or {}).items()}
        request = Command(
            int(code), texts, body, opaque=number, flag=flag, version=self.version, language="JAVA",
            header_type=self.header_type,
        )  # fmt: skip
        self.socket.sendall(encode(request))
        return number

    def receive(self) -> Command | None:
        """The next command from the server; None where it has closed the connection."""
        while not self._ready:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._ready += self._frames.feed(data)
        return self._ready.pop(0)

    def answer(self, number: int) -> Command:
        """The answer to a request; notices that come before it are kept."""
        while True:
            found = self.receive()
            assert found is not None, "the connection was closed"
            if found.is_response and found.opaque == number:
                return found
            self.notices.append(found)

    def call(self, code: int, fields: dict[str, Any] | None = None, body: Any = b"") -> Command:
        """Send a request and wait for its answer; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.answer(self.send(code, fields, data))

    def receive_next(self, code: int, fields: dict[str, Any] | None = None) -> Command:
        """As `call`, and the answer is the next that comes."""
        number = self.send(code, fields)
        found = self.receive()
        assert found is not None and found.opaque == number, found
        return found

    def document(self, code: int, fields: dict[str, Any] | None = None, body: Any = b"") -> Any:
        """The JSON in the body of a successful answer."""
        found = self.call(code, fields, body)
        assert found.code == 0, (found.code, found.remark)
        return parse(found.body)

    def pull(self, topic: str, queue_id: int, offset: int, **fields: Any) -> Command:
        """Pull from a queue, with the subscription in the request."""
        known = {
            "consumerGroup": "G", "topic": topic, "queueId": queue_id, "queueOffset": offset,
            "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        return self.call(Request.PULL_MESSAGE, known | fields)

    def all_of(self, topic: str, queue_id: int, **fields: Any) -> list[form.Message]:
        """Every message of a queue, as a consumer reads it."""
        offset, found = 0, list[form.Message]()
        while True:
            answer = self.pull(topic, queue_id, offset, **fields)
            if answer.code == 0:
                found += records(answer.body)
            elif answer.code not in (20, 21):
                assert answer.code == 19, (answer.code, answer.remark)
                return found
            following = int(answer.fields["nextBeginOffset"])
            assert answer.code == 21 or following > offset, (offset, answer)
            if following == offset:
                return found
            offset = following


def records(body: bytes) -> list[form.Message]:
    """The records of an answer, one after the other."""
    found, position = [], 0
    while position < len(body):
        found.append(form.decode(body, position))
        position += found[-1].total_size
    return found


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key; without openssl the test is skipped."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@contextmanager
def served(store: Path, options: Options | None = None, notes: list[str] | None = None) -> Iterator[Served]:
    """Serve a store on a free port."""
    chosen = replace(options or Options(), port=0)
    with serving(lambda: Store.open(store), chosen, (notes if notes is not None else []).append) as found:
        yield found


@contextmanager
def client_of(
    store: Path, options: Options | None = None, notes: list[str] | None = None, **client: Any
) -> Iterator[RemotingClient]:
    """A client of a store that is served to it alone."""
    with served(store, options, notes) as found, RemotingClient(found.port, **client) as connected:
        yield connected
