"""The config files of two stores, compared by value.

Formatting is not a difference: the JSON of 4.9, 5.3 and 5.4, the order of entries, a field that has its
default value or that only newer brokers write. The data version, a counter with a time, is each broker's
own and is not compared.

Source: ConfigManager and its subclasses; SlaveSynchronize, which copies some of them to a slave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from rmqtool.check.diff.operands import Operand
from rmqtool.errors import FormatError
from rmqtool.formats import config_json
from rmqtool.formats.fastjson import READ_LIMIT, VALUE_LIMIT
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.open_files import reading

Table = dict[str, Any]

PROGRESS = frozenset({
    "consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json", "consumerOrderInfo.json",
})  # fmt: skip
"""Files that change with every message that is consumed or delivered."""

_OWN = frozenset({"timermetrics", "transactionMetrics", "timercheck"})  # each broker counts for itself
_NOT_COMPARED = frozenset({"dataVersion", "groupTopicMap"})
_OF_FIELDS = frozenset({"topics.json", "subscriptionGroup.json", "consumerFilter.json"})


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One entry of a file that differs; the value is None on a side without this entry."""

    file: str
    entry: str
    a: Any
    b: Any

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {"file": self.file, "entry": self.entry, "a": self.a, "b": self.b}


@dataclass(slots=True)
class ConfigDifference:
    """The compared files, and the entries that differ, up to a limit per file; `counts` has all, by file.

    `only` are the files that only one side has, of those: file to side. `unread` are files that could not be
    read or parsed: (side, path, reason); `own` are existing files that are not compared.
    """

    compared: list[str] = field(default_factory=list)
    entries: list[ConfigEntry] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    only: dict[str, str] = field(default_factory=dict)
    unread: list[tuple[str, str, str]] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    def differs(self, *, progress: bool = True) -> bool:
        """Whether an entry differs; without `progress`, offsets of consumers and deliveries do not count."""
        return any(progress or name not in PROGRESS for name in self.counts)

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "compared": self.compared,
            "identical": not self.counts,
            "differing_entries": self.counts,
            "only_in": self.only,
            "entries": [each.row() for each in self.entries],
        }


def diff_config(a: Operand, b: Operand, *, limit: int) -> ConfigDifference:
    """Compare the JSON files in `config/` of two stores; lists `limit` differing entries of each."""
    result = ConfigDifference()
    names = {
        name.removesuffix(".bak") for side in (a, b) for name in side.store.layout.config if "." in name
    } | (_OWN & {*a.store.layout.config, *b.store.layout.config})
    for name in sorted(names):
        if not name.endswith(".json"):
            result.own += [name] if name in _OWN else []
            continue
        documents = [_document(side, letter, name, result) for letter, side in (("a", a), ("b", b))]
        if documents[0] is None or documents[1] is None:
            continue
        try:
            tables = [_VIEWS.get(name, _plain)(document) for document in documents]
        except FormatError as error:
            result.unread.append(("", f"config/{name}", error.message))
            continue
        result.compared.append(name)
        _compare(name, tables[0], tables[1], limit, result)
        has = [letter for letter, side in (("a", a), ("b", b)) if _has_file(side, name)]
        if len(has) == 1 and name in result.counts:
            result.only[name] = has[0]
    return result


def _has_file(side: Operand, name: str) -> bool:
    return any(part in side.store.layout.config for part in (name, f"{name}.bak"))


def _document(side: Operand, letter: str, name: str, result: ConfigDifference) -> Any:
    """Return the content that a broker reads from the file and its .bak.

    {} if both are missing, None if the broker fails.
    """
    config, texts = side.store.layout.config, []
    for part in (name, f"{name}.bak"):
        path = config.get(part)
        try:
            texts.append(None if path is None else _content(path))
        except OSError as error:
            result.unread.append((letter, f"config/{part}", error.strerror or str(error)))
            return None
    loaded = config_json.load_with_bak(name, texts[0], texts[1])
    if loaded.source == "failed" or (loaded.source == "none" and loaded.file_error):
        reason = loaded.bak_error or loaded.file_error or "cannot be parsed"
        result.unread.append((letter, f"config/{name}", reason))
        return None
    return loaded.document


def _content(path: Path) -> bytes | None:
    """The bytes of a config file, at most READ_LIMIT; None if it is gone. Raises OSError."""
    try:
        with reading(path) as file:
            return file.read(0, READ_LIMIT)
    except FileNotFoundError:
        return None


def _compare(name: str, a: Table, b: Table, limit: int, result: ConfigDifference) -> None:
    known = (_fields_of(a), _fields_of(b)) if name in _OF_FIELDS else None
    shown = 0
    for entry in sorted({**a, **b}):
        one, other = a.get(entry), b.get(entry)
        if one == other or _is_same(one, other, known):
            continue
        result.counts[name] = result.counts.get(name, 0) + 1
        shown += 1
        if shown <= limit:
            result.entries.append(ConfigEntry(name, entry, *_shown(one, other)))


def _fields_of(table: Table) -> frozenset[str]:
    """The names of the fields in any entry of a table: those that its broker knows."""
    return frozenset(name for value in table.values() if isinstance(value, dict) for name in value)


def _is_same(a: Any, b: Any, known: tuple[frozenset[str], frozenset[str]] | None) -> bool:
    """Whether two entries agree in all fields that both brokers know; empty and missing are equal."""
    if known is None or not isinstance(a, dict) or not isinstance(b, dict):
        return False
    names = ({*a} | {*b}) & known[0] & known[1]
    if not names and (a or b):
        return False
    return all(a.get(name) == b.get(name) or not (a.get(name) or b.get(name)) for name in names)


def _shown(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values without what is equal: of two objects, only the fields that differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        a, b = ({name: each[name] for name in names if name in each} for each in (a, b))
    return a, b


# a document as a table of entries


def _topics(document: Any) -> Table:
    return {name: asdict(topic) for name, topic in config_json.topics(document).items()}


def _groups(document: Any) -> Table:
    """Groups with the fields of 4.x and those of 5.x only, and the forbidden bits."""
    raw = _text_keys(config_json.resolve(document))
    table = raw.get("subscriptionGroupTable") or {}
    known = {_camel(name) for name in asdict(config_json.SubscriptionGroup(""))} | {"groupName"}
    groups: Table = {}
    for name, group in config_json.subscription_groups(document).items():
        others = {key: value for key, value in table.get(name, {}).items() if key not in known}
        groups[name] = asdict(group) | others
    forbidden = raw.get("forbiddenTable")
    if isinstance(forbidden, dict):
        groups |= {f"forbiddenTable {name}": bits for name, bits in forbidden.items()}
    return groups


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _offsets(document: Any) -> Table:
    return {
        f"{topic}@{group} queue {queue_id}": offset
        for (topic, group), queues in config_json.consumer_offsets(document).items()
        for queue_id, offset in queues.items()
    }


def _delays(document: Any) -> Table:
    return {f"level {level}": offset for level, offset in config_json.delay_offsets(document).items()}


def _filters(document: Any) -> Table:
    return {"@".join(key): asdict(each) for key, each in config_json.filters(document).items()}


def _plain(document: Any) -> Table:
    """The table of an unknown document: its members, and the members of objects in it."""
    table: Table = {}
    for name, value in _text_keys(config_json.resolve(document)).items():
        if name in _NOT_COMPARED:
            continue
        if isinstance(value, dict):
            table |= {f"{name} {key}": item for key, item in value.items()}
        else:
            table[name] = value
    return table


def _text_keys(document: Any) -> Any:
    """The document with all keys as text: some brokers write numeric keys bare, others quote them.

    Raises:
        FormatError: references in it unfold to more than VALUE_LIMIT values.
    """
    left = VALUE_LIMIT

    def texts(value: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise FormatError(f"JSON: its references unfold to more than {VALUE_LIMIT} values")
        if isinstance(value, dict):
            return {str(key): texts(item) for key, item in value.items()}
        return [texts(item) for item in value] if isinstance(value, list) else value

    return texts(document)


_VIEWS: dict[str, Callable[[Any], Table]] = {
    "topics.json": _topics,
    "subscriptionGroup.json": _groups,
    "consumerOffset.json": _offsets,
    "lmqConsumerOffset.json": _offsets,
    "delayOffset.json": _delays,
    "consumerFilter.json": _filters,
}
