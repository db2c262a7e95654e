"""What the fuzzer does to bytes, and to JSON documents: all of it drawn from one `Random`."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

# Limits of types, magics of records and blanks, sizes of heads: each is a place where a rule changes.
NUMBERS = (
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\1",
    b"\0\0\0\2",
    b"\x7f" + b"\xff" * 7,
    b"\x80" + bytes(7),
    b"\xff" * 8,
    bytes(7) + b"\1",
    b"\0\0\0\0\x7f\xff\xff\xff",
    b"\xda\xa3\x20\xa7",
    b"\xda\xa3\x20\xab",
    b"\xcb\xd4\x31\x94",
    b"\0\x10\0\0",
    b"\0\0\0\x5b",
    b"\0\0\0\x08",
    b"\x7f\xff",
    b"\x80\0",
    b"\xff\xff",
    b"\0\1",
    b"\x40\0\0\0",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
)
TEXTS = (
    b"\x01",
    b"\x02",
    b"\x01\x02",
    b"\0",
    b"\n",
    b"\r\n",
    b",",
    b'"',
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"..",
    b"/",
    b"../",
    b"%LMQ%",
    b"%RETRY%",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xc3",
    b"\xf0\x9f\x98\x80",
    b"\xe2\x80\xae",
    b"\x1b[31m",
    b"NaN",
    b"-1",
    b"9223372036854775808",
    b"1e400",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"true",
)
_LENGTHS = (1, 1, 2, 4, 4, 8, 8, 20, 46, 100, 700, 4096)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
    10**30,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "0",
    "-1",
    "9" * 30,
    "../../evil",
    "/etc/passwd",
    "\x00",
    "a\nb",
    "\x1b[31m",
    "\u202e",
    "\ud800",
    "x" * 5000,
    "%RETRY%group",
    "TopicTest@group",
    [],
    {},
    [[]],
    {"": {}},
    {"$ref": "$"},
    {"$ref": "$.x"},
    {"@type": "java.lang.Object"},
    [0] * 1000,
)


def mutate(data: bytes, random: Random, donors: Sequence[bytes] = ()) -> bytes:
    """`data` with one to four changes; `donors` are what pieces are taken from besides itself."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        _change(changed, random, (data, *donors))
    return bytes(changed)


def _change(data: bytearray, random: Random, donors: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    if random.random() < 0.3:
        at -= at % 4
    length = min(random.choice(_LENGTHS), len(data) - at)
    match random.choice(
        ("flip", "number", "number", "text", "noise", "zero", "cut", "insert", "delete", "copy", "grow")
    ):
        case "flip" if data:
            data[min(at, len(data) - 1)] ^= 1 << random.randrange(8)
        case "number":
            _put(data, at, random.choice(NUMBERS))
        case "text":
            text = random.choice(TEXTS)
            if random.random() < 0.5:
                _put(data, at, text)
            else:
                data[at:at] = text
        case "noise":
            _put(data, at, random.randbytes(length))
        case "zero":
            _put(data, at, bytes(length))
        case "cut":
            del data[at:]
        case "insert":
            data[at:at] = random.randbytes(random.choice(_LENGTHS[:9]))
        case "delete":
            del data[at : at + length]
        case "copy":
            donor = random.choice(donors)
            place = random.randrange(len(donor) + 1)
            _put(data, at, donor[place : place + random.choice(_LENGTHS)])
        case "grow":
            data += random.choice(
                (bytes(random.randrange(1, 5000)), random.randbytes(100), bytes(data[-200:]))
            )


def _put(data: bytearray, at: int, piece: bytes) -> None:
    data[at : at + len(piece)] = piece


def mutate_json(text: bytes, random: Random) -> bytes:
    """A JSON text whose values are others, or doubled, or gone; sometimes its bytes are."""
    try:
        document = json.loads(text)
    except ValueError:
        return mutate(text, random)
    if random.random() < 0.25:
        return mutate(text, random)
    if random.random() < 0.02:
        return b"[" * random.choice((1000, 200_000))
    for _ in range(random.choice((1, 1, 2, 3))):
        document = _change_json(document, random)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _change_json(document: Any, random: Random) -> Any:
    places = list(_places(document))
    if not places:
        return copy.deepcopy(random.choice(_VALUES))
    above, key = random.choice(places)
    match random.choice(("value", "value", "value", "value", "gone", "name", "swap", "more")):
        case "value":
            above[key] = copy.deepcopy(random.choice(_VALUES))
        case "gone":
            del above[key]
        case "name" if isinstance(above, dict):
            above[random.choice(("", "x", "0", "-1", "99999999999", "..", "a/b", "\x00", "%RETRY%x"))] = (
                above.pop(key)
            )
        case "swap":
            other, there = random.choice(places)
            above[key] = copy.deepcopy(other[there])
        case _:
            value = copy.deepcopy(above[key])
            if isinstance(above, list):
                above += [value] * random.choice((1, 50))
            else:
                above[f"{key}{random.choice(('2', ' ', '@x'))}"] = value
    return document


def _places(document: Any) -> Any:
    """(container, key) of every value below a document."""
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in list(items):
        yield document, key
        yield from _places(value)
