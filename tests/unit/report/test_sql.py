"""`rmqtool sql`: what is pushed down changes no row; queries reach nothing but the tables."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from rmqtool.cli import main
from rmqtool.commands.sql_prompt import is_complete, statements
from rmqtool.problems import Finding
from rmqtool.read.pushed import Pushed
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.sql.session import Session
from rmqtool.report.sql.tables import COLUMNS_OF, SCHEMAS, Scans
from tests.support.dumps import Result
from tests.support.programs import PATIENCE_S, RMQTOOL, started, surroundings, until
from tests.support.stores import Library
from tests.support.sweep import sample
from tests.support.trees import unchanged

pytestmark = [pytest.mark.sweep, pytest.mark.usefixtures("json_lines")]

REAL = "ok_540_clean"
DAMAGED = "bad_cl04_wrong_length"
MS = 1795251033000
Run = Callable[..., Result]
Row = dict[str, Any]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command; the store must be as it was afterwards."""

    def sql(store: Path, *arguments: object) -> Result:
        capfdbinary.readouterr()
        with unchanged(store):
            code = main(["sql", str(store), "--tz", "UTC", *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return sql


@pytest.fixture
def store(cases: Library) -> Iterator[Store]:
    with Store.open(cases.path(REAL)) as opened:
        yield opened


def ask(store: Store, sql: str, selection: Selection = Selection()) -> tuple[list[Row], Scans]:  # noqa: B008
    """The rows of a query, and its scans."""
    found: list[Finding] = []
    scans = Scans([("broker", store)], selection, found.append)
    with Session().run(sql, scans) as result:
        rows = list(result.rows(None))
    return rows, scans


# -- conditions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("topic = 'pubTx'", Pushed(topics=frozenset(("pubTx",)))),
        ("'pubTx' = TOPIC AND queueid = 2",
         Pushed(topics=frozenset(("pubTx",)), queues=frozenset((2,)))),
        ("topic IN ('pubTx', 'pubRetry', 'c')", Pushed(topics=frozenset(("pubTx", "pubRetry", "c")))),
        ("topic = 'pubTx' OR topic = 'pubRetry'", Pushed(topics=frozenset(("pubTx", "pubRetry")))),
        ("tags = 'flaky' AND uniqKey = 'x'", Pushed(tags=frozenset(("flaky",)), keys=frozenset("x"))),
        ("physicalOffset BETWEEN 5 AND 9", Pushed(physical_offsets=(5, 10))),
        ("physicalOffset > 5 AND 9 >= physicalOffset", Pushed(physical_offsets=(6, 10))),
        ("queueOffset >= 7", Pushed(queue_offsets=(7, None))),
        (f"storeTimestampMs < {MS}", Pushed(store_times=(None, MS))),
        ("storeTimestamp >= '2026-11-21 08:50:33'", Pushed(store_times=(MS, None))),
        ("storeTimestamp > TIMESTAMPTZ '2026-11-21 09:50:33.0005+01'", Pushed(store_times=(MS + 1, None))),
        ("brokerName = 'a'", Pushed(brokers=frozenset("a"))),
        # what cannot reduce what is read
        ("topic = 'a' OR queueId = 3", Pushed()),
        ("topic <> 'a'", Pushed()),
        ("bornTimestampMs > 5 AND size < 100", Pushed()),
        ("queueId % 2 = 1 AND body = 'x'", Pushed()),
        ("topic IS NULL", Pushed()),
    ],
)  # fmt: skip
def test_conditions_say_what_need_not_be_read(store: Store, where: str, expected: Pushed) -> None:
    """Of one scan, as DuckDB pushes it down."""
    _, scans = ask(store, f"SELECT count(*) FROM messages WHERE {where}")
    assert scans.pushed == [expected]


CONDITIONS = (
    "topic = 'pubTx'", "topic > 'pubR'", "topic LIKE 'pub%'", "topic IN ('pubRetry', 'pubMultiTag', 'no')",
    "topic <> 'pubTopicOne'", "queueId = 1", "queueId IN (0, 3)", "queueOffset < 7", "queueOffset = 3",
    "physicalOffset >= 1000000", "physicalOffset < 2500000", "physicalOffset BETWEEN 359 AND 90000",
    f"storeTimestampMs >= {MS}", "storeTimestamp < '2026-11-21 08:50:34.5Z'", "tags = 'flaky'",
    "tags IS NULL", "tags IS NOT NULL", "uniqKey IS NOT NULL", "len(keys) = 2",
    "list_contains(keys, 'rty0')", "body IS NOT NULL", "octet_length(body) > 300", "bodyCompression = 'zlib'",
    "sysFlag & 1 = 1", "reconsumeTimes > 0", "properties['TAGS'] = 'poison'", "status = ['ok']",
    "brokerName = 'broker'", "brokerName <> 'broker'", "bornTimestamp > storeTimestamp", "flag IS NULL",
)  # fmt: skip


@pytest.fixture(scope="module")
def everything(cases: Library) -> Iterator[duckdb.DuckDBPyConnection]:
    """The whole tables as DuckDB's own, where nothing is pushed down into rmqtool."""
    with Store.open(cases.path(REAL)) as opened, closing(duckdb.connect()) as database:
        for view, schema in SCHEMAS.items():
            scans = Scans([("broker", opened)], Selection(), lambda _: None)
            table = scans.tables()[view].scanner().to_reader().read_all()
            assert table.schema == schema and len(table) > 1000
            database.register(f"{view}_arrow", table)
            database.execute(f"CREATE TABLE {view} AS SELECT * FROM {view}_arrow")
        database.execute("SET TimeZone = 'UTC'")
        yield database


@pytest.mark.parametrize("seed", sample(range(12), 2))
def test_pushed_conditions_change_no_row(
    store: Store, everything: duckdb.DuckDBPyConnection, seed: int
) -> None:
    """Random conditions, over the store and over a copy of its rows in DuckDB."""
    chance = random.Random(seed)
    for _ in range(4):
        parts = chance.sample(CONDITIONS, chance.randint(1, 4))
        parts = [f"NOT ({part})" if chance.random() < 0.15 else part for part in parts]  # noqa: PLR2004
        where = parts[0]
        for part in parts[1:]:
            where = f"({where}) {chance.choice(('AND', 'AND', 'OR'))} {part}"
        sql = f"SELECT physicalOffset, queueId FROM messages WHERE {where} ORDER BY ALL"
        rows, _ = ask(store, sql)
        expected = everything.execute(sql).fetchall()
        assert [tuple(row.values()) for row in rows] == expected, sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT topic, queueId, count(*), sum(size) FROM consume_queue WHERE topic = 'pubTx' GROUP BY ALL",
        "SELECT count(*) FROM consume_queue WHERE batchSize IS NOT NULL OR queueOffset > 100",
        "SELECT file, max(entry), min(storeTimestampMs) FROM index_entries GROUP BY ALL",
        "SELECT m.topic, count(e.entry) FROM messages m JOIN index_entries e USING (physicalOffset)"
        " GROUP BY 1",
        "SELECT a.topic, b.tags FROM messages a JOIN messages b ON a.physicalOffset = b.physicalOffset"
        " WHERE a.topic = 'pubRetry' AND b.queueId = 0",
        "WITH x AS (SELECT * FROM messages) SELECT count(*) FROM x a, x b"
        " WHERE a.topic = 'pubTx' AND b.queueId = 3",
    ],
)  # fmt: skip
def test_other_tables_and_joins(store: Store, everything: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Units and entries; each scan has conditions of its own."""
    rows, _ = ask(store, f"SELECT * FROM ({sql}) ORDER BY ALL")
    expected = everything.execute(f"SELECT * FROM ({sql}) ORDER BY ALL").fetchall()
    assert rows and [tuple(map(str, row.values())) for row in rows] == [
        tuple(map(str, row)) for row in expected
    ]


def test_only_what_is_needed_is_read(store: Store) -> None:
    """A condition on topics reads by the queues: less than the log."""
    read = {}
    for where in ("topic = 'pubTx'", "true"):
        counts: list[int] = []
        scans = Scans([("broker", store)], Selection(), lambda _: None, counts.append)
        with Session().run(f"SELECT sum(size) FROM messages WHERE {where}", scans) as result:
            list(result.rows(None))
        read[where] = sum(counts)
    assert read["topic = 'pubTx'"] * 4 < read["true"]


def test_a_limit_ends_the_scan(store: Store) -> None:
    """DuckDB stops reading; the scan's files are closed with the query."""
    rows, scans = ask(store, "SELECT physicalOffset FROM messages LIMIT 3")
    assert [row["physicalOffset"] for row in rows] == [0, 359, 747] and scans.error is None


# -- the command -----------------------------------------------------------------------------------------


def test_rows_and_formats(run: Run, cases: Library) -> None:
    """Values as other commands show them; names that appear twice are numbered."""
    sql = "SELECT storeTimestamp, tags, keys, properties['TAGS'] AS tag, 1.5 AS x, 1.5 AS x" \
          " FROM messages WHERE topic = 'pubRetry' ORDER BY physicalOffset LIMIT 2"  # fmt: skip
    found = run(cases.path(REAL), sql)
    assert (found.code, found.err) == (0, "")
    assert found.rows[0] == {
        "storeTimestamp": "2026-11-21T08:50:12.680+00:00", "tags": "poison", "keys": ["rty0"],
        "tag": "poison", "x": 1.5, "x_6": 1.5,
    }  # fmt: skip
    table = run(cases.path(REAL), sql, "--format", "csv", "--fields", "tags,x", "--limit", "1")
    assert table.out == b"tags,x\npoison,1.5\n"
    for words, text in ((("--format", "table"), "tags  x\n----  -\n"), (("--format", "json"), "[]\n"),
                        (("--format", "csv"), "tags,x\n"), (("--format", "jsonl"), "")):  # fmt: skip
        none = run(cases.path(REAL), "SELECT tags, 1.5 AS x FROM messages WHERE queueId = 99", *words)
        assert (none.code, none.out.decode()) == (0, text), words
    assert run(cases.path(REAL), sql, "--fields", "nope").code == 2


def test_every_type_is_shown(run: Run, cases: Library) -> None:
    """Those of DuckDB that no column has, too."""
    sql = """SELECT INTERVAL 1 MONTH AS a, INTERVAL '1 day 2 hours' AS b, TIME '10:00' AS c,
        'a'::ENUM('a') AS d, 1.1::FLOAT AS e, 'nan'::DOUBLE AS f, '01'::BIT::VARCHAR AS g,
        {'a': [1, NULL]} AS h, MAP {true: 1} AS i,
        TIMESTAMP '2026-01-02 03:04:05' AS j, DATE '2026-01-02' AS k, 12345678901234567890123::HUGEINT AS l,
        1.25::DECIMAL(5, 2) AS m, encode('é') AS n, NULL AS o,
        TIMESTAMPTZ '2026-01-02 03:04:05.000001Z' AS p"""
    assert run(cases.path(REAL), sql).rows == [{
        "a": "1 months", "b": "1 02:00:00", "c": "10:00:00", "d": "a", "e": 1.1, "f": "NaN", "g": "01",
        "h": {"a": [1, None]}, "i": {"true": 1}, "j": "2026-01-02T03:04:05.000", "k": "2026-01-02",
        "l": 12345678901234567890123, "m": 1.25, "n": "é", "o": None, "p": "2026-01-02T03:04:05.000001+00:00",
    }]  # fmt: skip
    far = run(cases.path(REAL), "SELECT 'infinity'::TIMESTAMP AS t")
    assert far.code == 3 and "CAST(... AS VARCHAR)" in far.err


def test_columns_have_the_names_of_other_commands_too(run: Run, cases: Library) -> None:
    """Every name that `dump` and `export` show; a name that the query itself gives stays its own."""
    path = cases.path(REAL)
    for view, columns in COLUMNS_OF.items():
        same = run(path, f"SELECT {', '.join(each.spark_name for each in columns)} FROM {view} LIMIT 2")
        for names in ([each.name for each in columns], [f't."{each.name.upper()}"' for each in columns]):
            other = run(path, f"SELECT {', '.join(names)} FROM {view} t LIMIT 2")
            assert (other.code, other.out, other.err) == (0, same.out, "") and other.rows
    sql = "WITH x AS (SELECT 'é' AS body_length, queueId FROM messages) SELECT * FROM x LIMIT 1"
    assert run(path, sql).rows == [{"body_length": "é", "queueId": 0}]
    sql = "SELECT 'queue_id', 'é' AS e, max(m.Queue_Id) AS queue_id /* queue_id */ FROM messages m"
    assert run(path, sql).rows == [{"'queue_id'": "queue_id", "e": "é", "queueId": 7}]
    sql = "SELECT count(*) AS n FROM messages WHERE queue_id = 0 AND topic = 'pubRetry' AND broker_name = $$"
    assert run(path, f"{sql}{path.name}$$").rows == [{"n": 12}]


@pytest.mark.parametrize(
    ("sql", "name", "nearest"),
    [
        ("SELECT body_lenght FROM messages", "body_lenght", "bodyLength"),
        ("SELECT max(m.queueIdd) FROM messages m", "queueIdd", "queueId"),
        ("SELECT 1 FROM index_entries WHERE keyhsh = 1", "keyhsh", "keyHash"),
        ("SELECT zzz FROM messages", "zzz", ""),
    ],
)
def test_an_unknown_column_leads_to_the_nearest(
    run: Run, cases: Library, sql: str, name: str, nearest: str
) -> None:
    """The names of the tables, which the result has, and the query that lists all."""
    first, hint = run(cases.path(REAL), sql).err.splitlines()
    assert first == f"rmqtool: unknown column: {name}"
    assert hint.startswith(f"  nearest: {nearest}" if nearest else "  DESCRIBE")
    assert hint.endswith("DESCRIBE messages lists all columns of a table")


def test_a_column_of_another_table_is_not_unknown(run: Run, cases: Library) -> None:
    """The nearest name of keyHash was keyHash."""
    _, hint = run(cases.path(REAL), "SELECT keyhash FROM messages LIMIT 1").err.splitlines()
    assert hint == "  it is a column of index_entries, which the query does not read"


def test_functions_of_other_types_are_explained(run: Run, cases: Library) -> None:
    """A body is bytes; of other types the functions that there are stand in the hint."""
    first, hint = run(cases.path(REAL), "SELECT length(body) FROM messages").err.splitlines()
    assert "length(BLOB)" in first and hint.strip().startswith(
        "body is bytes: octet_length(body), or decode("
    )
    first, hint = run(cases.path(REAL), "SELECT year(queueId) FROM messages").err.splitlines()
    assert hint.startswith('  Candidate functions: "year"(') and "LINE" not in hint


REFUSED = (
    "COPY (SELECT 1) TO '{path}'", "COPY messages FROM '{path}'", "ATTACH '{path}'", "INSTALL httpfs",
    "LOAD httpfs", "EXPORT DATABASE '{path}'", "IMPORT DATABASE '{path}'", "SELECT * FROM read_text('{old}')",
    "SELECT * FROM '{old}'", "SELECT * FROM read_csv('{old}')", "SELECT * FROM glob('/*')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{path}')", "SET memory_limit = '1TB'",
    "SET enable_external_access = true", "RESET threads", "PRAGMA enable_profiling", "CREATE TABLE t (a int)",
    "CREATE SECRET s (TYPE s3)", "CALL pragma_version()", "EXPLAIN ANALYZE COPY (SELECT 1) TO '{path}'",
    "SELECT * FROM sys", "SELECT * FROM scans", "DELETE FROM messages", "DROP VIEW messages", "CHECKPOINT",
    "SELECT 1; SELECT 2", "SELECT", "SELECT colour FROM messages", "SELECT ''''''' FROM messages", ";",
    "SELECT CAST(topic AS INT) FROM messages", "SELECT error('x')", "SELECT \0", "PREPARE x AS SELECT 1",
    "SELECT '\udcff'",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{path}''')", "SELECT * FROM read_duckdb('{old}')",
)  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_refused(run: Run, cases: Library, tmp_path: Path, sql: str) -> None:
    """With one line, exit code 2, and no file read or written."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("secret\n")
    found = run(cases.path(REAL), sql.format(path=new, old=old))
    assert found.code == 2 and found.out == b""
    first, *others = found.err.splitlines()
    assert (
        first.startswith("rmqtool: ") and len(others) <= 1 and all(each.startswith("  ") for each in others)
    )
    assert "secret" not in found.err and [each.name for each in tmp_path.iterdir()] == ["old"]


def test_what_a_note_and_a_hint_say(run: Run, cases: Library) -> None:
    """Batch records are those that the query read, not those of its result; bodies that are no text."""
    path = cases.path(REAL)
    found = run(path, "SELECT count(*) FROM messages WHERE topic LIKE '%Order%'")
    assert re.search(
        r"the query read \d+ batch records \(BatchCQ\) of topic pubBatchCQ, which hold \d+ messages; if its"
        " result includes them, each counts as one row;",
        found.err,
    )
    assert "batch" not in run(path, "SELECT count(*) FROM messages WHERE topic = 'pubOrder'").err
    found = run(path, "SELECT decode(body) FROM messages")
    assert found.code == 2 and "  for bodies that are text: WHERE body_encoding = 'utf-8'" in found.err
    assert run(path, "SELECT decode(body) FROM messages WHERE body_encoding = 'utf-8'").code == 0


def test_memory_is_bounded(run: Run, cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit goes to temporary files, which are gone afterwards, or is an error."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "rmqtool-sql-of-a-killed-run"
    left.mkdir()
    (left / "spilled").touch()
    os.utime(left, (0, 0))
    rows = "SELECT hash(range)::VARCHAR || repeat('x', 60) AS a FROM range(1500000) ORDER BY a"
    sql = f"SELECT count(*), max(a) IS NULL AS n FROM (SELECT * FROM ({rows}) OFFSET 1400000)"
    found = run(cases.path(REAL), sql, "--memory-limit", "64M")
    assert found.rows == [{"count_star()": 100000, "n": False}]
    sql = "SELECT len(array_agg(repeat('x', 200) || range)) FROM range(2000000)"
    found = run(cases.path(REAL), sql, "--memory-limit", "64M")
    assert found.code == 2 and "needs more memory" in found.err
    assert list(tmp_path.iterdir()) == []
    assert run(cases.path(REAL), "SELECT 1", "--memory-limit", "1M").code == 2


def test_damage(run: Run, cases: Library) -> None:
    """It is reported, and a row for a query that reads `status`."""
    path = cases.path(DAMAGED)
    found = run(path, "SELECT count(*) AS n FROM messages")
    assert found.code == 1 and found.err.startswith("rmqtool: error: CL04 ")
    rows = run(
        path, "SELECT physicalOffset, size, status, topic, brokerName FROM messages WHERE status <> ['ok']"
    )
    assert rows.rows == [
        {"physicalOffset": 76607, "size": 295, "status": ["CL04"], "topic": None, "brokerName": path.name}
    ]
    both = run(path, "SELECT count(*) AS n FROM messages a JOIN messages b USING (physicalOffset)")
    assert both.rows == found.rows and both.err.count("CL04") == 1, "two scans meet it"
    sound = run(path, "SELECT count(*) AS n FROM messages WHERE physicalOffset < 1000")
    assert (sound.code, sound.err) == (0, "")


def test_options_select_messages(run: Run, cases: Library) -> None:
    """As in `dump`; other tables say which options they ignore."""
    path = cases.path(REAL)
    key = run(path, "SELECT topic, keys FROM messages", "--key", "rty0")
    assert key.rows == [{"topic": "pubRetry", "keys": ["rty0"]}] or len(key.rows) > 1
    assert all("rty0" in row["keys"] for row in key.rows)
    both = run(path, "SELECT count(*) AS n FROM messages WHERE topic = 'pubTx'", "--topic", "pubRetry")
    assert both.rows == [{"n": 0}]
    units = run(path, "SELECT DISTINCT topic FROM consume_queue", "--topic", "pubTx", "--key", "a")
    assert units.rows == [{"topic": "pubTx"}] and "consume_queue ignores --key" in units.err
    unknown = run(path, "SELECT topic FROM messages", "--topic", "pubRetri")
    assert unknown.code == 1 and "nearest: pubRetry" in unknown.err
    for table in ("messages", "consume_queue"):  # one row, of no message
        counted = run(path, f"SELECT count(*) AS n FROM {table}", "--topic", "pubRetri")
        assert counted.rows == [{"n": 0}] and counted.code == 1 and "nearest: pubRetry" in counted.err
    assert run(path, "SELECT count(*) AS n FROM messages", "--topic", "pubRetry").code == 0
    assert run(path, "SELECT 1 AS n", "--topic", "pubRetri").code == 0


def test_several_stores(run: Run, cases: Library) -> None:
    """As one, with the names that Spark gives their brokers."""
    first, second = cases.path(REAL), cases.path(DAMAGED)
    sql = "SELECT brokerName, count(*) AS n FROM messages GROUP BY 1 ORDER BY 1"
    rows = run(first, sql, "--store", second).rows
    assert [row["brokerName"] for row in rows] == sorted((REAL, DAMAGED)) and all(row["n"] for row in rows)
    assert run(first, f"SELECT * FROM ({sql}) WHERE brokerName = '{REAL}'", "--store", second).code == 0
    assert run(first, sql, "--store", first).code == 2


# -- queries from a pipe, and the prompt -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["kind_tiered_540/tiered", "kind_compaction_540/compaction"])
def test_queue_logs(run: Run, cases: Library, name: str) -> None:
    """A tiered copy and the logs of compacted topics: every message, and the unit of each."""
    folder, _, inner = name.partition("/")
    path = cases.path(folder) / inner
    with Store.open(path) as store:
        expected = [
            {"topic": each.message.topic, "physicalOffset": each.physical_offset, "file": each.file,
             "u": each.physical_offset}
            for each in store.messages()
        ]  # fmt: skip
    query = (
        "SELECT m.topic, m.physicalOffset, m.file, u.physicalOffset AS u FROM messages m JOIN consume_queue u"
        " USING (topic, queueId, queueOffset) ORDER BY 2"
    )
    found = run(path, query)
    assert (found.code, found.rows, found.err) == (0, expected, "") and len(expected) > 15


def test_queries_from_a_pipe(run: Run, cases: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other; the first wrong one ends the run."""

    def piped(text: bytes) -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return run(cases.path(REAL))

    assert piped(b"SELECT 1 AS a;\n-- note\nSELECT\n 2 AS b").rows == [{"a": 1}, {"b": 2}]
    wrong = piped(b"SELECT 1 AS a; SELECT x;")
    assert wrong.rows == [{"a": 1}] and wrong.code == 2
    assert piped(b"SELECT \xff").code == 2
    assert piped(b"").code == 0


def test_the_end_of_a_query() -> None:
    """A semicolon in quotes or comments is none; commands begin with a dot."""
    assert is_complete("SELECT ';';") and is_complete("select 1 -- ;\n;") and is_complete('select "a;" ;  ')
    for text in ("SELECT ';", "select 1", "select 1 -- ;", "select /* ; */ 1", "select /* ;", 'select "a;'):
        assert not is_complete(text), text
    lines = iter(["", ".tables", "select", " 1;", "select 'a", "b';", ".quit"])
    prompts: list[str] = []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert list(statements(read)) == [".tables", "select\n 1;", "select 'a\nb';", ".quit"]
    assert prompts[3] == "...> " and prompts[0] == "sql> "


def test_the_prompt(cases: Library) -> None:
    """On a terminal: a query over lines, an error, a table, and the end."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "rmqtool", "sql", cases.path(REAL), "--format", "jsonl"]
    shown = bytearray()

    def sees(text: bytes) -> Callable[[], bool]:
        def look() -> bool:
            os.set_blocking(master, False)
            try:
                shown.extend(os.read(master, 65536))
            except OSError:
                pass
            return text in shown

        return look

    try:
        with started(command, stdin=slave, stdout=slave, stderr=slave) as program:
            os.close(slave)
            slave = -1
            until(sees(b"sql> "))
            for line, answer in (
                (b"SELECT count(*) AS n\nFROM messages WHERE topic = 'pubTx';\n", b'{"n":'),
                (b"SELECT x;\n", b"FROM clause is missing"),
                (b".schema index_entries\n", b"keyHash"),
                (b".nope\n", b"unknown command .nope"),
                (b"SELECT range AS r FROM range(2000);\n", b"the first 1000 rows"),
            ):
                os.write(master, line)
                until(sees(answer), line.decode())
            os.write(master, b".quit\n")
            until(lambda: sees(b"\0")() or program.poll() is not None)
            assert program.wait() == 0
    finally:
        os.close(master)
        if slave >= 0:
            os.close(slave)
    assert b'"r":999}' in shown and b'"r":1000}' not in shown


def test_all_columns_have_spark_names() -> None:
    """The tables are those of spark-scan --sql, names and order."""
    from rmqtool.spark.options import SourceOptions
    from rmqtool.spark.schema import columns_by_options

    for view, table in {
        "messages": "messages",
        "consume_queue": "units",
        "index_entries": "index_entries",
    }.items():
        options = SourceOptions(table=table, column_set="full")  # type: ignore[arg-type]
        assert SCHEMAS[view].names == [each.name for each in columns_by_options(options)]
        assert all(isinstance(field.type, pa.DataType) for field in SCHEMAS[view])
    json.dumps(SCHEMAS["messages"].names)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
        "SELECT count(*) FROM range(10000000000) a, messages",
    ],
)
def test_a_query_without_end_is_interrupted(cases: Library, tmp_path: Path, sql: str) -> None:
    """By one signal, also where DuckDB looks at none; its temporary folder is gone then."""
    command = [*RMQTOOL, "sql", cases.path(REAL), sql]
    with started(command, env=surroundings(TMPDIR=str(tmp_path))) as process:
        until(lambda: any(tmp_path.iterdir()), "the query did not begin")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and b"interrupted" in errors
    assert not any(tmp_path.iterdir())


def test_an_interrupt_just_after_the_temporary_folder_was_made(
    run: Run, cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed all the same."""
    make = tempfile.mkdtemp

    def interrupted(*arguments: Any) -> str:
        folder = make(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    assert run(cases.path(REAL), "SELECT 1").code == 130
    assert not any(tmp_path.iterdir())


def test_commands_of_the_prompt_without_a_prompt(
    run: Run, cases: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As QUERY, and between queries from a pipe; a string that begins with a dot is none."""
    path = cases.path(REAL)
    shown = run(path, ".tables", "--json")
    assert shown.code == 0
    assert [row["table"] for row in shown.rows] == ["messages", "consume_queue", "index_entries"]
    text = b".schema index_entries\nSELECT '\n.tables' AS x,\n1 AS y;\nSELECT 2 AS z\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    shown = run(path, "--json")
    rows = shown.rows
    assert shown.code == 0 and rows[-2:] == [{"x": "\n.tables", "y": 1}, {"z": 2}]
    assert {row["table"] for row in rows[:-2]} == {"index_entries"}
    shown = run(path, ".schema", "--json")
    names = {row["column"] for row in shown.rows}
    meant = {word for row in shown.rows for word in re.findall(r"`(\w+)`", row["meaning"])}
    assert meant - {"ok"} <= names and {"storeTimestampMs", "body"} <= meant
