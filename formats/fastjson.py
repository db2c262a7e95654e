"""The JSON that brokers write: fastjson 1.2 (4.9, 5.3) and fastjson2 (5.4), read and written byte for byte.

Not standard JSON: integer keys of maps are bare (`{0:250,1:251}`), and fastjson 1.2 writes an
object that occurs again as `{"$ref":"$.path"}`. A document is made of dict, list, str, int, float,
bool and None; keys are str or, where bare, int. Map order is kept as read. What both libraries
accept beyond that is accepted too: a byte order mark, comments, a comma before a closing bracket,
raw control characters in strings.

The layout of an array depends on its Java type, which the text does not show. `dump` knows the fields
that are sets, primitive arrays or lists of numbers in a broker; all others are lists.

Source: fastjson 1.2.83 SerializeWriter, MapSerializer, ListSerializer, CollectionCodec; fastjson2
2.0.43 JSONWriterUTF16; spec 01 section 9.2; both libraries executed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeGuard

from rmqtool.errors import FormatError
from rmqtool.formats.java import java_utf8_decode, java_utf8_encode
from rmqtool.formats.versions import Broker
from rmqtool.lazy_pattern import pattern

Dialect = Broker
_FASTJSON_1: frozenset[Dialect] = frozenset(("4.9", "5.3"))  # later brokers write with fastjson2

SIZE_LIMIT = 64 << 20  # bytes of text
READ_LIMIT = SIZE_LIMIT + 1  # bytes to read of a file: enough to see that it is too long
DEPTH_LIMIT = 64  # brokers write six levels at most
VALUE_LIMIT = 2_000_000  # values read or written in one document

# The comment group is not possessive: Python 3.11.2 fails to match the possessive form.
_TOKEN = pattern(
    r"""[ \t\r\n\f]*+(?:
        (?P<string>"(?:[^"\\]++|\\.)*+")
      | (?P<mark>[{}\[\]:,])
      | (?P<number>-?\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+)
      | (?P<word>true|false|null)
      | (?P<comment>/\*[^*]*\*+(?:[^/*][^*]*\*+)*/|//[^\n]*+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}
_NUMBER_DIGITS = 40  # a Java long has 19
_OTHER = object()  # instead of a document: the text is not standard JSON

_SHORT_ESCAPES = {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r", '"': r"\"", "\\": r"\\"}
_ESCAPED_1 = pattern(r'["\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_ESCAPED_1_BROWSER = r'["\\/\x00-\x1f\x7f-\uffff]'  # compiled when it is used, for that takes 6 ms
_ESCAPED_2 = pattern(r'["\\\x00-\x1f]')
_REFERENCE_STEP = pattern(r"\.((?:\\.|[^.\[\\])++)|\[(\d{1,10})\]", re.DOTALL)

_SETS = frozenset({"subscriptionDataSet"})
_SETS_BELOW = frozenset({"groupTopicMap"})  # maps whose values are sets
_PRIMITIVE_ARRAYS = frozenset({"bitPos"})
_NUMBER_LISTS = frozenset({"o"})  # List<Long>: fastjson2 writes it in one line


def parse(data: bytes | str) -> Any:
    """The document in `data`; references are left as they are (see `resolve`).

    The last value of a repeated key counts.

    Raises:
        FormatError: not a document, or larger or deeper than the limits.
    """
    if len(data) > SIZE_LIMIT:
        raise FormatError(f"JSON of more than {SIZE_LIMIT} bytes")
    text = (data if isinstance(data, str) else java_utf8_decode(data)).removeprefix("\ufeff")
    document = _standard(text)
    if document is _OTHER:
        document = by_tokens(text)
    # With 25,000 topics, a search of the document for references takes as long as half of this function.
    has_none = "$ref" not in text and "\\u" not in text
    return _WithoutReferences(document) if has_none and isinstance(document, dict) else document


class _WithoutReferences(dict[str | int, Any]):
    """An object as it was read, in which no value is a reference."""


def by_tokens(text: str) -> Any:
    """The document that `parse` reads, token by token: all that brokers accept.

    Raises: as `parse`.
    """
    builder = _Builder()
    for kind, token, position in _tokens(text):
        if not builder.take(kind, token):
            raise FormatError(f"JSON: unexpected {token[:20]!r} at character {position}")
    return builder.document()


def whole_entries(data: bytes, name: str) -> dict[str | int, Any]:
    """The entries of the object `name` that are whole in a text that is cut, or goes on with other bytes."""
    builder = _Builder()
    with suppress(FormatError):
        for kind, token, _ in _tokens(java_utf8_decode(data[:SIZE_LIMIT]).removeprefix("\ufeff")):
            if not builder.take(kind, token):
                break
    table = builder.root.get(name) if isinstance(builder.root, dict) else None
    if not isinstance(table, dict):
        return {}
    return {key: value for key, value in table.items() if all(value is not each for each in builder.stack)}


def _standard(text: str) -> Any:
    """The document if the text is standard JSON within the limits; else _OTHER.

    A broker with 25,000 topics has megabytes of it.
    """
    opened = text.count("{") + text.count("[")
    if opened + text.count(",") >= VALUE_LIMIT:  # each value is the first one, or after one of these
        return _OTHER
    try:
        document = _DECODER.decode(text)
    except (ValueError, RecursionError, FormatError):
        return _OTHER
    return document if opened <= DEPTH_LIMIT or _depth(document) <= DEPTH_LIMIT else _OTHER


def _integer(token: str) -> int:
    if len(token) > _NUMBER_DIGITS:
        raise FormatError(f"JSON: number of {len(token)} digits")
    return int(token)


def _number(token: str) -> int | float:
    if token.lstrip("-").isdigit():
        return _integer(token)
    if len(token) > _NUMBER_DIGITS:
        raise FormatError(f"JSON: number of {len(token)} digits")
    if math.isinf(value := float(token)):
        raise FormatError(f"JSON: {token} is out of range")
    return value


def _no_number(token: str) -> Any:
    raise FormatError(f"JSON: {token} is not a number")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_number, parse_constant=_no_number)


def _depth(document: Any) -> int:
    """How many levels of objects and arrays the document has."""
    depth, level = 0, [document]
    while level := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        level = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
    return depth


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    position = 0
    end = len(text.rstrip(" \t\r\n\f"))
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise FormatError(f"JSON: cannot be read at character {position}")
        position = match.end()
        if match.lastgroup != "comment":
            yield match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)


class _Builder:
    """Builds a document token by token without recursion, so that depth costs no stack."""

    def __init__(self) -> None:
        self.stack: list[dict[str | int, Any] | list[Any]] = []
        self.keys: list[str | int] = []  # the key that waits for its value, for each open object
        self.expect = "value"  # value | key | colon | comma | end; key and value also allow the close
        self.values = 0
        self.root: Any = None

    def take(self, kind: str, token: str) -> bool:
        """Take the next token; return False if it is not allowed here."""
        if token in ("}", "]") and kind == "mark":
            return self._close(token)
        if self.expect == "value":
            return self._value(kind, token)
        if self.expect == "key":
            return self._key(kind, token)
        if self.expect == "colon":
            self.expect = "value"
            return token == ":"
        if self.expect == "comma":
            self.expect = "key" if isinstance(self.stack[-1], dict) else "value"
            return token == ","
        return False

    def document(self) -> Any:
        """The whole document. Raises FormatError when it is not complete."""
        if self.expect != "end":
            raise FormatError("JSON: the text ends too early")
        return self.root

    def _value(self, kind: str, token: str) -> bool:
        value: Any
        if kind == "mark":
            if token not in "{[":
                return False
            value = {} if token == "{" else []
        else:
            value = _scalar(kind, token)
        self._attach(value)
        if kind == "mark":
            if len(self.stack) >= DEPTH_LIMIT:
                raise FormatError(f"JSON: more than {DEPTH_LIMIT} levels")
            self.stack.append(value)
            self.expect = "key" if token == "{" else "value"
        else:
            self.expect = "comma" if self.stack else "end"
        return True

    def _attach(self, value: Any) -> None:
        self.values += 1
        if self.values > VALUE_LIMIT:
            raise FormatError(f"JSON: more than {VALUE_LIMIT} values")
        if not self.stack:
            self.root = value
        elif isinstance(container := self.stack[-1], dict):
            container[self.keys.pop()] = value
        else:
            container.append(value)

    def _key(self, kind: str, token: str) -> bool:
        if kind not in ("string", "number"):
            return False
        key = _scalar(kind, token)
        self.keys.append(key)
        self.expect = "colon"
        return not isinstance(key, float)

    def _close(self, token: str) -> bool:
        if not self.stack:
            return False
        is_object = isinstance(self.stack[-1], dict)
        allowed = ("key", "comma") if is_object else ("value", "comma")
        if self.expect not in allowed or (token == "}") != is_object:
            return False
        self.stack.pop()
        self.expect = "comma" if self.stack else "end"
        return True


def _scalar(kind: str, token: str) -> Any:
    if kind == "word":
        return _WORDS[token]
    if kind == "number":
        return _number(token)
    if "\\" not in token:
        return token[1:-1]
    try:
        return json.loads(token, strict=False)
    except ValueError as error:
        raise FormatError(f"JSON: bad escape in {token[:40]}") from error


def resolve(document: Any) -> Any:
    """The document with every `{"$ref": path}` replaced by the value at `path`, which is then shared.

    Without references it is the same object.

    Raises:
        FormatError: a reference that leads nowhere or into itself, or too deep a document.
    """
    if isinstance(document, _WithoutReferences):
        return document
    return _Resolver(document).value(document, 0)


class _Resolver:
    """Replaces references. Each path is resolved once, so the work is linear in the document."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.resolved: dict[str, Any] = {}
        self.open: set[str] = set()

    def value(self, value: Any, depth: int) -> Any:
        if not isinstance(value, (dict, list)):
            return value
        if depth > DEPTH_LIMIT:
            raise FormatError(f"JSON: more than {DEPTH_LIMIT} levels")
        if is_reference(value):
            return self.target(value["$ref"], depth + 1)
        # Most values are no containers: a call for each would take most of the time.
        if isinstance(value, dict):
            return {
                key: self.value(item, depth + 1) if isinstance(item, (dict, list)) else item
                for key, item in value.items()
            }
        return [self.value(item, depth + 1) if isinstance(item, (dict, list)) else item for item in value]

    def target(self, path: str, depth: int) -> Any:
        if path not in self.resolved:
            if path in self.open:
                raise FormatError(f"JSON: reference {path[:40]!r} leads into itself")
            self.open.add(path)
            self.resolved[path] = self.value(_referred(path, self.root), depth)
            self.open.remove(path)
        return self.resolved[path]


def is_reference(value: Any) -> TypeGuard[dict[str, str]]:
    """Whether a value is a reference to another one."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("$ref"), str)


def _referred(path: str, root: Any) -> Any:
    """The value at `path`. `@` and `..` (an object inside itself) are errors: brokers never write them."""
    if not path.startswith("$"):
        raise FormatError(f"JSON: reference {path[:40]!r} leads nowhere")
    position = 1
    value: Any = root
    while position < len(path):
        step = _REFERENCE_STEP.match(path, position)
        if step is None:
            raise FormatError(f"JSON: reference {path[:40]!r} cannot be read")
        position = step.end()
        name: Any = re.sub(r"\\(.)", r"\1", step[1], flags=re.DOTALL) if step[1] else int(step[2])
        try:
            value = value[name]
        except (KeyError, IndexError, TypeError) as error:
            raise FormatError(f"JSON: reference {path[:40]!r} leads nowhere") from error
    return value


def dump(document: Any, dialect: Dialect, *, compact: bool = False) -> bytes:
    """The text of `document` as a broker of this version writes it, in UTF-8.

    Args:
        document: as from `parse`. From 5.4 on references are resolved first (see `resolve`).
        dialect: the version of the broker; 4.9 and 5.3 write the same text.
        compact: the one-line form of timermetrics and transactionMetrics.

    Raises:
        FormatError: a value that JSON cannot hold, or too deep or too large a document.
    """
    modern = dialect not in _FASTJSON_1
    if modern:
        document = resolve(document)
    parts: list[str] = []
    _Writer(parts, modern=modern, compact=compact).value(document, 0, None, None)
    return java_utf8_encode("".join(parts))


class _Writer:
    """Writes values into `parts`; `modern` is fastjson2, else fastjson 1.2."""

    def __init__(self, parts: list[str], *, modern: bool, compact: bool) -> None:
        self.parts = parts
        self.modern = modern
        self.compact = compact
        self.values = 0

    def value(self, value: Any, depth: int, key: str | int | None, parent: str | int | None) -> None:
        """One value; `key` is its field and `parent` the field around that."""
        self.values += 1  # counted here too: a shared value is written each time it occurs
        if depth > DEPTH_LIMIT or self.values > VALUE_LIMIT:
            raise FormatError(f"JSON: more than {DEPTH_LIMIT} levels or {VALUE_LIMIT} values")
        if isinstance(value, dict):
            self._object(value, depth, key)
        elif isinstance(value, list):
            self._array(value, depth, key, parent)
        elif isinstance(value, str):
            self.parts.append(self._quoted(value))
        elif value is None or isinstance(value, bool):
            self.parts.append({True: "true", False: "false", None: "null"}[value])
        elif isinstance(value, int):
            self.parts.append(str(value))
        elif isinstance(value, float):
            self.parts.append(_double(value))
        else:
            raise FormatError(f"JSON cannot hold a {type(value).__name__}")

    def _object(self, value: dict[str | int, Any], depth: int, key: str | int | None) -> None:
        inline = self.compact or (not self.modern and is_reference(value))
        if not value:
            self.parts.append("{}" if not self.modern or self.compact else self._empty("{}", depth))
            return
        self.parts.append("{")
        for number, (name, item) in enumerate(value.items()):
            if number:
                self.parts.append(",")
            bare = isinstance(name, int) and not self.compact
            if not inline and (self.modern or not bare):
                self.parts.append("\n" + "\t" * (depth + 1))
            self.parts.append(f"{name}:" if bare else f"{self._quoted(str(name))}:")
            self.value(item, depth + 1, name, key)
        self.parts.append("}" if inline else "\n" + "\t" * depth + "}")

    def _array(self, value: list[Any], depth: int, key: str | int | None, parent: str | int | None) -> None:
        if self.modern:
            lines = key not in _PRIMITIVE_ARRAYS and key not in _NUMBER_LISTS
        else:
            is_set = key in _SETS or parent in _SETS_BELOW
            lines = bool(value) and not is_set and key not in _PRIMITIVE_ARRAYS
        if self.compact or not lines:
            self.parts.append("[")
            for number, item in enumerate(value):
                if number:
                    self.parts.append(",")
                self.value(item, depth, None, key)
            self.parts.append("]")
            return
        if not value:
            self.parts.append(self._empty("[]", depth))
            return
        for number, item in enumerate(value):
            self.parts.append(("," if number else "[") + "\n" + "\t" * (depth + 1))
            self.value(item, depth + 1, None, key)
        self.parts.append("\n" + "\t" * depth + "]")

    def _empty(self, brackets: str, depth: int) -> str:
        tabs = "\t" * depth
        return f"{brackets[0]}\n{tabs}\t\n{tabs}{brackets[1]}"

    def _quoted(self, text: str) -> str:
        if self.modern:
            return '"' + _ESCAPED_2.sub(lambda match: _escape(match[0], "04x"), text) + '"'
        if not self.compact:
            return '"' + _ESCAPED_1.sub(lambda match: _escape(match[0], "04X"), text) + '"'
        # BrowserCompatible: every UTF-16 unit outside ASCII, and the slash
        units = text.encode("utf-16-be", "surrogatepass")
        text = "".join(chr(units[i] << 8 | units[i + 1]) for i in range(0, len(units), 2))
        return '"' + re.sub(_ESCAPED_1_BROWSER, lambda match: _escape(match[0], "04X"), text) + '"'


def _escape(character: str, form: str) -> str:
    if character == "/":
        return r"\/"
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):{form}}"


def _double(value: float) -> str:
    """Java's text of a double: scientific outside [0.001, 10,000,000)."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{int(exponent) + len(digits) - 1}"
