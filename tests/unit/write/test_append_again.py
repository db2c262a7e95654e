"""`append` of an input with a bad row: what is stored before it, and how the input is continued."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rmqtool.cli import main
from rmqtool.read.store import Store
from tests.support.dumps import Result
from tests.support.programs import RMQTOOL

SMALL = ("--commitlog-file-size", "64K", "--queue-file-size", "2000", "--index-slots", "100",
         "--index-entries", "400")  # fmt: skip
Row = dict[str, Any]
GOOD: list[Row] = [{"topic": "Orders", "body": f"order {number}"} for number in range(5)]
ENDINGS = ("jsonl", "csv", "parquet", "arrow")


@pytest.fixture
def append(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Result]:
    """Runs `rmqtool append`."""

    def run(store: Path, *arguments: object) -> Result:
        capfdbinary.readouterr()
        code = main(["append", str(store), *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return run


def written(path: Path, rows: Sequence[Row]) -> Path:
    """The rows as a file in the format of its name."""
    table = pa.Table.from_pylist(list(rows), pa.schema([("topic", pa.string()), ("body", pa.string())]))
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".csv":
            lines = (",".join("" if value is None else value for value in row.values()) for row in rows)
            path.write_text("\n".join(("topic,body", *lines)) + "\n")
        case ".parquet":
            parquet.write_table(table, path)
        case _:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
    return path


def bodies(store: Path) -> list[str]:
    """The stored bodies in order."""
    with Store.open(store) as opened:
        return [each.message.body.decode() for each in opened.messages()]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("show", ["summary", "messages"])
def test_an_input_is_continued_after_a_bad_row(
    append: Callable[..., Result], tmp_path: Path, ending: str, show: str
) -> None:
    """The error says from where; no row is stored twice, and none is left out."""
    store = tmp_path / "store"
    assert append(store, "--create", *SMALL, "--topic", "Orders", "--body", "first").code == 0
    rows = [*GOOD[:3], {"topic": "Orders", "body": None}, *GOOD[3:]]
    wrong = append(store, "--input", written(tmp_path / f"in.{ending}", rows), "--show", show)
    number = 5 if ending == "csv" else 4
    assert wrong.code == 3 and f"row {number}, body: " in wrong.err
    assert f"the rows before it are stored; continue with --skip-rows {number - 1}" in wrong.err
    assert bodies(store) == ["first", "order 0", "order 1", "order 2"]
    again = append(store, "--input", tmp_path / f"in.{ending}", "--show", show, "--skip-rows", number - 1)
    assert f"continue with --skip-rows {number - 1}, and --on-error skip as well" in again.err
    rows[3] = {"topic": "Orders", "body": "mended"}
    path = written(tmp_path / f"in.{ending}", rows)
    assert append(store, "--input", path, "--show", show, "--skip-rows", number - 1).code == 0
    assert bodies(store)[4:] == ["mended", "order 3", "order 4"]
    assert append(store, "--input", path, "--skip-rows", 100).code == 0 and len(bodies(store)) == 7


def test_rows_that_are_skipped_may_be_wrong(append: Callable[..., Result], tmp_path: Path) -> None:
    """Of any kind: the bad row itself is ignored with its number."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"topic": "T", "body": "a"}\n{nonsense\n\n{"topic": 5}\n{"topic": "T", "body": "b"}\n')
    assert append(tmp_path / "s", "--create", *SMALL, "--input", path, "--skip-rows", 4).code == 0
    assert bodies(tmp_path / "s") == ["b"]
    assert append(tmp_path / "s", "--topic", "T", "--body", "x", "--skip-rows", 1).code == 2


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_new_store_is_made_for_sound_rows_only(
    append: Callable[..., Result], tmp_path: Path, ending: str
) -> None:
    """A bad row in a small input leaves nothing behind; the corrected input then needs no other option."""
    store = tmp_path / "store"
    for rows in ([{"topic": "Orders", "body": None}], [*GOOD, {"topic": "Orders", "body": None}]):
        found = append(store, "--create", "--input", written(tmp_path / f"in.{ending}", rows))
        assert found.code == 3 and "--skip-rows" not in found.err and not store.exists()
    (tmp_path / "nonsense.parquet").write_bytes(b"PAR1 nonsense")
    assert append(store, "--create", "--input", tmp_path / "nonsense.parquet").code == 3
    assert append(store, "--create", "--input", tmp_path / "none.csv").code == 3 and not store.exists()
    good = written(tmp_path / f"in.{ending}", GOOD)
    assert append(store, "--create", "--input", good).code == 0
    assert bodies(store) == [row["body"] for row in GOOD]
    log = store / "commitlog" / f"{0:020}"
    assert log.stat().st_size == 1 << 30 and log.stat().st_blocks * 512 < 1 << 20
    again = append(store, "--create", "--input", good)
    assert again.code == 4 and "is already a store" in again.err and "omit --create" in again.err
    assert len(bodies(store)) == len(GOOD)


def test_a_store_that_was_only_begun_is_named(append: Callable[..., Result], tmp_path: Path) -> None:
    """As an error in its first write leaves it, a temporary file of the configuration among it."""
    store = tmp_path / "store"
    for name in ("config", "commitlog", "consumequeue", "index"):
        (store / name).mkdir(parents=True)
    (store / "lock").write_bytes(b"lock")
    (store / "config" / "topics.json.tmp").write_bytes(b"{")
    again = append(store, "--create", "--input", written(tmp_path / "in.jsonl", GOOD))
    assert again.code == 4 and f"delete {store} and run it again" in again.err


NOTHING = "nothing was stored, and no store was created"
REFUSED: tuple[tuple[Row, str], ...] = (
    ({"topic": "a b"}, "has characters that no broker takes (MESSAGE_ILLEGAL)"),
    ({"topic": "T" * 300}, "(MESSAGE_ILLEGAL)"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "(NO_PERMISSION)"),
    ({"queue_id": 99}, "queue_id: topic T has no queue 99 (INVALID_PARAMETER)"),
    ({"queue_id": -1}, "queue_id: topic T has no queue -1 (INVALID_PARAMETER)"),
    ({"body": "x" * 5_000_000}, "(MESSAGE_ILLEGAL)"),
)


@pytest.mark.parametrize(("wrong", "said"), REFUSED)
@pytest.mark.parametrize("more", [(), ("--show", "messages"), ("--on-error", "skip")])
def test_no_store_is_made_where_a_broker_refuses_the_first_row(
    append: Callable[..., Result], tmp_path: Path, wrong: Row, said: str, more: tuple[str, ...]
) -> None:
    """The line then works with the corrected input, as if it were the first try."""
    path, row = tmp_path / "in.jsonl", {"topic": "T", "body": "x"}
    line = (tmp_path / "s", "--create", *SMALL, "--commitlog-file-size", "8M", "--input", path, *more)
    path.write_text(json.dumps(row | wrong))
    found = append(*line)
    assert found.code == 3 and "row 1, " in found.err and said in found.err and NOTHING in found.err
    assert "skip-rows" not in found.err and not (tmp_path / "s").exists()
    path.write_text(json.dumps(row))
    assert append(*line).code == 0 and bodies(tmp_path / "s") == ["x"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_new_store_is_made_for_the_first_row_that_it_takes(
    append: Callable[..., Result], tmp_path: Path, ending: str
) -> None:
    """Each row is reported once; a table and its batches before that row are not read again."""
    store, path = tmp_path / "s", tmp_path / f"in.{ending}"
    refused: list[Row] = [{"topic": "a b", "body": "x"}, {"topic": "T", "body": None}] * 2
    written(path, refused)
    line = (store, "--create", *SMALL, "--queues", 2, "--input", path, "--format", "json")
    assert append(*line).code == 3 and not store.exists()
    found = append(*line, "--on-error", "skip")
    assert found.code == 3 and f"no message that can be stored\n  {NOTHING}\n" in found.err
    assert found.err.count("skipped: ") == 4 and not store.exists()
    written(path, [*refused, *GOOD, *refused])
    if ending == "arrow":
        table = pa.ipc.open_file(path).read_all()
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=3)
    found = append(*line, "--on-error", "skip")
    assert (found.code, found.err.count("skipped: ")) == (3, 8) and json.loads(found.out)[0]["left_out"] == 8
    first = 2 if ending == "csv" else 1
    left_out = [number for number in range(first, first + 13) if not 4 <= number - first < 9]
    assert sorted(map(int, re.findall(r"skipped: row (\d+),", found.err))) == left_out
    assert bodies(store) == [row["body"] for row in GOOD]


def test_of_two_bad_rows_the_first_is_reported(append: Callable[..., Result], tmp_path: Path) -> None:
    """Whether it is malformed or refused; rows that are skipped do not count."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"topic": "a b", "body": "x"}\n{"topic": "T", "body": "x"}\n{nonsense\n')
    for more, row in (((), 1), (("--skip-rows", 1), 3)):
        found = append(tmp_path / "s", "--create", "--input", path, *more)
        assert found.code == 3 and found.err.startswith(f"rmqtool: row {row}") and NOTHING in found.err
    column = append(tmp_path / "s", "--create", "--input", path, "--queue-by", "column", "--skip-rows", 1)
    assert column.code == 3 and "row 2, queue_id: it has none" in column.err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        ("", (), "the input has no message\n"),
        ("\n\n", (), "the input has no message\n"),
        ('{"blank": true, "physical_offset": 0, "size": 20}\n', (), "the input has no message\n"),
        ('{"topic": "T", "body": "x"}\n', ("--skip-rows", 1), "the input has no message after row 1\n"),
        ("topic,body\n", ("--input-format", "csv"), "the input has no message\n"),
    ],
)
@pytest.mark.parametrize("show", ["summary", "messages"])
def test_no_store_is_made_for_an_input_without_a_message(
    append: Callable[..., Result],
    tmp_path: Path,
    show: str,
    content: str,
    more: tuple[object, ...],
    said: str,
) -> None:
    """It is an error: a script that goes on would not find the store that it asked for."""
    path = tmp_path / "in.data"
    path.write_text(content)
    found = append(tmp_path / "s", "--create", "--input", path, "--show", show, *more)
    assert (found.code, found.out, said in found.err, NOTHING in found.err) == (3, b"", True, True)
    found = append(tmp_path / "s", "--create", "--input", path, "--dry-run", *more)
    assert (found.code, said in found.err) == (3, True)
    assert not (tmp_path / "s").exists()
    assert append(tmp_path / "s", "--create", *SMALL, "--topic", "T", "--body", "x").code == 0
    assert append(tmp_path / "s", "--input", path, *more).code == 0


def test_a_pipe_into_a_new_store_is_read_once(tmp_path: Path) -> None:
    """What was read before the store is made is stored, too; a pipe without a message makes none."""
    rows = [{"topic": "a b", "body": "x"}, *GOOD]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    line = [*RMQTOOL, "append", str(tmp_path / "s"), "--create", *SMALL, "--input", "-"]
    for given, more, said in ((lines, (), b"row 1, topic: "), (b"", (), b"the input has no message\n")):
        done = subprocess.run([*line, *more], input=given, capture_output=True, check=False)
        assert done.returncode == 3 and said in done.stderr and not (tmp_path / "s").exists()
    done = subprocess.run([*line, "--on-error", "skip"], input=lines, capture_output=True, check=False)
    assert done.returncode == 3 and done.stderr.count(b"skipped: ") == 1
    assert bodies(tmp_path / "s") == [row["body"] for row in GOOD]


def test_a_row_that_the_store_refuses(append: Callable[..., Result], tmp_path: Path) -> None:
    """Found only when it is stored: what was stored before stays, and the way on is without --create."""
    rows = [*GOOD, {"topic": "Orders", "body": "x" * 100_000}, *GOOD]
    path = written(tmp_path / "in.jsonl", rows)
    found = append(tmp_path / "s", "--create", *SMALL, "--input", path)
    assert found.code in (3, 4) and "continue with --skip-rows 5, without --create" in found.err
    assert bodies(tmp_path / "s") == [row["body"] for row in GOOD]
    assert append(tmp_path / "s", "--input", path, "--skip-rows", 6).code == 0
    assert bodies(tmp_path / "s") == [row["body"] for row in GOOD] * 2


def test_wrong_rows_can_be_skipped_in_a_new_store(append: Callable[..., Result], tmp_path: Path) -> None:
    """With --on-error skip they do not keep the store from being made."""
    path = written(tmp_path / "in.csv", [{"topic": "Orders", "body": None}, *GOOD])
    assert append(tmp_path / "s", "--create", *SMALL, "--input", path, "--on-error", "skip").code == 3
    assert bodies(tmp_path / "s") == [row["body"] for row in GOOD]


def test_a_second_run_is_noticed(append: Callable[..., Result], tmp_path: Path) -> None:
    """Messages that the store has, by topic, unique key and deliveries, are stored all the same."""
    store = tmp_path / "s"

    def rows(*names: tuple[str, str, int], taken_over: bool = True) -> Path:
        lines = [
            {"topic": topic, "body": "x", "queue_id": 0, "properties": {"UNIQ_KEY": key, "KEYS": "k"}}
            | ({"physical_offset": number, "reconsume_times": times} if taken_over else {})
            for number, (topic, key, times) in enumerate(names)
        ]
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    old = [("T", f"U{number}", 0) for number in range(40)]
    found = append(store, "--create", *SMALL, "--input", rows(*old))
    assert (found.code, "already has" in found.err) == (0, False)
    others = [("T", "U1", 1), ("Other", "U1", 0), ("T", "New", 0)]
    for path in (rows(*others), rows(old[3], taken_over=False)):
        found = append(store, "--create-topic", "--input", path)
        assert (found.code, "already has" in found.err) == (0, False)
    with Store.open(store) as opened:
        places = [each.physical_offset for each in opened.messages()]
    found = append(store, "--input", rows(("T", "Newer", 0), old[4], old[3]))
    said = "the store already has 2 of the first 3 messages of the input, by unique key (the first at"
    again = f"they are stored again: rmqtool stats {store} --duplicates"
    assert f"rmqtool: {said} {places[4]}); {again}\n" in found.err
    found = append(store, "--input", rows(old[7]))
    said = (
        f"the store already has the first message of the input, by unique key (at {places[7]}); it is stored"
    )
    assert (found.code, said in found.err) == (0, True)
    assert len(bodies(store)) == len(places) + 4
    found = append(store, "--input", rows(old[9], old[3], ("T", "Newest", 0)), "--dry-run")
    said = f"of the input, by unique key (the first at {places[9]}); they would be stored again\n"
    assert (found.code, len(bodies(store))) == (0, len(places) + 4)
    assert f"rmqtool: the store already has 2 of the first 3 messages {said}" in found.err
    assert found.err.index(said) < found.err.index("nothing was stored")
    found = append(store, "--input", rows(old[9]), "--show", "messages")
    assert f"by unique key (at {places[9]}); it is stored again: rmqtool stats {store} " in found.err
    assert len(bodies(store)) == len(places) + 5
    found = append(tmp_path / "new", "--create", "--input", rows(old[9]), "--dry-run")
    assert (found.code, "already has" in found.err) == (0, False)


def test_the_end_of_undo_is_noted(
    append: Callable[..., Result],
    store_copy: Callable[[str], Path],
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Once, by the first append after a repair: `recover --undo` refuses from then on."""
    root = store_copy("torn_540_killed")
    message = ("--topic", "pubTopicOne", "--body", "more")
    assert main(["recover", str(root), "--apply"]) == 0
    out = b" ".join(capfdbinary.readouterr().out.split())
    assert (
        b"restores the store only as long as no broker, rmqtool append or rmqtool deliver has written" in out
    )
    (backup,) = root.parent.glob("*.rmqtool-backup-*")
    assert append(root, *message, "--queue", "99").code != 0  # nothing is written: it can still be undone
    assert main(["recover", str(root), "--undo", str(backup)]) == 0
    assert "can no longer" not in append(root, *message, "--dry-run").err
    assert main(["recover", str(root), "--apply"]) == 0
    (backup,) = set(root.parent.glob("*.rmqtool-backup-*")) - {backup}
    note = f"rmqtool: the last recover of this store can no longer be undone; its backup: {backup}\n"
    assert "can no longer" not in append(root, "--input", "/dev/null", "--format", "jsonl").err
    for expected in (True, False):
        result = append(root, *message)
        assert (result.code, note in result.err) == (0, expected)
    assert main(["recover", str(root), "--undo", str(backup)]) != 0


def test_deliver_notes_the_end_of_undo_too(
    store_copy: Callable[[str], Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It writes as append does."""
    root = store_copy("torn_540_killed")
    assert main(["recover", str(root), "--apply"]) == 0
    for expected in (True, False):
        capfdbinary.readouterr()
        assert main(["deliver", str(root), "--apply"]) == 0
        err = capfdbinary.readouterr().err
        assert (b"the last recover of this store can no longer be undone" in err) == expected
