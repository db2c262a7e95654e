"""A support archive as a tar file, compressed by its name's suffix.

A reader can look at it before it is sent: it has only plain text and JSON, and a README.txt that lists it.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.report.bundle.parts import ADDED, Part
from rmqtool.report.bundle.redaction import Redaction

BYTES_MAX: Final = 64 << 20
"""Bytes of all parts before compression; later parts are left out."""
SUFFIXES: Final = (".tar.gz", ".tgz", ".tar.zst")

_README: Final = """\
Support archive of a RocketMQ store, made by rmqtool bundle.

It has plain text and JSON only: read it before you send it. It has no bytes of
message bodies. Files of config/ have the values of those of the store, but are
written again: spaces and line ends differ.
{names}{added}
{files}
"""
_PLAIN: Final = """\
It does have the names of topics, consumer groups, hosts and brokers, and keys,
tags and properties of some messages. rmqtool bundle --redact replaces them.
"""
_REDACTED: Final = """\
Names of topics, groups, hosts and brokers, keys, tags and message ids are
replaced by pseudonyms, which begin with redacted-: the same name has the same
pseudonym everywhere. Values of properties are left out. Built-in topics, groups
and properties keep their names, but for the names of brokers, clusters and
groups in names of topics. The names are in a file next to the archive, which
stays with whoever made it.
"""

_ADDED_PLAIN: Final = f"""
The files of {ADDED} were added by whoever made it, and are as they were: they
may have text of message bodies too.
"""
_ADDED_REDACTED: Final = f"""
The files of {ADDED} were added by whoever made it. Replaced in them are
addresses, message ids, and the names that the other files have. Nothing else
is: they may have keys and tags of other messages, names that the store no
longer has, and text of message bodies.
"""


@dataclass(frozen=True)
class Bundle:
    """A finished archive.

    Attributes:
        data: its bytes.
        files: (name, bytes before compression, about) of its files.
        left: names that redaction has not replaced, each with the path of a file in the archive that has it.
            README.txt is not searched: its words are those of this module, and the paths of the other files.
    """

    data: bytes
    files: Sequence[tuple[str, int, str]]
    left: Mapping[str, str]


def _listed(path: str, size: int, about: str) -> list[str]:
    """What README.txt says of a file, in lines of at most 80 columns, if the path allows it."""
    indent = " " * 4
    return [f"{path}  {size} bytes", *wrap(about, 80, initial_indent=indent, subsequent_indent=indent)]


def check_suffix(name: str) -> None:
    """Raises UsageError for a name that does not say how to compress."""
    if not name.endswith(SUFFIXES):
        raise UsageError(f"--output: the name must end with {', '.join(SUFFIXES)}")


def names_file(name: str) -> str:
    """The name of the file with the names next to an archive: `v.names.json` for `v.tar.gz`."""
    suffix = next(each for each in SUFFIXES if name.endswith(each))
    return f"{name.removesuffix(suffix)}.names.json"


def packed(parts: Iterable[Part], name: str, redaction: Redaction | None) -> Bundle:
    """The archive of some parts; `name` is that of its file.

    All parts are made before any is rewritten: a name that a later part registers is replaced in all.
    """
    check_suffix(name)
    made = list(parts)
    files: list[tuple[str, bytes, str]] = []
    size = 0
    for part in made:
        content, path = part.content, part.name
        if redaction is not None:
            content = redaction.value(content, keys_in=part.names_as_keys_in)
        data = _bytes_of(content, path)
        if size + len(data) > BYTES_MAX:
            data = f"left out: {len(data)} bytes would exceed the {BYTES_MAX} of an archive\n".encode()
        size += len(data)
        files.append((path, data, part.about))
    left: dict[str, str] = {}
    if redaction is not None:
        for path, data, _ in files:
            left |= dict.fromkeys(redaction.left_in(f"{path}\n{data.decode()}"), path)
    lines = "\n".join(line for path, data, about in files for line in _listed(path, len(data), about))
    has_added = any(path.startswith(ADDED) for path, _, _ in files)
    readme = _README.format(
        names=_PLAIN if redaction is None else _REDACTED,
        added="" if not has_added else _ADDED_PLAIN if redaction is None else _ADDED_REDACTED,
        files=lines,
    )
    files.insert(0, ("README.txt", readme.encode(), "what this archive holds"))
    tar = io.BytesIO()
    now = int(time.time())
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data, _ in files:
            entry = tarfile.TarInfo(f"rmqtool-bundle/{path}")
            entry.size, entry.mtime, entry.mode = len(data), now, 0o644
            archive.addfile(entry, io.BytesIO(data))
    return Bundle(
        _compressed(tar.getvalue(), name), [(path, len(data), about) for path, data, about in files], left
    )


def _bytes_of(content: Any, path: str) -> bytes:
    if isinstance(content, str):
        text = content + "\n"
    elif path.endswith(".jsonl"):
        text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in content)
    else:
        text = json.dumps(content, ensure_ascii=False, indent=1, default=str) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _compressed(data: bytes, name: str) -> bytes:
    if name.endswith(".zst"):
        import zstandard

        packed: bytes = zstandard.compress(data)
        return packed
    return gzip.compress(data, mtime=0)
