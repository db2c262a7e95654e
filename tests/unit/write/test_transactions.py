"""Half messages, commits and rollbacks: the records of real brokers, made once more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqtool.errors import IllegalMessageError, RefusedError
from rmqtool.formats import message, properties
from rmqtool.formats.message import TRANSACTION_COMMIT, Message
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS
from rmqtool.storage.profile import PROFILES
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import pack, prepare
from rmqtool.write.records.transactions import commit, half, op, rollback
from tests.support.stores import Library
from tests.unit.write.test_prepare import NOW_MS, STORES, bytes_of, client_view, options_of, records_of, sent

HALF = HALF_TOPICS[0]
ALL_PROFILES = [WriteOptions(profile=profile) for profile in PROFILES.values()]
Store = tuple[dict[int, tuple[Message, bytes]], WriteOptions]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, cases: Library) -> Store:
    """The records of a real store by physical offset, and how they were written."""
    records = records_of(str(cases.path(request.param)))
    return {record.physical_offset: (record, data) for record, data in records}, options_of(request.param)


def test_half_messages_as_sent(store: Store) -> None:
    """What the producer sent becomes the broker's half message."""
    records, options = store
    count = by_fields = 0
    for record, data in records.values():
        found = client_view(record)
        if record.topic != HALF or "TRANSACTION_CHECK_TIMES" in found:
            continue  # one that the broker put once more
        topic, queue_id, group = found.pop("REAL_TOPIC"), int(found.pop("REAL_QID")), found.pop("PGROUP")
        found.pop("__transactionId__", None)
        del found["TRAN_MSG"]
        new = half(replace(sent(record, found), topic=topic, queue_id=queue_id), group)
        by_fields += bytes_of(prepare(new, options, NOW_MS), record) == data
        # One producer put a property before its tag, and the two share a bucket.
        own = {name: value for name, value in found.items() if name != "UNIQ_KEY"}
        new = replace(new, tags=None, keys=(), properties={**own, **dict(new.properties)})  # type: ignore[arg-type]
        assert bytes_of(prepare(new, options, NOW_MS), record) == data
        count += 1
    assert count
    assert by_fields >= count - 1


def test_committed_messages(store: Store) -> None:
    """The committed record follows from the stored half message."""
    records, options = store
    count = 0
    for record, data in records.values():
        if record.transaction_type != TRANSACTION_COMMIT:
            continue
        origin, _ = records[record.prepared_transaction_offset]
        committed, _ = commit(origin, options, NOW_MS)
        made = prepare(committed, options, NOW_MS)
        assert (made.topic, made.queue_id) == (record.topic, record.queue_id)
        assert bytes_of(made, record) == data
        count += 1
    assert count


def test_op_messages(store: Store) -> None:
    """The op record says which half messages are finished; 4.9 names one, 5.x a list."""
    records, options = store
    count = 0
    for record, data in records.values():
        if record.topic != OP_TOPICS[0]:
            continue
        offsets = [int(piece) for piece in record.body.split(b",") if piece]
        local = replace(options, store_host=record.store_host)
        made = prepare(op(offsets, record.queue_id, local, record.born_timestamp), local, NOW_MS)
        assert bytes_of(made, record) == data
        count += 1
    assert count


@pytest.mark.parametrize("options", ALL_PROFILES)
def test_from_half_to_the_end(options: WriteOptions) -> None:
    """A commit puts the message, then the op record; a rollback the op record only."""
    new = half(NewMessage("T", b"body", tags="a", queue_id=3, flag=9), "group")
    made = prepare(new, options, NOW_MS)
    assert (made.topic, made.queue_id, made.transaction_type) == (HALF, 0, 0)
    record = message.decode(pack(made, 17, 4711, NOW_MS))
    committed, done = [prepare(each, options, NOW_MS) for each in commit(record, options, NOW_MS)]
    assert (committed.topic, committed.queue_id, committed.transaction_type) == ("T", 3, TRANSACTION_COMMIT)
    assert (committed.prepared_transaction_offset, committed.body, committed.flag) == (4711, b"body", 9)
    assert (done.topic, done.queue_id, done.body.rstrip(b",")) == (OP_TOPICS[0], 0, b"17")
    found = properties.decode(committed.properties_bytes[2:])
    assert ("REAL_TOPIC" in found) == options.profile.committed_keeps_real
    assert found["TAGS"] == "a"
    assert [each.topic for each in rollback(record, options, NOW_MS)] == [OP_TOPICS[0]]


def test_refusals() -> None:
    """What is no transaction, or would never end."""
    options = ALL_PROFILES[-1]
    record = message.decode(pack(prepare(NewMessage("T"), options, NOW_MS), 0, 0, NOW_MS))
    lost = NewMessage(HALF, properties=b"TAGS\x01a\x02")
    for wrong in (record, message.decode(pack(prepare(lost, options, NOW_MS), 0, 0, NOW_MS))):
        with pytest.raises(RefusedError):
            commit(wrong, options, NOW_MS)
        with pytest.raises(RefusedError):
            rollback(wrong, options, NOW_MS)
    for new, group in ((NewMessage("T"), ""), (NewMessage("T", delay_level=1), "g"),
                       (NewMessage("T", properties=b""), "g")):  # fmt: skip
        with pytest.raises(IllegalMessageError):
            half(new, group)
    with pytest.raises(IllegalMessageError, match="one half message"):
        op([1, 2], 0, ALL_PROFILES[0], NOW_MS)
