r"""Format strings: the text of a message row as `kcat -f` spells it, `'%t %q %o %k %s\n'`.

The letters that kcat has mean the same here. The bytes of a body are written as the application sent them.

Source: kcat(1), FORMAT STRING.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern

_TOKEN = pattern(r"%.|\\x[0-9a-fA-F]{2}|\\.|[^%\\]+|[%\\]", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Row = Mapping[str, Any]


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode("utf-8", "surrogateescape")


def _keys(row: Row) -> bytes:
    return _text(" ".join(row["keys"]))


def _properties(row: Row) -> bytes:
    return _text(",".join(f"{name}={value}" for name, value in row["properties"].items()))


def body_of(row: Row) -> bytes | None:
    """The body of a row in the form `text` as bytes; None if it cannot be decompressed."""
    text, encoding = row["body"], row["body_encoding"]
    if text is None:
        return None
    return base64.b64decode(text) if encoding == "base64" else text.encode()


def _body_length(row: Row) -> int:
    found = body_of(row)
    return -1 if found is None else len(found)


_BODY = ("body", "body_encoding", "status")  # a body that is missing shows in the status
LETTERS: dict[str, tuple[str, tuple[str, ...], Callable[[Row], bytes]]] = {
    "t": ("topic", ("topic",), lambda row: _text(row["topic"])),
    "q": ("queue id", ("queue_id",), lambda row: _text(row["queue_id"])),
    "p": ("queue id", ("queue_id",), lambda row: _text(row["queue_id"])),
    "o": ("queue offset", ("queue_offset",), lambda row: _text(row["queue_offset"])),
    "O": ("physical offset", ("physical_offset",), lambda row: _text(row["physical_offset"])),
    "k": ("keys, separated by spaces", ("keys",), _keys),
    "K": ("length of the keys in bytes", ("keys",), lambda row: _text(len(_keys(row)))),
    "u": ("unique key", ("uniq_key",), lambda row: _text(row["uniq_key"])),
    "i": ("offset message id", ("offset_msg_id",), lambda row: _text(row["offset_msg_id"])),
    "g": ("tags", ("tags",), lambda row: _text(row["tags"])),
    "T": ("store timestamp in ms", ("store_timestamp_ms",), lambda row: _text(row["store_timestamp_ms"])),
    "B": ("born timestamp in ms", ("born_timestamp_ms",), lambda row: _text(row["born_timestamp_ms"])),
    "s": ("body", _BODY, lambda row: body_of(row) or b""),
    "S": ("length of the body in bytes, or -1", _BODY, lambda row: _text(_body_length(row))),
    "R": (
        "length of the body as 4 bytes, big-endian",
        _BODY,
        lambda row: _body_length(row).to_bytes(4, signed=True),
    ),
    "h": ("properties, name=value separated by commas", ("properties",), _properties),
}
"""For each letter its meaning, the columns that it needs, and its bytes."""


@dataclass(frozen=True)
class FormatString:
    """A parsed format string.

    Attributes:
        parts: literal bytes, and letters of `LETTERS`.
        names: the columns that a row must have.
    """

    parts: tuple[bytes | str, ...]
    names: tuple[str, ...]

    def line(self, row: Row, escape: Callable[[bytes], bytes] | None = None) -> bytes:
        """The text of a row; `escape` is applied to values, but not to the text of the format itself."""
        pieces = []
        for part in self.parts:
            if isinstance(part, bytes):
                pieces.append(part)
                continue
            value = LETTERS[part][2](row)
            pieces.append(value if escape is None else escape(value))
        return b"".join(pieces)


def parse(text: str) -> FormatString:
    """Parse a format string. Raises UsageError for an unknown letter or escape, with its position."""
    parts: list[bytes | str] = []
    names: dict[str, None] = {}
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "%%":
            parts.append(b"%")
        elif token[0] == "%" and token[1:] in LETTERS:
            parts.append(token[1])
            names.update(dict.fromkeys(LETTERS[token[1]][1]))
        elif token.startswith("\\x") and len(token) == 4:
            parts.append(bytes.fromhex(token[2:]))
        elif token[0] == "\\" and token[1:] in _ESCAPES:
            parts.append(_ESCAPES[token[1]])
        elif token[0] in "%\\":
            raise UsageError(
                f"--format-string: {token!r} at character {match.start() + 1} is not known",
                hint=f"letters are {' '.join(f'%{each}' for each in LETTERS)}; escapes are \\n \\t \\r \\0"
                " \\xHH; write %% and \\\\ for the characters themselves",
            )
        else:
            parts.append(token.encode("utf-8", "surrogateescape"))
    return FormatString(tuple(parts), tuple(names))
