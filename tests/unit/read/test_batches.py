"""Messages as Arrow batches are what `message/rows.py` says: every column, kind of damage and bound."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqtool.errors import UsageError
from rmqtool.formats import body, message, properties
from rmqtool.formats.message import Message
from rmqtool.message.columns import BY_NAME, FIXED_NAMES, NAMES
from rmqtool.message.schema import arrow_schema
from rmqtool.read.access import plan_access
from rmqtool.read.messages import frame_batches, message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from tests.support.batch_rows import batch_rows, expected, seen
from tests.support.build_store import file_name, write_log
from tests.support.records import HOST, STORE_TIMESTAMP
from tests.support.records import record as make_record
from tests.support.scan_logs import HOST_V6, damaged_logs
from tests.support.stores import Library, case_names
from tests.support.sweep import IS_WHOLE, sample

pytestmark = pytest.mark.sweep

SMALL = ("ok_497_small_ipv6", "ok_533_small_propcrc", "ok_540_small_ipv6", "ok_540_small_propcrc")
LOG_DAMAGE = [name for name in case_names() if "_cl" in name and not name.startswith("ok_")]
REAL = ("torn_540_killed", "ok_497_expired")
FEW = ("physical_offset", "topic", "queue_offset", "keys", "properties", "status", "file")


@pytest.mark.parametrize("name", sample(SMALL, 2))
def test_every_column_of_real_stores(name: str, cases: Library) -> None:
    with Store.open(cases.path(name)) as store:
        rows, findings = expected(store)
        found, told = batch_rows(store)
        assert found == rows
        assert seen(told) == seen(findings)
        assert sum(row["system"] is not None for row in rows)


@pytest.mark.parametrize("name", sample([*LOG_DAMAGE, *REAL], 4))
def test_damage_is_passed_and_told(name: str, cases: Library, monkeypatch: Any) -> None:
    monkeypatch.setattr("rmqtool.read.messages._PART_BYTES", 100_000)
    with Store.open(cases.path(name)) as store:
        rows, findings = expected(store, columns=FEW)
        found, told = batch_rows(store, columns=FEW)
        in_threads, told_there = batch_rows(store, columns=FEW, jobs=3)
    assert found == rows == in_threads
    assert seen(told) == seen(findings) == seen(told_there)


# -- random records --------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "k1 k2", " ", "a  b ", "Ä", "😀", "color", "x" * 70, ""]),
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9),
)
PAIRS = st.tuples(TEXTS, TEXTS).map(lambda pair: "\x01".join(pair).encode())
PIECES = st.one_of(
    PAIRS,
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b"\x01", b"a\x01b\x01c", b"a\x01b\0", b"\xed\xa0\x80\x01\xff", b"KEYS\x01\xc3(", b"no end"]
    ),
)
MANY = b"".join(b"p%d\x01%d\x02" % (n % 90, n) for n in range(120))
PROPERTIES = st.one_of(
    st.lists(PAIRS, max_size=6).map(lambda pairs: b"".join(pair + b"\x02" for pair in pairs)),
    st.lists(PIECES, max_size=6).map(b"\x02".join),
    st.just(MANY),
)
TIMES = st.one_of(st.integers(0, 10**10).map(lambda n: STORE_TIMESTAMP + n), st.integers(-(2**63), 2**63 - 1))
PLAIN = st.one_of(st.binary(max_size=30), st.text(max_size=8).map(str.encode), st.just(b"long " * 60))


@st.composite
def records(draw: st.DrawFn) -> Message:
    """A record of any form: compressions, broken ones too, hosts, property strings, CRCs, times."""
    flags = draw(st.sampled_from([0, 0, 0x10, 0x20, 0x30, 0x4, 0x8]))
    data = draw(PLAIN)
    kind = draw(st.sampled_from([None, None, "zlib", "lz4", "zstd", "broken", "unknown"]))
    if kind == "broken":
        flags |= draw(st.sampled_from([0x1, 0x101, 0x201]))
    elif kind == "unknown":
        flags |= 0x701
    elif kind is not None:
        data, flags = body.compress(data, kind), flags | body.compression_bits(kind)
    stored = draw(PROPERTIES)[: properties.MAX_SIZE]
    seal = draw(st.sampled_from([None, None, "right", "wrong"]))
    if seal:
        stored = properties.reserve_property_crc(stored)
    made = make_record(
        draw(st.sampled_from(["A", "TopicTest", "", "Thema-ä", "x" * 130])), data, stored, sys_flag=flags,
        born_host=HOST_V6 if flags & 0x10 else HOST,
        store_host=draw(st.sampled_from([HOST_V6, bytes(20)])) if flags & 0x20 else HOST,
        born_timestamp=draw(TIMES), store_timestamp=draw(TIMES),
        queue_id=draw(st.integers(-(2**31), 2**31 - 1)), queue_offset=draw(st.integers(0, 9)),
        reconsume_times=draw(st.integers(0, 3)), prepared_transaction_offset=draw(st.integers(0, 2**60)),
    )  # fmt: skip
    if draw(st.integers(0, 7)) == 0:
        made = replace(made, body_crc=1)
    if draw(st.integers(0, 9)) == 0 and not made.properties_bytes:
        made = replace(made, properties_length=-3)
    return made if seal != "right" else replace(made, flag=77)


def sealed(folder: Path, stored: list[Message]) -> None:
    """Give the records with flag 77 the property CRC that is theirs where they are stored."""
    for each in stored:
        if each.flag == 77:
            data = properties.seal_property_crc(message.encode(each))
            with (folder / file_name(each.physical_offset // 4096 * 4096)).open("r+b") as file:
                file.seek(each.physical_offset % 4096)
                file.write(data)


@settings(max_examples=40 if IS_WHOLE else 8)
@given(
    given_records=st.lists(records(), min_size=1, max_size=14),
    max_rows=st.integers(1, 6),
    max_bytes=st.sampled_from([1, 700, 1 << 20]),
)
def test_random_records(given_records: list[Message], max_rows: int, max_bytes: int, tmp_path: Path) -> None:
    folder = tmp_path / "commitlog"
    shutil.rmtree(folder, ignore_errors=True)
    sealed(folder, write_log(folder, given_records))
    with Store.open(folder) as store:
        rows, findings = expected(store)
        found, told = batch_rows(store, max_rows=max_rows, max_bytes=max_bytes)
        assert found == rows
        assert seen(told) == seen(findings)
        # each column alone, for none may lean on another
        for name in ("tags", "keys", "status", "properties_base64", "body_compression", "born_host"):
            assert [row[name] for row in batch_rows(store, columns=(name,))[0]] == [
                row[name] for row in expected(store, columns=(name,))[0]
            ]


@given(data=damaged_logs(0), window=st.sampled_from([300, 1 << 20]))
def test_random_damage(data: bytes, window: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("rmqtool.read.messages.WINDOW", window)
    folder = tmp_path / "commitlog"
    folder.mkdir(exist_ok=True)
    (folder / file_name(0)).write_bytes(data or b"\0")
    with Store.open(folder / file_name(0)) as store:
        rows, findings = expected(store, columns=FEW)
        found, told = batch_rows(store, columns=FEW)
    assert found == rows
    assert seen(told) == seen(findings)


@pytest.mark.parametrize("behind", [b"\0" * 900, b"\0" * 100 + b"x", b""])
@pytest.mark.parametrize("window", [1, 1 << 20])
def test_a_last_record_whose_end_was_never_written(
    behind: bytes, window: int, tmp_path: Path, monkeypatch: Any
) -> None:
    """Its CRC is right; zeros have taken its properties, and go on behind it."""
    monkeypatch.setattr("rmqtool.read.messages.WINDOW", window)
    whole, cut = make_record(body=b"one"), make_record(body=b"two", found=b"KEYS\x01k\0\0")
    data = message.encode(whole) + message.encode(replace(cut, physical_offset=whole.total_size)) + behind
    (tmp_path / file_name(0)).write_bytes(data)
    with Store.open(tmp_path / file_name(0)) as store:
        rows, findings = expected(store, columns=FEW)
        found, told = batch_rows(store, columns=FEW)
        assert found == rows and len(rows) == (1 if behind[100:101] == b"\0" else 2)
        assert seen(told) == seen(findings)


# -- what is computed, bounds ----------------------------------------------------------------------


def test_schema_is_the_table_of_columns() -> None:
    schema = arrow_schema(NAMES)
    assert [(field.name, str(field.type)) for field in schema] == [
        (name, BY_NAME[name].arrow_type) for name in NAMES
    ]
    assert arrow_schema().names == list(FIXED_NAMES)
    assert arrow_schema(["size", "topic", "version"], names="spark").names == [
        "size",
        "topic",
        "magicVersion",
    ]
    with pytest.raises(UsageError, match="there is no field 'nix'"):
        arrow_schema(["nix"])


def test_batches_are_bounded(tmp_path: Path) -> None:
    """Rows and bytes, also where a few stored bytes unpack to many; a large body is a batch of its own."""
    bomb = body.compress(bytes(1 << 20), "zlib")
    flags = body.compression_bits("zlib")
    large = bytes(range(256)) * (16 << 10)
    bodies = [make_record(body=bomb, sys_flag=flags)] * 12 + [make_record(body=large)] + [make_record()] * 50
    write_log(tmp_path / "commitlog", bodies, file_size=8 << 20)
    with Store.open(tmp_path / "commitlog") as store:
        sizes = [
            (batch.num_rows, batch.nbytes)
            for batch in message_batches(store, columns=("body", "topic"), max_bytes=2 << 20, max_rows=20)
        ]
        assert sum(rows for rows, _ in sizes) == len(bodies)
        assert max(rows for rows, _ in sizes) <= 20
        assert [rows for rows, size in sizes if size > (2 << 20) + 5000] == [1]
        stored = list(message_batches(store, columns=("body",), body="stored", max_rows=20))
        assert pa.Table.from_batches(stored)["body"].to_pylist() == [each.body for each in bodies]


def test_small_batches_are_put_together(tmp_path: Path) -> None:
    given_records = [make_record("A" if n % 40 else "B", bytes(900), queue_offset=n) for n in range(400)]
    write_log(tmp_path / "commitlog", given_records, file_size=1 << 20)
    with Store.open(tmp_path / "commitlog") as store:
        batches = list(message_batches(store, Selection(topics=["B"]), columns=("queue_offset",)))
    assert [batch.num_rows for batch in batches] == [10]


def test_limit_counts_messages(tmp_path: Path) -> None:
    write_log(tmp_path / "commitlog", [make_record(queue_offset=n) for n in range(100)])
    with Store.open(tmp_path / "commitlog") as store:
        for limit in (0, 1, 37, 100, 101):
            selection = Selection(limit=limit)
            rows, _ = batch_rows(store, selection, FEW, jobs=2, max_rows=10)
            assert rows == expected(store, selection, FEW)[0]
            assert sum(int(mask.sum()) for _, mask, _ in frame_batches(store, selection)) == min(limit, 100)


def test_frames_and_masks_are_the_same_messages(cases: Library) -> None:
    with Store.open(cases.path("torn_540_killed")) as store:
        for selection in (Selection(), Selection(topics=["pub*"], queues=[0, 2])):
            found = [
                int(offset)
                for frames, mask, _ in frame_batches(store, selection)
                for offset in frames.rows["physical_offset"][mask]
            ]
            rows, _ = expected(store, selection, ("physical_offset",))
            assert found == [row["physical_offset"] for row in rows]


def test_progress_comes_to_what_is_read(cases: Library) -> None:
    passed: list[int] = []
    with Store.open(cases.path("torn_540_killed")) as store:
        access = plan_access(store, Selection(topics=["pub-Topic_Four"]), via="queue")
        for _ in message_batches(store, access=access, columns=("size",), progress=passed.append):
            pass
    assert sum(passed) == access.bytes_read < access.bytes_total


def test_without_columns_rows_are_still_counted(tmp_path: Path) -> None:
    write_log(tmp_path / "commitlog", [make_record()] * 7)
    with Store.open(tmp_path / "commitlog") as store:
        assert sum(batch.num_rows for batch in message_batches(store, columns=())) == 7


@pytest.mark.parametrize("wrong", [{"body": "none"}, {"max_rows": 0}, {"jobs": 0}, {"columns": ["x"]}])
def test_wrong_arguments_are_usage_errors(wrong: dict[str, Any], cases: Library) -> None:
    with Store.open(cases.path(SMALL[0])) as store, pytest.raises(UsageError):
        message_batches(store, **wrong)


def test_a_file_that_vanishes_is_a_finding(store_copy: Any) -> None:
    """A live store deletes files: what is gone is told, the rest is read."""
    path = store_copy("ok_497_clean")
    with Store.open(path) as store:
        access = plan_access(store)
        whole, _ = batch_rows(store, columns=FEW)
        (path / access.ranges[0].path).unlink()
        rows, findings = batch_rows(store, columns=FEW, pieces=[access])
        assert rows == [row for row in whole if row["file"] != access.ranges[0].path]
        assert [each.problem.code for each in findings] == ["CL12"]
    with Store.open(path) as store:
        rows, findings = batch_rows(store, columns=FEW, pieces=[access], jobs=2)
        assert rows and "CL12" in {each.problem.code for each in findings}


def test_a_consumer_may_stop_early(cases: Library) -> None:
    """Threads end with the generator."""
    import threading

    before = threading.active_count()
    with Store.open(cases.path("ok_497_clean")) as store:
        batches = message_batches(store, columns=("size",), jobs=2, max_rows=10)
        assert next(batches).num_rows <= 10
        batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_bodies_without_their_library(tmp_path: Path, monkeypatch: Any) -> None:
    """The body is null and the reason is told."""
    from rmqtool.errors import MissingCodecError

    data = body.compress(b"hello" * 50, "zstd")
    write_log(tmp_path / "commitlog", [make_record(body=data, sys_flag=body.compression_bits("zstd"))])

    def missing(*_: object, **__: object) -> bytes:
        raise MissingCodecError("zstandard is needed", hint="pip install zstandard")

    monkeypatch.setattr(body, "decompress", missing)
    with Store.open(tmp_path / "commitlog") as store:
        rows, findings = expected(store)
        found, told = batch_rows(store)
        assert found == rows and found[0]["status"] == ["UN01"]
        assert seen(told) == seen(findings)


def test_very_many_different_values(tmp_path: Path) -> None:
    """More hosts than a table of the kernels holds."""
    hosts = [bytes((10, n >> 16, n >> 8 & 255, n & 255)) + (9).to_bytes(4) for n in range(17_000)]
    one = make_record("T", b"")
    data = b"".join(
        message.encode(replace(one, born_host=host, physical_offset=n * one.total_size))
        for n, host in enumerate(hosts)
    )
    (tmp_path / file_name(0)).write_bytes(data)
    with Store.open(tmp_path / file_name(0)) as store:
        table = pa.Table.from_batches(message_batches(store, columns=("born_host",)))
    assert table["born_host"].to_pylist() == [
        f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:9" for n in range(17_000)
    ]
