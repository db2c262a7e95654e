"""Rows of any kind in tables: stored, or refused, exactly as `put` does it with each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rmqtool.formats.message_id import host_bytes
from rmqtool.write import encode
from tests.support.put_tables import HOSTS, PROFILES, Pair, Row, plain_row, slow_rows, table_of


@pytest.fixture(scope="module", params=PROFILES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"), request.param)
    yield made
    made.close()


def often(usual: st.SearchStrategy[Any], *rare: Any) -> st.SearchStrategy[Any]:
    """Usual values but for one in twelve."""
    return st.one_of(*[usual] * 11, st.sampled_from(rare))


WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
BAD_HOSTS = ("nonsense", "[::ffff:1.2.3.4]:5", "1.2.3.4")
STORED = st.one_of(
    st.just(b""), st.just(b"TAGS\x01TagA\x02KEYS\x01a b\x02"), st.binary(max_size=60),
    st.sampled_from([b"INNER_NUM\x012\x02", b"a\x01b\x02__CRC32#\x018736787821\x02", b"x" * 32768]),
)  # fmt: skip
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "topic": often(st.sampled_from(["TopicTest", "Topic2", "%RETRY%group", "%RETRY%" + "g" * 121]),
                   "no/topic", "", "pubReadOnly", "SCHEDULE_TOPIC_XXXX", "T" * 128, None),
    "queue_id": often(st.integers(0, 0), 1, 3, 4, -1, 99, 1 << 20, (1 << 31) - 1),
    "body": st.one_of(st.none(), st.binary(max_size=200), st.just(b"x" * 5000)),
    "born_timestamp_ms": st.integers(-(1 << 63), (1 << 63) - 1),
    "store_timestamp_ms": often(st.integers(1, (1 << 63) - 1), 0, -1),
    "born_host": often(st.sampled_from([None, *HOSTS]), *BAD_HOSTS),
    "store_host": often(st.sampled_from([None, *map(host_bytes, HOSTS)]), b"", b"seven b"),
    "flag": st.one_of(st.none(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "sys_flag": often(st.sampled_from([None, 0, 0x2, 0x40, 0x30]), 0x1, 0x4, 0x8, 0xC, 0x80, -1),
    "reconsume_times": st.one_of(st.none(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "prepared_transaction_offset": st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)),
}  # fmt: skip
NEW_ROW = st.fixed_dictionaries(
    {**COMMON, "uniq_key": often(WORDS, "a\x02b", "\x01")},
    optional={
        "tags": often(st.one_of(st.none(), WORDS), "", "a\x02", "a\x01b", "T" * 40000),
        "keys": often(st.one_of(st.none(), st.lists(WORDS.filter(lambda key: " " not in key), max_size=3)),
                      [""], ["a b"], ["a", ""], [None], ["a\x02"]),
        "properties": often(
            st.lists(st.tuples(st.sampled_from(["a", "b", "color", "名", "size"]), WORDS), max_size=4,
                     unique_by=lambda pair: pair[0]),
            [("DELAY", "3")], [("a", "")], [("a", None)], [("", "b")], [("a", "1"), ("a", "2")],
            [("TAGS", "own")], [("WAIT", "false")],
            [("x\x01", "y")], [("x", "y\x02")], [("big", "v" * 33000)],
            [("\ue00000000\ue001", "v")], [("%s", "v")], [("TRAN_MSG", "true")]),
        "delay_level": often(st.just(None), 3, 99, -1),
        "wait": st.one_of(st.none(), st.booleans()),
        "body_compression": often(st.sampled_from([None, "none"]), "zlib", "lz4", "brotli"),
    },
)  # fmt: skip
STORED_ROW = st.fixed_dictionaries(
    {**COMMON, "properties_bytes": STORED},
    optional={"tags": often(st.just(None), "", "TagA"), "properties": often(st.just([]), [("a", "b")]),
              "delay_level": often(st.just(None), 1)},
)  # fmt: skip
ROWS = st.lists(st.one_of(NEW_ROW, NEW_ROW, STORED_ROW), min_size=1, max_size=8)
SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(
            [pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()]
        ),
        "body": st.sampled_from(
            [pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]
        ),
        "queue_id": st.just(pa.int64()),
        "tags": st.sampled_from([pa.large_string(), pa.dictionary(pa.int16(), pa.string())]),
        "keys": st.just(pa.large_list(pa.large_string())),
        "properties": st.just(pa.map_(pa.large_string(), pa.string())),
    },
)


@given(ROWS, SHAPES, st.booleans())
@settings(phases=[Phase.explicit, Phase.generate])  # no shrinking: the stores keep what they were given
def test_a_table_is_stored_as_its_rows_would_be(
    pair: Pair, rows: list[Row], shapes: dict[str, pa.DataType], plain: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "is_for_plain", lambda rows: plain)
        pair.check(table_of(rows, **shapes))


def test_plain_rows_take_the_fast_way(pair: Pair) -> None:
    rows = [
        plain_row(0), plain_row(1, tags="TagA", keys=["a", "b"], properties=[("color", "red"), ("a", "b")]),
        plain_row(2, tags="", keys=[], wait=False, body=b"x" * 100_000, flag=-1, reconsume_times=3),
        plain_row(3, born_host=HOSTS[1], store_host=host_bytes(HOSTS[1]), sys_flag=0x2, topic="%RETRY%group",
                  queue_id=0),
        plain_row(4, body_compression="zlib"),
        {**plain_row(5, properties_bytes=b"TAGS\x01a\x02", sys_flag=0x9), "uniq_key": None},
        plain_row(6, queue_id=None), plain_row(7, uniq_key=None),
    ]  # fmt: skip
    assert slow_rows(pair.fast, table_of(rows)) == {}


def test_slow_rows_are_known_by_their_column(pair: Pair) -> None:
    odd: list[Row] = [
        {"topic": None}, {"topic": "no/topic"}, {"queue_id": 99, "topic": "pubOrder"}, {"queue_id": -1},
        {"tags": "a\x02"},
        {"keys": ["a b"]}, {"uniq_key": ""}, {"properties": [("DELAY", "1")]},
        {"properties": [("a", "v" * 40_000)]}, {"sys_flag": 0x4}, {"born_host": "nonsense"},
        {"delay_level": 3}, {"body_compression": "zlib", "body": b"x" * 5000},
        {"body": b"x" * ((4 << 20) + 1)},
    ]  # fmt: skip
    rows = [plain_row(number, **values) for number, values in enumerate(odd)]
    assert slow_rows(pair.fast, table_of(rows)) == {
        number: next(iter(values)) for number, values in enumerate(odd)
    }
