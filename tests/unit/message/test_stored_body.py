"""Compressed bodies come back byte for byte: through dump or export, and append."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from rmqtool.cli import main
from rmqtool.errors import EXIT_INPUT, EXIT_OK
from rmqtool.formats import body as bodies
from rmqtool.formats.body import compression_bits
from rmqtool.read.store import Store
from tests.support.records import record
from tests.support.stores import Library
from tests.support.sweep import sample
from tests.support.whole_store import write_whole

pytestmark = pytest.mark.usefixtures("json_lines")

Capture = pytest.CaptureFixture[str]

TEXT = b"".join(b"line %d of a body that compresses, %d\n" % (n, n * n) for n in range(400))
# What `compress` gives, and what other levels and libraries give that unpack to the same.
STORED = [
    (0, b"plain"),
    (compression_bits("zlib"), bodies.compress(TEXT, "zlib")),
    (compression_bits("zlib"), zlib.compress(TEXT, 9)),
    (compression_bits("zstd"), bodies.compress(TEXT, "zstd")),
    (compression_bits("zstd"), zstandard.ZstdCompressor(level=1).compress(TEXT)),
    (compression_bits("lz4"), bodies.compress(TEXT, "lz4")),
]
ODD = {2, 4}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    items = [
        record(body=data, found={"UNIQ_KEY": f"U{n}", "KEYS": f"k{n}"}, sys_flag=flag, queue_offset=n)
        for n, (flag, data) in enumerate(STORED)
    ]
    write_whole(tmp_path / "store", items, log_file_size=1 << 20)
    return tmp_path / "store"


def facts(store: Path) -> list[tuple[object, ...]]:
    """What of every record does not depend on its place."""
    with Store.open(store) as opened:
        return [
            (m.topic, m.queue_id, m.flag, m.sys_flag, m.body_crc, m.body, m.properties_bytes,
             m.born_timestamp, m.store_timestamp, m.born_host, m.store_host, m.reconsume_times,
             m.prepared_transaction_offset)
            for m in (stored.message for stored in opened.messages())
        ]  # fmt: skip


def append(new: Path, rows: Path, *options: str) -> int:
    return main([
        "append", str(new), "--create", "--create-topic", "--no-reserve", "--commitlog-file-size", "16M",
        "--input", str(rows), *options,
    ])  # fmt: skip


def test_a_row_has_the_stored_bytes_where_they_are_needed(store: Path, capfd: Capture) -> None:
    capfd.readouterr()
    assert main(["dump", str(store)]) == EXIT_OK
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    for number, row in enumerate(rows):
        assert ("stored_body" in row) == (number in ODD)
        if number in ODD:
            assert base64.b64decode(row["stored_body"]) == STORED[number][1]
    assert main(["dump", str(store), "--body", "none"]) == EXIT_OK
    assert "stored_body" not in capfd.readouterr().out


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet", "rows.arrow", "dump"])
def test_round_trip(store: Path, tmp_path: Path, capfd: Capture, name: str) -> None:
    rows = tmp_path / ("dump.jsonl" if name == "dump" else name)
    capfd.readouterr()
    if name == "dump":
        assert main(["dump", str(store)]) == EXIT_OK
        rows.write_text(capfd.readouterr().out)
    else:
        assert main(["export", str(store), "--output", str(rows)]) == EXIT_OK
    assert append(tmp_path / "new", rows) == EXIT_OK
    assert facts(tmp_path / "new") == facts(store)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", sample(["ok_497_clean", "ok_533_clean", "ok_540_clean", "kind_compaction_540"], 2)
)
def test_round_trip_of_real_stores(cases: Library, tmp_path: Path, capfd: Capture, name: str) -> None:
    """Every record of a broker's store, also of its system topics, whose bodies other libraries packed."""
    capfd.readouterr()
    assert main(["dump", str(cases.path(name))]) == EXIT_OK
    rows = tmp_path / "rows.jsonl"
    rows.write_text(capfd.readouterr().out)
    assert append(tmp_path / "new", rows) == EXIT_OK
    assert facts(tmp_path / "new") == facts(cases.path(name))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_body_that_was_changed_is_not_passed_over(
    store: Path, tmp_path: Path, capfd: Capture, name: str
) -> None:
    """A row whose `body` is not that of its stored bytes: which of them counts is not guessed."""
    rows = tmp_path / name
    assert main(["export", str(store), "--output", str(rows)]) == EXIT_OK
    if name == "rows.jsonl":
        lines = rows.read_text().splitlines(keepends=True)
        lines[2] = lines[2].replace("line 7 of", "line 8 of")
        rows.write_text("".join(lines))
    else:
        table = parquet.read_table(rows)
        changed = [
            value[:-1] + b"?" if n == 2 else value for n, value in enumerate(table["body"].to_pylist())
        ]
        place = table.schema.get_field_index("body")
        parquet.write_table(table.set_column(place, "body", pa.array(changed, pa.binary())), rows)
    capfd.readouterr()
    assert append(tmp_path / "new", rows) == EXIT_INPUT
    assert "stored_body: it does not decompress to body" in capfd.readouterr().err
