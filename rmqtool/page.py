"""Pages of text: one model, shown as roff (man pages) or as plain lines (help on a terminal or in a pipe).

Marks in texts: `code` is bold. Marks in terms and usage lines: `code` is bold, *NAME* is a placeholder.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rmqtool.lazy_pattern import pattern

_MANUALS = {1: "User commands", 5: "File formats", 7: "Overview"}
_ROFF = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti"}
_MARKS = pattern(r"`([^`]+)`|\*([^*\s]+)\*")
_WORDS = pattern(r"(?:`[^`]+`|\*[^*\s]+\*|\S)+")
_BOLD, _CODE, _PLACEHOLDER = "1", "36", "32"  # colours of a terminal
_INDENT = 2
_TEXT_COLUMN = 26  # where the texts of entries begin at most; a longer term has a line of its own
_WIDTH_MAX = 110  # longer lines are hard to read
_GRID_WIDTH = 72  # of a table in a man page: roff cannot break its lines
_GRID_TEXT = 24  # least width of a text beside the cells of its row
_GRID_BELOW = 8  # where a text begins below them


class Paragraph(NamedTuple):
    """A text that is filled to the width."""

    text: str


class Usage(NamedTuple):
    """A line with the marks of a term."""

    text: str


class Entry(NamedTuple):
    """A term with the paragraphs that explain it."""

    term: str
    paragraphs: tuple[str, ...]


class Verbatim(NamedTuple):
    """Lines that are shown as they are."""

    lines: tuple[str, ...]


class Grid(NamedTuple):
    """A table: the header and the rows, each as its aligned cells, and a text that continues below itself.

    Where its text has too little room, it is below the cells.
    """

    rows: tuple[tuple[str, str], ...]


Part = Paragraph | Usage | Entry | Verbatim | Grid


class Section(NamedTuple):
    """A heading with what follows it."""

    title: str
    parts: tuple[Part, ...]


class Page(NamedTuple):
    """One page of the manual: `name`(`section`)."""

    name: str
    section: int
    summary: str
    sections: tuple[Section, ...]

    def all_sections(self) -> tuple[Section, ...]:
        """The sections, with that of the name and the summary first."""
        return section("Name", Usage(f"`{self.name}` - {self.summary}")), *self.sections


def section(title: str, *parts: Part) -> Section:
    """Returns a section of `parts`."""
    return Section(title, parts)


def entry(term: str, *paragraphs: str) -> Entry:
    """Returns an entry of a list."""
    return Entry(term, paragraphs)


def paragraphs(text: str) -> Iterator[Part]:
    """Yields the paragraphs of a help text; a backspace (Typer's rule) marks those that keep their lines."""
    for paragraph in filter(None, text.split("\n\n")):
        if paragraph.startswith("\b"):
            yield Verbatim(tuple(paragraph.splitlines()[1:]))
        else:
            yield Paragraph(paragraph)


# roff


def roff(page: Page, version: str) -> str:
    """Returns a page as the source of a man page of the program in this version."""
    name = _escaped(page.name)
    lines = [
        '.\\" Made by `make man`; do not edit.',
        f'.TH {name.upper()} {page.section} "" "{version}" "{_MANUALS[page.section]}"',
        ".nh\n.ad l",  # words and names stay whole, so that a search finds them
        f".SH NAME\n{name} \\- {_filled(page.summary)}",
    ]
    for title, parts in page.sections:
        lines.append(f".SH {_escaped(title.upper())}")
        lines += (_roff_part(part, is_first=number == 0) for number, part in enumerate(parts))
    return "".join(f"{line}\n" for line in lines)


def _roff_part(part: Part, *, is_first: bool) -> str:
    start = "" if is_first else ".PP\n"
    match part:
        case Paragraph(text):
            return start + _filled(text)
        case Usage(text):
            return start + _guarded(_roff_term(text))
        case Entry(term, texts):
            first, *others = map(_filled, texts)
            return "\n".join((".TP", _roff_term(term), first, *(f".IP\n{text}" for text in others)))
        case Verbatim(lines):
            body = "\n".join(_guarded("".join(_ROFF.get(c, c) for c in line)) for line in lines)
            return f"{start}.nf\n\\f(CW{body}\\fP\n.fi"
        case Grid():
            least = max(len(cells) for cells, _ in part.rows) + _GRID_TEXT
            verbatim = Verbatim(tuple(_grid_lines(part, max(_GRID_WIDTH, least))))
            return _roff_part(verbatim, is_first=is_first)


def _escaped(text: str) -> str:
    return "".join(_ROFF.get(c, c if c.isascii() else f"\\[u{ord(c):04X}]") for c in " ".join(text.split()))


def _filled(text: str) -> str:
    return _guarded(re.sub(r"`([^`]+)`", r"\\fB\1\\fP", _escaped(text)))


def _roff_term(text: str) -> str:
    return _MARKS.sub(lambda mark: f"\\fB{mark[1]}\\fP" if mark[1] else f"\\fI{mark[2]}\\fP", _escaped(text))


def _guarded(line: str) -> str:
    # roff would take a line that starts with a full stop as a request.
    return "\\&" + line if line.startswith(".") else line


# lines


def lines(sections: Iterable[Section], width: int, *, colour: bool = False) -> Iterator[str]:
    """Yields sections as lines of at most `width` columns, except verbatim lines, which stay as they are."""
    sections, width = tuple(sections), min(width, _WIDTH_MAX)
    terms = (part.term for _, parts in sections for part in parts if isinstance(part, Entry))
    ends = (len(_term(term, colour=False)) + 2 * _INDENT for term in terms)
    column = max((end for end in ends if end <= _TEXT_COLUMN), default=_TEXT_COLUMN)
    for number, (title, parts) in enumerate(sections):
        if number:
            yield ""
        yield _painted(title, _BOLD, colour=colour)
        previous: Part | None = None
        for part in parts:
            if previous is not None and not (isinstance(part, Entry) and isinstance(previous, Entry)):
                yield ""
            yield from _part_lines(part, width, column, colour=colour)
            previous = part


def _part_lines(part: Part, width: int, column: int, *, colour: bool) -> Iterator[str]:
    match part:
        case Paragraph(text):
            yield from _wrapped([text], width, _INDENT)
        case Usage(text):
            yield from _usage_lines(text, width, colour=colour)
        case Verbatim(texts):
            yield from (" " * _INDENT + text if text else "" for text in texts)
        case Grid():
            yield from (" " * _INDENT + line for line in _grid_lines(part, width - _INDENT))
        case Entry(term, texts):
            below = list(_wrapped(texts, width, column))
            head, taken = " " * _INDENT + _term(term, colour=colour), _INDENT + len(_term(term, colour=False))
            if taken + _INDENT <= column:
                head += below.pop(0)[taken:]
            yield from [head] if taken <= width else _usage_lines(_by_words(term), width, colour=colour)
            yield from below


def _grid_lines(grid: Grid, width: int) -> Iterator[str]:
    column = max(len(cells) for cells, _ in grid.rows)
    is_beside = width - column >= _GRID_TEXT
    start = column if is_beside else _GRID_BELOW
    for cells, text in grid.rows:
        below = textwrap.wrap(text, width - start)
        yield f"{cells}{below.pop(0) if is_beside and below else ''}".rstrip()
        yield from (" " * start + line for line in below)


def _wrapped(texts: Sequence[str], width: int, indent: int) -> Iterator[str]:
    for number, text in enumerate(texts):
        if number:
            yield ""
        yield from textwrap.wrap(
            " ".join(text.replace("`", "").split()),
            width,
            initial_indent=" " * indent,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _by_words(term: str) -> str:
    """The term with a mark for each word, so that it can be broken between them."""

    def marked(mark: re.Match[str]) -> str:
        sign, words = mark[0][0], (mark[1] or mark[2]).split()
        return " ".join(f"{sign}{word}{sign}" for word in words)

    return _MARKS.sub(marked, term)


def _usage_lines(text: str, width: int, *, colour: bool) -> Iterator[str]:
    """The words of a usage, of which a marked one may have spaces; later lines are indented twice."""
    line, taken = "", 0
    for word in _WORDS.findall(text):
        length = len(_term(word, colour=False))
        if line and taken + 1 + length > width:
            yield line
            line = ""
        indent = 2 * _INDENT if taken else _INDENT
        line, taken = (
            (f"{line} {_term(word, colour=colour)}", taken + 1 + length)
            if line
            else (" " * indent + _term(word, colour=colour), indent + length)
        )
    yield line


def _term(text: str, *, colour: bool) -> str:
    return _MARKS.sub(
        lambda mark: _painted(mark[1] or mark[2], _CODE if mark[1] else _PLACEHOLDER, colour=colour), text
    )


def _painted(text: str, code: str, *, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
