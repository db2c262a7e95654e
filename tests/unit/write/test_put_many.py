"""`put_many` stores and refuses exactly what a loop of `put` does, and gives the same results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rmqtool import NewMessage
from rmqtool.errors import IllegalMessageError, RmqtoolError, UnwritableError, UsageError
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.message_id import host_bytes
from rmqtool.storage import durable
from rmqtool.write import fast_path, store_writer
from rmqtool.write.put_result import PutResult
from rmqtool.write.store_writer import StoreWriter
from rmqtool.write.table.messages import columns_of
from tests.support.put_tables import HOSTS, NOW, PROFILES, Pair, log_bytes, make


@pytest.fixture(autouse=True)
def _always_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists go as columns too, and all records get one time, so that stores can be compared."""
    monkeypatch.setattr(store_writer, "_FEW", 1)
    monkeypatch.setattr(store_writer, "_MANY", 5)
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1_000_000)
    monkeypatch.setattr(fast_path, "_time_ns", time.time_ns)


@pytest.fixture(scope="module", params=PROFILES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"), request.param)
    yield made
    made.close()


def often(usual: st.SearchStrategy[Any], *rare: Any) -> st.SearchStrategy[Any]:
    """Usual values but for one in twelve."""
    return st.one_of(*[usual] * 11, st.sampled_from(rare))


WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
KEYS = st.lists(WORDS, max_size=3).map(tuple) | WORDS
NAMES = st.sampled_from(["a", "b", "color", "名", "size"])
SURROGATE = "\ud800"
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "topic": often(st.sampled_from(["TopicTest", "Topic2", "%RETRY%group"]), "no/topic", "", "pubReadOnly",
                   "SCHEDULE_TOPIC_XXXX", "T" * 128, "né"),
    "body": often(st.binary(max_size=200), bytearray(b"array"), b"x" * 5000, "text"),
    "queue_id": often(st.sampled_from([None, 0, 1, 2, 3]), 4, -1, 1 << 40, 1 << 70, 1.5, True),
}  # fmt: skip
OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "flag": often(st.integers(-(1 << 31), (1 << 31) - 1), 1 << 31, 1 << 70, 0.5),
    "sys_flag": often(st.sampled_from([0, 0x2, 0x40]), 0x1, 0x4, 0x8, 0xC, 0x80),
    "born_timestamp": often(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), 1 << 63),
    "store_timestamp": often(st.none() | st.integers(1, (1 << 63) - 1), 0, -1),
    "born_host": often(st.none() | st.sampled_from([host_bytes(host) for host in HOSTS]), b"", b"x" * 8),
    "store_host": often(st.none() | st.sampled_from([host_bytes(host) for host in HOSTS]), b"x" * 20),
    "reconsume_times": st.integers(0, 3),
    "prepared_transaction_offset": st.integers(-(1 << 63), (1 << 63) - 1),
}  # fmt: skip
NEW = st.fixed_dictionaries(
    {**COMMON, "uniq_key": often(WORDS, "a\x02b", "\x01", SURROGATE)},
    optional={
        "tags": often(st.none() | WORDS, "", "a\x02", "a\x01b", "T" * 40000, SURROGATE),
        "keys": often(KEYS, [""], ["", ""], ["a b"], ["a", ""], ["a\x02"], [None], None),
        "properties": often(
            st.dictionaries(NAMES, WORDS, max_size=3), {"DELAY": "3"}, {"a": ""}, {"": "b"}, {"TAGS": "own"},
            {"WAIT": "false"}, {"x\x01": "y"}, {"x": "y\x02"}, {"big": "v" * 33000}, {"%s": "v"},
            {"TRAN_MSG": "true"}, {"a": SURROGATE}, {SURROGATE: "a"}, {"a": 1}, {1: "a"}, None),
        "delay_level": often(st.just(0), 3, 99, -1),
        "wait": st.booleans(),
        "compression": often(st.just("none"), "zlib", "lz4"),
    },
)  # fmt: skip
OTHER = st.fixed_dictionaries({**COMMON, "uniq_key": WORDS}, optional=OTHERS)
STORED = st.fixed_dictionaries(
    {**COMMON, "properties": st.one_of(
        st.sampled_from([b"", b"TAGS\x01TagA\x02KEYS\x01a b\x02", b"INNER_NUM\x012\x02", b"x" * 32768,
                         b"a\x01b\x02__CRC32#\x018736787821\x02"]), st.binary(max_size=60))},
    optional={**OTHERS, "tags": often(st.just(None), "", "TagA")},
)  # fmt: skip
LISTS = st.lists(
    st.one_of(NEW, NEW, OTHER, STORED).map(lambda values: NewMessage(**values)), min_size=1, max_size=12
)
Outcome = tuple[list[PutResult], type[BaseException] | None, str, Any]


def loop(writer: StoreWriter, messages: list[NewMessage]) -> Outcome:
    """What a loop of `put` gives: the results, and the error that ended it."""
    results: list[PutResult] = []
    for message in messages:
        try:
            results.append(writer.put(message))
        except Exception as error:
            return results, type(error), str(error), getattr(error, "column", None)
    return results, None, "", None


def many(writer: StoreWriter, messages: list[NewMessage]) -> Outcome:
    """What `put_many` gives, as `loop` does."""
    try:
        return list(writer.put_many(messages)), None, "", None
    except RmqtoolError as error:
        return list(error.results), type(error), str(error), error.column
    except Exception as error:
        return [], type(error), str(error), None


@given(LISTS)
@settings(phases=[Phase.explicit, Phase.generate])  # no shrinking: the stores keep what they were given
def test_a_list_is_stored_as_by_a_loop(pair: Pair, messages: list[NewMessage]) -> None:
    start = pair.slow.log.end
    expected, found = loop(pair.slow, messages), many(pair.fast, messages)
    assert found[1:] == expected[1:]
    if expected[1] is None or issubclass(expected[1], RmqtoolError):
        assert found[0] == expected[0]
    end = pair.slow.log.end
    assert pair.fast.log.end == end
    assert log_bytes(pair.fast, start, end) == log_bytes(pair.slow, start, end)
    for result in expected[0]:
        queue = result.topic, result.queue_id
        assert pair.fast.offsets.next(*queue) == pair.slow.offsets.next(*queue)


PLAIN = [NewMessage("TopicTest", b"body %d" % number, tags="A", keys=["k"], uniq_key=f"{number:032X}")
         for number in range(12)]  # fmt: skip


def test_plain_messages_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        *PLAIN, replace(PLAIN[0], tags=None, keys=(), properties={"color": "red", "a": "b"}, wait=False),
        replace(PLAIN[0], topic="Other", flag=-1, born_host=host_bytes(HOSTS[1]), store_timestamp=5),
        replace(PLAIN[0], tags="é名", uniq_key=None), NewMessage("TopicTest", b"", properties=b"a\x01b\x02"),
        NewMessage("TopicTest", b"", properties=b"TAGS\x01A\x02", queue_id=1),
    ]  # fmt: skip
    assert columns_of(messages).slow.columns.tolist() == [0] * len(messages)
    with make(tmp_path / "store") as writer:
        monkeypatch.setattr(writer, "put", None)
        results = writer.put_many([message for message in messages if message is not messages[-2]])
    assert len(results) == len(messages) - 1


def test_results_are_a_sequence(tmp_path: Path) -> None:
    with make(tmp_path / "store") as writer:
        messages = [*PLAIN, replace(PLAIN[0], delay_level=1), *PLAIN]
        results = writer.put_many(messages)
        whole = list(results)
        assert len(results) == len(whole) == len(messages)
        assert [results[number] for number in range(len(whole))] == whole
        assert results[-1] == whole[-1]
        assert results[3:20:4] == whole[3:20:4]
        assert all(type(value) is int for value in results[1][:3])
        with pytest.raises(IndexError):
            results[len(whole)]
        assert list(writer.put_many([])) == []
        assert list(writer.put_many(iter(PLAIN[:2])))[1].queue_offset == whole[-1].queue_offset + 1


def test_a_wrong_message_ends_it(tmp_path: Path) -> None:
    with make(tmp_path / "store") as writer:
        with pytest.raises(IllegalMessageError, match="no broker takes") as caught:
            writer.put_many([*PLAIN[:7], replace(PLAIN[0], topic="no/topic"), *PLAIN])
        assert [result.queue_offset for result in caught.value.results] == [0, 0, 0, 0, 1, 1, 1]
        assert writer.put(PLAIN[0]).physical_offset == caught.value.results[-1].physical_offset * 7 // 6


def test_files_are_rolled_as_by_put(tmp_path: Path) -> None:
    messages = [replace(PLAIN[0], body=bytes(3000), uniq_key=f"{number:032X}") for number in range(50)]
    with (
        make(tmp_path / "fast", commit_log_file_size=16 << 10) as fast,
        make(tmp_path / "slow", commit_log_file_size=16 << 10) as slow,
    ):
        assert many(fast, messages) == loop(slow, messages)
    files = [sorted((tmp_path / name / "commitlog").iterdir()) for name in ("fast", "slow")]
    assert len(files[0]) == 10
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def test_unique_ids_are_made(tmp_path: Path) -> None:
    with make(tmp_path / "store") as writer:
        results = writer.put_many([replace(message, uniq_key=None) for message in PLAIN])
        data = [log_bytes(writer, result.physical_offset, result.physical_offset + result.size)
                for result in results]  # fmt: skip
    found = [properties.decode(form.decode(record).properties_bytes)[properties.UNIQ_KEY] for record in data]
    assert len(set(found)) == len(PLAIN)


def test_property_crc(tmp_path: Path) -> None:
    with (
        make(tmp_path / "fast", property_crc=True) as fast,
        make(tmp_path / "slow", property_crc=True) as slow,
    ):
        assert many(fast, PLAIN) == loop(slow, PLAIN)
        assert log_bytes(fast, 0, fast.log.end) == log_bytes(slow, 0, slow.log.end)


def test_a_sync_writer_returns_when_all_is_on_the_device(tmp_path: Path) -> None:
    with make(tmp_path / "store", flush="sync") as writer:
        messages = [replace(message, wait=number % 3 > 0) for number, message in enumerate(PLAIN)]
        results = writer.put_many(messages)
        assert [result.flushed for result in results] == [number % 3 > 0 for number in range(len(PLAIN))]
        assert writer.log.flushed == writer.log.end
        with pytest.raises(IllegalMessageError) as caught:
            writer.put_many([*PLAIN, replace(PLAIN[0], topic="")])
        assert all(result.flushed for result in caught.value.results)
        assert writer.log.flushed == writer.log.end


def test_puts_come_between(tmp_path: Path) -> None:
    with make(tmp_path / "store") as writer:
        writer.put_many(PLAIN)
        writer.put(PLAIN[0])
        assert [result.queue_offset for result in writer.put_many(PLAIN[:4])] == [3, 3, 3, 4]


def test_a_failed_write_stores_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, full = durable.write, []

    def until_full(descriptor: int, data: Any, offset: int, path: Any) -> None:
        if Path(path).parent.name == "commitlog":
            full.append(path)
        if len(full) == 2:
            raise UnwritableError("cannot write: the disk is full", path=path)
        write(descriptor, data, offset, path)

    with make(tmp_path / "store") as writer:
        writer.put(PLAIN[0])
        with monkeypatch.context() as patch:
            patch.setattr(durable, "write", until_full)
            with pytest.raises(UnwritableError) as caught:
                writer.put_many(PLAIN)
        assert len(caught.value.results) == 5
        last = caught.value.results[-1]
        assert writer.put_many(PLAIN)[0].physical_offset == last.physical_offset + last.size
    with pytest.raises(UsageError, match="closed"):
        writer.put_many(PLAIN)


def test_an_interrupted_list_leaves_the_store_as_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = durable.write

    def interrupt(descriptor: int, data: Any, offset: int, path: Any) -> None:
        if Path(path).parent.name == "commitlog":
            raise KeyboardInterrupt
        write(descriptor, data, offset, path)

    with make(tmp_path / "store") as writer:
        writer.put_many(PLAIN)
        with monkeypatch.context() as patch:
            patch.setattr(durable, "write", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.put_many(PLAIN)
        with pytest.raises(UnwritableError, match="interrupted"):
            writer.put_many(PLAIN)
    assert (tmp_path / "store" / "abort").exists()


WRONG: dict[str, tuple[str | None, Any]] = {
    "None": (None, None),
    "text": (None, "x"),
    "number": (None, 5),
    **{f"topic {value!r}": ("topic", {"topic": value}) for value in (None, b"T", 3, ["T"])},
    **{f"tags {value!r}": ("tags", {"tags": value}) for value in (5, b"a", ["a"])},
    **{f"keys {value!r}": ("keys", {"keys": value}) for value in (5, [1, 2], ["a", None], b"ab")},
    "keys of an iterator": ("keys", {"keys": iter([1])}),
    **{f"properties {value!r}": ("properties", {"properties": value})
       for value in (None, [("a", "b")], ["a"], bytearray(b"a\x01b\x02"), {"a": 1}, {1: "a"}, {"a": ["x"]},
                     {b"a": b"b"}, {("a",): "b"})},
    **{f"queue id {value!r}": ("queue_id", {"queue_id": value}) for value in ("0", 0.5, 1.0)},
    "queue id of a stored record": ("queue_id", {"queue_id": 5.5, "properties": b"", "tags": None, "keys": (),
                                                 "uniq_key": None}),
    **{f"host {value!r}": ("born_host", {"born_host": value}) for value in (7, "12345678", [1])},
    "store host": ("store_host", {"store_host": bytearray(8)}),
    "unique id": ("uniq_key", {"uniq_key": 5}),
    "compression": ("body_compression", {"compression": "brotli", "body": bytes(9999)}),
    "no compression": ("body_compression", {"compression": None, "body": bytes(9999)}),
    "sys_flag": ("sys_flag", {"sys_flag": "1"}),
    "flag": ("flag", {"flag": "1"}),
    "time": ("born_timestamp_ms", {"born_timestamp": 0.0}),
}  # fmt: skip


def wrong_message(values: Any) -> Any:
    """A message that differs from a plain one in these values; anything but a dict as it is."""
    return replace(PLAIN[0], **values) if isinstance(values, dict) else values


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("call", ["put", "put_many"])
def test_a_wrong_type_is_an_illegal_message(wrong_writer: StoreWriter, case: str, call: str) -> None:
    """Every put names the attribute. Nothing of the message is stored, and the writer stays usable."""
    (column, values), writer = WRONG[case], wrong_writer
    start = writer.log.end
    with pytest.raises(IllegalMessageError) as caught:
        if call == "put":
            writer.put(wrong_message(values))
        else:
            writer.put_many([*PLAIN[:7], wrong_message(values), *PLAIN])
    assert caught.value.column == column
    if call == "put_many":
        results = caught.value.results
        end = results[-1].physical_offset + results[-1].size
        assert len(results) == 7
        assert end == start + sum(result.size for result in results)
        assert writer.put_many(PLAIN)[0].physical_offset == end
    else:
        assert writer.log.end == start


@pytest.fixture(scope="module")
def wrong_writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreWriter]:
    path = tmp_path_factory.mktemp("wrong") / "store"
    with make(path) as writer:
        writer.put(PLAIN[0])  # from now on messages like it take the fast path
        yield writer
    assert not (path / "abort").exists()


@pytest.mark.parametrize(
    "case", ["None", "number", "tags 5", "keys [1, 2]", "properties None", "unique id", "host 7"]
)
def test_a_wrong_type_in_a_batch(wrong_writer: StoreWriter, case: str) -> None:
    start = wrong_writer.log.end
    with pytest.raises(IllegalMessageError) as caught:
        wrong_writer.put_batch([wrong_message(WRONG[case][1]), *PLAIN[:2]])
    assert caught.value.column == WRONG[case][0]
    assert wrong_writer.log.end == start


def test_messages_that_are_no_list(tmp_path: Path) -> None:
    with make(tmp_path / "store") as writer:
        with pytest.raises(UsageError, match="not NoneType"):
            writer.put_many(None)  # type: ignore[arg-type]
        with pytest.raises(IllegalMessageError, match="must be a NewMessage, not str"):
            writer.put_many("text")  # type: ignore[arg-type]


def test_no_message_is_stored_twice(tmp_path: Path) -> None:
    """A row that `put` refuses with an error of Python's does not make the list start again."""

    class Failing(dict[str, str]):
        def __iter__(self) -> Iterator[str]:
            raise TypeError("not a map")

        keys = items = __iter__  # type: ignore[assignment]

    with make(tmp_path / "store") as writer:
        with pytest.raises(TypeError, match="not a map"):
            writer.put_many([*PLAIN[:3], replace(PLAIN[0], properties=Failing(a="b"))])
        size = writer.log.end // 3
        assert [writer.offsets.next("TopicTest", queue_id) for queue_id in range(4)] == [1, 1, 1, 0]
        result = writer.put(PLAIN[0])
        assert (result.physical_offset, result.size) == (3 * size, size)
    assert not (tmp_path / "store" / "abort").exists()


def test_an_iterator_of_keys_is_read_once(tmp_path: Path) -> None:
    with make(tmp_path / "fast") as fast, make(tmp_path / "slow") as slow:
        for writer in (fast, slow):
            writer.put(replace(PLAIN[0], tags="é", keys=["é"]))
        read_once: Any = iter("ab"), iter("ab")
        found = many(fast, [replace(PLAIN[0], tags="é", keys=read_once[0])])
        assert found == loop(slow, [replace(PLAIN[0], tags="é", keys=read_once[1])])
        assert b"KEYS\x01a b\x02" in log_bytes(fast, 0, fast.log.end)


def test_any_wait_counts_as_its_truth(tmp_path: Path) -> None:
    values: list[Any] = [[], "no", None, True, []]
    messages = [replace(PLAIN[0], wait=value) for value in values]
    with make(tmp_path / "fast") as fast, make(tmp_path / "slow") as slow:
        assert many(fast, messages) == loop(slow, messages)
        assert log_bytes(fast, 0, fast.log.end) == log_bytes(slow, 0, slow.log.end)
