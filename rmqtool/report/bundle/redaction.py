"""Pseudonyms for names: the same name has the same pseudonym in a whole archive or page.

Names are registered first, then every text is rewritten: in values, in paths, and in the keys of objects that
have names as keys.
A name is replaced where it stands alone, that is, not inside a longer name. A topic that a broker names
after a group, a cluster or a broker keeps the rest of its name: `%RETRY%redacted-group#1`,
`rmq_sys_REVIVE_LOG_redacted-cluster#1`.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rmqtool.errors import FormatError, RmqtoolError
from rmqtool.formats import config_json
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.formats.tiered import METADATA
from rmqtool.lazy_pattern import pattern
from rmqtool.message.system_topics import (
    BUILT_IN_GROUPS,
    BUILT_IN_PREFIX,
    BUILT_IN_TOPICS,
    DLQ_PREFIX,
    MEMBER_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    TIMER_TOPIC,
)
from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.read.store import Store
from rmqtool.storage import ledger
from rmqtool.storage.layout import PARTS
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import read_head

_OF_NAMES: Final = r"\w%|-"
_WORD: Final = pattern(rf"[{_OF_NAMES}]")
_START: Final = pattern(rf"[{_OF_NAMES}]+|.", re.DOTALL)
"""How a name begins: its first word, or a character that no word has."""
_IPV4: Final = pattern(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_IPV6: Final = pattern(r"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%\w+)?\]")
_IPV6_ALONE: Final = pattern(r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}(?!\w)(?:%\w+)?")
"""As Java writes it into logs, all eight groups."""
_OFFSET_ID: Final = pattern(r"(?<![0-9A-Za-z])(?:[0-9A-F]{32}|[0-9A-F]{56})(?![0-9A-Za-z])")
NAMES_IN: Final = (
    "topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerFilter.json", "delayOffset.json",
)  # fmt: skip
"""The configuration files whose names are known by `names_of`; with redaction others are left out."""
_IN_NO_NAME: Final = frozenset({"", "0", "1"})
_KEPT: Final = _IN_NO_NAME | BUILT_IN_TOPICS | {TIMER_TOPIC} | BUILT_IN_GROUPS
"""Names without a pseudonym: those of every broker."""
_PREFIXES: Final = {
    RETRY_PREFIX: "group", DLQ_PREFIX: "group", LIGHT_PREFIX: "topic", MEMBER_PREFIX: "broker",
    REVIVE_PREFIX: "cluster", BUILT_IN_PREFIX: "topic",
}  # fmt: skip
"""How topics begin whose name ends with another name, and the kind of that name."""
OF_STORES: Final = pattern(
    "|".join(map(re.escape, (*PARTS, *NAMES_IN, METADATA)))
    + r"|\d{1,20}(\.(sst|log|dbtmp|bak|lz4|zst|gz))?|consumequeue\w+|config\w+|timer(check|metrics)"
    r"|compaction\w+|position-checkpoint|topics|consumerOffsets|subscriptionGroups|rdb|rocksdb\w*|consumerOrderInfo\.json|topicQueueMapping\.json|messageRequestMode\.json|transactionMetrics"
    rf"|broker\.conf|metadata|{ledger.PREFIX}\w+|data|CURRENT|LOCK|LOG(\.old\.\d+)?|IDENTITY|(MANIFEST|OPTIONS)-\d+"
)
"""Names of files and folders that brokers make; each may end with .bak or .tmp."""
_QUOTING: Final = pattern(r"JSON: (?!cannot|the text|more than|number of|its references)[^\n]*")
"""Reasons that quote a file which cannot be parsed."""
HARMLESS: Final = pattern(r"[+-]?\d+(\.\d+)?|true|false|(\d+[smhd]\s*)+|\d\d(;\d\d)*", re.IGNORECASE)
"""Values of settings that are not names: numbers, flags, times."""
KNOWN_WORDS: Final = frozenset({
    "ASYNC_MASTER", "SYNC_MASTER", "SLAVE", "ASYNC_FLUSH", "SYNC_FLUSH", "default", "defaultRocksDB",
})  # fmt: skip
"""Values of settings that brokers know."""
_WORDS_MAX: Final = 100
_PLAIN_PATHS: Final = frozenset({".", "..", "store", "rocketmq"})
"""Folders that tell nothing: their names are words of the texts in which names are replaced."""
PREFIX: Final = "redacted-"
"""How pseudonyms begin, before key#1: stores have keys that are called key-1, for which one may search."""
STORE_PATH: Final = "storePath"
"""Settings with this prefix are folders, which have pseudonyms."""


class Redaction:
    """The pseudonyms of one archive or page.

    Attributes:
        unknown: configuration files in which names cannot be found.
    """

    def __init__(self, forms: Sequence[Callable[[str], str]] = ()) -> None:
        """Start without names. `forms`: how texts may show a name that is escaped or shortened already."""
        self.unknown: set[str] = set()
        self._forms = forms
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._starts: re.Pattern[str] | None = None
        self._by_start: dict[str, list[str]] = {}

    def add(self, kind: str, names: Iterable[str | None]) -> None:
        """Register names of a kind (topic, group, key, tag, host, broker, path).

        Topics and groups that every broker has stay, but for the names in them.
        """
        for name in names:
            if name and name not in _KEPT:
                self._pseudonym(kind, name)

    def _pseudonym(self, kind: str, name: str) -> str:
        if name in _KEPT:
            return name
        for prefix, of_rest in _PREFIXES.items():
            if name.startswith(prefix) and len(name) > len(prefix):
                return self._register(name, prefix + self._pseudonym(of_rest, name.removeprefix(prefix)))
        cluster = name.removesuffix(REPLY_SUFFIX)
        if cluster != name and cluster in self._names:
            return self._register(name, self._names[cluster] + REPLY_SUFFIX)
        if name not in self._names:
            self._register(name, self._unused(kind))
        return self._names[name]

    def _unused(self, kind: str) -> str:
        """The next pseudonym of a kind that no registered name equals."""
        while True:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            found = f"{PREFIX}{kind}#{self._counts[kind]}"
            if found not in self._names:
                return found

    def _register(self, name: str, known: str) -> str:
        self._names[name] = known
        for form in self._forms:
            self._names.setdefault(form(name), known)
        self._starts = None
        return known

    def text(self, text: str) -> str:
        """A text with all names, addresses and message ids replaced."""
        text = self._without_names(_QUOTING.sub("JSON: it cannot be parsed", text))
        for addresses in (_IPV4, _IPV6, _IPV6_ALONE):
            text = addresses.sub(lambda match: self._pseudonym("host", match[0]), text)
        return _OFFSET_ID.sub(lambda match: self._pseudonym("id", match[0]), text)

    def _without_names(self, text: str) -> str:
        """The text with each name that stands alone replaced."""
        pieces, end = [], 0
        for start, after, name in self._places(text):
            pieces += [text[end:start], self._names[name]]
            end = after
        return "".join([*pieces, text[end:]])

    def left_in(self, text: str) -> set[str]:
        """The names that stand alone in a text, except pseudonyms."""
        pseudonyms = set(self._names.values())
        return {name for _, _, name in self._places(text) if name not in pseudonyms}

    def _places(self, text: str) -> Iterator[tuple[int, int, str]]:
        """(start, end, name) of each name that stands alone in a text, the longest where several begin.

        The time does not grow with the number of names, as it would with a pattern of all of them.
        """
        if self._starts is None:
            self._by_start = {}
            for name in sorted(self._names, key=len, reverse=True):
                self._by_start.setdefault(_START.match(name)[0], []).append(name)  # type: ignore[index]
            others = "".join(start for start in self._by_start if not _WORD.match(start))
            self._starts = re.compile(f"[{_OF_NAMES}]+" + (f"|[{re.escape(others)}]" if others else ""))
        end = 0
        for word in self._starts.finditer(text):
            start = word.start()
            if start < end:
                continue
            for name in self._by_start.get(word[0], ()):
                after = start + len(name)
                if text.startswith(name, start) and _stands_alone(text, start, after):
                    yield start, after, name
                    end = after
                    break

    def names(self) -> dict[str, str]:
        """The names by pseudonym, in the order in which they were registered."""
        found: dict[str, str] = {}
        for name, pseudonym in self._names.items():
            found.setdefault(pseudonym, name)  # an escaped or shortened form comes after the name
        return found

    def knows(self, text: str) -> bool:
        """Whether a text, or each part of `TOPIC@GROUP`, is a registered or a built-in name."""
        return all(part in self._names or part in _KEPT for part in text.split("@"))

    def value(self, value: Any, *, keys_in: str | None) -> Any:
        """A value of JSON with all texts in it replaced.

        `keys_in`: the member below which the keys of objects are replaced too; "": everywhere; None: nowhere.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(name)) if keys_in == "" else str(name): self.value(
                    each, keys_in="" if name == keys_in else keys_in
                )
                for name, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(each, keys_in=keys_in) for each in value]
        return value


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether no longer word has the piece of a text in it."""
    return not (start and _WORD.match(text, start - 1)) and not _WORD.match(text, end)


def names_of(store: Store, redaction: Redaction) -> None:
    """Register the names that a store has outside of its records.

    It is opened by an absolute path: a relative one may be a word of any text, such as `store`.
    A configuration file whose names cannot be found goes into `redaction.unknown`.
    """
    from rmqtool.read.broker_names import broker_names
    from rmqtool.read.known_topics import topic_names

    root, folder = store.layout.root, store.layout.config_folder
    conf = store.layout.broker_conf
    if conf is not None:
        redaction.add("cluster", [conf.text("brokerClusterName")])
        redaction.add("broker", [conf.text("brokerName")])
    topics = sorted(topic_names(store.layout))
    # First those that are named after a cluster or a broker: so its own topic gets the pseudonym of its kind.
    redaction.add("topic", [each for each in topics if each.startswith((MEMBER_PREFIX, REVIVE_PREFIX))])
    replies = [each.removesuffix(REPLY_SUFFIX) for each in topics if each.endswith(REPLY_SUFFIX)]
    redaction.add("cluster", [each for each in replies if each in topics])
    redaction.add("topic", topics)
    redaction.add("topic", sorted({topic for topic, _ in store.queues}))
    for name, groups in (
        ("subscriptionGroup.json", lambda found: config_json.subscription_groups(found)),
        ("consumerOffset.json", lambda found: {group for _, group in config_json.consumer_offsets(found)}),
        ("consumerFilter.json", lambda found: {group for _, group in config_json.filters(found)}),
        ("topics.json", lambda found: ()),
    ):
        if folder is None:
            continue
        for file in (name, f"{name}.bak"):
            try:
                loaded = config_json.load_with_bak("", read_head(folder / file, READ_LIMIT), None)
            except RmqtoolError:
                continue
            try:
                if loaded.document is not None:
                    redaction.add("group", sorted(groups(loaded.document)))
                    if name == "consumerOffset.json":
                        read = {topic for topic, _ in config_json.consumer_offsets(loaded.document)}
                        redaction.add("topic", sorted(read))
                    if name == "topics.json":
                        redaction.add("topic", sorted(config_json.topics(loaded.document)))
            except FormatError:
                redaction.unknown.add(file)
    redaction.add("host", [socket.gethostname(), socket.getfqdn()])
    if conf is not None:
        for name in ("brokerIP1", "brokerIP2", "namesrvAddr"):
            hosts = (conf.text(name) or "").replace(",", ";").split(";")
            redaction.add("host", [each.rpartition(":")[0] or each for each in hosts])
        redaction.add("path", [str(conf.path), os.path.realpath(conf.path), str(conf.path.parent)])
        for name, value in conf.values.items():
            if name.startswith(STORE_PATH):
                folders = [*map(str, conf.paths(name)), *value.split(",")]
                redaction.add("path", [each for each in folders if _says_something(each)])
            elif not HARMLESS.fullmatch(value.strip()) and value not in KNOWN_WORDS:
                redaction.add("value", [value, *filter(_is_odd, value.split()[:_WORDS_MAX])])
    path = str(store.location.path)
    redaction.add("path", [path, str(root), os.path.realpath(path), _mount_point(os.path.realpath(path))])
    if root is not None:
        redaction.add("file", _foreign_names(Path(root)))
    redaction.add("broker", [each for each in broker_names([path], None) if _says_something(each)])


def _says_something(path: str) -> bool:
    return path not in _PLAIN_PATHS and OF_STORES.fullmatch(path) is None


def _is_odd(word: str) -> bool:
    return HARMLESS.fullmatch(word) is None


def _mount_point(path: str) -> str:
    folders = (str(each) for each in (Path(path), *Path(path).parents))
    return next(filter(os.path.ismount, folders)).rstrip("/")


def _foreign_names(root: Path) -> Iterator[str]:
    """The names below a folder that are not a broker's, those of topics among them."""
    listing, folders = Listing(), [root]
    while folders:
        folder = folders.pop()
        for name, status in sorted(listing.entries(folder)):
            plain = name.removesuffix(".bak").removesuffix(".tmp")
            if not OF_STORES.fullmatch(plain):
                yield name
            if stat.S_ISDIR(status.st_mode):
                folders.append(folder / name)
