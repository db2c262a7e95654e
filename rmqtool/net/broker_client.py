"""Asks a broker by the remoting protocol: what it is, where its log begins and ends, its configuration.

Source: AdminBrokerProcessor, BrokerOuterAPI, SlaveSynchronize; spec 04 7.
"""

from __future__ import annotations

import socket
import time
from typing import Any, NamedTuple

from rmqtool.errors import FormatError, InputError
from rmqtool.formats import fastjson, remoting
from rmqtool.formats.message import BLANK_SIZE, MIN_RECORD_SIZE
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.net.ha_connection import Address, ConnectionLostError
from rmqtool.write.options import MAPPED_SIZE_MAX

_SECONDS = 10.0
_SAMPLE_SECONDS = 0.2
_ANSWER_MAX = 64 << 20
"""Most bytes of an answer: the offsets of many groups are one answer. A broker sends at most 16 MiB."""
_VERSION = 399  # taken by all brokers
_OFFSET_MAX = 1 << 62
_FILE_SIZE_MIN = MIN_RECORD_SIZE + BLANK_SIZE


class RequestRefusedError(InputError):
    """The broker answered that it does not do this; `code` is its answer."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class BrokerFacts(NamedTuple):
    """What a broker says of itself. Offsets are physical; `version` is a text such as V5_4_0.

    `settings` is its whole configuration, by name.
    """

    name: str
    cluster: str
    version: str
    role: str
    is_in_controller_mode: bool
    commit_log_file_size: int
    ha_port: int
    min_offset: int
    max_offset: int
    settings: dict[str, str]


def ask(address: Address, code: Request | int, fields: dict[str, str] | None = None) -> remoting.Command:
    """Send one request to a broker, and return its answer.

    Raises:
        ConnectionLostError: the broker cannot be reached, or does not answer.
        RequestRefusedError: its answer is an error.
        FormatError: its answer cannot be read.
    """
    request = remoting.Command(int(code), dict(fields or {}), opaque=1, version=_VERSION, language="OTHER")
    try:
        with socket.create_connection(address, _SECONDS) as connection:
            connection.sendall(remoting.encode(request))
            answer = _answer(connection)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConnectionLostError(f"{address} does not answer: {reason}") from error
    except FormatError as error:
        raise FormatError(
            f"{address} does not answer as a broker: {error.message}",
            hint="the port must be the one that clients use, without TLS",
        ) from error
    if answer is None:
        raise ConnectionLostError(f"{address} closed the connection without an answer")
    if answer.code:
        what = Request(code).name if code in set(Request) else str(code)
        raise RequestRefusedError(
            f"{address} refuses {what}: {answer.remark or f'code {answer.code}'}", answer.code
        )
    return answer


def _answer(connection: socket.socket) -> remoting.Command | None:
    frames = remoting.Frames(frame_limit=_ANSWER_MAX)
    end = time.monotonic() + _SECONDS
    while True:
        connection.settimeout(max(end - time.monotonic(), 0.001))
        data = connection.recv(1 << 20)
        if not data:
            return None
        for command in frames.feed(data):
            if command.is_response:
                return command


def offsets_of(address: Address) -> tuple[int, int]:
    """(min, max) of a broker's commit log. Raises as `ask`."""
    return _range(address, _runtime_table(address))


def _range(address: Address, table: dict[str | int, Any]) -> tuple[int, int]:
    """The min is -1 while the broker has no file."""
    low = max(_number(address, table, "commitLogMinOffset", -1, _OFFSET_MAX), 0)
    return low, _number(address, table, "commitLogMaxOffset", 0, _OFFSET_MAX)


def facts_of(address: Address) -> BrokerFacts:
    """What a broker says of itself. Raises as `ask`."""
    properties = _properties(ask(address, Request.GET_BROKER_CONFIG).body)
    table = _runtime_table(address)
    min_offset, max_offset = _range(address, table)
    return BrokerFacts(
        name=properties.get("brokerName", ""),
        cluster=properties.get("brokerClusterName", ""),
        version=str(table.get("brokerVersionDesc", "")),
        role=properties.get("brokerRole", ""),
        is_in_controller_mode=properties.get("enableControllerMode") == "true",
        commit_log_file_size=_number(
            address, properties, "mappedFileSizeCommitLog", _FILE_SIZE_MIN, MAPPED_SIZE_MAX
        ),
        ha_port=_number(address, properties, "haListenPort", 1, 65_535),
        min_offset=min_offset,
        max_offset=max_offset,
        settings=properties,
    )


def document(address: Address, code: Request | int) -> Any:
    """The JSON of an answer; None where the broker does not know the request. Raises as `ask`."""
    try:
        answer = ask(address, code)
    except RequestRefusedError as error:
        if error.code == Response.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise
    return _parsed(address, answer.body)


def _parsed(address: Address, body: bytes) -> Any:
    try:
        return fastjson.parse(body)
    except FormatError as error:
        raise FormatError(f"{address} sends what cannot be read: {error.message}") from error


def _runtime_table(address: Address) -> dict[str | int, Any]:
    found = _parsed(address, _runtime_info(address))
    table = found.get("table") if isinstance(found, dict) else None
    if not isinstance(table, dict):
        raise FormatError(f"{address}: its runtime information has no table")
    return table


def _runtime_info(address: Address) -> bytes:
    """Ask for the runtime information; of a broker that has just started, until it has any.

    The statistics of a broker have no sample in its first second (longer on a busy machine), and the request
    fails. Source: StoreStatsService#getPutTps, #sampling.
    """
    end = time.monotonic() + _SECONDS
    while True:
        try:
            return ask(address, Request.GET_BROKER_RUNTIME_INFO).body
        except RequestRefusedError as error:
            if error.code != Response.SYSTEM_ERROR or time.monotonic() > end:
                raise
        time.sleep(_SAMPLE_SECONDS)


def _properties(body: bytes) -> dict[str, str]:
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, found, value in lines if found}


def _number(address: Address, table: Any, name: str, least: int, most: int) -> int:
    try:
        found = int(table[name])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{address} does not say {name}") from error
    if not least <= found <= most:
        raise FormatError(f"{address} says that {name} is {found}: it must be within {least} and {most}")
    return found
