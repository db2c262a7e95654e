"""From messages to records: what client and broker add, and what a broker refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import IllegalMessageError
from rmqtool.formats import message, properties
from rmqtool.formats.body import decompress
from rmqtool.formats.java import hash_map_order, java_utf8_encode
from rmqtool.formats.message import INNER_BATCH, Message
from rmqtool.formats.message_id import UniqueId, host_bytes
from rmqtool.message.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rmqtool.storage.profile import PROFILES
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import pack, prepare, prepare_batch, with_offsets
from rmqtool.write.records.property_map import waits
from rmqtool.write.records.tables import SPECIAL_NAMES, tables_for
from rmqtool.write.records.unique_id import IDS_PER_MS, UniqueIdMaker

NOW_MS = 1_700_000_000_000
HOST_V6 = host_bytes("[2001:db8::1]:10911")
ALL_PROFILES = [WriteOptions(profile=profile) for profile in PROFILES.values()]
OLD, _, NEWEST = ALL_PROFILES


def stored(new: NewMessage, options: WriteOptions, **more: Any) -> Message:
    """The record that `new` becomes."""
    return message.decode(pack(prepare(new, options, NOW_MS, **more), 7, 1024, NOW_MS + 1))


def test_the_example_of_the_format() -> None:
    """The record of the specification, byte for byte."""
    new = NewMessage(
        "TopicTest", b"hello", properties=b"KEYS\x01k1\x02TAGS\x01TagA", queue_id=3, born_timestamp=NOW_MS,
        born_host=host_bytes("192.168.0.10:54321"), store_host=host_bytes("10.0.0.1:10911"),
    )  # fmt: skip
    data = pack(prepare(new, OLD, 0), 7, 1024, NOW_MS + 123)
    assert data == bytes.fromhex(
        "0000007a daa320a7 3610a686 00000003 00000000 00000000 00000007 00000000 00000400 00000000"
        "0000018b cfe56800 c0a8000a 0000d431 0000018b cfe5687b 0a000001 00002a9f 00000000 00000000"
        "00000000 00000005 68656c6c 6f09546f 70696354 65737400 114b4559 53016b31 02544147 53015461 6741"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (OLD, "KEYS^k1|UNIQ_KEY^U|CLUSTER^DefaultCluster|TAGS^TagA"),
        (NEWEST,
         "MSG_REGION^DefaultRegion|UNIQ_KEY^U|CLUSTER^DefaultCluster|TAGS^TagA|KEYS^k1|WAIT^true|TRACE_ON^true|"),
        (replace(NEWEST, cluster=None, region=None), "UNIQ_KEY^U|TAGS^TagA|KEYS^k1|WAIT^true|"),
        (replace(NEWEST, cluster="100%", region="%s"),
         "MSG_REGION^%s|UNIQ_KEY^U|CLUSTER^100%|TAGS^TagA|KEYS^k1|WAIT^true|TRACE_ON^true|"),
    ],
)  # fmt: skip
def test_properties_of_a_plain_message(options: WriteOptions, expected: str) -> None:
    """Order and separators of each profile."""
    new = NewMessage("T", tags="TagA", keys=["k1"], uniq_key="U")
    assert stored(new, options).properties_bytes.decode() == expected.replace("^", "\x01").replace(
        "|", "\x02"
    )


def test_wait_is_known_but_not_stored_in_4_9() -> None:
    """4.x drops WAIT from the string of a plain message, and keeps it where it rewrites one."""
    new = NewMessage("T", wait=False, uniq_key="U")
    assert not waits(new)
    assert "WAIT" not in properties.decode(stored(new, OLD).properties_bytes)
    assert properties.decode(stored(replace(new, delay_level=1), OLD).properties_bytes)["WAIT"] == "false"
    assert properties.decode(stored(new, NEWEST).properties_bytes)["WAIT"] == "false"


@pytest.mark.parametrize("options", ALL_PROFILES)
def test_delay_level_is_capped(options: WriteOptions) -> None:
    """A level above the table is its last one."""
    record = stored(NewMessage("T", delay_level=99, queue_id=5), options)
    found = properties.decode(record.properties_bytes)
    assert (record.topic, record.queue_id) == (SCHEDULE_TOPIC, 17)
    assert (found["DELAY"], found["REAL_TOPIC"], found["REAL_QID"]) == ("18", "T", "5")


def test_timer_message() -> None:
    """5.x sends it to the timer's topic, due at the step before; 4.9 knows no timers."""
    new = NewMessage("T", properties={"TIMER_DELIVER_MS": str(NOW_MS + 5000)}, queue_id=2)
    record = stored(new, NEWEST)
    found = properties.decode(record.properties_bytes)
    assert (record.topic, record.queue_id, found["REAL_QID"]) == (TIMER_TOPIC, 0, "2")
    assert found["TIMER_OUT_MS"] == str(NOW_MS + 4000)
    assert stored(new, OLD).topic == "T"
    due = NewMessage("T", properties={"TIMER_DELIVER_MS": str(NOW_MS)})
    assert stored(due, NEWEST).topic == "T"
    both = NewMessage("T", properties={"TIMER_DELAY_SEC": "9"}, delay_level=1)
    assert "TIMER_DELAY_SEC" not in properties.decode(stored(both, NEWEST).properties_bytes)


def test_hosts_decide_the_bits() -> None:
    """IPv6 sets the bits and the size; an address that stands for an IPv4 one is stored as that."""
    record = stored(NewMessage("T", born_host=HOST_V6, sys_flag=message.STORE_HOST_V6), NEWEST)
    assert (record.sys_flag, record.born_host) == (message.BORN_HOST_V6, HOST_V6)
    mapped = host_bytes("[::ffff:10.1.2.3]:99")
    assert stored(NewMessage("T", born_host=mapped), NEWEST).born_host == host_bytes("10.1.2.3:99")


def test_long_retry_topics() -> None:
    """They take the second magic in 5.x, and are refused in 4.9."""
    new = NewMessage("%RETRY%" + "g" * 121)
    assert stored(new, NEWEST).version == 2
    assert stored(replace(new, topic="%RETRY%" + "g" * 120), NEWEST).version == 1
    with pytest.raises(IllegalMessageError, match="128 bytes"):
        prepare(new, OLD, NOW_MS)


def test_compression_as_the_client_does_it() -> None:
    """Bodies of 4,096 bytes and more are compressed when it is asked for, in batches never."""
    body = b"a" * 4096
    record = stored(NewMessage("T", body, compression="zlib"), NEWEST)
    assert record.sys_flag & 0x701 == 0x301
    assert decompress(record.body, record.sys_flag) == body
    assert stored(NewMessage("T", body[1:], compression="zlib"), NEWEST).body == body[1:]
    packed = NewMessage("T", record.body * 999, sys_flag=record.sys_flag, compression="zlib")
    assert stored(packed, NEWEST).body == packed.body
    assert prepare_batch([NewMessage("T", body, compression="zlib")], NEWEST, NOW_MS)[0].body == body


def test_property_crc_is_made_anew() -> None:
    """Also in a record that is kept as stored: it covers the new offsets."""
    options = replace(NEWEST, property_crc=True)
    for new in (NewMessage("T"), NewMessage("T", properties=b"A\x01b"), NewMessage("T", properties=b"")):
        data = pack(prepare(new, options, NOW_MS), 1, 2, 3)
        assert properties.property_crc_ok(data)
        again = NewMessage("T", properties=message.decode(data).properties_bytes)
        assert properties.property_crc_ok(pack(prepare(again, NEWEST, NOW_MS), 9, 8, 7))
    dropped = NewMessage("T", properties={"__CRC32#": "1", "a": "b"})
    assert b"__CRC32#\x011\x02" not in prepare(dropped, options, NOW_MS).properties_bytes


def test_light_queues() -> None:
    """Their offsets are in the properties, so the size is known with them only."""
    new = NewMessage("T", properties={"INNER_MULTI_DISPATCH": "%LMQ%a,b,%LMQ%c"}, uniq_key="U", queue_id=3)
    made = prepare(new, replace(NEWEST, multi_dispatch=True), NOW_MS)
    assert made.light_queues == (("%LMQ%a", 0), ("%LMQ%c", 0))
    placed = with_offsets(made, 5, (10, 2000))
    record = message.decode(pack(placed, 5, 0, NOW_MS))
    assert properties.decode(record.properties_bytes)["INNER_MULTI_QUEUE_OFFSET"] == "10,,2000"
    assert record.total_size == placed.size
    with pytest.raises(IllegalMessageError, match="light queues"):
        small = replace(NEWEST, multi_dispatch=True, max_message_size=99)
        with_offsets(prepare(new, small, NOW_MS), 5, (10, 2000))
    old = prepare(new, replace(OLD, multi_dispatch=True), NOW_MS)
    assert old.light_queues == (("%LMQ%a", 0), ("b", 3), ("%LMQ%c", 0))
    found = properties.decode(with_offsets(old, 5, (1, 2, 3)).properties_bytes[2:])
    assert (found["INNER_MULTI_QUEUE_OFFSET"], "WAIT" in found) == ("1,2,3", False)
    assert not prepare(new, NEWEST, NOW_MS).light_queues
    assert not prepare(
        replace(new, topic="%RETRY%g"), replace(NEWEST, multi_dispatch=True), NOW_MS
    ).light_queues


@pytest.mark.parametrize("options", ALL_PROFILES)
def test_a_batch(options: WriteOptions) -> None:
    """Items keep what is theirs; what the batch says comes behind it, in 5.4 not at all."""
    news = [
        NewMessage("T", b"1", tags="a", flag=4, queue_id=2),
        NewMessage("T", b"22", uniq_key="K", queue_id=2),
    ]
    made = prepare_batch(news, options, NOW_MS)
    records = [message.decode(pack(one, 7, 0, NOW_MS)) for one in made]
    assert [(record.body, record.flag, record.queue_id) for record in records] == [
        (b"1", 4, 2),
        (b"22", 0, 2),
    ]
    names = [name for name, _ in properties.pairs(records[0].properties_bytes)]
    assert names[:3] == ["UNIQ_KEY", "WAIT", "TAGS"]
    assert ("CLUSTER" in names) == options.profile.appends_batch_properties
    whole = prepare_batch(news, options, NOW_MS, batch_topic=True)
    assert [one.count for one in whole] == ([2] if options.profile.has_inner_batch else [1, 1])


# -- refusals --------------------------------------------------------------------------------------


def refused(new: NewMessage, options: WriteOptions = NEWEST, **more: Any) -> str:
    """The status with which the broker refuses `new`."""
    with pytest.raises(IllegalMessageError) as caught:
        prepare(new, options, NOW_MS, **more)
    return caught.value.status


LONG = "x" * 33_000


@pytest.mark.parametrize("new", [
    NewMessage(""), NewMessage("a/b"), NewMessage(".."), NewMessage("a b"), NewMessage("ä"),
    NewMessage("x" * 128), NewMessage("%DLQ%" + "x" * 123), NewMessage("%RETRY%" + "x" * 249),
    NewMessage(SCHEDULE_TOPIC), NewMessage("T", b"x" * (4 << 20) + b"x"), NewMessage("T", queue_id=-1),
    NewMessage("T", queue_id=1 << 31), NewMessage("T", flag=1 << 31),
    NewMessage("T", born_timestamp=1 << 63), NewMessage("T", store_timestamp=1 << 63),
    NewMessage("T", prepared_transaction_offset=1 << 63), NewMessage("T", reconsume_times=1 << 31),
    NewMessage("T", sys_flag=1 << 31), NewMessage("T", born_host=b"1234"),
    NewMessage("T", properties={"": "a"}), NewMessage("T", properties={"a": ""}),
    NewMessage("T", properties={"a\x01": "b"}),
    NewMessage("T", properties={"a\x02": "b"}), NewMessage("T", properties={"a": "b\x02"}),
    NewMessage("T", tags="a\x02b"), NewMessage("T", keys=[""]), NewMessage("T", uniq_key="\x02"),
    NewMessage("T", properties={"DELAY": "soon"}), NewMessage("T", properties={"INNER_NUM": "2"}),
    NewMessage("T", sys_flag=INNER_BATCH), NewMessage("T", properties=b"INNER_NUM\x012\x02"),
    NewMessage("T", properties=b"a\x01b", tags="x"),
    NewMessage("T", properties={"TRAN_MSG": "true"}, delay_level=1),
])  # fmt: skip
def test_message_illegal(new: NewMessage) -> None:
    """What no broker takes."""
    assert refused(new) == "MESSAGE_ILLEGAL"


def test_other_statuses() -> None:
    """Where the broker has its own name."""
    assert refused(NewMessage("T", properties={"a": LONG})) == "PROPERTIES_SIZE_EXCEEDED"
    assert refused(NewMessage("T", properties=b"a\x01" + b"x" * 32_766)) == "PROPERTIES_SIZE_EXCEEDED"
    assert refused(NewMessage("T", properties={"a": "ä" * 20_000})) == "PROPERTIES_SIZE_EXCEEDED"
    assert refused(NewMessage("T", properties={"a": "ä" * 20_000}), OLD) == "PROPERTIES_SIZE_EXCEEDED"
    assert refused(NewMessage("T", properties={"a": LONG}), OLD) == "MESSAGE_ILLEGAL"
    assert refused(NewMessage("T", keys=LONG, delay_level=1), OLD) == "MESSAGE_ILLEGAL"
    for value in ("x", str(300_000)):
        assert refused(NewMessage("T", properties={"TIMER_DELAY_SEC": value})) == "WHEEL_TIMER_MSG_ILLEGAL"


def test_a_record_that_fills_a_file() -> None:
    """It fits up to the blank behind it; one byte more would burn file after file."""
    options = replace(NEWEST, commit_log_file_size=4096, max_message_size=3990)
    overhead = prepare(NewMessage("T", uniq_key="U"), options, NOW_MS).size
    body = b"x" * (4096 - 8 - overhead)
    assert prepare(NewMessage("T", body, uniq_key="U"), options, NOW_MS).size == 4088
    with pytest.raises(IllegalMessageError, match="room for 4088"):
        prepare(NewMessage("T", body + b"x", uniq_key="U"), options, NOW_MS)
    with pytest.raises(IllegalMessageError, match="room for 4088"):
        prepare_batch([NewMessage("T", b"x")] * 30, options, NOW_MS)


@pytest.mark.parametrize("news", [
    [], [NewMessage("%RETRY%g")], [NewMessage("T", delay_level=1)],
    [NewMessage("T", properties={"DELAY": "1"})], [NewMessage("T", properties={"TRAN_MSG": "true"})],
    [NewMessage("T", sys_flag=message.TRANSACTION_COMMIT)],
    [NewMessage("T"), NewMessage("U")], [NewMessage("T", queue_id=1), NewMessage("T", queue_id=2)],
    [NewMessage("T"), NewMessage("T", wait=False)], [NewMessage("T", b"x" * (2 << 20))] * 2,
])  # fmt: skip
def test_batches_refused(news: list[NewMessage]) -> None:
    """What no client makes a batch of, or no broker takes as one."""
    with pytest.raises(IllegalMessageError):
        prepare_batch(news, NEWEST, NOW_MS)


@pytest.mark.parametrize(
    "changed",
    [
        {"store_timestamp": 0}, {"store_timestamp": -1}, {"flag": 1.5}, {"reconsume_times": 2.0},
        {"born_host": b"\x7f\0\0\1\0\1\0\0"},
        {"store_host": b"\x7f\0\0\1\xff\xff\xff\xff"},
        {"properties": b"INNER_MULTI_DISPATCH\x01%LMQ%" + b"n" * 300},
        {"properties": b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%a"},
        {"properties": b"INNER_MULTI_DISPATCH\x01../../etc"},
        {"properties": b"INNER_MULTI_DISPATCH\x01%LMQ%a,..,%LMQ%b"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("profile", PROFILES)
def test_what_would_damage_the_store_is_refused(profile: str, changed: dict[str, Any]) -> None:
    options = WriteOptions(profile=PROFILES[profile], multi_dispatch=True)
    with pytest.raises(IllegalMessageError, match="MESSAGE_ILLEGAL"):
        prepare(NewMessage("T", b"x", queue_id=0, **changed), options, NOW_MS)


def test_4_9_knows_no_inner_batch() -> None:
    kept = NewMessage("T", b"x", queue_id=0, sys_flag=INNER_BATCH, properties=b"INNER_NUM\x011")
    with pytest.raises(IllegalMessageError, match="inner batch"):
        prepare(kept, WriteOptions(profile=PROFILES["4.9"]), NOW_MS)


# -- by chance -------------------------------------------------------------------------------------

_TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=()), min_size=1, max_size=9)
_NAMES = st.one_of(_TEXT, st.sampled_from(["a", "%s", "color", "Aa", "BB", "KEYS", "WAIT", "CLUSTER"]))


@given(
    own=st.dictionaries(_NAMES, _TEXT, max_size=20), tags=st.none() | _TEXT, keys=st.lists(_TEXT, max_size=3),
    wait=st.booleans(), options=st.sampled_from(ALL_PROFILES),
)  # fmt: skip
def test_the_template_gives_what_the_rules_give(
    own: dict[str, str], tags: str | None, keys: list[str], wait: bool, options: WriteOptions
) -> None:
    """The template of the short way and the broker's maps make the same string."""
    own = {name: value for name, value in own.items() if name not in SPECIAL_NAMES}
    plan = tables_for(options).plan_of((not tags, not keys, not wait, tuple(own)))
    given_values = [*own.values(), *([tags] if tags else []), *([" ".join(keys)] if keys else []), "U"]
    message = NewMessage("T", tags=tags, keys=keys, wait=wait, uniq_key="U", properties=own)
    prepared = prepare(message, options, NOW_MS)
    text = plan.template % plan.pick(given_values)
    assert java_utf8_encode(text) == prepared.properties_bytes[2:]


def test_the_order_of_client_and_broker_maps() -> None:
    """Names of one bucket stay in the order of the client's map, which has 16 buckets."""
    names = [f"p{number}" for number in range(40)]
    record = stored(NewMessage("T", properties=dict.fromkeys(names, "x"), uniq_key="U"), NEWEST)
    client = hash_map_order(["WAIT", *names, "UNIQ_KEY"], 16)
    request = hash_map_order([*client, "MSG_REGION", "TRACE_ON"], 128)
    assert list(properties.decode(record.properties_bytes)) == hash_map_order([*request, "CLUSTER"], 128)


# -- unique ids ------------------------------------------------------------------------------------


def test_unique_ids_are_unique() -> None:
    """Also beyond the ids of one ms, for single ones and ranges, and when the clock steps back."""
    maker = UniqueIdMaker()
    host = host_bytes("10.1.2.3:5")
    found = [maker.make(host, NOW_MS) for _ in range(10)]
    many = maker.reserve(3 * IDS_PER_MS, host, NOW_MS)
    found += [many.id(index) for index in range(0, 3 * IDS_PER_MS, 7)]
    found += [maker.make(host, NOW_MS - 5) for _ in range(10)] + [
        maker.make(host, NOW_MS + 1) for _ in range(9)
    ]
    assert len(set(found)) == len(found)
    assert {UniqueId.decode(text).address for text in found} == {"10.1.2.3"}
    assert UniqueId.decode(found[0]).time_ms(NOW_MS) == NOW_MS
    assert len(maker.make(HOST_V6, NOW_MS)) == 56
