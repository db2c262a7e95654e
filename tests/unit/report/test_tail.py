"""`rmqtool tail` on stores that stand still: pulls as Java answers them, starts, filters, damage."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage
from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_USAGE, UsageError
from rmqtool.formats import config_json, index
from rmqtool.formats.consume_queue import UNIT, UNIT_SIZE
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.filter import parse
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.stats.lag import group_lags
from rmqtool.report.tail.get_message import GetMessageStatus, get_message
from rmqtool.report.tail.start import StartPosition, parse_position
from rmqtool.report.tail.subscription import Subscription
from rmqtool.report.tail.topics import open_tail
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import file_name, patch
from tests.support.dumps import Result, Row
from tests.support.stores import FIXTURES, Library
from tests.support.trees import unchanged
from tests.support.whole_store import keyed, write_whole

pytestmark = pytest.mark.usefixtures("json_lines")

PULLS = sorted(path.name.removesuffix(".json.xz") for path in (FIXTURES / "getmessage").iterdir())
FIELDS = ("--fields", "topic,queue_id,queue_offset,physical_offset,store_timestamp_ms,tags")
STORE = "ok_540_clean"
SHAPE = index.Shape(100, 4000)


@pytest.fixture
def tail(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Result]:
    """Runs `rmqtool tail`; the store must be as it was afterwards."""

    def run(store: Path, *arguments: object, command: str = "tail") -> Result:
        with unchanged(store):
            code = main([command, str(store), "--tz", "UTC", *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return run


def pulls(name: str) -> list[list[Any]]:
    """What the Java library answered: the arguments, then the answer."""
    rows: list[list[Any]] = json.loads(
        lzma.decompress((FIXTURES / "getmessage" / f"{name}.json.xz").read_bytes())
    )
    return rows


@pytest.mark.parametrize("name", PULLS)
def test_pulls_are_answered_as_by_the_broker(name: str, cases: Library) -> None:
    """Status, next offset, minimum, maximum, messages, bytes, places; of large stores every ninth pull."""
    rows = pulls(name)
    step = 1 if len(rows) < 250 else 9
    statuses: Counter[str] = Counter()
    with Store.open(cases.path(name)) as store:
        for topic, queue_id, offset, most, expression, *answer in rows[::step]:
            wanted = None if expression is None else Subscription.of([expression])
            found = get_message(store, topic, queue_id, offset, most, wanted)
            ours = [
                found.status, found.next_begin_offset, found.min_offset, found.max_offset,
                found.message_count, found.size, [record.physical_offset for record in found.records],
            ]  # fmt: skip
            assert ours == answer, (topic, queue_id, offset, most, expression)
            statuses[found.status] += 1
    assert len(statuses) >= 4


def test_statuses_that_need_a_damaged_store(tmp_path: Path) -> None:
    """What no sound store answers: a queue file is gone, the log's part is gone."""
    stored = write_whole(tmp_path, keyed(400, queues=1), shape=SHAPE)
    with Store.open(tmp_path) as store:
        room = store.layout.consume_queue_file_size // UNIT_SIZE
        gone = store.commit_log.files[3]
        assert get_message(store, "TopicTest", 9, 0).status == GetMessageStatus.NO_MESSAGE_IN_QUEUE
        with pytest.raises(UsageError):
            get_message(store, "TopicTest", 0, 0, 0)
    gone.path.unlink()
    (tmp_path / "consumequeue/TopicTest/0" / file_name(10 * room * UNIT_SIZE)).unlink()
    lost = [n for n, each in enumerate(stored) if gone.file_from_offset <= each.physical_offset < gone.end]
    assert lost[0] < 2 * room < lost[-1] < 3 * room - 1
    with Store.open(tmp_path) as store:
        found = get_message(store, "TopicTest", 0, 10 * room)
        assert (found.status, found.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 11 * room)
        found = get_message(store, "TopicTest", 0, lost[0])  # a pull stays within one queue file
        assert (found.status, found.next_begin_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 2 * room)
        found = get_message(store, "TopicTest", 0, 2 * room)
        assert [record.queue_offset for record in found.records] == [*range(lost[-1] + 1, 3 * room)]


def test_a_filter_is_applied_to_the_record(tmp_path: Path) -> None:
    """SQL: NO_MATCHED_MESSAGE with the offset behind what was looked at; messages where it matches."""
    write_whole(tmp_path, keyed(30, queues=1), shape=SHAPE, queue_file_size=2000)
    with Store.open(tmp_path) as store:
        none = get_message(store, "TopicTest", 0, 0, 32, Subscription(filter=parse("TAGS = 'x'")))
        assert (none.status, none.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 30)
        found = get_message(
            store, "TopicTest", 0, 0, 32, Subscription(filter=parse("KEYS STARTSWITH 'order7'"))
        )
        assert [item.message.queue_offset for item in found.messages(store)] == [7]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ok_540_small_ipv6", ()),
        ("ok_540_expired", FIELDS),
        ("ok_497_expired", FIELDS),
        ("ok_533_expired", FIELDS),
    ],
)
def test_everything_is_shown_in_the_order_of_the_log(
    name: str, fields: Sequence[str], cases: Library, tail: Callable[..., Result]
) -> None:
    """The rows of `dump`, one for one, for every record that has a unit."""
    path = cases.path(name)
    rows = tail(path, *fields)
    dumped = {row["physical_offset"]: row for row in tail(path, *fields, command="dump").rows}
    places = [row["physical_offset"] for row in rows.rows]
    assert rows.code == EXIT_OK and places == sorted(set(places))
    assert all(row == dumped[row["physical_offset"]] for row in rows.rows)
    with Store.open(path) as store:
        lows = {key: max(store.min_offset(*key), 0) for key in store.queues}
        units = [unit for key, queue in store.queues.items() for _, unit in queue.units(lows[key])]
        gone = sum(unit.physical_offset < store.commit_log.min_offset for unit in units)
    # A 4.x broker takes queues of which nothing is left for ones that begin at 0.
    assert len(places) == len(units) - gone and (gone == 0) == (rows.err == ""), rows.err


def test_starts(cases: Library, tail: Callable[..., Result]) -> None:
    """Offsets, from the end, a time, the last N: each against the rows of everything."""
    path = cases.path(STORE)
    topic = ("--topic", "pubOrder*", *FIELDS)
    rows = tail(path, *topic).rows
    queues = {row["queue_id"] for row in rows}
    assert len(rows) > 100 and len(queues) > 1
    ends = {q: max(row["queue_offset"] for row in rows if row["queue_id"] == q) + 1 for q in queues}

    def those(test: Callable[[Row], bool]) -> list[Row]:
        return [row for row in rows if test(row)]

    assert tail(path, *topic, "--from", "5").rows == those(lambda row: row["queue_offset"] >= 5)
    assert tail(path, *topic, "--from", "-3").rows == those(
        lambda row: row["queue_offset"] >= ends[row["queue_id"]] - 3
    )
    assert tail(path, *topic, "--from", "latest").rows == []
    assert tail(path, *topic, "--from", "earliest", "--limit", 7).rows == rows[:7]
    assert tail(path, *topic, "--last", 10).rows == rows[-10:]
    assert tail(path, *topic, "--last", 0).rows == []
    since = rows[len(rows) // 2]["store_timestamp_ms"]
    assert tail(path, *topic, "--since", since).rows == those(lambda row: row["store_timestamp_ms"] >= since)
    one = sorted(queues)[-1]
    assert tail(path, *topic, "--queue", one).rows == those(lambda row: row["queue_id"] == one)


def test_the_last_are_found_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many units as are wanted are read of each queue, and more only where these do not match."""
    with StoreWriter.create(tmp_path / "s", auto_create_queues=2) as writer:
        for number in range(2_000):
            writer.put(NewMessage("T", b"x", tags="A" if number < 8 else "B"))
    read: list[range] = []
    numbered = ConsumeQueue.numbered

    def noted(queue: ConsumeQueue, start: int, stop: int, **options: Any) -> Any:
        if options.get("reverse"):
            read.append(range(start, stop))
        return numbered(queue, start, stop, **options)

    monkeypatch.setattr(ConsumeQueue, "numbered", noted)
    assert len(shown(tmp_path / "s", Subscription(), last=10)) == 10
    assert read == [range(990, 1000)] * 2
    read.clear()
    assert len(shown(tmp_path / "s", Subscription.of(["A"]), last=10)) == 8
    assert sorted(number for numbers in read for number in numbers) == sorted([*range(1000)] * 2)


def shown(path: Path, wanted: Subscription, **start: Any) -> list[int]:
    """Physical offsets of what a tail gives."""
    with Store.open(path) as store:
        follower = open_tail(store, Selection(), StartPosition(**start), wanted)
        return [item.physical_offset for item in follower.messages(follow=False) if item is not None]


def test_tags_and_filters(cases: Library, tail: Callable[..., Result]) -> None:
    """As consumers write them; hashes that collide are told apart by the text."""
    path = cases.path(STORE)
    rows = tail(path, *FIELDS).rows

    def with_tags(*tags: str) -> list[int]:
        return [row["physical_offset"] for row in rows if row["tags"] in tags]

    assert with_tags("AaAa") and with_tags("BBBB") and with_tags("TagA")
    assert shown(path, Subscription.of(["AaAa"])) == with_tags("AaAa")
    assert shown(path, Subscription.of(["TagA || 标签甲"])) == with_tags("TagA", "标签甲")
    assert shown(path, Subscription.of(["TagA", "BBBB"])) == with_tags("TagA", "BBBB")
    assert len(shown(path, Subscription.of(["*"]))) == len(rows)
    either = parse("TAGS IN ('TagA', 'BBBB')")
    assert shown(path, Subscription(filter=either)) == with_tags("TagA", "BBBB")
    assert shown(path, Subscription.of(["AaAa"]), last=3) == with_tags("AaAa")[-3:]
    assert shown(path, Subscription(filter=either), last=5) == with_tags("TagA", "BBBB")[-5:]
    assert shown(path, Subscription.of(["AaAa"]), last=100_000) == with_tags("AaAa")
    found = tail(path, *FIELDS, "--tag", "TagA || x", "--filter", "TAGS <> 'TagA'")
    assert (found.code, found.rows) == (EXIT_OK, []) and "no message matches" in found.err


def test_tags_are_trimmed_as_java_trims(tmp_path: Path) -> None:
    """A tag may begin or end with a blank that only others than Java take for one."""
    tags = ["urgent\u3000", "\xa0vip", "a\x85"]
    with StoreWriter.create(tmp_path / "s", auto_create_queues=1) as writer:
        for tag in tags:
            writer.put(NewMessage("T", b"x", tags=tag))
    for tag in tags:
        assert len(shown(tmp_path / "s", Subscription.of([f" {tag}\t"]))) == 1


def test_groups(cases: Library, tail: Callable[..., Result]) -> None:
    """Where a group stands, in the topics it has offsets for, with what it sent back on request."""
    path = cases.path(STORE)
    offsets: dict[str, dict[str, int]] = {}
    file = path / "config/consumerOffset.json"
    document = config_json.load_with_bak(file.name, file.read_bytes(), None).document
    table = config_json.consumer_offsets(document)
    group = next(
        group for (topic, group) in table if topic.startswith("pub") and not group.startswith("CID_")
    )
    for (topic, name), queues in table.items():
        if name == group:
            offsets[topic] = {str(queue): offset for queue, offset in queues.items()}
    own = f"%RETRY%{group}"
    rows = tail(path, *FIELDS).rows
    expected = [
        row for row in rows
        if row["topic"] in offsets and row["topic"] != own
        and row["queue_offset"] >= offsets[row["topic"]].get(str(row["queue_id"]), 0)
    ]  # fmt: skip
    found = tail(path, *FIELDS, "--group", group)
    assert found.rows == expected and "with --retry" not in found.err  # it has consumed what it sent back
    with_retry = tail(path, *FIELDS, "--group", group, "--retry")
    assert with_retry.code == EXIT_OK and len(with_retry.rows) >= len(expected)
    assert {row["topic"] for row in with_retry.rows} <= set(offsets) | {own}
    unknown = tail(path, "--group", "nobody")
    assert unknown.code == EXIT_USAGE and group in unknown.err
    assert "the group 'nobody' has neither offsets nor a retry topic" in unknown.err
    unknown = tail(path, "--group", f"{group[:-1]}?")
    says, _, names = unknown.err.partition("; groups that match: ")
    assert unknown.code == EXIT_USAGE and says.endswith("give one name without wildcards") and group in names


def test_what_a_group_sent_back_is_mentioned(
    store_copy: Callable[[str], Path], tail: Callable[..., Result]
) -> None:
    """Without --retry it is not shown, although the group receives it."""
    path, group = store_copy(STORE), "pub_retry_group"
    places = {"topic": f"%RETRY%{group}", "queue": 0}
    with Store.open(path) as store:
        end = store.max_offset(*places.values())
    table = {f"pubRetry@{group}": {"0": 0}, f"%RETRY%{group}@{group}": {"0": end - 2}}
    config = path / "config/consumerOffset.json"
    config.write_text(json.dumps({"offsetTable": table}))
    text = f"rmqtool: the group also receives 2 messages of %RETRY%{group}, which are shown with --retry\n"
    found, every = (tail(path, *FIELDS, "--group", group, *more) for more in ((), ("--retry",)))
    assert text in found.err and len(every.rows) == len(found.rows) + 2 and "--retry" not in every.err
    assert "--retry" not in tail(path, *FIELDS, "--group", group, "--topic", "pubRetry").err
    del table[f"%RETRY%{group}@{group}"]  # without an offset a group receives all
    config.write_text(json.dumps({"offsetTable": table}))
    assert f"also receives {end} messages of" in tail(path, *FIELDS, "--group", group).err
    text = f"the group has no offset in queues of %RETRY%{group}: these are read from their first message on"
    every = tail(path, *FIELDS, "--group", group, "--retry")
    assert text in every.err and sum(row["topic"] != "pubRetry" for row in every.rows) == end


def test_a_group_that_has_only_its_retry_topic(cases: Library, tail: Callable[..., Result]) -> None:
    """It receives all that is there, as `stats` counts. Near names are not shown as if they were all."""
    path = cases.path(STORE)
    with Store.open(path) as store:
        lags = [lag for lag in group_lags(store, Selection()) if lag.group and lag.group.endswith("Group_0")]
    (lag,) = lags
    assert lag.committed is None and lag.messages and lag.group is not None
    for more in ((), ("--retry",)):
        found = tail(path, *FIELDS, "--group", lag.group, *more)
        assert found.code == EXIT_OK and {row["topic"] for row in found.rows} == {f"%RETRY%{lag.group}"}
        assert len(found.rows) == lag.messages and "the group has no offset in queues of" in found.err
    unknown = tail(path, "--group", "pub_grou").err
    assert "  nearest: pub_group_tag, pub_group_one, pub_group_four\n" in unknown
    assert "  groups that have any: CID_" in tail(path, "--group", "0").err


def test_an_offset_that_is_not_there_is_told(cases: Library, tail: Callable[..., Result]) -> None:
    """With a broker's status, of a few queues by name; nothing is said where it is there."""
    path = cases.path("ok_540_expired")
    with Store.open(path) as store:
        (topic, queue_id), low = next(
            (key, store.min_offset(*key))
            for key in store.queues
            if 0 < store.min_offset(*key) < store.max_offset(*key)
        )
        high = store.max_offset(topic, queue_id)
    place = ("--topic", topic, "--queue", str(queue_id), *FIELDS)
    below = tail(path, *place, "--from", "0")
    assert below.rows == tail(path, *place).rows and below.rows[0]["queue_offset"] == low
    assert f"{topic}/{queue_id}: offset 0 is not there, the queue starts at {low}" in below.err
    assert "(OFFSET_TOO_SMALL)" in below.err
    beyond = tail(path, *place, "--from", str(high + 1))
    assert not beyond.rows and f"ends at {high} (OFFSET_OVERFLOW_BADLY)" in beyond.err
    assert "not there" not in tail(path, *place, "--from", str(low)).err
    everywhere = tail(path, "--from", "100000").err
    assert everywhere.count("OFFSET_OVERFLOW_BADLY") == 5 and "more queues do not have" in everywhere


def test_offsets_that_cannot_be_understood(tmp_path: Path, tail: Callable[..., Result]) -> None:
    """They are not taken for a group without offsets, with a damaged .bak and without one."""
    write_whole(tmp_path, keyed(8))
    main, bak = (tmp_path / "config" / f"consumerOffset.json{end}" for end in ("", ".bak"))
    for text in ("[]", "\0\0", '{"offsetTable": {"TopicTest@g": {"0": %s}}}' % ("9" * 5000)):
        main.write_text(text)
        bak.write_text(text)
        assert_not_understood(tail(tmp_path, "--group", "g"))
    bak.unlink()
    assert_not_understood(tail(tmp_path, "--group", "g"))


def assert_not_understood(found: Result) -> None:
    """3, what and where."""
    assert (found.code, found.out) == (EXIT_INPUT, b"")
    assert "be parsed" in found.err and "consumerOffset.json" in found.err
    assert len(found.err.splitlines()) <= 3


def test_names_that_are_not_there(cases: Library, tail: Callable[..., Result]) -> None:
    """Exit code 1 and the nearest."""
    path = cases.path(STORE)
    found = tail(path, "--topic", "pubBatchcq")
    assert found.code == EXIT_FINDINGS and "upper and lower case differ: pubBatchCQ\n" in found.err
    found = tail(path, "--topic", "pubBatchCQ", "--queue", "77", "--quiet")
    assert found.code == EXIT_FINDINGS and "no queue 77" in found.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--from", "5", "--last", "3"), "exclude each other"),
        (("--from", "middle"), "is not a position"),
        (("--filter", "a !="), "character 3"),
        (("--tag", " || "), "names no tag"),
        (("--retry",), "needs --group"),
        (("--max-duration", "long"), "long"),
        (("--fields", "nothing"), "unknown field"),
        (("--since", "soon"), "soon"),
        (("--limit", str(1 << 64)), "--limit"),
    ],
)
def test_usage_errors(
    arguments: Sequence[str], says: str, cases: Library, tail: Callable[..., Result]
) -> None:
    """One clear line."""
    found = tail(cases.path(STORE), *arguments)
    assert (found.code, found.out) == (EXIT_USAGE, b"") and says in found.err, found.err


def test_what_is_no_store_with_queues(tmp_path: Path, cases: Library, tail: Callable[..., Result]) -> None:
    """A log alone, and queues in RocksDB."""
    assert tail(cases.path(STORE) / "commitlog").code == EXIT_USAGE
    cases.copy("ok_540_small_ipv6", tmp_path / "store")
    for folder in ("consumequeue", "config/topics"):
        (tmp_path / "store" / folder).mkdir(exist_ok=True)
        (tmp_path / "store" / folder / "CURRENT").write_text("MANIFEST-000004\n")
    found = tail(tmp_path / "store")
    assert found.code == EXIT_INPUT and "RocksDB" in found.err


def test_queues_behind_the_log_are_told(
    tmp_path: Path, cases: Library, tail: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stopped store: what lies behind is not shown, before a recovery no consumer sees it."""
    for name in (STORE, "ok_497_clean", "ok_533_clean"):
        assert "before the log" not in tail(cases.path(name), "--last", 1).err
    stored = write_whole(tmp_path, keyed(100), shape=SHAPE)
    for path in (tmp_path / "consumequeue/TopicTest").glob("*/*"):
        units = path.read_bytes()
        kept = [units[at : at + UNIT_SIZE] for at in range(0, len(units), UNIT_SIZE)]
        far = stored[80].physical_offset.to_bytes(8)
        path.write_bytes(b"".join(each if each[:8] < far else bytes(UNIT_SIZE) for each in kept))
    behind = stored[-1].physical_offset + stored[-1].total_size - stored[80].physical_offset
    found = tail(tmp_path, *FIELDS)
    assert (found.code, len(found.rows)) == (EXIT_OK, 80)
    assert (
        f"the queues end {behind} bytes before the log, at offset {stored[80].physical_offset}" in found.err
    )
    monkeypatch.setattr(Store, "live", True)
    assert "before the log" not in tail(tmp_path, *FIELDS).err
    monkeypatch.undo()
    topic = ("--topic", "TopicTest")
    assert "has no files" not in tail(tmp_path, *topic).err
    shutil.rmtree(tmp_path / "consumequeue/TopicTest/0")
    found = tail(tmp_path, *topic, "--queue", 0)
    assert found.code == EXIT_OK and "queue 0 of TopicTest has no files of queues" in found.err
    shutil.rmtree(tmp_path / "consumequeue/TopicTest")
    assert "TopicTest has no files of queues" in tail(tmp_path, *topic).err


def test_damage_is_told_and_the_rest_is_shown(tmp_path: Path, tail: Callable[..., Result]) -> None:
    """A unit that names no record, one that names another's, a body that changed."""
    stored = write_whole(tmp_path, keyed(100), shape=SHAPE)
    queue = tmp_path / "consumequeue/TopicTest/0" / file_name(0)
    patch(queue, 5 * UNIT_SIZE, (stored[10].physical_offset + 8).to_bytes(8))
    patch(queue, 7 * UNIT_SIZE, UNIT.pack(stored[18].physical_offset, stored[18].total_size, 0))
    found = tail(tmp_path, *FIELDS)
    assert found.code == EXIT_FINDINGS and "CQ14" in found.err and "CQ05" in found.err
    assert len(found.rows) == 98


def test_positions() -> None:
    """What is one and what is none."""
    assert [parse_position(text) for text in ("earliest", "latest", "0", "12", "-3", "-0")] == [
        "earliest", "latest", 0, 12, -3, "latest",
    ]  # fmt: skip
    for text in ("", "-", "--3", "1.5", "９", "x", "9" * 30):
        with pytest.raises(UsageError):
            parse_position(text)


def test_a_store_in_an_archive(tmp_path: Path, cases: Library, tail: Callable[..., Result]) -> None:
    """Read as it is; it cannot be followed."""
    path = cases.path("ok_540_expired")
    with tarfile.open(tmp_path / "store.tar", "w") as archive:
        archive.add(path, "store")
    found = tail(tmp_path / "store.tar", *FIELDS)
    assert (found.code, found.rows) == (EXIT_OK, tail(path, *FIELDS).rows), found.err
    found = tail(tmp_path / "store.tar", "--follow")
    assert found.code == EXIT_USAGE and "can be followed" in found.err


@pytest.mark.parametrize("file_size", [200 * UNIT_SIZE, 300_000 * UNIT_SIZE])
def test_empty_units_in_front_of_others_are_told(
    file_size: int, tmp_path: Path, tail: Callable[..., Result]
) -> None:
    """A broker serves the queue up to them; that there is more behind them is damage."""
    root = tmp_path / "store"
    with StoreWriter.create(root, consume_queue_file_size=file_size, commit_log_file_size=1 << 20) as writer:
        writer.topics.add("T", 1)
        for number in range(500):
            writer.put(NewMessage("T", b"x", queue_id=0, born_timestamp=number))
    sound = tail(root, "--topic", "T")
    assert (sound.code, len(sound.rows), sound.err) == (EXIT_OK, 500, "")
    first = (root / "consumequeue" / "T" / "0" / file_name(0)).stat().st_size // UNIT_SIZE
    number = 100 if first > 200 else 450
    file = number // first * file_size
    patch(
        root / "consumequeue" / "T" / "0" / file_name(file), number * UNIT_SIZE - file, bytes(3 * UNIT_SIZE)
    )
    for command, arguments in (
        ("tail", ("--topic", "T")),
        ("lookup", ("--topic", "T", "--time", "0")),
        ("lookup", ("--topic", "T", "--queue", "0", "--queue-offset", str(number))),
    ):
        found = tail(root, *arguments, command=command)
        if command == "tail":
            assert len(found.rows) == number
        elif first > 200:
            continue  # a look-up finds the end of a long file by bisection
        assert found.code == EXIT_FINDINGS and "CQ08" in found.err
