"""Fillers of `recover` among many messages: counted in a note, left out of copies and of inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats import properties
from rmqtool.formats.filler import HOST, TAG, is_filler
from rmqtool.formats.message import TRANSACTION_ROLLBACK
from rmqtool.log.fillers import filler_places
from rmqtool.read.messages import frame_batches
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.exports import messages, small_store

FULL = b"\xff" * 40
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
FIVE = "5 fillers of recover in the place of lost messages"
Run = Callable[..., tuple[int, str, str]]


def filler(topic: str, body: bytes = FULL, **fields: object) -> NewMessage:
    """A message with the content of a filler, unless `body` or a field of it says otherwise."""
    hosts = {"born_host": HOST, "store_host": HOST}
    return NewMessage(topic, body, tags=TAG, **{**hosts, **fields})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Five messages, three fillers with a queue, one without, one of a half message; six look-alikes."""
    path = small_store(tmp_path / "store", 5)
    with StoreWriter.open(path, auto_create_queues=4, reserve=False) as writer:
        for body in (FULL, b"\xff", FULL * 100):
            writer.put(filler("T", body))
        for body in (FULL + b"\0" + FULL, b"\xfe" + FULL, FULL + b"\xfe"):
            writer.put(filler("U", body))
        writer.put(filler("U", store_host=HOST[:-1] + b"\1"))
        writer.put(filler("U", born_host=b"\x7e" + HOST[1:]))
        writer.put(NewMessage(TAG, FULL, sys_flag=TRANSACTION_ROLLBACK, born_host=HOST, store_host=HOST))
        writer.put(NewMessage("U", FULL, sys_flag=TRANSACTION_ROLLBACK, born_host=HOST, store_host=HOST))
        stored = properties.encode([(properties.TAGS, TAG)], dialect="5.x")
        writer.put(NewMessage(HALF, FULL, properties=stored, queue_id=0, born_host=HOST, store_host=HOST))
    return path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command: its exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([*map(str, arguments)])
        return code, *capfd.readouterr()

    return call


def test_whole_batches_and_single_records_agree(store: Path) -> None:
    with Store.open(store) as opened:
        found: list[int] = []
        for frames, mask, _ in frame_batches(opened):
            found += frames.rows["physical_offset"][filler_places(frames, mask)].tolist()
            assert len(filler_places(frames, mask & False)) == 0
    expected = [each for each in messages(store) if is_filler(each)]
    assert found == [each.physical_offset for each in expected] and len(found) == 5


@pytest.mark.parametrize("command", [("export", "--output", "OUT"), ("stats",)])
def test_a_note_counts_them_and_its_options_leave_them_out(
    store: Path, tmp_path: Path, run: Run, command: tuple[str, ...]
) -> None:
    name, *rest = (str(tmp_path / "out.csv") if word == "OUT" else word for word in command)
    start = (name, store, *rest, *(["--force"] if name == "export" else []))
    code, _, error = run(*start)
    condition = f"TAGS IS NULL OR TAGS <> '{TAG}'"
    without = f'--filter "{condition}" --exclude-topic {TAG}'
    assert f"the messages include {FIVE}; without them: {without}" in error
    assert code == 0 and error.count("fillers") == 1
    code, _, error = run(*start, "--filter", condition, "--exclude-topic", TAG)
    assert code == 0 and "filler" not in error
    code, _, error = run(*start, "--topic", TAG)
    assert f"1 filler of recover in the place of a lost message; without it: --exclude-topic {TAG}\n" in error
    code, _, error = run(*start, "--topic", "T", "--filter", "TAGS IS NOT NULL")
    assert f'include 3 fillers {FIVE[10:]}; without them: --filter "(...) AND ({condition})"\n' in error
    assert "filler" not in run(*start, "--tag", TAG)[2]
    assert "filler" not in run(*start, "--tag", "A")[2]


def test_the_condition_that_sql_names_leaves_them_out(store: Path, run: Run) -> None:
    query = "SELECT count(*) AS n FROM messages"
    code, out, error = run("sql", store, query, "--format", "json")
    condition = f"WHERE tags IS DISTINCT FROM '{TAG}' AND topic <> '{TAG}'"
    assert code == 0 and json.loads(out) == [{"n": 16}]
    assert f"the query read {FIVE}; without them: {condition}\n" in error
    code, out, error = run("sql", store, f"{query} {condition}", "--format", "json")
    assert "filler" not in error and json.loads(out) == [{"n": 6}]  # U has the tag too
    twice = "SELECT count(*) FROM messages a JOIN messages b ON a.physicalOffset = b.physicalOffset"
    assert "read 5 fillers" in run("sql", store, twice)[2]


def test_a_copy_has_none(store: Path, tmp_path: Path, run: Run) -> None:
    copy = tmp_path / "copy"
    code, out, error = run("copy", store, "--output", copy, "--no-reserve", "--format", "json")
    found = json.loads(out)
    assert (found["messages"], found["left_out_fillers"]) == (11, 4)
    assert found["left_out"] == 5 and found["left_out_topics"] == [{"topic": HALF, "messages": 1}]
    assert "not copied: 4 fillers of recover in the place of lost messages\n" in error and code == 0
    assert not any(map(is_filler, messages(copy)))
    code, out, error = run("copy", store, "--output", tmp_path / "none", "--tag", TAG, "--topic", "T")
    assert code == 1 and "only fillers of recover match: no store was created" in error
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("how", ["jsonl", "csv", "parquet", "dump", "dry_run", "messages"])
def test_append_leaves_rows_of_fillers_out(store: Path, tmp_path: Path, run: Run, how: str) -> None:
    """Except those of half messages: ops name these by queue offset."""
    rows = tmp_path / (f"rows.{how}" if how in ("csv", "parquet") else "rows.jsonl")
    if how == "dump":
        rows.write_text(run("dump", store, "--format", "jsonl", "--exclude-topic", TAG)[1])
    else:
        assert run("export", store, "--output", rows, "--exclude-topic", TAG)[0] == 0
    more = {"dry_run": ["--dry-run"], "messages": ["--show", "messages"]}.get(how, [])
    new = tmp_path / "new"
    code, out, error = run("append", new, "--create", "--input", rows, "--format", "json", *more)
    assert code == 0 and "rmqtool: left out: 3 fillers of recover in the place of lost messages\n" in error
    if how == "messages":
        assert len(json.loads(out)) == 11 + 1
    else:
        [sums] = json.loads(out)
        assert (sums["messages"], sums["left_out"], sums["left_out_fillers"]) == (11 + 1, 0, 3)
    if how != "dry_run":
        assert [each.topic for each in messages(new) if is_filler(each)] == [HALF]
