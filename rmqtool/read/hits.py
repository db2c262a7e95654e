"""The hits of a look-up, the report on its search, and the topics and hashes that it searches for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rmqtool.formats import properties
from rmqtool.formats.index import KeyKind, key_text, tag_text, texts_of
from rmqtool.formats.java import index_key_hash, index_key_hashes
from rmqtool.lazy_pattern import pattern
from rmqtool.log.events import StoredMessage
from rmqtool.problems import Finding
from rmqtool.read.coverage import Gap
from rmqtool.read.selection import Selection, is_glob
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.open_files import head_of

if TYPE_CHECKING:
    from rmqtool.formats.batch import BatchItem
    from rmqtool.read.hit_batches import HitBatch
    from rmqtool.read.name_table import NameTable

BrokenChain = Callable[[str, str, int], None]
"""Called with the index file, why a chain in it cannot be followed, and one entry or 0."""
_TOPIC_NAME = pattern(rb'"topicName"\s*:\s*"([%|a-zA-Z0-9_-]+)"')
_CONFIG_BYTES = 64 << 20

FoundBy = Literal["index", "scan", "batch", "offset", "id", "queue", "time", "filler"]
ScanMode = Literal["auto", "always", "never"]


class Hit(NamedTuple):
    """A message that was found.

    Attributes:
        stored: the record.
        found_by: `index`, `scan` of the log, `batch` (inside an inner batch, found through its queue),
            `offset`, `id` (an offset message id), `queue` or `time`; `filler`: this place has a filler, which
            `recover` has put where the lost message was.
        names: which of the requested names it has.
        inside: of a batch record the messages that have them, each with its number in the batch.
    """

    stored: StoredMessage
    found_by: FoundBy
    names: tuple[str, ...] = ()
    inside: tuple[tuple[int, BatchItem], ...] = ()


class KeyMatcher(NamedTuple):
    """Names that are looked for: keys (of KEYS, or UNIQ_KEY), unique keys alone, or whole values of TAGS."""

    names: frozenset[str]
    kind: KeyKind = "key"

    def text(self, topic: str, name: str) -> str:
        """Return the text that the index hashes. Source: IndexService#buildKey."""
        return tag_text(topic, name) if self.kind == "tag" else key_text(topic, name)

    def hashes(self, topics: Iterable[str]) -> set[int]:
        """The hashes of all names in all of the topics."""
        return index_key_hashes((self.text(topic, "") for topic in topics), self.names)

    def found_in(self, found: Mapping[str, str]) -> tuple[str, ...]:
        """Those of the names that a message with these properties has, each once."""
        if self.kind == "tag":
            has = [found.get(properties.TAGS, "")]
        else:
            has = [found.get(properties.UNIQ_KEY, "")]
            has += properties.keys_of(found) if self.kind == "key" else []
        return tuple(name for name in dict.fromkeys(has) if name in self.names)


class NamesLeft:
    """The names of a look-up that were not found so far.

    Attributes:
        has_found: whether one was found.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.has_found = False
        self._left = dict.fromkeys(names)
        self._table: NameTable | None = None
        self._flags: Any = None  # which names of the table were found

    def found(self, names: Iterable[str]) -> None:
        """Take names that were found."""
        for name in names:
            self.has_found = True
            self._left.pop(name, None)

    def found_in(self, batch: HitBatch) -> None:
        """Take the names of a batch, whose table, the same for all batches, has all names."""
        self.has_found = True
        if self._table is None:
            self._table, self._flags = batch.table, batch.table.flags()
        self._flags[batch.numbers] = True

    def names(self) -> list[str]:
        """The names that are left, in their order."""
        if self._table is not None:
            table, flags, self._table = self._table, self._flags, None
            if flags.all():
                self._left.clear()
            else:
                known = zip(table.names, flags.tolist(), strict=True)
                self.found(name for name, is_found in known if is_found)
        return list(self._left)


class SearchReport:
    """The extent of a search: for a user who found nothing, or too much.

    Attributes:
        topics: how many topics a key was looked for in.
        index_files: how many index files were read.
        entries: index entries with a requested hash.
        collisions: those whose record has another key, or another topic.
        excluded: messages with a requested name that the selection leaves out.
        gone: those whose record has expired, or that a broker has just added.
        past_end: places past the end of the log that entries name.
        dead: places in the log that entries name and where no sound record is.
        damage: what was met by scans of the log, by file and offset; notes left out.
        unreadable: (name, why) of index files that cannot be read.
        broken: chains that cannot be followed to their end, as (file, why, entry).
        gaps: ranges of the log that the index does not cover.
        scanned_bytes: bytes of the log that were scanned.
        batches: inner batch records that were opened.
        without_log: there is no commit log, as for an index file by itself.
        without_topic: the store does not have the topics, so the log was not scanned.
    """

    def __init__(self) -> None:
        self.topics = 0
        self.index_files = 0
        self.entries = 0
        self.collisions = 0
        self.excluded = 0
        self.gone = 0
        self.past_end: list[int] = []
        self.dead: list[int] = []
        self.damage: dict[tuple[str, int | None], Finding] = {}
        self.unreadable: list[tuple[str, str]] = []
        self.broken: list[tuple[str, str, int]] = []
        self.gaps: list[Gap] = []
        self.scanned_bytes = 0
        self.batches = 0
        self.without_log = False
        self.without_topic = False

    def report(self, finding: Finding) -> None:
        """Note one damaged range of the log."""
        if finding.problem.severity != "note":
            self.damage[finding.path, finding.physical_offset] = finding


def topics_of(store: Store, selection: Selection) -> list[str]:
    """The topics that a look-up tries: those that are named, and those of the store that globs select.

    A topic of the store has queues, or stands in topics.json: its queues may be lost.
    """
    exact = {topic for topic in selection.topics if not is_glob(topic)}
    if exact == set(selection.topics) and exact:
        return sorted(topic for topic in exact if selection.matches_topic(topic))
    layout = store.layout
    known = {topic for topic, _ in (*layout.consume_queues, *layout.batch_queues)}
    if layout.kind == "store":
        known |= _configured_topics(layout)
    return sorted(topic for topic in known | exact if selection.matches_topic(topic))


def hashes_of(topic: str, properties_bytes: bytes) -> Iterator[int]:
    """The hashes under which an index may hold a record."""
    found = properties.decode(properties_bytes)
    values = (found.get(name) for name in (properties.UNIQ_KEY, properties.KEYS, properties.TAGS))
    return (index_key_hash(text) for _, text in texts_of(topic, *values))


def _configured_topics(layout: StoreLayout) -> set[str]:
    """The topics that topics.json or its .bak names, not read as JSON: one too many does no harm."""
    found: set[bytes] = set()
    for name in ("topics.json", "topics.json.bak"):
        if name in layout.config:
            found.update(_TOPIC_NAME.findall(head_of(layout.config[name], _CONFIG_BYTES)))
    return {name.decode("ascii") for name in found}
