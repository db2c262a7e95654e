"""`stats`: counts per group, largest messages, duplicates, transactions: plain Python and Java agree."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import UsageError
from rmqtool.formats import message as form
from rmqtool.message.string_table import decimals, gathered
from rmqtool.message.system_topics import TRANSACTION_GROUP
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.stats import duplicates, groups, transactions
from rmqtool.report.stats.dimensions import Codes, Dimension, parse_by, start_of
from rmqtool.report.stats.histogram import VALUE_MAX, Histogram, buckets, middles
from rmqtool.report.stats.scanner import scan
from rmqtool.report.stats.timeline import Timeline
from tests.support.dumps import facts_of
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.stats import NOW_MS, check_rows, fact_of, look, rows_of
from tests.support.stores import Library
from tests.support.whole_store import keyed, write_whole

REAL = ("ok_497_clean", "ok_533_clean", "ok_540_clean", "ok_540_expired", "ok_540_small_ipv6")
BYS = ((), ("topic",), ("topic", "queue"), ("tag",), ("topic", "hour"), ("size",), ("day", "tag", "size"))


# -- groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_groups_are_what_java_says(name: str, cases: Library) -> None:
    """Counts, sums, extremes and percentiles of every group, from the facts of the Java library."""
    facts = facts_of(name)
    for fact in facts:
        fact["storedBodyLength"] = max(fact["storedBodyLength"], 0)
    for by in BYS if name == "ok_540_clean" else BYS[2:4]:
        check_rows(rows_of(look(cases.path(name), by=by), "messages"), facts, by)


TOPICS = st.sampled_from(["TopicTest", "主题", "a" * 130, "$x^{2}$"])
RECORD = st.builds(
    lambda topic, body, tag, queue, born, stored, flag: (topic, body, tag, queue, born, stored, flag),
    TOPICS, st.integers(0, 400), st.sampled_from([None, "", "AaAa", "BBBB", "标签"]), st.integers(-1, 3),
    st.integers(-(10**14), 10**14), st.integers(0, 10**14), st.sampled_from([0, 1]),
)  # fmt: skip


@given(rows=st.lists(RECORD, min_size=1, max_size=40), by=st.sampled_from(BYS), flush=st.integers(1, 50))
def test_random_logs(rows: list[Any], by: tuple[str, ...], flush: int, tmp_path_factory: Any) -> None:
    """Any topics, tags, queues and times, in batches of any size, as plain Python counts them."""
    root = tmp_path_factory.mktemp("random")
    records = []
    counts: Counter[tuple[str, int]] = Counter()
    for topic, body, tag, queue, born, stored, flag in rows:
        found = {} if tag is None else {"TAGS": tag}
        records.append(
            record(topic, bytes(body), found, queue_id=queue, queue_offset=counts[topic, queue],
                   born_timestamp=born, store_timestamp=stored, sys_flag=flag)
        )  # fmt: skip
        counts[topic, queue] += 1
    from tests.support.build_store import write_log

    write_log(root / "commitlog", records)
    before, groups._FLUSH_RECORDS = groups._FLUSH_RECORDS, flush
    try:
        found = rows_of(look(root / "commitlog", by=by), "messages")
    finally:
        groups._FLUSH_RECORDS = before
    with Store.open(root / "commitlog") as store:
        check_rows(found, [fact_of(stored) for stored in store.messages()], by)


@pytest.mark.parametrize(
    "selection",
    [
        Selection(topics=["pub*"], exclude_topics=["*Eight"], queues=[0, 2]),
        Selection(tags=["AaAa", "Tag😀A"]),
        Selection(since=1_795_251_020_000, until=1_795_251_030_000),
        Selection(from_offset=100_000, to_offset=2_000_000, topics=["pubTopicOne"]),
        Selection(since=1_795_251_020_000, time_field="born"),
        Selection(topics=["nothing"]),
    ],
)
def test_selections(selection: Selection, cases: Library) -> None:
    """What is selected is what `Store.messages` selects."""
    path = cases.path("ok_540_clean")
    with Store.open(path) as store:
        facts = [fact_of(stored) for stored in store.messages(selection)]
    check_rows(rows_of(look(path, selection, by=("topic", "queue")), "messages"), facts, ("topic", "queue"))


def test_hours_and_days_of_a_zone() -> None:
    """An hour begins where the clock of the zone says so; a day may have 23 hours."""
    kathmandu, berlin = timezone(timedelta(hours=5, minutes=45)), ZoneInfo("Europe/Berlin")
    assert start_of(1_700_000_000_000, "hour", UTC) == 1_699_999_200_000
    assert start_of(1_700_000_000_000, "hour", kathmandu) == 1_699_996_500_000
    assert start_of(1_774_747_800_000, "day", berlin) == 1_774_738_800_000  # 29 March 2026, 03:30
    assert (
        start_of(1_774_900_000_000, "day", berlin) - start_of(1_774_747_800_000, "day", berlin) == 82_800_000
    )
    assert start_of(-(10**17), "hour", UTC) % 3_600_000 == 0
    assert start_of(1_700_000_000_000, "day", None) == start_of(1_700_000_000_000, "day", UTC)  # TZ=UTC


def test_groups_beyond_the_limit_are_one(tmp_path: Path) -> None:
    """The first ones are told apart, the rest is in one row, whose names are null; nothing is lost."""
    write_whole(tmp_path, keyed(30))
    topics, tags = Codes(), Codes()
    few = groups.Groups([Dimension("tag", UTC)], groups_max=2)
    with Store.open(tmp_path) as store:
        scan(store, Selection(), [few], topics, tags=tags)
    found = list(few.ordered(topics, tags))
    assert [name for name, _ in found] == [{"tag": "Tag0"}, {"tag": "Tag1"}, {}]
    assert sum(values["count"] for _, values in found) == 30
    assert few.has_others


def test_values_beyond_the_limit_are_one(tmp_path: Path) -> None:
    """Names beyond so many share a code, and so a row; duplicates among them have no topic."""
    write_whole(tmp_path, keyed(30))
    topics, tags = Codes(), Codes(2)
    counted = groups.Groups([Dimension("queue", UTC), Dimension("tag", UTC)])
    with Store.open(tmp_path) as store:
        assert scan(store, Selection(), [counted], topics, tags=tags) == 30
    found = list(counted.ordered(topics, tags))
    assert [name for name, _ in found][-1] == {} and found[-1][1]["count"] == 10
    assert [values["count"] for _, values in found] == [5, 5, 5, 5, 10]


@pytest.mark.parametrize("text", ["", " ,", "colour", "topic,colour", "group,tag"])
def test_by_is_checked(text: str) -> None:
    """Unknown words, none, and what lag knows nothing about."""
    with pytest.raises(UsageError):
        parse_by(text)
    assert parse_by("topic, queue,topic") == ("topic", "queue")


# -- percentiles -------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 8))
def test_buckets_hold_their_error(values: list[int], digits: int) -> None:
    """A bucket's middle is off by 2**-digits of the number at most, buckets rise with numbers."""
    numbers = np.array(values, np.int64)
    found = buckets(numbers, digits)
    for value, middle in zip(values, middles(found, digits).tolist(), strict=True):
        value = max(min(value, VALUE_MAX), -VALUE_MAX)
        assert abs(middle - value) <= abs(value) * 2.0**-digits
    assert (np.diff(found[np.argsort(numbers, kind="stable")]) >= 0).all()
    assert (buckets(middles(found, digits), digits) == found).all()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1000, 10**7)), min_size=1),
    st.integers(1, 60),
    st.data(),
)
def test_percentiles(pairs: list[tuple[int, int]], cells: int, data: st.DataObject) -> None:
    """Nearest rank, within the error that the histogram says it has, also where it gives up digits."""
    histogram = Histogram(cells_max=cells)
    cut = data.draw(st.integers(0, len(pairs)))
    for part in (pairs[:cut], pairs[cut:]):
        if part:
            histogram.add(np.array([group for group, _ in part]), np.array([value for _, value in part]))
    found = histogram.percentiles(5, (1, 50, 95, 100))
    for group in range(5):
        values = sorted(value for each, value in pairs if each == group)
        for column, percent in enumerate((1, 50, 95, 100)):
            exact = values[-(-len(values) * percent // 100) - 1] if values else 0
            # Coarser buckets are made of middles of finer ones: both errors add up.
            assert abs(int(found[group, column]) - exact) <= 2 * histogram.relative_error * abs(exact)


# -- largest, duplicates -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("ok_540_clean", 7), ("ok_540_small_ipv6", 100_000)])
def test_largest(name: str, count: int, cases: Library) -> None:
    """The records of the largest sizes, of equal ones the first."""
    facts = sorted(facts_of(name), key=lambda fact: (-fact["storeSize"], fact["physicalOffset"]))
    rows = rows_of(look(cases.path(name), largest=count), "largest")
    assert [row["physical_offset"] for row in rows] == [fact["physicalOffset"] for fact in facts[:count]]
    assert rows[0]["topic"] == facts[0]["topic"] and rows[0]["body"]


def expected_duplicates(facts: list[Any]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(topic, unique key) -> (count, first and last place) of keys of ordinary topics that are doubled."""
    places: dict[tuple[str, str], list[int]] = {}
    for fact in facts:
        key = fact["properties"].get("UNIQ_KEY")
        if key and duplicates.is_ordinary(fact["topic"]):
            places.setdefault((fact["topic"], key), []).append(fact["physicalOffset"])
    return {name: (len(each), min(each), max(each)) for name, each in places.items() if len(each) > 1}


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_clean"])
def test_duplicates_are_those_of_java(name: str, cases: Library) -> None:
    """Unique keys that the Java library reads twice in one topic."""
    rows = rows_of(look(cases.path(name), duplicates=True), "duplicates")
    found = {(row["topic"], row["uniq_key"]): (row["count"], row["first_physical_offset"],
             row["last_physical_offset"]) for row in rows}  # fmt: skip
    assert found == expected_duplicates(facts_of(name))
    assert len(found) == len(rows)


def doubled_store(root: Path) -> list[Any]:
    """120 messages; every third key comes twice, one of them with another body; some have no key."""
    records = keyed(120)
    again = keyed(40, first=0)
    records += [
        record("TopicTest", b"other" if n == 5 else item.body, item.properties_bytes, queue_id=n % 2,
               queue_offset=60 + n // 2, store_timestamp=STORE_TIMESTAMP + 1000 + n)
        for n, item in enumerate(again)
    ]  # fmt: skip
    records.append(record("Other", b"x", {"UNIQ_KEY": "U00000001"}))
    records.append(record("SCHEDULE_TOPIC_XXXX", b"x", {"UNIQ_KEY": "U00000001"}))
    records.append(record("SCHEDULE_TOPIC_XXXX", b"x", {"UNIQ_KEY": "U00000001"}, queue_offset=1))
    from tests.support.build_store import write_log

    return write_log(root / "commitlog", records)


@pytest.mark.parametrize(("hashes_max", "suspects_max"), [(1 << 20, 1 << 20), (16, 1 << 20), (30, 7)])
def test_duplicates_in_parts(tmp_path: Path, hashes_max: int, suspects_max: int) -> None:
    """The same rows however little may be held at once; hashes that two keys share are no duplicate."""
    doubled_store(tmp_path)
    topics = Codes()
    passes = 0
    with Store.open(tmp_path) as store:

        def walk(taker: Any) -> None:
            nonlocal passes
            passes += 1
            scan(store, Selection(), [taker], topics)

        rows = list(
            duplicates.duplicate_rows(
                walk, Selection(), topics, UTC, hashes_max=hashes_max, suspects_max=suspects_max
            )
        )
    assert passes == 2 if hashes_max == 1 << 20 else passes > 2
    assert [row["count"] for row in rows] == [2] * 40
    assert [row["uniq_key"] for row in rows if not row["same_body"]] == ["U00000005"]
    assert {row["topic"] for row in rows} == {"TopicTest"}
    assert [row["first_physical_offset"] for row in rows] == sorted(
        row["first_physical_offset"] for row in rows
    )


def test_keys_with_one_hash_are_no_duplicates(tmp_path: Path) -> None:
    """Java's hash of AaAa and BBBB is one number."""
    records = [record(found={"UNIQ_KEY": key}, queue_offset=n) for n, key in enumerate(("AaAa", "BBBB"))]
    write_whole(tmp_path, records)
    assert rows_of(look(tmp_path, duplicates=True), "duplicates") == []


def test_one_key_of_all_messages(tmp_path: Path) -> None:
    """However often a key is there, it takes two hashes and one row, and two passes."""
    from tests.support.build_store import write_log

    write_log(
        tmp_path / "commitlog",
        [record(body=bytes([n]), found={"UNIQ_KEY": "K"}, queue_offset=n) for n in range(150)],
    )
    topics, passes = Codes(), 0
    with Store.open(tmp_path) as store:

        def walk(taker: Any) -> None:
            nonlocal passes
            passes += 1
            scan(store, Selection(), [taker], topics)

        (row,) = duplicates.duplicate_rows(walk, Selection(), topics, UTC, hashes_max=8, suspects_max=1000)
    assert (row["count"], row["same_body"], passes) == (150, False, 2)


def test_system_topics_count_by_name(tmp_path: Path) -> None:
    """A topic of the broker's own is looked at where it is asked for."""
    doubled_store(tmp_path)
    selection = Selection(topics=["SCHEDULE_TOPIC_XXXX"])
    (row,) = rows_of(look(tmp_path, selection, duplicates=True), "duplicates")
    assert (row["topic"], row["count"], row["same_body"]) == ("SCHEDULE_TOPIC_XXXX", 2, True)


# -- transactions --------------------------------------------------------------------------------------


def expected_states(facts: list[Any], bodies: dict[int, bytes], progress: int) -> dict[str, int]:
    """How many half messages have which state, by the rules in words, record by record."""
    finished: set[int] = set()
    for fact in facts:
        if fact["topic"] == "RMQ_SYS_TRANS_OP_HALF_TOPIC":
            pieces = bodies[fact["physicalOffset"]].split(b",")
            finished.update(int(piece) for piece in pieces if piece)
    prepared = {fact["preparedTransactionOffset"] for fact in facts if fact["sysFlag"] & 0xC == 8}
    states: Counter[str] = Counter()
    newest = {fact["properties"]["UNIQ_KEY"]: fact["queueOffset"] for fact in facts if fact["topic"] == HALF}
    for fact in facts:
        if fact["topic"] == HALF:
            is_copied = fact["queueOffset"] < newest[fact["properties"]["UNIQ_KEY"]]
            if fact["physicalOffset"] in prepared:
                states["committed"] += 1
            elif fact["queueOffset"] in finished:
                states["rolled_back"] += 1
            else:
                states["put_back" if fact["queueOffset"] < progress or is_copied else "open"] += 1
    return dict(states)


@pytest.mark.parametrize(
    ("name", "compact_from"),
    [("ok_497_clean", 3), ("ok_533_clean", 1 << 20), ("ok_540_clean", 3), ("ok_540_clean", 1 << 20)],
)
def test_half_messages(name: str, compact_from: int, cases: Library, monkeypatch: Any) -> None:
    """Their states from the facts of the Java library; and the open ones are different transactions."""
    monkeypatch.setattr(transactions, "_COMPACT_FROM", compact_from)
    path, facts = cases.path(name), facts_of(name)
    with Store.open(path) as store:
        bodies = {
            stored.physical_offset: stored.message.body
            for stored in store.messages(Selection(topics=["RMQ_SYS_TRANS_OP_HALF_TOPIC"]))
        }
        from rmqtool.read.consumer_offsets import consumer_offsets

        progress = consumer_offsets(store).get(("RMQ_SYS_TRANS_HALF_TOPIC", TRANSACTION_GROUP), {}).get(0, 0)
    rows = {row["state"]: row for row in rows_of(look(path, transactions=True), "transactions")}
    found = {name: row["count"] for name, row in rows.items() if row["count"]}
    assert found == expected_states(facts, bodies, progress)
    halves = [fact for fact in facts if fact["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"]
    assert sum(row["bytes"] for row in rows.values()) == sum(fact["storeSize"] for fact in halves)
    if rows["open"]["count"]:
        newest = {fact["properties"]["UNIQ_KEY"]: fact["queueOffset"] for fact in halves}
        assert len([each for each in newest.values() if each >= progress]) >= rows["open"]["count"]
        born = min(fact["bornTimestamp"] for fact in halves if fact["queueOffset"] >= progress)
        assert rows["open"]["oldest_age_ms"] <= NOW_MS - born
    then = rows_of(look(path, transactions=True, at_ms=NOW_MS), "transactions")
    assert {row["state"]: row["count"] for row in then if row["count"]} == found  # copies tell it as well


HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def half_store(root: Path) -> None:
    """Half messages 0 to 5: rolled back, committed, committed without op, open, put back, open."""
    places: list[int] = []

    def put(item: Any) -> None:
        records.append(item)
        places.append(sum(each.total_size for each in records[:-1]))

    records: list[Any] = []
    for n in range(6):
        put(record(HALF, b"h", {"UNIQ_KEY": f"K{n}"}, queue_offset=n, store_timestamp=STORE_TIMESTAMP + n))
    put(record("T", b"h", sys_flag=form.TRANSACTION_COMMIT, prepared_transaction_offset=places[1]))
    put(
        record(
            "T", b"h", sys_flag=form.TRANSACTION_COMMIT, prepared_transaction_offset=places[2], queue_offset=1
        )
    )
    put(record("T", b"no transaction", queue_offset=2))
    put(record(OP, b"0,1,", queue_offset=0, store_timestamp=STORE_TIMESTAMP + 500))
    put(record(OP, b"5,x", queue_offset=1, store_timestamp=STORE_TIMESTAMP + 600))
    put(record(OP, b"5", queue_id=1, store_timestamp=STORE_TIMESTAMP + 600))
    write_whole(root, records, log_file_size=1 << 16)


def test_states_of_half_messages(tmp_path: Path) -> None:
    """Each state once or more; an op that cannot be read, or of another queue, finishes nothing."""
    half_store(tmp_path)
    config = tmp_path / "config" / "consumerOffset.json"
    config.write_text('{"offsetTable":{"%s@%s":{0:3}}}' % (HALF, TRANSACTION_GROUP))  # noqa: UP031
    found = look(tmp_path, transactions=True)
    rows = {row["state"]: row for row in rows_of(found, "transactions")}
    assert {name: row["count"] for name, row in rows.items()} == {
        "open": 3, "committed": 2, "rolled_back": 1, "put_back": 0,
    }  # fmt: skip
    assert rows["committed"]["without_op"] == 1
    assert abs(rows["rolled_back"]["duration_p50_ms"] - 500) <= 2
    assert any("op records" in note for note in found.notes)
    config.write_text('{"offsetTable":{"%s@%s":{0:5}}}' % (HALF, TRANSACTION_GROUP))  # noqa: UP031
    rows = {row["state"]: row for row in rows_of(look(tmp_path, transactions=True), "transactions")}
    assert (rows["open"]["count"], rows["put_back"]["count"]) == (1, 2)
    config.write_text('{"offsetTable":{"%s@%s":{0:7}}}' % (HALF, TRANSACTION_GROUP))  # noqa: UP031
    rows = {row["state"]: row for row in rows_of(look(tmp_path, transactions=True), "transactions")}
    assert (rows["open"]["count"], rows["put_back"]["count"]) == (3, 0)  # past the end it says nothing
    then = look(tmp_path, transactions=True, at_ms=STORE_TIMESTAMP + 100)
    rows = {row["state"]: row for row in rows_of(then, "transactions")}
    assert (rows["open"]["count"], rows["committed"]["count"]) == (4, 2)


@given(st.lists(st.binary(max_size=30) | st.from_regex(rb"[0-9, ]{0,40}", fullmatch=True)))
def test_decimals(pieces: list[bytes]) -> None:
    """Numbers of pieces that hold nothing else, as Python reads them."""
    data = np.frombuffer(b"#".join(pieces) + b"#", np.uint8)
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]]).astype(np.int64) if pieces else lengths
    text, ends = gathered(data, starts, lengths)
    assert text.tobytes() == b"".join(pieces)
    values, owners, bad = decimals(text, ends)
    expected, wrong = [], []
    for number, piece in enumerate(pieces):
        words = piece.replace(b",", b" ").split(b" ")
        is_bad = bool(set(piece) - set(b"0123456789, ")) or any(len(word) > 18 for word in words)
        wrong.append(is_bad)
        expected += [] if is_bad else [(int(word), number) for word in words if word]
    assert list(zip(values.tolist(), owners.tolist(), strict=True)) == expected
    assert bad.tolist() == wrong


def test_a_chart_shows_silence() -> None:
    """Behind every step with messages that nothing follows stands one without."""
    timeline = Timeline()
    for second in (3, 4, 9):
        timeline._merge(np.array([second]), np.array([[second, 10]]))
    starts, counts, sizes = timeline.points()
    assert starts.tolist() == [3000, 4000, 5000, 9000, 10_000]
    assert (counts.tolist(), sizes.tolist()) == ([3, 4, 0, 9, 0], [10, 10, 0, 10, 0])
