"""The parts of a support archive: names of files, and what they hold, as values of JSON or text.

Every part is bounded, and says where something was left out. No part has bytes of a message body: records
are shown by their other fields, and what is decoded from bodies is left out. Only a file that a user adds may
have text of one.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rmqtool import __version__
from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import config_json
from rmqtool.formats.config_change import OFFSETS_LOST, OFFSETS_OLD, OFFSETS_SET_BACK
from rmqtool.formats.properties import NAMES_OF_BROKERS
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.log.events import StoredMessage
from rmqtool.message.columns import NAMES
from rmqtool.message.rows import Row, RowFormat, message_row
from rmqtool.read.store import Store
from rmqtool.report.bundle.redaction import HARMLESS, KNOWN_WORDS, NAMES_IN, OF_STORES, STORE_PATH, Redaction
from rmqtool.storage.config_files import read_file
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import reading
from rmqtool.storage.out_of_reach import NOT_A_FILE
from rmqtool.storage.storage import disk_bytes

FILES_MAX: Final = 20_000
_CONFIG_BYTES: Final = 8 << 20
_LOG_FILES_MAX: Final = 200
_QUEUES_MAX: Final = 2_000
_ADDED_HEAD: Final = 1 << 20
_ADDED_TAIL: Final = 3 << 20
_LAST_RECORDS: Final = 20
_LAST_BYTES: Final = 1 << 20
_OTHERS_MAX: Final = 200
_DAMAGED_MAX: Final = 20
_FIRST: Final = "first of file"
ADDED: Final = "added/"
"""Where the files lie that a user adds."""
_FROM_BODY: Final = ("body", "stored_body", "body_encoding", "system")
_HIDDEN: Final = ("offset_msg_id", "properties_base64", "body_crc")
"""Columns that hold addresses and names in other forms, or by which a body could be guessed."""
_SECRET: Final = pattern(r"(?i)secret|pass|credential|access.?key|token|header")
"""What the name of a setting with a secret has in it."""
_SECRET_IN_VALUE: Final = pattern(
    r"(?i)(passw|secret|token|authorization|credential|access.?key)\w*[\"']?\s*[:=]"
)
_BROKERS: Final = frozenset({"brokerName", "brokerClusterName"})
_ADDRESSES: Final = frozenset({"brokerIP1", "brokerIP2", "namesrvAddr"})
_HOSTS: Final = pattern(r"[\w.-]+(:\d+)?([;,][\w.-]+(:\d+)?)*", re.ASCII)
_SETTING: Final = pattern(r"[a-z][a-zA-Z0-9]*", re.ASCII)
_INTEGER: Final = pattern(r"-?\d{1,20}")
_FIELDS: Final = frozenset({
    "attributes", "bornTime", "brokerId", "clientVersion", "consumeBroadcastEnable", "consumeEnable",
    "consumeFromMinEnable", "consumeMessageOrderly", "consumeTimeoutMinute", "consumerGroup", "counter",
    "dataVersion", "deadTime", "expressionType", "filterDataByTopic", "forbiddenTable", "groupFilterData",
    "groupName", "groupRetryPolicy", "groupSysFlag", "groupTopicMap", "notifyConsumerIdsChangedEnable",
    "offsetTable", "order", "orderedConsumptionLevel", "perm", "readQueueNums", "retryMaxTimes",
    "retryQueueNums", OFFSETS_LOST, OFFSETS_OLD, OFFSETS_SET_BACK, "stateVersion", "subscriptionDataSet",
    "subscriptionGroupTable",
    "timestamp", "topic", "topicConfigTable", "topicFilterType", "topicName", "topicSysFlag", "type",
    "whichBrokerWhenConsumeSlowly", "writeQueueNums",
})  # fmt: skip
"""Members of the configuration files of brokers that are not names, and hold no text of users."""
_FIELD_WORDS: Final = frozenset({
    "SINGLE_TAG", "MULTI_TAG", "CUSTOMIZED", "EXPONENTIAL", "TAG", "SQL92", "+message.type", "+queue.type",
    "+cleanup.policy", "message.type", "queue.type", "cleanup.policy", "NORMAL", "FIFO", "DELAY",
    "TRANSACTION", "MIXED", "UNSPECIFIED", "LITE", "BatchCQ", "SimpleCQ", "COMPACTION", "DELETE",
})  # fmt: skip
_LIBRARIES: Final = ("construct", "llvmlite", "numba", "numpy", "pyarrow", "typer", "zstandard")


@dataclass
class Part:
    """A file of the archive.

    Attributes:
        name: its path in the archive; the same for all stores.
        about: one sentence on what it holds.
        content: a value of JSON, rows, or text.
        names_as_keys_in: the member of `content` below which objects have names of the store as keys; "" is
            all of `content`.
    """

    name: str
    about: str
    content: Any
    names_as_keys_in: str | None = None


def versions() -> Part:
    """What made the archive."""
    libraries: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            libraries[name] = None
    made = {"rmqtool": __version__, "python": sys.version.split()[0], "platform": platform.platform()}
    return Part("versions.json", "versions of rmqtool, Python, libraries and system", {**made, **libraries})


def layout(store: Store) -> Part:
    """All files and folders with sizes and times."""
    rows: list[Row] = []
    root = store.layout.root
    if root is None:
        files = [(store.layout.relative(each.path), each.size) for each in store.layout.commit_log]
        rows = [{"path": path, "size": size} for path, size in files]
    else:
        rows = list(islice(_listed(Listing(), Path(root), ""), FILES_MAX + 1))
    if len(rows) > FILES_MAX:
        rows[FILES_MAX:] = [{"left_out": f"only the first {FILES_MAX} entries are listed"}]
    return Part("layout.jsonl", "every file and folder of the store: size, space on disk, time", rows)


def _listed(listing: Listing, folder: Path, name: str) -> Iterator[Row]:
    for each, status in sorted(listing.entries(folder)):
        path = f"{name}/{each}" if name else each
        is_folder = stat.S_ISDIR(status.st_mode)
        kind = "folder" if is_folder else "file" if stat.S_ISREG(status.st_mode) else "other"
        yield {
            "path": path, "kind": kind,
            "size": None if is_folder else status.st_size,
            "disk_bytes": None if is_folder else disk_bytes(status),
            "mtime_ms": int(status.st_mtime * 1000), "mode": oct(status.st_mode & 0o7777),
        }  # fmt: skip
        if is_folder:
            yield from _listed(listing, folder / each, path)


def configs(store: Store, redaction: Redaction | None) -> Iterator[Part]:
    """The configuration files, parsed, and broker.conf without secrets.

    With redaction broker.conf has only numbers, times, true and false, and the settings whose text is known:
    any other may hold a name, an address or a password.
    """
    folder, others, not_json = store.layout.config_folder, 0, list[str]()
    for name in sorted(Listing().names(folder)) if folder is not None else ():
        assert folder is not None
        plain = name.removesuffix(".bak")
        if redaction is not None and not OF_STORES.fullmatch(plain):
            others += 1
            continue
        if not plain.endswith(".json"):
            not_json.append(name)
            continue
        yield _config(folder / name, f"config/{name}", redaction)
    what = "1 file" if others == 1 else f"{others} files"
    lines = [f"left out: {what} that no broker makes"] if others else []
    lines += [f"left out, because it is not a JSON file: {name}" for name in not_json[:_OTHERS_MAX]]
    if len(not_json) > _OTHERS_MAX:
        lines.append(f"left out: {len(not_json) - _OTHERS_MAX} more that are not JSON files")
    if lines:
        yield Part("config/others.txt", "left out", "\n".join(lines))
    conf = store.layout.broker_conf
    if conf is not None:
        values = {
            name: value if _is_shown(name, value, redaction is not None) else "(left out)"
            for name, value in sorted(conf.values.items())
            if redaction is None or _SETTING.fullmatch(name)
        }
        yield Part("broker.conf.json", "the broker's configuration, without secrets", values)


def _is_shown(name: str, value: str, is_redacted: bool) -> bool:
    if HARMLESS.fullmatch(value.strip()):
        return not _SECRET.search(name) or value.strip().lower() in ("true", "false")
    if _SECRET.search(name) or _SECRET_IN_VALUE.search(value):
        return False
    if not is_redacted or value in KNOWN_WORDS or name in _BROKERS or name.startswith(STORE_PATH):
        return True
    return name in _ADDRESSES and _HOSTS.fullmatch(value) is not None


def _config(path: Path, name: str, redaction: Redaction | None) -> Part:
    about = "its values" if redaction is None else "its values, names as pseudonyms"
    try:
        data = read_file(path, _CONFIG_BYTES + 1)
    except UnreadableError as error:
        return Part(f"{name}.txt", "it cannot be read", f"cannot be read: {error.message}")
    if len(data) > _CONFIG_BYTES:
        return Part(f"{name}.txt", "left out", f"left out: more than {_CONFIG_BYTES} bytes")
    if redaction is not None and (
        path.name.removesuffix(".bak") not in NAMES_IN or path.name in redaction.unknown
    ):
        text = f"left out: {len(data)} bytes in which rmqtool cannot find the names that it would replace"
        return Part(f"{name}.txt", "left out", text)
    loaded = config_json.load_with_bak("", data, None)  # as it is: a value of a wrong type is to be seen
    if loaded.document is None:
        text = f"{len(data)} bytes that cannot be parsed: {loaded.file_error}"
        if redaction is None:
            text += "\n\n" + data.decode("utf-8", "backslashreplace")
        return Part(f"{name}.txt", "it cannot be parsed", text)
    document: Any = loaded.document
    return Part(name, about, document if redaction is None else _known_only(document, redaction), "")


def _known_only(value: Any, redaction: Redaction) -> Any:
    """A document with the names that have pseudonyms and the fields of a broker; other texts are left out."""
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for name, each in value.items():
            is_known = (
                str(name) in _FIELDS
                or str(name) in _FIELD_WORDS
                or redaction.knows(str(name))
                or _INTEGER.fullmatch(str(name))
            )
            if is_known:
                kept[str(name)] = _known_only(each, redaction)
            else:
                kept["(left out)"] = int(kept.get("(left out)", 0)) + 1
        return kept
    if isinstance(value, list):
        return [_known_only(each, redaction) for each in value]
    if not isinstance(value, str):
        return value
    is_word = HARMLESS.fullmatch(value) or value in _FIELD_WORDS
    return value if is_word or redaction.knows(value) else "(left out)"


def records(store: Store, redaction: Redaction | None, damaged: Sequence[int] = ()) -> Part:
    """Records without bodies: the first of each log file, those around damage, and the last of the log.

    `damaged`: physical offsets of damage.
    """
    files = [file for file in store.layout.commit_log if file.size]
    shown = [
        *files[: _LOG_FILES_MAX // 2],
        *files[max(_LOG_FILES_MAX // 2, len(files) - _LOG_FILES_MAX // 2) :],
    ]
    rows: list[Row] = [{"part": _FIRST, **_first(store, file)} for file in shown]
    if len(files) > len(shown):
        rows.append({"part": _FIRST, "left_out": f"the heads of {len(files) - len(shown)} files"})
    rows += [{"part": _FIRST, "file": store.layout.relative(path), "left_out": NOT_A_FILE}
             for path in store.layout.commit_log_not_files[:_LOG_FILES_MAX]]  # fmt: skip
    for offset in damaged[:_DAMAGED_MAX]:
        rows += _around(store, offset)
    rows += [{"part": "last of log", **_record(found, store)} for found in _last(store)]
    if redaction is not None:
        rows = [_hidden(row, redaction) for row in rows]
    about = (
        "without bodies: the first record of each log file, damaged records with their neighbours, the last"
    )
    return Part("records.jsonl", f"{about} ones", rows)


def _first(store: Store, file: StoreFile) -> Row:
    """The first record of a log file, or why there is none."""
    found = store.find(file.file_from_offset)
    if found is not None:
        return _record(found, store)
    is_unused = file.file_from_offset >= store.end_offset()
    why = "the log ends before this file" if is_unused else "no record can be read at the start of this file"
    return {"physical_offset": file.file_from_offset, "file": store.layout.relative(file.path),
            "left_out": why}  # fmt: skip


def _around(store: Store, offset: int) -> Iterator[Row]:
    """The record before damage, that at the damage if it can be read, and the next."""
    for event in store.events(None, offset, reverse=True):
        if isinstance(event, StoredMessage):
            yield {"part": "before damage", **_record(event, store)}
            break
    for event in store.events(offset):
        is_at = event.physical_offset == offset
        if isinstance(event, StoredMessage):
            yield {"part": "at damage" if is_at else "after damage", **_record(event, store)}
            if not is_at:
                break
        elif is_at:
            yield {"part": "at damage", "physical_offset": offset, "left_out": "no record can be read here"}


def _last(store: Store) -> list[StoredMessage]:
    """The last records that follow each other to the end of the log."""
    files = [file for file in store.layout.commit_log if file.size]
    found: list[StoredMessage] = []
    if not files:
        return found
    end = store.end_offset()
    file = next((file for file in reversed(files) if file.file_from_offset < end), files[-1])
    offset = store.record_before(file, max(end - _LAST_BYTES, file.file_from_offset))
    while offset < end and (record := store.find(offset)) is not None:
        found.append(record)
        offset = record.end
    return found[-_LAST_RECORDS:]


def _record(found: StoredMessage, store: Store) -> Row:
    names = tuple(name for name in NAMES if name not in _FROM_BODY)
    form = RowFormat(body="none", names=names)
    return message_row(found.message, found.physical_offset, store.layout.relative(found.path), form)


def _hidden(row: Row, redaction: Redaction) -> Row:
    """A record's row without the values of its properties and the names that users gave them."""
    if "topic" not in row:
        return row
    redaction.add("topic", [row["topic"]])
    redaction.add("key", [*(row["keys"] or ()), row["uniq_key"]])
    redaction.add("tag", [row["tags"]])
    redaction.add("host", [_address(row["born_host"]), _address(row["store_host"])])
    properties = row["properties"] or {}
    hidden = {
        name
        if name in NAMES_OF_BROKERS
        else f"property {number}": f"({len(value)} character{'s'[len(value) == 1 :]})"
        for number, (name, value) in enumerate(properties.items(), 1)
    }
    return {**{name: value for name, value in row.items() if name not in _HIDDEN}, "properties": hidden}


def _address(host: str | None) -> str | None:
    """The address of `ip:port`."""
    return None if host is None else host.rpartition(":")[0]


def queues(store: Store) -> Part:
    """The ends of the consume queues."""
    rows: list[Row] = []
    for key in islice(sorted(store.queues), _QUEUES_MAX):
        queue = store.queue(*key)
        row: Row = {"topic": key[0], "queue_id": key[1]}
        try:
            last = None if queue is None else queue.last_unit()
            row |= {"min_offset": store.min_offset(*key), "max_offset": store.max_offset(*key)}
            if last is not None:
                row |= {"last_physical_offset": last.physical_offset, "last_size": last.size}
        except (UnreadableError, FormatError) as error:
            row["error"] = error.message
        rows.append(row)
    if len(store.queues) > _QUEUES_MAX:
        rows.append({"left_out": f"{len(store.queues) - _QUEUES_MAX} queues"})
    return Part("queues.jsonl", "the offsets of each consume queue, and its last unit", rows)


def host() -> Part:
    """This machine."""
    facts: Row = {"name": socket.gethostname(), "processors": os.cpu_count(), "system": platform.platform()}
    for name in ("meminfo", "loadavg", "uptime"):
        try:
            facts[name] = (Path("/proc") / name).read_text("utf-8", "replace").splitlines()[:8]
        except OSError:
            facts[name] = None
    return Part("host.json", "the machine on which rmqtool ran", facts)


def added(path: Path, number: int, *, redact: bool) -> Part:
    """A text file that a user adds, such as a log of the broker: of a large one its first and last lines.

    With `redact` its name is left out: no rule knows what is a name in it.

    Raises:
        UnreadableError: it cannot be read, or is not a plain file.
        InputError: it is not text.
    """
    try:
        with reading(path) as file:
            size = file.size
            if size <= _ADDED_HEAD + _ADDED_TAIL:
                pieces = [file.read(0, size)]
            else:
                pieces = [file.read(0, _ADDED_HEAD), file.read(size - _ADDED_TAIL, _ADDED_TAIL)]
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    if any(b"\0" in piece for piece in pieces):
        raise InputError("this is not a text file", path=path, hint="unpack a compressed log first")
    about = f"{size} bytes" if redact else f"{path.name}, {size} bytes"
    if len(pieces) > 1:
        # At ends of lines: half a name is not replaced.
        pieces = [pieces[0][: pieces[0].rfind(b"\n") + 1], pieces[1].partition(b"\n")[2]]
        left_out = size - sum(map(len, pieces))
        pieces.insert(1, f"(left out: {left_out} bytes)\n".encode())
        about += f", without {left_out} in the middle"
    text = b"".join(pieces).decode("utf-8", "replace").removesuffix("\n")
    return Part(f"{ADDED}{number}.txt", f"a file that was added: {about}", text)
