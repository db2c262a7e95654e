"""The writer's topics: what is known, what producers may do, which queue they take, what is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError, IllegalMessageError, RefusedError, UsageError
from rmqtool.formats import config_json
from rmqtool.formats.config_json import TopicConfig
from rmqtool.formats.fastjson import dump, parse
from rmqtool.message.system_topics import BUILT_IN_TOPICS
from rmqtool.read.store import Store
from rmqtool.storage.config_files import create_config
from rmqtool.storage.profile import PROFILES, Profile
from rmqtool.write.topics import QUEUES_MAX, TopicTable
from tests.support.stores import Library, real_cases

PROFILE_LIST = list(PROFILES.values())
Make = Callable[..., TopicTable]


def table_of(
    *topics: TopicConfig, profile: Profile = PROFILES["5.4"], folder: Path = Path("x")
) -> TopicTable:
    """A table that was read from a document with these topics."""
    objects = {
        topic.name: {
            "attributes": topic.attributes,
            "order": topic.order,
            "perm": topic.perm,
            "readQueueNums": topic.read_queue_nums,
            "topicFilterType": topic.topic_filter_type,
            "writeQueueNums": topic.write_queue_nums,
        }
        for topic in topics
    }
    return TopicTable(folder, profile, {"topicConfigTable": objects})


# -- what is known -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean"])
def test_topics_of_a_broker(name: str, cases: Library) -> None:
    """A broker's table is read whole; what it makes by itself is known without it, as it makes it."""
    root = cases.path(name)
    profile = Store.open(root).profile
    table, empty = TopicTable.load(root, profile), table_of(profile=profile)
    stored = config_json.topics(parse((root / "config/topics.json").read_bytes()))
    assert dict(table.topics) == stored and not table.changed
    own = {topic for topic in stored if empty.is_known(topic)}
    assert own >= (BUILT_IN_TOPICS | {topic for topic in stored if topic[0] == "%"}) & stored.keys()
    for topic in own - {"rmq_sys_SYNC_BROKER_MEMBER_broker-a"}:  # this one has perm 1 and no messages
        assert empty.config_of(topic) == stored[topic]
    assert {topic for topic in stored if table.is_batch(topic)} <= {"pubBatchCQ"}


def test_every_record_has_a_known_topic(cases: Library) -> None:
    """All topics of all records of the real stores are known."""
    for name in ("ok_497_clean", "ok_533_clean", "ok_540_clean"):
        with Store.open(cases.path(name)) as store:
            table = TopicTable.load(cases.path(name), store.profile)
            assert all(table.is_known(topic) for topic, _ in store.queues)


@pytest.mark.parametrize(
    "topic", ["", "a b", "../up", "%RETRY%../../up", "rmq_sys_/x", "ä", "x" * 300, "a\n"]
)
def test_names_that_lead_elsewhere(topic: str) -> None:
    """A name that is none is unknown, also when topics.json has it, and nobody may send to it."""
    table = table_of(TopicConfig(topic))
    assert table.config_of(topic) is None and not table.is_known(topic)
    with pytest.raises(IllegalMessageError, match="MESSAGE_ILLEGAL"):
        table.check(topic, 0)
    with pytest.raises(IllegalMessageError, match="MESSAGE_ILLEGAL"):
        table.add(topic)


# -- what producers may do ---------------------------------------------------------------------------


def test_check() -> None:
    """Each reason with the broker's name for it and what to do."""
    table = table_of(
        TopicConfig("open", 4, 8), TopicConfig("read", 8, 4), TopicConfig("closed", 4, 4, perm=4),
        TopicConfig("none", 4, 0),
    )  # fmt: skip
    for topic, last in (("open", 7), ("read", 7), ("%RETRY%group", 0), ("RMQ_SYS_TRACE_TOPIC", 0)):
        table.check(topic, 0)
        table.check(topic, last)
        for queue_id in (-1, last + 1):
            with pytest.raises(IllegalMessageError) as told:
                table.check(topic, queue_id)
            assert told.value.status == "INVALID_PARAMETER"
            assert told.value.hint == f"its queues are 0 to {last}"
    for topic, status in (
        ("closed", "NO_PERMISSION"), ("none", "NO_PERMISSION"), ("SCHEDULE_TOPIC_XXXX", "NO_PERMISSION"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "NO_PERMISSION"), ("opne", "TOPIC_NOT_EXIST"),
    ):  # fmt: skip
        with pytest.raises(IllegalMessageError) as told:
            table.check(topic, 0)
        assert told.value.status == status and topic in told.value.message
    assert told.value.hint is not None and "--create-topic" in told.value.hint and "open?" in told.value.hint


def test_added_topic_is_open_at_once() -> None:
    """A topic that was refused as unknown is known after `add`."""
    table = table_of()
    with pytest.raises(IllegalMessageError):
        table.check("T", 0)
    assert table.add("T", 3) == TopicConfig("T", 3, 3)
    table.check("T", 2)
    assert table.changed and table.is_known("T")


@pytest.mark.parametrize(
    "arguments",
    [{"queues": 0}, {"queues": QUEUES_MAX + 1}, {"perm": 8}, {"perm": -1}, {"topic": "T"},
     {"topic": "TBW102"}, {"topic": "rmq_sys_x"}],
)  # fmt: skip
def test_topics_that_cannot_be_made(arguments: dict[str, object]) -> None:
    """Values that cannot be are refused, and nothing is added."""
    table = table_of(TopicConfig("T"))
    with pytest.raises(UsageError):
        table.add(**{"topic": "U", **arguments})  # type: ignore[arg-type]
    assert not table.changed and list(table.topics) == ["T"]


def test_attributes() -> None:
    """5.x makes batch topics by attribute; 4.9 knows none."""
    table = table_of()
    table.add("B", attributes={"queue.type": "BatchCQ"})
    assert table.is_batch("B") and not table.is_batch("other")
    with pytest.raises(UsageError, match=r"4\.9"):
        table_of(profile=PROFILES["4.9"]).add("B", attributes={"queue.type": "BatchCQ"})


# -- which queue -------------------------------------------------------------------------------------

# (key, queues) -> queue id, by SelectMessageQueueByHash of the 5.4.0 client.
JAVA_QUEUES = {
    ("order-1", 1): 0, ("order-1", 3): 2, ("order-1", 4): 2, ("order-1", 16): 14, ("", 4): 0, ("a", 3): 1,
    ("a", 16): 1, ("ABCDEF", 3): 0, ("ABCDEF", 4): 3, ("polygenelubricants", 3): 2,
    ("polygenelubricants", 16): 0, ("\u8ba2\u5355\U0001f600", 3): 2, ("\u8ba2\u5355\U0001f600", 16): 6,
    ("zzzzzz", 3): 1, ("zzzzzz", 4): 0,
}  # fmt: skip


def test_queue_by_key() -> None:
    """The queue is the one that a Java producer takes, also for the hash that abs() cannot turn."""
    for (key, queues), queue_id in JAVA_QUEUES.items():
        assert table_of(TopicConfig("T", 20, queues)).choose_queue("T", "key-hash", key) == queue_id, key
    with pytest.raises(IllegalMessageError, match="no key"):
        table_of(TopicConfig("T")).choose_queue("T", "key-hash")


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 5))
def test_round_robin(counts: list[int], queues: int) -> None:
    """Queues are taken in turn, one by one or several at once, each topic by itself."""
    table = table_of(TopicConfig("T", 9, queues), TopicConfig("U", 3, 3))
    taken: list[int] = []
    for count in counts:
        first, number = table.spread("T", count)
        assert number == queues
        taken += [(first + i) % number for i in range(count)]
        taken.append(table.choose_queue("T"))
    assert taken == [i % queues for i in range(len(taken))]
    assert [table.choose_queue("U") for _ in range(4)] == [0, 1, 2, 0]


def test_order_topic() -> None:
    """An order topic is not spread; by key or by name its queues are open."""
    table = table_of(TopicConfig("T", 4, 4, order=True))
    for spread in (lambda: table.choose_queue("T"), lambda: table.spread("T", 5)):
        with pytest.raises(RefusedError, match="order topic") as told:
            spread()
        assert told.value.hint is not None and "key-hash" in told.value.hint
    assert table.choose_queue("T", "key-hash", "a") == 1
    table.check("T", 3)


def test_queue_of_a_closed_topic() -> None:
    """A queue is chosen only where producers may send."""
    table = table_of(TopicConfig("closed", perm=4), TopicConfig("none", 4, 0))
    for topic in ("closed", "none", "missing"):
        with pytest.raises(IllegalMessageError):
            table.choose_queue(topic)
        with pytest.raises(IllegalMessageError):
            table.choose_queue(topic, "key-hash", "a")


def test_compacted_topic() -> None:
    """A broker would not take our messages into the compaction log, the one that consumers get."""
    attributes = {"cleanup.policy": "COMPACTION"}
    table = table_of(TopicConfig("T", 4, 4, attributes=attributes), TopicConfig("D", 4, 4))
    for use in (lambda: table.check("T", 0), lambda: table.spread("T"), lambda: table.choose_queue("T")):
        with pytest.raises(RefusedError, match="topic T is compacted"):
            use()
    table.check("D", 0)


# -- what is saved -----------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILE_LIST, ids=lambda profile: profile.name)
def test_saved_and_loaded(profile: Profile, tmp_path: Path) -> None:
    """What was added is there again, in the profile's form; the .bak has what was there before."""
    create_config(tmp_path, profile)
    before = (tmp_path / "config/topics.json").read_bytes()
    table = TopicTable.load(tmp_path, profile)
    made = [table.add("T", 3), table.add("U", 1, perm=4, order=True)]
    table.remember("%RETRY%group")
    table.remember("%RETRY%group")
    table.remember("T")
    table.remember("RMQ_SYS_TRACE_TOPIC")
    table.save()
    assert not table.changed
    again = TopicTable.load(tmp_path, profile)
    assert dict(again.topics) == {
        **{config.name: config for config in made}, "%RETRY%group": TopicConfig("%RETRY%group", 1, 1),
    }  # fmt: skip
    data = (tmp_path / "config/topics.json").read_bytes()
    document = parse(data)
    version = config_json.data_version(document)
    assert version is not None and version.counter == 3
    assert dump(document, profile.name) == data
    assert (tmp_path / "config/topics.json.bak").read_bytes() == before


def test_nothing_is_saved_without_a_change(cases: Library, unchanged: Callable[..., object]) -> None:
    """Loading, looking and saving leaves a broker's files alone."""
    root = cases.path("ok_540_clean")
    with unchanged(root):  # type: ignore[attr-defined]
        table = TopicTable.load(root, PROFILES["5.4"])
        table.check("pubOrder", 0)
        table.save()


def test_topics_one_by_one_and_at_once(tmp_path: Path) -> None:
    """The table is the same whether it was saved after each topic or once."""
    names = [f"topic-{number}" for number in range(60)]
    tables = {}
    for every in (1, 60):
        root = tmp_path / str(every)
        table = TopicTable.load(root, PROFILES["4.9"])
        for number, name in enumerate(names, 1):
            table.add(name)
            if number % every == 0:
                table.save()
        document = parse((root / "config/topics.json").read_bytes())
        tables[every] = list(document["topicConfigTable"]), document["dataVersion"]["counter"]
    assert tables[1] == tables[60] and tables[1][1] == 60


@pytest.mark.parametrize("name", [name for name in real_cases() if name.endswith("_clean")])
def test_added_to_a_broker_s_table(name: str, store_copy: Callable[[str], Path]) -> None:
    """What the broker wrote stays word for word; the new topic stands among it, one change later."""
    root = store_copy(name)
    profile = Store.open(root).profile
    before = (root / "config/topics.json").read_text("utf-8").splitlines()
    counter = parse("\n".join(before))["dataVersion"]["counter"]
    table = TopicTable.load(root, profile)
    table.add("aNewTopic", 2)
    table.save()
    after = (root / "config/topics.json").read_text("utf-8").splitlines()
    start = after.index('\t\t"aNewTopic":{')
    stop = next(number for number in range(start, len(after)) if after[number] in ("\t\t},", "\t\t}")) + 1
    rest = after[:start] + after[stop:]
    changed = [(old, new) for old, new in zip(before, rest, strict=True) if old != new]
    assert changed[0] == (f'\t\t"counter":{counter},', f'\t\t"counter":{counter + 1},')
    assert len(changed) == 2 and "timestamp" in changed[1][0]
    assert [path.name for path in (root / "config").glob("*.tmp")] == []


def test_table_that_cannot_be_read(tmp_path: Path) -> None:
    """Without a readable file or .bak nothing is assumed."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_bytes(b'{"topicConfigTable":{"T":3}}')
    with pytest.raises(FormatError, match="the topics cannot be parsed.*: T is not a JSON object") as caught:
        TopicTable.load(tmp_path, PROFILES["5.4"])
    assert caught.value.path == tmp_path / "config/topics.json"
    (tmp_path / "config/topics.json").write_bytes(b"{")
    (tmp_path / "config/topics.json.bak").write_bytes(b"[")
    with pytest.raises(FormatError):
        TopicTable.load(tmp_path, PROFILES["5.4"])
