r"""broker.conf: the Java properties file that a broker was started with.

Only the broker's own rules apply: ISO-8859-1 text, `\uXXXX` escapes, `=`, `:` or blanks between
name and value. A backslash at the end of a line joins the next one. The last of two equal names
wins. Trailing blanks belong to the value.

Source: java.util.Properties#load, MixAll#properties2Object, BrokerStartup#createBrokerController.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.open_files import reading

SIZE_LIMIT = 1 << 20  # a broker.conf is a page or two; a larger file was given by mistake
PATH_SEPARATOR = ","  # MixAll.MULTI_PATH_SPLITTER, unless a system property changes it

_INTEGER = pattern(r"[+-]?[0-9]{1,99}", re.ASCII)
_PAIR = pattern(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = pattern(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_IN_ROCKSDB = "defaultrocksdb"
_TYPES = frozenset({"default", _IN_ROCKSDB})


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """The settings of one broker.conf, by their names in BrokerConfig and MessageStoreConfig.

    Attributes:
        path: the file.
        values: the settings, as texts.
        lines: the line of each, from 1 on; empty for settings that are in no file.
    """

    path: Path
    values: Mapping[str, str]
    lines: Mapping[str, int] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """The value of `name`; None if it is not set or empty. 5.x trims texts, 4.x does not."""
        return self.values.get(name, "").strip() or None

    def integer(self, name: str, *, bits: int = 32) -> int | None:
        """The value of `name` as a broker parses an integer; None if the broker keeps its default.

        The broker keeps it if `name` is not set, and silently if the text is not an integer of `bits` bits
        (see `ignored`). A trailing blank makes it such a text.
        """
        text = self.values.get(name, "")
        if not _INTEGER.fullmatch(text):
            return None
        value = int(text)
        return value if -1 << bits - 1 <= value < 1 << bits - 1 else None

    def ignored(self, name: str, *, bits: int = 32) -> str | None:
        """The text of an integer setting that a broker ignores (see `integer`); None if valid or unset."""
        text = self.values.get(name)
        return None if self.integer(name, bits=bits) is not None else text

    def why_ignored(self, name: str) -> str | None:
        """Where an integer setting that a broker ignores is, and why it does; None if valid or unset."""
        text = self.ignored(name)
        if text is None:
            return None
        where = f"{self.path} line {self.lines[name]}" if name in self.lines else str(self.path)
        what = f"{name}={text[:40]!r} is not an integer" if text else f"{name} has no value"
        return f"{where}: {what}"

    def check_integers(self, names: Iterable[str]) -> None:
        """Raises FormatError if a broker ignores one of these: it would use other sizes than rmqtool."""
        for name in names:
            text = self.ignored(name)
            if text is not None:
                raise FormatError(
                    f"{name}={text[:40]!r} is not an integer for a broker, which uses its default",
                    path=self.path, hint="use digits only, with no trailing blank",
                )  # fmt: skip

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Whether `name` is `true` in any case. As in Java any other text is false, also one with a blank."""
        text = self.values.get(name)
        return default if text is None else text.lower() == "true"

    def is_rocksdb(self, name: str) -> bool:
        """Whether a setting that names a type of queues, such as storeType, names that in RocksDB."""
        return (self.text(name) or "").lower() == _IN_ROCKSDB

    @property
    def combined_types(self) -> frozenset[str] | None:
        """The types of queues that 5.4 keeps side by side: `default`, `defaultrocksdb`; None: it keeps one.

        Source: DefaultMessageStore#createConsumeQueueStore, StoreType#fromString of 5.4.0.
        """
        if self.is_rocksdb("storeType") or not self.flag("rocksdbCQDoubleWriteEnable"):
            return None
        text = self.values.get("combineCQLoadingCQTypes")
        if text is None:
            return _TYPES
        return _TYPES & {name.strip() for name in text.lower().split(";")}

    @property
    def has_queues_only_in_rocksdb(self) -> bool:
        """Whether the broker reads and writes no queue files."""
        return self.is_rocksdb("storeType") or self.combined_types == frozenset({_IN_ROCKSDB})

    def paths(self, name: str) -> tuple[Path, ...]:
        """The folders in a setting that may list several, in order."""
        pieces = (self.text(name) or "").split(PATH_SEPARATOR)
        return tuple(Path(piece.strip()) for piece in pieces if piece.strip())


def read_broker_conf(path: Path) -> BrokerConf:
    """Read a broker.conf.

    Raises:
        UnreadableError: the file cannot be read, or is not a plain file.
        InputError: the file is larger than SIZE_LIMIT.
    """
    try:
        with reading(path) as file:
            data = file.read(0, SIZE_LIMIT + 1)
    except OSError as error:
        raise UnreadableError(f"cannot read the broker configuration: {error.strerror}", path=path) from error
    if len(data) > SIZE_LIMIT:
        raise InputError("too large for a broker configuration", path=path)
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, name, value in _settings(data):
        values[name], lines[name] = value, number
    return BrokerConf(path, values, lines)


def parse_properties(data: bytes) -> dict[str, str]:
    """The names and values of a Java properties file. Source: java.util.Properties#load."""
    return {name: value for _, name, value in _settings(data)}


def _settings(data: bytes) -> Iterator[tuple[int, str, str]]:
    """The line, the name and the value of each setting."""
    for number, line in _logical_lines(data.decode("iso-8859-1")):
        match = _PAIR.fullmatch(line)
        assert match is not None, "both parts of the pattern may be empty"
        yield number, _unescape(match[1]), _unescape(match[2])


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """The lines, joined where a backslash ends one, each with the number of its first."""
    lines: list[tuple[int, str]] = []
    joined = False
    for number, piece in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = piece.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        continues = backslashes % 2 == 1
        line = line[:-1] if continues else line
        if joined:
            lines[-1] = (lines[-1][0], lines[-1][1] + line)
        else:
            lines.append((number, line))
        joined = continues
    return lines


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        return _CONTROL.get(escape, escape)

    return _ESCAPE.sub(plain, text)
