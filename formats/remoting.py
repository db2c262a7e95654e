"""Frames of the remoting protocol, which clients, name servers and brokers speak: bytes <-> commands.

    length          4   bytes of all that follows
    header mark     4   serialize type in the high 8 bits (0 JSON, 1 ROCKETMQ), header length in the low 24
    header              see `decode_header`
    body                the rest

`Frames` collects bytes as they arrive and returns whole commands; `encode` and `encode_head` make them. A
request and its answer have the same `opaque`; answers may come in any order. Unknown fields are kept.

Source: RemotingCommand#headerEncode, #decode, RocketMQSerializable, NettyDecoder; LanguageCode.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from json.encoder import encode_basestring
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats import fastjson
from rmqtool.formats.declare import Layout
from rmqtool.formats.java import java_utf8_decode, java_utf8_encode
from rmqtool.formats.parts import (
    Bytes,
    GreedyBytes,
    Int8ub,
    Int16sb,
    Int32sb,
    Int32ub,
    Struct,
)
from rmqtool.lazy_dataclass import dataclass

JSON, ROCKETMQ = 0, 1
"""The serialize types."""

FRAME_LIMIT = 16 << 20  # com.rocketmq.remoting.frameMaxLength: a peer closes the connection above
HEADER_LIMIT = 64 << 10  # headers of real clients have less than 2 KiB
_MARK_LIMIT = 1 << 24  # the header length has 24 bits

RESPONSE, ONE_WAY = 1, 2
"""Bits of `flag`."""

HEAD = Layout(
    "remoting frame head",
    Struct(
        "length" / Int32sb * "bytes of the frame after this field",
        "header_mark" / Int32ub * "high 8 bits: how the header is written, 0 JSON, 1 ROCKETMQ; low 24 bits:"
        " bytes of the header",
    ),
    "The first bytes of each request and answer between clients and brokers. The header follows, and then the"
    " body up to the end of the frame.",
)
HEADER = Layout(
    "remoting header",
    Struct(
        "code" / Int16sb * "request code, or response code of an answer",
        "language" / Int8ub * "language of the sender: 0 Java, 1 C++, 3 Python, 9 Go, 12 Rust, ...",
        "version" / Int16sb * "version of the sender (MQVersion): 407 is 4.9.7, 493 is 5.4.0",
        "opaque" / Int32sb * "number of the request; its answer has the same",
        "flag" / Int32sb * "bit 0: an answer; bit 1: no answer is wanted",
        "remark_length" / Int32sb * "bytes of the remark that follows; 0: none",
    ),
    "The start of a ROCKETMQ header. The remark follows, then four bytes with the length of all fields, and"
    " the fields: two bytes and a name, four bytes and a value.",
)
FIELD = Struct(
    "name_length" / Int16sb * "bytes of the name",
    "name" / Bytes(lambda here: here.name_length) * "name of the field, UTF-8",
    "value_length" / Int32sb * "bytes of the value",
    "value" / GreedyBytes * "value of the field, UTF-8: always a text, of numbers too",
)
FIELD_TEXT = "One field of a ROCKETMQ header. A JSON header has the same fields in its object `extFields`."
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
assert (HEAD.size, HEADER.size) == (8, 17)

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
    "RUST", "NODE_JS",
)  # fmt: skip
"""By the byte of a ROCKETMQ header."""
_OTHER = "OTHER"
_TEXT = frozenset({str})


@dataclass(slots=True)
class Command:
    """A request or an answer.

    `fields` are the values by name, all of them text; `body` what follows the header; `header_type` how the
    header is written, JSON or ROCKETMQ. A body that is to be sent may be in `pieces`, after `body`.
    """

    code: int
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    version: int = 0
    language: str = "PYTHON"
    header_type: int = JSON
    pieces: Sequence[bytes | memoryview] = ()

    @property
    def body_size(self) -> int:
        """Bytes of the body, in one or in pieces."""
        return len(self.body) + sum(map(len, self.pieces))

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & ONE_WAY)

    def answer(
        self, code: int, remark: str | None = None, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """An answer to this request, its header written in the same way."""
        return Command(
            code,
            dict(fields or {}),
            body,
            opaque=self.opaque,
            flag=RESPONSE,
            remark=remark,
            header_type=self.header_type,
        )


def encode(command: Command) -> bytes:
    """The frame of a command.

    Raises:
        FormatError: a value that the header cannot hold, or a frame above the limit.
    """
    return b"".join((encode_head(command, command.body_size), command.body, *command.pieces))


def encode_head(command: Command, body_length: int) -> bytes:
    """The frame of a command without its body, which has `body_length` bytes. Raises as `encode`."""
    header = encode_header(command)
    length = 4 + len(header) + body_length
    if length > FRAME_LIMIT or len(header) >= _MARK_LIMIT:
        raise FormatError(f"remoting frame of {length} bytes; the limit is {FRAME_LIMIT}")
    return HEAD.pack(length, command.header_type << 24 | len(header)) + header


def encode_header(command: Command) -> bytes:
    """The header alone. Raises as `encode`."""
    if command.header_type == JSON:
        return _encode_json(command)
    if command.header_type == ROCKETMQ:
        return _encode_rocketmq(command)
    raise FormatError(f"remoting header of unknown type {command.header_type}")


def _encode_json(command: Command) -> bytes:
    """Fields in the order of RemotingCommand's, as fastjson writes them."""
    fields, remark, quoted = "", "", encode_basestring
    if command.fields:
        items = [f"{quoted(name)}:{quoted(value)}" for name, value in command.fields.items()]
        fields = f'"extFields":{{{",".join(items)}}},'
    if command.remark is not None:
        remark = f'"remark":{quoted(command.remark)},'
    return java_utf8_encode(
        f'{{"code":{command.code:d},{fields}"flag":{command.flag},"language":{quoted(command.language)},'
        f'"opaque":{command.opaque},{remark}"serializeTypeCurrentRPC":"JSON","version":{command.version}}}'
    )


def _encode_rocketmq(command: Command) -> bytes:
    remark = java_utf8_encode(command.remark or "")
    language = LANGUAGES.index(command.language if command.language in LANGUAGES else _OTHER)
    try:
        parts = [
            HEADER.pack(command.code, language, command.version, command.opaque, command.flag, len(remark)),
            remark,
            b"",
        ]
        for name, value in command.fields.items():
            name_bytes, value_bytes = java_utf8_encode(name), java_utf8_encode(value)
            parts += _INT16.pack(len(name_bytes)), name_bytes, _INT32.pack(len(value_bytes)), value_bytes
    except struct.error as error:
        raise FormatError(f"remoting header: a value does not fit its field: {error}") from error
    parts[2] = _INT32.pack(sum(map(len, parts[3:])))
    return b"".join(parts)


def decode_header(data: bytes, header_type: int) -> Command:
    """The command whose header these bytes are, without its body.

    Raises:
        FormatError: not a header of this type.
    """
    if header_type == JSON:
        return _decode_json(data)
    if header_type == ROCKETMQ:
        return _decode_rocketmq(data)
    raise FormatError(f"remoting header of unknown type {header_type}")


def _decode_json(data: bytes) -> Command:
    """All keys but `code` and `opaque` may lack; other values than text become the text Java would make."""
    header = fastjson.parse(data)
    if not isinstance(header, dict):
        raise FormatError("remoting header: not a JSON object")
    found = header.get("extFields")
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise FormatError("remoting header: extFields is not an object")
    if not _TEXT.issuperset(map(type, (*found, *found.values()))):
        found = {str(name): _text(value) for name, value in found.items() if value is not None}
    remark, language = header.get("remark"), header.get("language")
    return Command(
        _int_of(header, "code", None),
        found,
        opaque=_int_of(header, "opaque", None),
        flag=_int_of(header, "flag", 0),
        remark=remark if isinstance(remark, str) else None,
        version=_int_of(header, "version", 0),
        language=language if isinstance(language, str) and language in LANGUAGES else _OTHER,
        header_type=JSON,
    )


def _int_of(header: Mapping[str | int, Any], name: str, missing: int | None) -> int:
    value = header.get(name, missing)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise FormatError(f"remoting header: {name} is not an integer")
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise FormatError("remoting header: a value of extFields is not text")


def _decode_rocketmq(data: bytes) -> Command:
    if len(data) < HEADER.size:
        raise FormatError(f"remoting header: {HEADER.size} bytes needed, {len(data)} found")
    code, language, version, opaque, flag, remark_length = HEADER.unpack(data)
    remark, position = _piece(data, HEADER.size, remark_length)
    length, position = _number(_INT32, data, position)
    if length != len(data) - position:
        raise FormatError(f"remoting header: fields of {length} bytes where {len(data) - position} are left")
    fields: dict[str, str] = {}
    while position < len(data):
        size, position = _number(_INT16, data, position)
        name, position = _piece(data, position, size)
        size, position = _number(_INT32, data, position)
        value, position = _piece(data, position, size)
        fields[name] = value
    return Command(
        code,
        fields,
        opaque=opaque,
        flag=flag,
        remark=remark or None,
        version=version,
        language=LANGUAGES[language] if language < len(LANGUAGES) else _OTHER,
        header_type=ROCKETMQ,
    )


def _number(codec: struct.Struct, data: bytes, position: int) -> tuple[int, int]:
    """(a length, the position after it)."""
    if codec.size > len(data) - position:
        raise FormatError(f"remoting header: ends within a length, at byte {position}")
    return codec.unpack_from(data, position)[0], position + codec.size


def _piece(data: bytes, position: int, length: int) -> tuple[str, int]:
    """(text of a length, the position after it)."""
    if not 0 <= length <= len(data) - position:
        raise FormatError(f"remoting header: {length} bytes at byte {position}, {len(data) - position} left")
    return java_utf8_decode(data[position : position + length]), position + length


class Frames:
    """Commands out of a stream of bytes that arrives in pieces of any length.

    Args:
        frame_limit: most bytes of a frame.
        header_limit: most bytes of its header.
    """

    def __init__(self, frame_limit: int = FRAME_LIMIT, header_limit: int = HEADER_LIMIT) -> None:
        self._frame_limit = frame_limit
        self._header_limit = header_limit
        self._data = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._data)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Command]:
        """Take the next bytes; returns the commands that they complete.

        Raises:
            FormatError: not a frame, or one above a limit. The stream cannot be read any further.
        """
        self._data += data
        return self._commands()

    def _commands(self) -> Iterator[Command]:
        while len(self._data) >= HEAD.size:
            length, mark = HEAD.unpack(self._data)
            header_length = mark & (_MARK_LIMIT - 1)
            self._check(length, header_length, mark >> 24)
            end = 4 + length
            if len(self._data) < end:
                return
            header_end = HEAD.size + header_length
            command = decode_header(bytes(self._data[HEAD.size : header_end]), mark >> 24)
            command.body = bytes(memoryview(self._data)[header_end:end])
            del self._data[:end]
            yield command

    def _check(self, length: int, header_length: int, header_type: int) -> None:
        """Before the rest has come: what cannot be a frame is refused at once."""
        if not 4 <= length <= self._frame_limit:
            raise FormatError(f"remoting frame of {length} bytes; the limit is {self._frame_limit}")
        if header_length > min(length - 4, self._header_limit):
            raise FormatError(f"remoting header of {header_length} bytes in a frame of {length}")
        if header_type not in (JSON, ROCKETMQ):
            raise FormatError(f"remoting header of unknown type {header_type}")
