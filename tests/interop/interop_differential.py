"""Is it a record? Java's checkMessageAndReturnSize and rmqtool agree on mutated records, field by field.

Where the versions of RocketMQ differ the rule is written out in `Rules`; nothing is tolerated.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rmqtool.errors import FormatError
from rmqtool.formats import message, properties
from rmqtool.formats.message import Message
from rmqtool.log.dispatch import Dispatch, dispatch_columns
from rmqtool.log.events import BAD_NUMBER, BODY_CRC, Blank, StoredMessage
from rmqtool.log.frames import Frames, walk
from rmqtool.log.python_scan import walk_reference
from rmqtool.message.system_topics import deliver_timestamp, parse_delay_levels
from rmqtool.storage.source import BytesSource
from tests.interop.mutations import HUGE, MUTATIONS, SCHEDULE_TOPIC, mutated
from tests.interop.processes import store_library
from tests.support.stores import VERSIONS, Library, real_case

COUNT = 8000
"""Mutated records per version."""
PROPERTY_CRC_COUNT = 3000
SEED = 20261121
DELAY_LEVELS = "1s 3s 5s 1h"
BODY_LIMIT = 3000  # bytes of the records that are mutated: what is long is only slow
STATES = {"4.9.7": ("clean", "small-ipv6"), "5.3.3": ("clean", "small-propcrc"),
          "5.4.0": ("clean", "small-ipv6", "small-propcrc")}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """In what the check of a version differs from the others.

    Attributes:
        reads_version_2: 4.x takes the second magic for damage.
        bounds_first: 5.x compares the total size with what is left before it reads on, for blanks too.
        reads_inner: 5.x reads INNER_NUM and INNER_BASE, and fails where they are no numbers.
        checks_property_crc: 5.x can be told to want a property CRC.
    """

    reads_version_2: bool
    bounds_first: bool
    reads_inner: bool
    checks_property_crc: bool


RULES = {
    "4.9.7": Rules(False, False, False, False),
    "5.3.3": Rules(True, True, True, True),
    "5.4.0": Rules(True, True, True, True),
}


def base_records(version: str, cases: Library, states: Sequence[str]) -> list[Message]:
    """Records of real brokers of that version, bodies not too long."""
    found = []
    for state in states:
        for path in sorted((cases.path(real_case(version, state).name) / "commitlog").iterdir()):
            events = walk_reference(BytesSource(path.read_bytes()), file_from_offset=int(path.name))
            found += [event.message for event in events if isinstance(event, StoredMessage)]
    return [record for record in found if len(record.body) <= BODY_LIMIT]


@dataclass(frozen=True)
class Ours:
    """What rmqtool says of a buffer's start. `message` is None where there is no sound record."""

    is_blank: bool
    message: Message | None
    tags_code: int = 0
    delay_level: int = 0
    inner: tuple[int, int] = (-1, 0)
    bad_number: bool = False


def judge(data: bytes) -> Ours:
    """By the compiled walk, the plain walk and the codec, which must agree."""
    options = {"file_from_offset": 0, "check_stored_offset": False}
    fast = next(walk(BytesSource(data), window=8192, **options), None)
    plain = next(walk_reference(BytesSource(data), **options), None)
    try:
        decoded = message.decode(data)
    except FormatError:
        decoded = None
    if decoded is not None and decoded.body and message.masked_crc(decoded.body) != decoded.body_crc:
        decoded = None
    sound = isinstance(plain, StoredMessage) and plain.physical_offset == 0 and not plain.status & BODY_CRC
    assert (plain.message if sound and isinstance(plain, StoredMessage) else None) == decoded
    assert isinstance(plain, Blank) == isinstance(fast, Blank)
    if not sound:
        assert not (isinstance(fast, Frames) and fast.rows[0]["physical_offset"] == 0
                    and not fast.rows[0]["status"] & BODY_CRC)  # fmt: skip
        return Ours(isinstance(plain, Blank), None)
    assert isinstance(fast, Frames) and fast.rows[0]["physical_offset"] == 0 and not fast.rows[0]["status"]
    return with_dispatch(decoded, dispatch_columns(fast))


def with_dispatch(record: Message | None, found: Dispatch) -> Ours:
    """What a dispatch makes of the first row."""
    inner = int(found.inner_base[0]), int(found.inner_count[0])
    bad_number = bool(found.flags[0] & BAD_NUMBER)
    return Ours(False, record, int(found.tags_code[0]), int(found.delay_level[0]), inner, bad_number)


def expected(ours: Ours, data: bytes, rules: Rules) -> dict[str, Any] | None:
    """What the check of a version answers, said with rmqtool's reading; None: it fails."""
    if ours.is_blank:
        left = message.BLANK.unpack(data[:8])[0] - 4
        left += 1 << 32 if left < -(1 << 31) else 0  # Java's subtraction wraps
        return None if rules.bounds_first and left > len(data) - 4 else {"size": 0, "success": True}
    record = ours.message
    if record is None or (record.version == 2 and not rules.reads_version_2):
        return None
    found = properties.decode(record.properties_bytes)
    if ours.bad_number and fails_on_number(record, found, rules):
        return None
    return {
        "size": record.total_size,
        "success": True,
        "dispatch": dispatch_fields(ours, record, found, rules),
        "message": message_fields(record, found),
    }


def fails_on_number(record: Message, found: dict[str, str], rules: Rules) -> bool:
    """Whether the check reads the property that is no number."""
    inner = rules.reads_inner and properties.INNER_NUM in found and properties.INNER_BASE in found
    return inner or (record.topic_bytes == SCHEDULE_TOPIC and properties.DELAY in found)


def dispatch_fields(ours: Ours, record: Message, found: dict[str, str], rules: Rules) -> dict[str, Any]:
    """The request that a broker dispatches."""
    tags_code = ours.tags_code
    if record.topic_bytes == SCHEDULE_TOPIC and ours.delay_level > 0:
        tags_code = deliver_timestamp(
            record.store_timestamp, ours.delay_level, parse_delay_levels(DELAY_LEVELS)
        )
    has_any = record.properties_length > 0
    fields = {
        "size": record.total_size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "storedPhysicalOffset": record.physical_offset,
        "queueOffset": record.queue_offset,
        "tagsCode": tags_code,
        "storeTimestamp": record.store_timestamp,
        "keys": found.get(properties.KEYS) if has_any else "",
        "uniqKey": found.get(properties.UNIQ_KEY),
        "sysFlag": record.sys_flag,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": found if has_any else None,
    }
    if rules.reads_inner:
        base, count = ours.inner
        is_inner = properties.INNER_NUM in found and properties.INNER_BASE in found
        fields |= {
            "batchSize": count if is_inner else 1,
            "baseOffset": base if is_inner else record.queue_offset,
        }
    return fields


def message_fields(record: Message, found: dict[str, str]) -> dict[str, Any] | None:
    """The message that the decoder gives; None where it gives up: a port that no socket has."""
    hosts = record.born_host, record.store_host
    if not all(0 <= int.from_bytes(host[-4:], signed=True) <= 65535 for host in hosts):
        return None
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "size": record.total_size,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCrc": record.body_crc,
        "bornTimestamp": record.born_timestamp,
        "bornHost": java_host(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": java_host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodySha256": sha256(record.body).hexdigest() if record.body else None,
        "properties": found if record.properties_length > 0 else None,
    }


def java_host(host: bytes) -> str:
    """Address in hex and port; Java takes an IPv4 address in IPv6 clothes for IPv4."""
    address = host[:-4].removeprefix(bytes(10) + b"\xff\xff") if len(host) > 8 else host[:-4]
    return f"{address.hex()}:{int.from_bytes(host[-4:])}"


def java_verdicts(
    version: str, buffers: list[bytes], settings: dict[str, str], folder: Path
) -> Iterator[dict[str, Any]]:
    """What Java answers for each buffer, from one process."""
    written, answers = folder / "buffers", folder / "verdicts.jsonl"
    written.write_bytes(b"".join(len(data).to_bytes(4) + data for data in buffers))
    with store_library(version, folder / "home") as library:
        delays = {"messageDelayLevel": DELAY_LEVELS, "mappedFileSizeCommitLog": "1048576"}
        assert library.call("load", store=str(folder / "store"), settings=delays | settings)
        assert library.call("judge", input=str(written), output=str(answers)) == len(buffers)
    yield from map(json.loads, answers.read_text("ascii").splitlines())


def agree(java: dict[str, Any], ours: dict[str, Any] | None, data: bytes, rules: Rules) -> bool:
    """Whether both say the same; a check that fails gives -1 or the size that the bytes state."""
    total = int.from_bytes(data[:4], signed=True)
    if java.get("thrown") == "OutOfMemoryError":  # 4.x allocates the whole size first, however large
        return ours is None and not rules.bounds_first and total >= HUGE > len(data)
    return java == ours if java["success"] else ours is None and java["size"] in (-1, total)


@pytest.mark.parametrize("version", VERSIONS)
def test_mutated_records_are_judged_as_java_judges_them(version: str, cases: Library, tmp_path: Path) -> None:
    """Sound or not, the size, and every field of the dispatch request and of the decoded message."""
    made = list(mutated(base_records(version, cases, STATES[version]), COUNT, SEED))
    verdicts = java_verdicts(version, [data for _, data in made], {}, tmp_path)
    seen: Counter[tuple[str, bool]] = Counter()
    wrong = []
    for (kind, data), java in zip(made, verdicts, strict=True):
        ours = expected(judge(data), data, RULES[version])
        seen[kind, ours is not None] += 1
        if not agree(java, ours, data, RULES[version]):
            wrong.append((kind, data[:200].hex(), java, ours))
    kinds = Counter(kind for kind, *_ in wrong)
    assert not wrong, f"{len(wrong)} differ, {dict(kinds)}, the first: {wrong[0]}"
    assert {kind for kind, _ in seen} == {mutation.__name__ for mutation in MUTATIONS}
    assert sum(seen[kind, True] > 0 and seen[kind, False] > 0 for kind, _ in seen) > len(MUTATIONS), seen


@pytest.mark.parametrize("version", [version for version in VERSIONS if RULES[version].checks_property_crc])
def test_property_crc_is_judged_as_java_judges_it(version: str, cases: Library, tmp_path: Path) -> None:
    """With forceVerifyPropCRC the CRC in the properties decides, and the body's own is not looked at."""
    made = list(mutated(base_records(version, cases, ("small-propcrc",)), PROPERTY_CRC_COUNT, SEED))
    settings = {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}
    verdicts = java_verdicts(version, [data for _, data in made], settings, tmp_path)
    seen: Counter[tuple[str, bool]] = Counter()
    for (kind, data), java in zip(made, verdicts, strict=True):
        try:
            size = message.decode(data).total_size
            sound = properties.property_crc_ok(data[:size]) is True
        except FormatError:
            sound = False
        assert sound == (java["success"] and java["size"] > 0), (kind, data.hex(), java)
        seen[kind, sound] += 1
    assert seen["whole", False] == 0 < seen["property_crc", False] and seen["property_crc", True], seen
