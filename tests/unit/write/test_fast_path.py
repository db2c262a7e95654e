"""The fast path gives the bytes of `prepare` and `pack`, and leaves to them what it cannot take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool import NewMessage
from rmqtool.errors import IllegalMessageError
from rmqtool.formats import message as form
from rmqtool.write.records.prepare import prepare
from rmqtool.write.records.prepared import pack
from rmqtool.write.store_writer import StoreWriter

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01"), max_size=12)
NAMES = st.sampled_from(["color", "size", "TAGS", "DELAY", "KEYS", "WAIT", "a b", "名"])
MESSAGES = st.builds(
    NewMessage,
    topic=st.sampled_from(["Plain", "Other"]),
    body=st.binary(max_size=40),
    tags=st.none() | TEXT,
    keys=st.lists(TEXT, max_size=3) | st.just("one two"),
    properties=st.dictionaries(NAMES, TEXT, max_size=2),
    queue_id=st.none() | st.integers(-1, 4),
    wait=st.booleans(),
    uniq_key=st.text("0123456789ABCDEF", min_size=1, max_size=32),
)


@pytest.fixture(scope="module", params=["4.9", "5.3", "5.4"])
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreWriter]:
    root = tmp_path_factory.mktemp("quick") / "store"
    with StoreWriter.create(
        root, request.param, auto_create_queues=4, commit_log_file_size=1 << 20
    ) as opened:
        for topic in ("Plain", "Other"):
            for wait in (True, False):
                for tags in (None, "A"):
                    for keys in ((), ("k",)):
                        opened.put(NewMessage(topic, tags=tags, keys=keys, wait=wait, delay_level=1))
                        opened.put(NewMessage(topic, tags=tags, keys=keys, wait=wait))
        yield opened


def stored_bytes(writer: StoreWriter, offset: int, size: int) -> bytes:
    writer.log.commit()
    start = offset - offset % writer.options.commit_log_file_size
    with (writer.root / "commitlog" / f"{start:020d}").open("rb") as file:
        file.seek(offset - start)
        return file.read(size)


@given(message=MESSAGES)
def test_same_bytes(writer: StoreWriter, message: NewMessage) -> None:
    try:
        result = writer._fast_path.put(message)
    except IllegalMessageError:
        pytest.fail("the short way judges no message")
    if result is None:
        return
    stored = stored_bytes(writer, result.physical_offset, result.size)
    born_at = form.decode(stored).born_timestamp
    prepared = prepare(message, writer.options, born_at, result.queue_id)
    assert stored == pack(prepared, result.queue_offset, result.physical_offset, result.store_timestamp)


PLAIN = NewMessage("Plain", b"body", tags="A", keys=["k"])


def test_ordinary_messages_go_the_short_way(writer: StoreWriter) -> None:
    found = [writer._fast_path.put(replace(PLAIN, body=str(number).encode())) for number in range(8)]
    queues = [result.queue_id for result in found if result is not None]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert writer._fast_path.put(replace(PLAIN, queue_id=2)) is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "Unknown"}, {"delay_level": 1}, {"flag": 1}, {"sys_flag": 8}, {"reconsume_times": 1},
        {"prepared_transaction_offset": 1}, {"born_timestamp": 1}, {"store_timestamp": 1},
        {"born_host": bytes(8)}, {"store_host": bytes(8)}, {"compression": "zlib"}, {"queue_id": 4},
        {"queue_id": -1}, {"tags": "a\x02b"}, {"keys": [""]}, {"properties": {"x": ""}},
        {"properties": {"DELAY": "1"}}, {"properties": b"x\x01y"}, {"body": bytes(2 << 20)}, {"tags": "é"},
    ],
)  # fmt: skip
def test_others_are_left_to_the_long_way(writer: StoreWriter, changed: dict[str, Any]) -> None:
    end = writer.log.end
    assert writer._fast_path.put(replace(PLAIN, **changed)) is None
    assert writer.log.end == end


def test_the_end_of_a_file_is_left_to_the_long_way(writer: StoreWriter) -> None:
    room = writer.log.limit - writer.log.end
    big = replace(PLAIN, body=bytes(room - 400))
    assert writer.put(big).physical_offset == writer.log.limit - room
    assert writer._fast_path.put(replace(PLAIN, body=bytes(1000))) is None
    result = writer.put(replace(PLAIN, body=bytes(1000)))
    assert result.physical_offset % writer.options.commit_log_file_size == 0
