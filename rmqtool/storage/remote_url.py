"""URLs of stores: parsed, with their secrets kept out of everything that is shown.

    s3://bucket/store?endpoint=http://127.0.0.1:9000&region=us-east-1
    webhdfs://user@namenode:9870/data/store
    file:///data/store                              the local path /data/store
    file:/data/store                                the same, as Hadoop writes it

User and password before `@`, and everything after `?`, are options: they are used and never shown, except in
command lines, which have those that hold no secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern

_URL = pattern(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HADOOP_LOCAL = pattern(r"file:(/(?!/).*)", re.DOTALL | re.IGNORECASE)
_LOCAL = frozenset({"file", "local"})
_WITH_QUERY = frozenset({"http", "https"})  # the query is a part of the file's name there
_SECRET = r"[\w.-]*(?:key|secret|token|sig|signature|password|passwd|credential|delegation|auth|user)[\w.-]*"
_IN_QUERY = pattern(rf"(?i)((?:^|[^\w.-]){_SECRET}\s*=\s*)[^&;\s'\"]+")
_IN_AUTHORITY = pattern(r"(://)[^/\s@'\"]+@")
_NO_SECRETS = frozenset(
    {"endpoint", "endpoint_override", "endpoint_url", "region", "region_name", "scheme", "anonymous", "anon"}
)
_SHORT = 4  # shorter values are not masked in texts: they would match everywhere
MASK = "***"

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A URL without its secrets, and the options that hold them.

    Attributes:
        protocol: in lower case, `s3` for `s3a` and `s3n`.
        authority: bucket, or host and port.
        path: the path after the authority, without slashes at both ends.
        options: from the URL and from the program, sorted by name; never printed.
        user: the text before `@`; never printed.
    """

    protocol: str
    authority: str
    path: str
    options: Options = field(default=(), repr=False)
    user: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.protocol}://{'/'.join(part for part in (self.authority, self.path) if part)}"

    @property
    def root(self) -> RemoteUrl:
        """Return the URL without the path: the part that all files of one connection share."""
        return RemoteUrl(self.protocol, self.authority, "", self.options, self.user)

    @property
    def inner(self) -> str:
        """Authority and path as one name."""
        return "/".join(part for part in (self.authority, self.path) if part)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not be shown."""
        return tuple(_texts((self.user, *self.user.split(":"), *(value for _, value in self.options))))

    def typed(self, inner: str) -> str:
        """The URL of `inner` in a command line: with its options, `***` where one holds a secret."""
        user = f"{MASK}@" if self.user else ""
        given = "&".join(
            f"{name}={quote(mask(str(value)), safe=':/*@') if name in _NO_SECRETS else MASK}"
            for name, value in self.options
        )
        if self.protocol in _WITH_QUERY and given:
            given = MASK
        return f"{self.protocol}://{user}{inner}{'?' if given else ''}{given}"

    def mask(self, text: str) -> str:
        """`text` with the secrets of this URL, and anything that looks like a secret, replaced by `***`."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return mask(text)


def _texts(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        if isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, tuple):
            yield from _texts(value)
        elif isinstance(value, str) and len(value) >= _SHORT:
            yield value


def mask(text: str) -> str:
    """`text` with users and passwords in URLs, and values whose names suggest a secret, replaced by `***`."""
    return _IN_QUERY.sub(rf"\g<1>{MASK}", _IN_AUTHORITY.sub(rf"\g<1>{MASK}@", text))


def is_url(text: object) -> bool:
    """Whether `text` is a URL of any protocol, not a path."""
    return isinstance(text, str) and bool(_URL.match(text) or _HADOOP_LOCAL.match(text))


def local_path(text: str) -> str | None:
    """The path of a `file://` URL, unquoted, or of `file:/path`, unchanged; None for other texts.

    Raises:
        UsageError: the URL names another host, or has options.
    """
    plain_form = _HADOOP_LOCAL.fullmatch(text)
    if plain_form is not None:
        return plain_form[1]
    match = _URL.fullmatch(text)
    if match is None or match[1].lower() not in _LOCAL:
        return None
    host, slash, path = match[2].partition("/")
    if host not in ("", "localhost") or "?" in path or not slash:
        raise UsageError("a file:// URL is file:///path: no host, nothing after ?")
    return "/" + unquote(path)


def parse(text: str, storage_options: Mapping[str, Any] | None = None) -> RemoteUrl:
    """Parse a URL.

    Args:
        text: the URL.
        storage_options: more options; they win over those in the URL.

    Raises:
        UsageError: not a URL, a URL without a place or with `.` or `..`, or a chain of URLs.
    """
    match = _URL.fullmatch(text)
    if match is None or "\0" in text:
        raise UsageError(f"{mask(text)!r} is not a URL")
    if "::" in match[2].partition("?")[0].partition("[")[0]:
        raise UsageError("chained URLs are not supported", hint="name the one that holds the store")
    protocol, rest = match[1].lower(), match[2]
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    user, _, authority = authority.rpartition("@")
    if protocol in ("s3a", "s3n"):
        protocol = "s3"
    given: dict[str, Any] = dict(storage_options or {})
    if protocol in _WITH_QUERY:
        given = {"query": query, **given} if query else given
    else:
        given = {**dict(parse_qsl(query, keep_blank_values=True)), **given}
    parts = [part for part in path.split("/") if part]
    if not authority and not parts:
        raise UsageError(f"{protocol}:// names no place")
    if ".." in parts or "." in parts:
        raise UsageError("a URL of a store has no '.' and '..'")
    options = tuple(sorted(((name, _frozen(value)) for name, value in given.items()), key=itemgetter(0)))
    try:
        hash(options)
    except TypeError:
        raise UsageError("values of storage options are texts, numbers, and mappings of these") from None
    return RemoteUrl(protocol, authority, "/".join(parts), options, user)


def _frozen(value: Any) -> Any:
    return tuple(sorted((k, _frozen(v)) for k, v in value.items())) if isinstance(value, Mapping) else value


def plain(value: Any) -> Any:
    """An option's value as its library expects it: booleans and integers from text, mappings as dict."""
    if isinstance(value, tuple):
        return {name: plain(each) for name, each in value}
    if isinstance(value, str):
        lowered = value.lower()
        if lowered in ("true", "false"):
            return lowered == "true"
        if re.fullmatch(r"[0-9]{1,9}", value):
            return int(value)
    return value
