"""Parses the text of a filter into an expression.

The text is split into tokens first, with the longest match at each position.

Precedence rises from OR over AND, equality and order to signs and NOT. A chain of ANDs or ORs is one node,
however long it is. All other nesting is limited to DEPTH_LIMIT, so no text can exhaust the stack.

Source: SelectorParser#JmsSelector and the methods below it, the token manager of SelectorParser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from rmqtool.errors import FilterError, UsageError
from rmqtool.formats.versions import BROKERS, NEWEST
from rmqtool.lazy_pattern import pattern
from rmqtool.read.filter import nodes
from rmqtool.read.filter.nodes import EvaluationError, Node, NodeError

WORDS_4_9 = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
WORDS = WORDS_4_9 | {"CONTAINS", "STARTSWITH", "ENDSWITH"}
"""Reserved words, in any case; 4.9 does not know the last three."""

# A line comment needs a line end: two dashes in the last line are two signs.
_SKIPPED = pattern(
    r"(?:[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*", re.ASCII
)  # fmt: skip
_TOKEN = pattern(
    r"""(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
      | (?P<decimal>0|[1-9][0-9]*[lL]?)
      | (?P<string>'(?:''|[^'])*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<mark><>|<=|>=|[=<>(),+-])""",
    re.ASCII | re.VERBOSE,
)


class Token(NamedTuple):
    """One token: `kind` is a reserved word, a mark, or float, decimal, string, name or end."""

    kind: str
    text: str
    position: int


class Tokens:
    """The tokens of a text, with one token of lookahead (`next`)."""

    def __init__(self, text: str, words: frozenset[str]) -> None:
        self._text = text
        self._words = words
        self._end = 0
        self.next = self._read()

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self._text, self._end)
        start = self._end if skipped is None else skipped.end()
        if start == len(self._text):
            return Token("end", "", start)
        match = _TOKEN.match(self._text, start)
        if match is None or match.lastgroup is None:
            unclosed = self._text[start] == "'"
            problem = "the string does not end" if unclosed else f"{self._text[start]!r} has no meaning"
            hint = "the comparisons are = <> < <= > >=" if self._text[start] in "!~&|" else None
            raise FilterError(problem, position=start, hint=hint)
        self._end, kind, text = match.end(), match.lastgroup, match[0]
        if kind == "mark" or (kind == "name" and text.upper() in self._words):
            kind = text.upper()
        return Token(kind, text, start)

    def take(self) -> Token:
        """Return the next token and read the one after it."""
        token = self.next
        self.next = self._read()
        return token

    def expect(self, kind: str, what: str) -> Token:
        """Take the next token. Raises FilterError, saying that `what` is expected, if it is not `kind`."""
        if self.next.kind != kind:
            raise self.error(f"{what} is expected")
        return self.take()

    def error(self, problem: str, hint: str | None = None) -> FilterError:
        """An error at the next token."""
        found = "the text ends" if self.next.kind == "end" else f"found {self.next.text[:40]}"
        return FilterError(f"{problem}, {found}", position=self.next.position, hint=hint)


DEPTH_LIMIT = 64
"""How deep an expression may nest; a broker's limit is its stack."""
TEXT_LIMIT = 1 << 20  # characters

_WORDS_BY_BROKER: dict[str, frozenset[str]] = {**dict.fromkeys(BROKERS, WORDS), "4.9": WORDS_4_9}
_NO_TEXT = pattern("[\ud800-\udfff]")
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")


class Expression:
    """A parsed filter: `text` as given, `names` of the properties that it uses. Picklable."""

    def __init__(self, text: str, broker: str, node: Node, names: frozenset[str]) -> None:
        self.text = text
        self.names = names
        self._broker = broker
        self._node = node

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[Callable[[str, str], Expression], tuple[str, str]]:
        return _parse_again, (self.text, self._broker)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return (self.text, self._broker) == (other.text, other._broker)

    def __hash__(self) -> int:
        return hash(self.text)

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """True, False or None for unknown.

        Raises:
            EvaluationError: the broker's evaluation throws, for example `size > 1` if size is "big".
        """
        value = self._node.evaluate(properties)
        return value if value is None else bool(value)

    def matches(self, properties: Mapping[str, str]) -> bool | None:
        """True if a broker would deliver the message; otherwise False, or None for unknown."""
        try:
            return self.evaluate(properties)
        except EvaluationError:
            return None


def _parse_again(text: str, broker: str) -> Expression:
    return parse(text, broker=broker, ignore_rest=True)


def parse(text: str, *, broker: str = NEWEST, ignore_rest: bool = False) -> Expression:
    """Read a filter.

    Args:
        text: the expression.
        broker: 4.9, 5.3 or 5.4: the first has no CONTAINS, STARTSWITH and ENDSWITH.
        ignore_rest: ignore the text after a complete expression, as a broker does:
            `a = 1 b = 2` is `a = 1`. Otherwise such text is an error.

    Raises:
        FilterError: the broker would reject it (with the position), or it nests too deep.
        UsageError: no such broker, or a text that is too long.
    """
    words = _WORDS_BY_BROKER.get(broker)
    if words is None:
        raise UsageError(f"broker {broker!r} is not supported; use {', '.join(_WORDS_BY_BROKER)}")
    if len(text) > TEXT_LIMIT:
        raise UsageError(f"the filter has {len(text)} characters, {TEXT_LIMIT} are the most")
    if broken := _NO_TEXT.search(text):
        raise FilterError("the bytes there are not UTF-8", position=broken.start())
    parser = _Parser(Tokens(text, words))
    node = parser.whole()
    if parser.tokens.next.kind != "end" and not ignore_rest:
        raise parser.tokens.error("AND, OR or the end is expected", "a broker would ignore the rest")
    return Expression(text, broker, node, frozenset(parser.names))


class _Parser:
    """One pass over the tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.names: set[str] = set()
        self._level = 0

    def whole(self) -> Node:
        start = self.tokens.next.position
        return self._made(start, lambda: nodes.boolean(self._either()))

    def _made(self, position: int, make: Callable[[], Node]) -> Node:
        """The result of `make`; a NodeError becomes a FilterError with its position."""
        try:
            node = make()
        except NodeError as error:
            raise FilterError(str(error), position=position) from error
        if node.depth > 2 * DEPTH_LIMIT:
            raise FilterError(f"it nests deeper than {DEPTH_LIMIT}", position=position)
        return node

    def _either(self) -> Node:
        return self._chain("OR", self._both, decisive=True)

    def _both(self) -> Node:
        return self._chain("AND", self._equality, decisive=False)

    def _chain(self, word: str, part: Callable[[], Node], *, decisive: bool) -> Node:
        position = self.tokens.next.position
        parts = [part()]
        while self.tokens.next.kind == word:
            self.tokens.take()
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return self._made(position, lambda: nodes.logic(parts, decisive=decisive))

    def _equality(self) -> Node:
        position = self.tokens.next.position
        left = self._comparison()
        while (kind := self.tokens.next.kind) in ("=", "<>", "IS"):
            self.tokens.take()
            make: Callable[[Node], Node]
            negated = kind == "<>"
            if kind == "IS":
                if self.tokens.next.kind == "NOT":
                    self.tokens.take()
                    negated = True
                self.tokens.expect("NULL", "NULL or NOT NULL")
                make = nodes.is_null
            else:
                right = self._comparison()
                make = _with_right(right)
            left = self._made(position, _applied(make, left, negated=negated))
        return left

    def _comparison(self) -> Node:
        position = self.tokens.next.position
        left = self._unary()
        while True:
            kind, negated = self.tokens.next.kind, False
            if kind == "NOT":
                self.tokens.take()
                kind, negated = self.tokens.next.kind, True
                if kind not in ("IN", "BETWEEN", *_SEARCHES):
                    raise self.tokens.error("IN, BETWEEN or CONTAINS is expected after NOT")
            make = self._comparison_with(kind, negated=negated)
            if make is None:
                return left
            left = self._made(position, _applied(make, left))

    def _comparison_with(self, kind: str, *, negated: bool) -> Callable[[Node], Node] | None:
        """Applies the operator `kind` and its right side to a given left side; None for other tokens."""
        match kind:
            case ">" | ">=" | "<" | "<=":
                self.tokens.take()
                right = self._unary()
                return lambda left: nodes.ordered(left, kind, right)
            case "BETWEEN":
                self.tokens.take()
                low = self._unary()
                self.tokens.expect("AND", "AND of BETWEEN")
                high = self._unary()
                return lambda left: nodes.between(left, low, high, negated=negated)
            case "IN":
                self.tokens.take()
                texts = self._texts()
                return lambda left: nodes.is_in(left, texts, negated=negated)
            case "CONTAINS" | "STARTSWITH" | "ENDSWITH":
                self.tokens.take()
                text = self._text()
                return lambda left: nodes.search(left, kind, text, negated=negated)
        return None

    def _texts(self) -> list[str]:
        self.tokens.expect("(", "( of IN")
        texts = [self._text()]
        while self.tokens.next.kind == ",":
            self.tokens.take()
            texts.append(self._text())
        self.tokens.expect(")", ", or )")
        return texts

    def _text(self) -> str:
        return _unquoted(self.tokens.expect("string", "a string in single quotes").text)

    def _unary(self) -> Node:
        position = self.tokens.next.position
        self._level += 1
        if self._level > DEPTH_LIMIT:
            raise FilterError(f"it nests deeper than {DEPTH_LIMIT}", position=position)
        try:
            match self.tokens.next.kind:
                case "+":
                    self.tokens.take()
                    return self._unary()
                case "-":
                    self.tokens.take()
                    return self._made(position, _applied(nodes.negate, self._unary()))
                case "NOT":
                    self.tokens.take()
                    return self._made(position, _applied(nodes.negation, self._unary()))
            return self._primary()
        finally:
            self._level -= 1

    def _primary(self) -> Node:
        position, kind = self.tokens.next.position, self.tokens.next.kind
        if kind not in ("string", "decimal", "float", "name", "TRUE", "FALSE", "NULL", "("):
            raise self.tokens.error("a property, a number, a string or ( is expected")
        text = self.tokens.take().text
        match kind:
            case "(":
                inner = self._either()
                self.tokens.expect(")", ")")
                return inner
            case "string":
                return nodes.constant(_unquoted(text))
            case "decimal":
                return self._made(position, lambda: nodes.decimal(text))
            case "float":
                return self._made(position, lambda: nodes.floating(text))
            case "name":
                self.names.add(text)
                return nodes.property_of(text)
        return _constants()[kind]


def _with_right(right: Node) -> Callable[[Node], Node]:
    return lambda left: nodes.equal(left, right)


def _applied(make: Callable[[Node], Node], node: Node, *, negated: bool = False) -> Callable[[], Node]:
    return lambda: nodes.negation(make(node)) if negated else make(node)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


@cache
def _constants() -> dict[str, Node]:
    values = (("TRUE", True), ("FALSE", False), ("NULL", None))
    return {word: nodes.constant(value) for word, value in values}
