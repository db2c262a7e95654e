"""Java's own rules that decide bytes on disk: string hashes, HashMap order, UTF-8.

Strings are Python strings. A character beyond U+FFFF counts as its two UTF-16 surrogates, as in
Java; a lone surrogate is allowed in a `str` here, because Java allows it too.

Source: java.lang.String#hashCode, java.util.HashMap, java.nio.charset.StandardCharsets.UTF_8;
spec 01 section 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from unicodedata import decimal

from rmqtool.lazy_pattern import pattern

DEFAULT_BUCKETS = 16
"""Buckets of `new HashMap<>()`."""

TRIMMED = "".join(map(chr, range(0x21)))
"""The characters that `String#trim` removes at both ends."""

_TREEIFY_BIN = 8  # a bin that grows beyond this doubles a small table (HashMap.TREEIFY_THRESHOLD)
_TREEIFY_TABLE = 64  # tables of at least this many buckets keep such a bin (MIN_TREEIFY_CAPACITY)
_I32_SIGN = 0x80000000
_SURROGATE_BYTES = pattern(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()
_PLAIN_DIGITS = 20  # as many as the name of a log or queue file has


def string_hash(text: str) -> int:
    """`text.hashCode()` as a signed 32-bit number; 0 for the empty string."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = memoryview(text.encode("utf-16-be", "surrogatepass"))
        for position in range(0, len(units), 2):
            value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - ((value & _I32_SIGN) << 1)


def tags_code(tags: str | None) -> int:
    """The tags code of a consume queue unit: the hash of the whole TAGS value, 0 without one.

    Source: MessageExtBrokerInner#tagsString2tagsCode; spec 01 section 5.2.
    """
    return string_hash(tags) if tags else 0


def index_key_hash(key: str) -> int:
    """The hash in an index entry, 0..2**31-1, of the full key text (`topic#key`).

    Source: IndexFile#indexKeyHashMethod: abs(), whose one negative result becomes 0.
    """
    value = abs(string_hash(key))
    return 0 if value == _I32_SIGN else value


def index_key_hashes(starts: Iterable[str], ends: Iterable[str]) -> set[int]:
    """The `index_key_hash` of each of the starts followed by each of the ends; each text is read once."""
    parts = [(pow(31, len(end.encode("utf-16-be", "surrogatepass")) // 2, 1 << 32), string_hash(end))
             for end in ends]  # fmt: skip
    values = {
        (start * power + end) & 0xFFFFFFFF for start in map(string_hash, starts) for power, end in parts
    }
    # abs() of the signed number; 0 for -2**31, which has no positive counterpart
    return {(value if value < _I32_SIGN else -value) & 0x7FFFFFFF for value in values}


def hash_map_order(keys: Iterable[str], buckets: int = DEFAULT_BUCKETS) -> list[str]:
    """The iteration order of a Java HashMap into which `keys` were put in the given order.

    Args:
        keys: names in the order of `put`; a repeated one keeps its first place.
        buckets: size of the new table, a power of two. It doubles as Java's does.

    Java turns a bin of more than 8 names in a table of 64 or more buckets into a tree, whose order may
    differ. Only names made for that purpose collide so often.

    Source: java.util.HashMap#putVal, #resize, #treeifyBin.
    """
    if buckets < 1 or buckets & (buckets - 1):
        raise ValueError(f"{buckets} buckets: not a power of two")
    spread: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for key in keys:
        if key in spread:
            continue
        spread[key] = _spread_hash(key)
        bucket = spread[key] & (buckets - 1)
        sizes[bucket] = sizes.get(bucket, 0) + 1
        if sizes[bucket] > _TREEIFY_BIN and buckets < _TREEIFY_TABLE:
            buckets, sizes = _doubled(buckets, spread)
        if len(spread) > buckets * 3 // 4:
            buckets, sizes = _doubled(buckets, spread)
    # A table that doubles keeps the order inside each bucket: only the last size matters, and
    # sorting by bucket is stable.
    return sorted(spread, key=lambda key: spread[key] & (buckets - 1))


def _doubled(buckets: int, spread: dict[str, int]) -> tuple[int, dict[int, int]]:
    buckets *= 2
    sizes: dict[int, int] = {}
    for value in spread.values():
        sizes[value & (buckets - 1)] = sizes.get(value & (buckets - 1), 0) + 1
    return buckets, sizes


@lru_cache(maxsize=4096)
def _spread_hash(key: str) -> int:
    value = string_hash(key) & 0xFFFFFFFF
    return value ^ (value >> 16)


def parse_integer(text: str, limit: int) -> int | None:
    """Java's parseInt (parseLong, parseShort) within [-limit, limit); None if that throws.

    It takes the decimal digits of every script, as long as they are one UTF-16 unit.
    """
    if text.isascii() and text.isdigit() and len(text) <= _PLAIN_DIGITS:
        value = int(text)
        return value if value < limit else None
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or max(digits) > "\uffff":
        return None
    value = 0
    for character in digits:
        digit = decimal(character, -1)
        if digit < 0:
            return None
        value = min(10 * value + digit, limit + 1)  # bounded: a value may have thousands of digits
    value = -value if text[0] == "-" else value
    return value if -limit <= value < limit else None


def java_utf8_decode(data: bytes | memoryview) -> str:
    """`new String(data, UTF_8)`: invalid bytes become as many U+FFFD as in Java.

    Java and Python differ only for an encoded surrogate (ED A0..BF 80..BF): it becomes one U+FFFD in
    Java, and one per byte in Python.
    """
    data = bytes(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _SURROGATE_BYTES.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def java_utf8_encode(text: str) -> bytes:
    """`text.getBytes(UTF_8)`: a lone surrogate becomes `?`, a pair of them its character."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return paired.encode("utf-8", "replace")
