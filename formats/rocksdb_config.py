"""Configuration in RocksDB as the documents of topics.json, subscriptionGroup.json and consumerOffset.json.

    v1   a column family for each table: topic, group, or topic@group -> JSON
         one more for its version: `kvDataVersionKey` -> dataVersion
    v2   one column family: 01 | table i16 | kind i8 | rest -> value; all numbers big-endian

Source: RocksDBTopicConfigManager, RocksDBSubscriptionGroupManager, RocksDBConsumerOffsetManager; of v2
ConfigHelper, TableId, TopicConfigManagerV2, SubscriptionGroupManagerV2, ConsumerOffsetManagerV2; spec 06
section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats import config_json

TOPICS, GROUPS, OFFSETS = "topics.json", "subscriptionGroup.json", "consumerOffset.json"
NAMES = (TOPICS, GROUPS, OFFSETS)
TABLES = {TOPICS: "topicConfigTable", GROUPS: "subscriptionGroupTable", OFFSETS: "offsetTable"}
VERSION_KEY = b"kvDataVersionKey"

Rows = Iterable[tuple[bytes, bytes]]
Document = dict[str | int, Any]

_PREFIX = struct.Struct(">bhb")  # 01, table, kind
_VERSION = struct.Struct(">qqq")
_VERSION_NAME = b"data_version"
_OF_TABLE = {1: OFFSETS, 3: TOPICS, 4: GROUPS}
_PULL_OFFSETS = 2  # of simple pull consumers: no file holds these
_DATA_VERSION, _DATA = 1, 2
_JSON = 1


def _object(value: bytes, what: str) -> Document:
    try:
        found = config_json.parse(value)
    except FormatError as error:
        raise FormatError(f"the value of {what}: {error.message}") from error
    if not isinstance(found, dict):
        raise FormatError(f"the value of {what} is not a JSON object")
    return found


def document_v1(name: str, rows: Rows, version: bytes | None, forbidden: Rows = ()) -> Document:
    """The document `name` from its column family, that of its version and of forbidden groups.

    Raises:
        FormatError: a value is not JSON.
    """
    table: Document = {}
    for key, value in rows:
        text = key.decode("utf-8", "replace")
        found = _object(value, text)
        table[text] = found.get("offsetTable", {}) if name == OFFSETS else found
    document: Document = {TABLES[name]: table}
    if version is not None:
        document["dataVersion"] = _object(version, "the data version")
    if name == GROUPS:
        document["forbiddenTable"] = {
            key.decode("utf-8", "replace"): _object(value, "forbidden") for key, value in forbidden
        }
    return document


def merged(name: str, document: Document, file: Document) -> Document:
    """What a broker has after its start: a file with a larger version is read on top of the database.

    Topics and groups of the database stay beside those of the file; committed offsets do not.

    Raises:
        FormatError: a data version has the wrong type.

    Source: RocksDBTopicConfigManager#merge and its siblings; ConsumerOffsetManager#decode.
    """
    if config_json.version_counter(file) <= config_json.version_counter(document):
        return document
    found = {**document, "dataVersion": file.get("dataVersion", {})}
    for table in (TABLES[name], "forbiddenTable"):
        of_file = file.get(table)
        if isinstance(of_file, dict) and table in document:
            found[table] = of_file if name == OFFSETS else {**document[table], **of_file}
    return found


def documents_v2(rows: Rows) -> dict[str, Document]:
    """The three documents from the one column family of v2. Raises FormatError."""
    found: dict[str, Document] = {name: {TABLES[name]: {}} for name in NAMES}
    for key, value in rows:
        if len(key) < _PREFIX.size:
            raise FormatError(f"a key of {len(key)} bytes")
        first, table, kind = _PREFIX.unpack_from(key)
        if first != 1 or kind not in (_DATA_VERSION, _DATA) or table not in (*_OF_TABLE, _PULL_OFFSETS):
            raise FormatError(f"a key of table {table} and kind {kind}, which is not read")
        name = _OF_TABLE.get(table)
        if name is None:
            continue
        if kind == _DATA_VERSION:
            if len(value) != _VERSION.size or key[_PREFIX.size :] != _VERSION_NAME:
                raise FormatError(f"a data version of {len(value)} bytes, or of another name")
            state, timestamp, counter = _VERSION.unpack(value)
            found[name]["dataVersion"] = {"counter": counter, "stateVersion": state, "timestamp": timestamp}
        elif name == OFFSETS:
            _add_offset(found[name][TABLES[name]], key, value)
        else:
            text, _ = _text(key, _PREFIX.size)
            if value[:1] != bytes((_JSON,)):
                raise FormatError(f"the value of {text} is in a form that is not read")
            found[name][TABLES[name]][text] = _object(value[1:], text)
    return found


def _text(key: bytes, at: int) -> tuple[str, int]:
    """(the text after its length at `at`, the position after it). Raises FormatError."""
    length = int.from_bytes(key[at : at + 2], "big")
    stop = at + 2 + length
    if stop > len(key):
        raise FormatError(f"a name of {length} bytes, {len(key) - at - 2} are left")
    return key[at + 2 : stop].decode("utf-8", "replace"), stop


def _add_offset(table: Document, key: bytes, value: bytes) -> None:
    group, at = _text(key, _PREFIX.size)
    topic, at = _text(key, at + 1)
    if len(key) != at + 5 or len(value) != 8:
        raise FormatError("an offset whose key or value has the wrong length")
    queue_id = int.from_bytes(key[at + 1 :], "big", signed=True)
    offset = int.from_bytes(value, "big", signed=True)
    table.setdefault(f"{topic}@{group}", {})[queue_id] = offset
