"""`rmqtool spark-scan` of damaged stores: records and bad places are those of `dump`, all of them told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.scan_runs import Result, Row, Run, runner, without_broker
from tests.support.stores import Library, case_names
from tests.support.sweep import in_sweeps, sample

pytestmark = pytest.mark.sweep

DAMAGED = "bad_cl04_wrong_length"
RECORDS = (
    "bad_cl03_body_crc", "bad_cl06_foreign_record", "bad_cl09_property_crc", "bad_cl13_bad_properties",
    "bad_cl14_bad_body",
)  # fmt: skip
"""Stores with a record that is damaged and can be read."""
LOGS = tuple(name for name in case_names() if name.split("_")[1][:2] in ("cl", "un"))
"""The stores of all kinds of damage of the log."""
SOME = tuple(dict.fromkeys((*RECORDS, DAMAGED, *sample(LOGS, 4))))
"""Of these, the ones that a run takes."""


@pytest.fixture
def run(spark: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """Runs a command in the shared session."""
    yield runner(capfdbinary)


def told(found: Result) -> list[str]:
    """The bad places on stderr."""
    return [
        line for line in found.err.splitlines() if line.startswith(("rmqtool: error", "rmqtool: warning"))
    ]


def texts(rows: list[Row]) -> list[str]:
    """Rows as text: the order of properties counts."""
    return [json.dumps(row) for row in without_broker(rows)]


def is_message(row: Row) -> bool:
    return "topic" in row


def test_rows_of_all_damaged_stores(run: Run, cases: Library) -> None:
    """One read of all: the records of each, as `dump` shows them, and its bad places."""
    paths = [cases.path(name) for name in SOME]
    found = run("spark-scan", paths, "--quiet")
    assert {row["broker_name"] for row in found.rows} <= set(SOME) and set(RECORDS) < set(LOGS)
    for path in paths:
        here = run("dump", path, "--quiet")
        rows = [row for row in found.rows if row["broker_name"] == path.name]
        assert texts(list(filter(is_message, rows))) == texts(here.rows), path.name
        bad = [row for row in rows if not is_message(row)]
        codes = Counter(line.split()[2] for line in told(here) if line.split()[2] not in _of_records(here))
        assert Counter(row["status"][0] for row in bad) == codes, path.name


def _of_records(found: Result) -> set[str]:
    return {code for row in found.rows for code in row["status"]}


def test_counts_of_all_damaged_stores(run: Run, cases: Library, tmp_path: Path) -> None:
    """Every record that `dump` shows is counted, and written."""
    paths = [cases.path(name) for name in SOME]
    here = {path.name: len(run("dump", path, "--quiet", "--fields", "size").rows) for path in paths}
    groups = run("spark-scan", paths, "--group-by", "broker_name")
    assert {row["broker_name"]: row["count"] for row in groups.rows} == {k: n for k, n in here.items() if n}
    assert groups.code == 1
    target = tmp_path / "out"
    written = run("spark-scan", paths, "--output", str(target), "--output-format", "jsonl", "--fields",
                  "broker_name,properties,body,body_encoding")  # fmt: skip
    lines = [json.loads(line) for part in target.glob("*.json") for line in part.read_text().splitlines()]
    assert Counter(line["broker_name"] for line in lines) == {k: n for k, n in here.items() if n}
    assert written.code == 1 and "not counted" in written.err
    assert {line.get("body_encoding") for line in lines if "body" in line} == {"base64"}


@pytest.mark.parametrize(
    "name", [*in_sweeps(RECORDS[:-1]), RECORDS[-1], DAMAGED, *in_sweeps(["gap_cl20_missing_file"])]
)
def test_a_damaged_store_is_told_as_by_dump(run: Run, cases: Library, name: str) -> None:
    """The lines on stderr, the exit code, counts by all and by queue."""
    path = cases.path(name)
    here, there = run("dump", path, "--quiet"), run("spark-scan", path, "--quiet")
    assert (there.code, there.err) == (here.code, here.err) == (1, here.err)
    counted = run("spark-scan", path, "--count")
    assert counted.rows == [{"count": len(here.rows)}]
    stats = run("spark-scan", path, "--stats")
    assert stats.rows == run("dump", path, "--stats-only").rows
    # Without bodies nobody sees that one cannot be unpacked.
    assert {counted.code, stats.code} == {0 if "cl14" in name else 1}


def test_fields_do_not_hide_damage(run: Run, cases: Library) -> None:
    """Told also where no row can say it; of two stores the line says which."""
    paths = [cases.path(name) for name in (RECORDS[0], DAMAGED)]
    found = run("spark-scan", paths, "--fields", "topic")
    assert found.code == 1
    assert [RECORDS[0] in line for line in told(found)] == [True, False]
    assert f": {DAMAGED}: commitlog/" in told(found)[1]


def test_properties_that_cannot_be_made_again(run: Run, cases: Library) -> None:
    """Their bytes are there as in `dump`, and shown for all where they are asked for."""
    path = cases.path("bad_cl13_bad_properties")
    rows = run("spark-scan", path).rows
    assert any(row.get("properties_base64") for row in rows if row.get("status") == ["CL13"])
    asked = ("--fields", "physical_offset,properties_base64")
    assert run("spark-scan", path, *asked).rows == run("dump", path, *asked).rows


def test_lines_have_the_bytes_of_properties(run: Run, cases: Library, tmp_path: Path) -> None:
    """Of the same records as in `dump`: without them `append` would write others."""
    path, target = cases.path("bad_cl13_bad_properties"), tmp_path / "out"
    assert run("spark-scan", path, "--output", str(target), "--output-format", "jsonl").code == 1
    lines = [json.loads(line) for part in target.glob("*.json") for line in part.read_text().splitlines()]
    name = "properties_base64"
    stored = {row["physical_offset"]: row[name] for row in run("dump", path).rows if name in row}
    assert {line["physical_offset"]: line[name] for line in lines if name in line} == stored != {}


def test_lines_keep_the_order_of_properties(run: Run, cases: Library, tmp_path: Path) -> None:
    """Of files of JSON lines too."""
    path, target = cases.path("ok_540_clean"), tmp_path / "out"
    fields = ("--fields", "physical_offset,properties")
    assert run("spark-scan", path, "--output", str(target), "--output-format", "jsonl", *fields).code == 0
    lines = [json.loads(line) for part in target.glob("*.json") for line in part.read_text().splitlines()]
    rows = run("dump", path, *fields).rows
    assert texts(sorted(lines, key=lambda row: row["physical_offset"])) == texts(rows)


def test_damage_is_rows(run: Run, cases: Library) -> None:
    """A range without a record is a row with a status; the exit code says so."""
    result = run("spark-scan", cases.path(DAMAGED))
    bad = [row for row in result.rows if "topic" not in row]
    assert result.code == 1
    assert [row["status"] for row in bad] == [["CL04"]]


def test_a_log_that_is_gone_is_told(run: Run, cases: Library) -> None:
    """As by dump: not an empty store, whatever is asked."""
    path = cases.path("gap_cl26_log_missing")
    counted = run("spark-scan", path, "--count")
    assert (counted.code, counted.rows) == (1, [{"count": 0}])
    assert "1 damaged range not counted" in counted.err
    shown = run("spark-scan", path)
    assert (shown.code, [row["status"] for row in shown.rows]) == (1, [["CL26"]])
    assert run("spark-scan", path, "--group-by", "topic").code == 1
