"""`rmqtool spark-scan`: what its actions say is what `dump`, `verify` and the files say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.dataset
import pytest

from rmqtool.check.verify import verify
from rmqtool.errors import EXIT_USAGE, UsageError
from rmqtool.read.store import Store
from rmqtool.spark.scan_job import ScanRequest
from rmqtool.spark.scan_job_sql import query_frame, reads_of
from tests.spark.scan_runs import Result, Run, runner, without_broker
from tests.support.stores import Library
from tests.support.sweep import in_sweeps, sample
from tests.support.trees import unchanged

pytestmark = pytest.mark.sweep

REAL = "ok_540_clean"
DAMAGED = "bad_cl04_wrong_length"


@pytest.fixture
def run(spark: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """Runs the command in the shared session; the first argument is a store or several."""
    yield runner(capfdbinary)


@pytest.fixture
def store(cases: Library) -> Iterator[Path]:
    path = cases.path(REAL)
    with unchanged(path):
        yield path


def properties_of(found: Result) -> list[list[tuple[str, str]]]:
    """In the order in which they are shown, which dicts do not tell apart."""
    return [list(row["properties"].items()) for row in found.rows if "properties" in row]


def test_rows_are_those_of_dump(run: Run, store: Path) -> None:
    """Field by field, times and bodies too."""
    here = run("dump", store)
    there = run("spark-scan", store)
    assert there.code == here.code == 0
    assert without_broker(there.rows) == without_broker(here.rows)
    assert properties_of(there) == properties_of(here)


@pytest.mark.parametrize("body", [*in_sweeps(["text"]), "none"])
def test_system_where_it_is_asked_for(run: Run, store: Path, body: str) -> None:
    """With what bodies tell of it, unless these are not to be read."""
    arguments = ("--fields", "physical_offset,system", "--body", body)
    here, there = run("dump", store, *arguments), run("spark-scan", store, *arguments)
    assert any(row["system"] for row in here.rows) and there.rows == here.rows


@pytest.mark.parametrize(
    "arguments",
    [
        (
            "--topic",
            "pub*",
            "--exclude-topic",
            "pubRetry",
            "--queue",
            "0-1",
            "--fields",
            "physical_offset,topic",
        ),
        ("--time-field", "born", "--since", "1795251012717", "--fields", "physical_offset,tags"),
        ("--from-offset", "359", "--to-offset", "5000", "--limit", "3", "--body", "hex"),
        (
            "--filter",
            "TAGS = 'flaky' OR KEYS IS NOT NULL AND UNIQ_KEY CONTAINS '0'",
            "--topic",
            "pub*",
            "--fields",
            "physical_offset,properties",
        ),
    ],
    ids=["topics", "born", "offsets", "filter"],
)
def test_selections_are_those_of_dump(run: Run, store: Path, arguments: tuple[str, ...]) -> None:
    """Every selection means the same."""
    here, there = run("dump", store, *arguments), run("spark", store, *arguments)
    assert here.rows
    assert without_broker(there.rows) == without_broker(here.rows)


def test_counts_and_groups(run: Run, store: Path) -> None:
    """All messages, by queue as `dump --stats-only`, by other columns as counted here."""
    rows = run("dump", store).rows
    assert run("spark-scan", store, "--count").rows == [{"count": len(rows)}]
    assert run("spark-scan", store, "--stats").rows == run("dump", store, "--stats-only").rows
    groups = run("spark-scan", store, "--group-by", "tag,hour").rows
    found = {(row["tags"], row["hour_time"]): row["count"] for row in groups}
    assert found == Counter((row["tags"], row["store_time"][:13] + ":00:00.000+00:00") for row in rows)
    assert sum(row["bytes"] for row in groups) == sum(row["size"] for row in rows)
    times = run("spark-scan", store, "--group-by", "store_time,born_timestamp_ms").rows
    found = {(row["store_time"], row["born_timestamp_ms"]): row["count"] for row in times}
    assert found == Counter((row["store_time"], row["born_timestamp_ms"]) for row in rows)


def test_an_unknown_view_leads_to_those_that_exist(run: Run, store: Path) -> None:
    found = run("spark-scan", store, "--sql", "SELECT * FROM nosuch")
    assert found.code == EXIT_USAGE
    assert found.err.splitlines()[-1] == "  the views are messages, consume_queue, index_entries"


def test_hours_and_days_of_a_zone(run: Run, store: Path) -> None:
    """Of half an hour beside UTC: days begin at midnight there."""
    rows = run("spark-scan", store, "--group-by", "day,topic", "--tz", "+05:30").rows
    days = Counter(
        (row["store_time"][:10], row["topic"]) for row in run("dump", store, "--tz", "+05:30").rows
    )
    assert {(row["day_time"][:10], row["topic"]): row["count"] for row in rows} == days
    assert all(row["day_time"].endswith("T00:00:00.000+05:30") for row in rows)


def test_sql_over_the_three_views(run: Run, store: Path) -> None:
    """Messages, units and entries fit each other."""
    query = """SELECT count(*) AS n, count(u.physicalOffset) AS units, count(e.physicalOffset) AS indexed
        FROM messages m LEFT JOIN consume_queue u USING (topic, queueId, queueOffset)
        LEFT JOIN (SELECT DISTINCT physicalOffset FROM index_entries) e ON m.physicalOffset = e.physicalOffset
        WHERE m.topic NOT LIKE 'RMQ_SYS%'"""
    row = run("spark-scan", store, "--sql", query).rows[0]
    with Store.open(store) as opened:
        messages = [each for each in opened.messages() if not each.message.topic.startswith("RMQ_SYS")]
        assert row["n"] == len(messages)
        keys = {(each.message.topic, each.message.queue_id, each.message.queue_offset) for each in messages}
        assert 0 < row["units"] <= row["n"]
        assert row["units"] >= len(keys) - sum(1 for each in messages if each.message.sys_flag & 0xC)
    assert row["indexed"] > 0
    wrong = run("spark-scan", store, "--sql", "SELECT colour FROM messages")
    assert wrong.code == 2
    assert "colour" in wrong.err


@pytest.mark.parametrize(
    "where",
    ["topic IN ('pubTx', 'pubRetry') AND queueId = 0",
     "keys IS NOT NULL AND topic LIKE 'pub%' AND storeTimestamp >= '2026-11-21T08:50:33Z'"],
)  # fmt: skip
def test_filters_of_sql(run: Run, store: Path, where: str) -> None:
    """Pushed down, and not: a view that is named twice is read as a whole."""
    query = f"SELECT physicalOffset FROM messages WHERE {where}"
    pushed = run("spark-scan", store, "--sql", f"{query} ORDER BY 1")
    rest = f"SELECT physicalOffset FROM messages WHERE NOT ({where})"
    plain = run("spark-scan", store, "--sql", f"{query} EXCEPT {rest} ORDER BY 1")
    assert pushed.rows and pushed.rows == plain.rows


def test_filters_of_sql_reach_the_source(spark: Any, cases: Library) -> None:
    """Of two stores one is read, unless the view is scanned twice."""
    stores = tuple(str(cases.path(name)) for name in (REAL, "ok_540_small_ipv6"))
    query = f"SELECT physicalOffset FROM messages WHERE brokerName = '{REAL}'"
    for sql, partitions in ((query, 1), (f"{query} UNION ALL {query}", 4)):
        frame = query_frame(spark, ScanRequest(stores), sql, reads_of(spark, sql))
        assert frame.rdd.getNumPartitions() == partitions


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT count(*) FROM messages", []),
        ("SELECT /* all */ count(*) FROM (SELECT * FROM messages) WHERE 1*1 = 1", []),
        ("select TOPIC, max(queueoffset) from messages group by 1", ["queueOffset", "topic"]),
        ("SELECT m.`bodyLength` FROM messages m WHERE tags IS NULL", ["bodyLength", "tags"]),
        ("SELECT topic FROM messages UNION ALL SELECT tags FROM messages", ["tags", "topic"]),
        ("SELECT topic FROM messages WHERE size > (SELECT avg(bodyLength) FROM messages)",
         ["bodyLength", "size", "topic"]),
        ("WITH m AS (SELECT * FROM messages) SELECT a.topic FROM m a JOIN m b USING (uniqKey)",
         ["topic", "uniqKey"]),
        ("SELECT IDENTIFIER('top' || 'ic') FROM messages", ["topic"]),
        ("EXPLAIN SELECT tags FROM messages", ["tags"]),
        ("SELECT k FROM messages LATERAL VIEW explode(properties) AS k, v", ["properties"]),
        ("SELECT topic, row_number() OVER (PARTITION BY tags ORDER BY size) FROM messages",
         ["size", "tags", "topic"]),
        ("SELECT count(*) FROM messages WHERE messages.queueId IN (SELECT queueId FROM consume_queue)",
         ["queueId"]),
    ],
)  # fmt: skip
def test_sql_reads_what_it_needs(spark: Any, query: str, columns: list[str]) -> None:
    assert sorted(reads_of(spark, query).columns["messages"]) == columns


@pytest.mark.parametrize(
    "query",
    ["SELECT * FROM messages", "TABLE messages", "-- all\nFROM messages", "FROM messages -- no select",
     "SELECT `0` FROM messages PIVOT (count(topic) FOR queueId IN (0, 1))", "DESCRIBE messages",
    ],
)  # fmt: skip
def test_sql_that_reads_every_column(spark: Any, query: str) -> None:
    """A star, a table as a whole, or groups by all that is left."""
    assert {"topic", "body", "properties", "brokerName"} <= reads_of(spark, query).columns["messages"]


def test_sql_that_names_more_than_it_needs(run: Run, store: Path) -> None:
    """Columns that are not read are there all the same."""
    rows = run("spark-scan", store, "--sql", "SELECT * EXCEPT (body, properties) FROM messages LIMIT 1").rows
    assert len(rows[0]) > 20 and not {"body", "properties"} & set(rows[0])
    inner = "SELECT topic, body, size + 1 AS more FROM messages"
    (row,) = run("spark-scan", store, "--sql", f"SELECT count(topic) AS n FROM ({inner})").rows
    assert [row["n"]] == [each["count"] for each in run("spark-scan", store, "--count").rows]


WRITING = (
    "INSERT OVERWRITE DIRECTORY '{0}/index' USING csv SELECT topic FROM messages",
    "FROM messages INSERT OVERWRITE DIRECTORY '{0}/index' USING csv SELECT topic",
    "WITH m AS (SELECT topic FROM messages) INSERT OVERWRITE DIRECTORY '{0}/index' USING csv SELECT * FROM m",
    "CREATE TABLE t USING csv LOCATION '{0}/index' AS SELECT topic FROM messages",
    "DROP VIEW messages",
    "SET spark.sql.session.timeZone = Asia/Tokyo",
    "EXECUTE IMMEDIATE 'INSERT OVERWRITE DIRECTORY ''{0}/index'' USING csv SELECT 1 a'",
    "SELECT TRANSFORM(topic) USING 'tee {0}/out' AS (y string) FROM messages",
    "SELECT java_method('org.apache.hadoop.fs.FileUtil', 'chmod', '{0}/checkpoint', '000')",
    "WITH t AS (SELECT TRANSFORM(topic) USING 'tee {0}/out' AS (x) FROM messages) SELECT count(*) FROM t",
    "SELECT (SELECT TRANSFORM('a') USING 'tee {0}/out' AS (x)) FROM messages",
    "SELECT 1 FROM messages WHERE EXISTS (SELECT TRANSFORM('a') USING 'tee {0}/out' AS (x))",
    "SELECT IDENTIFIER('refl' || 'ect')('java.lang.System', 'getProperty', 'zz') FROM messages",
    "WITH t AS (SELECT IDENTIFIER('java_' || 'method')('java.lang.System', 'getProperty', 'zz') AS x)"
    " SELECT (SELECT max(x) FROM t) FROM messages",
    "SELECT `reflect`('java.lang.System', 'setProperty', 'zz', '1')",
    "SELECT (SELECT builtin.`Reflect`/**/('java.lang.System', 'getProperty', 'zz')) FROM messages",
    f"SELECT {', '.join(map(str, range(40)))}, reflect ('java.lang.System', 'getProperty', 'zz')",
    "BEGIN INSERT OVERWRITE DIRECTORY '{0}/index' USING csv SELECT topic FROM messages; END",
    "/* /* */ explain */ INSERT OVERWRITE DIRECTORY '{0}/index' USING csv SELECT 1 AS a",
    "-- \\\nexplain\nINSERT OVERWRITE DIRECTORY '{0}/index' USING csv SELECT 1 AS a",
    "EXPLAIN SELECT IDENTIFIER('refl' || 'ect')('org.apache.hadoop.fs.FileUtil', 'chmod',"
    " '{0}/checkpoint', '000') FROM VALUES (1)",
    "EXPLAIN EXECUTE IMMEDIATE 'INSERT OVERWRITE DIRECTORY ''{0}/index'' USING csv SELECT 1 a'",
    "CREATE OR REPLACE TEMPORARY VIEW IDENTIFIER('messages') AS SELECT 1",
    "CALL x.y(1)",
    "INSERT INTO messages SELECT * FROM messages",
)
"""Statements that do more than read."""


@pytest.mark.parametrize("statement", WRITING)
def test_sql_only_reads(spark: Any, tmp_path: Path, statement: str) -> None:
    """A statement that would write is refused before anything is done."""
    with pytest.raises(UsageError, match="--sql accepts only queries"):
        reads_of(spark, statement.format(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("statement", sample(WRITING, 12))
def test_what_sql_refuses_changes_nothing(
    run: Run, store_copy: Callable[[str], Path], statement: str
) -> None:
    path = store_copy(REAL)
    with unchanged(path):
        refused = run("spark-scan", path, "--sql", statement.format(path))
    assert refused.code == 2 and "--sql accepts only queries" in refused.err


def test_sql_that_tells_of_tables(run: Run, store: Path) -> None:
    for statement in (
        "DESCRIBE messages",
        "/* which */ DESCRIBE messages",
        "EXPLAIN SELECT count(*) FROM messages",
        "SHOW VIEWS",
    ):
        found = run("spark-scan", store, "--sql", statement)
        assert found.code == 0 and found.rows, statement


def test_selections_that_a_view_does_not_know(run: Run, store: Path) -> None:
    """A note names them; what holds, and what reads messages only, is not named."""
    chosen = ("--topic", "pubTx", "--tag", "a", "--since", "2020-01-01")
    queries = {
        "SELECT count(*) FROM consume_queue": ["consume_queue ignores --tag, --since"],
        "SELECT count(*) FROM index_entries": ["index_entries ignores --topic, --tag, --since"],
        "SELECT count(*) FROM messages": [],
    }
    for query, notes in queries.items():
        found = run("spark-scan", store, "--sql", query, *chosen)
        told = [line for line in found.err.splitlines() if " ignores --" in line]
        assert (found.code, told) == (
            0,
            [f"rmqtool: {note}: these options select only messages" for note in notes],
        )
    quiet = run("spark-scan", store, "--sql", "SELECT count(*) FROM consume_queue", "--topic", "pubTx")
    assert " ignores --" not in quiet.err


@pytest.mark.parametrize("count", [*in_sweeps([20_000]), 501])
def test_sql_that_is_nested_too_deeply(run: Run, store: Path, count: int) -> None:
    """Refused before Spark's parser sees it, which takes minutes."""
    for opens, closes in ("()", "[]"):
        found = run("spark-scan", store, "--sql", f"SELECT {opens * count}1{closes * count}")
        assert found.code == 2 and "the query is nested too deeply" in found.err
    text = "(" * count
    for quoted in (f"'{text}'", f"'{text}' -- it's {text}", f"/* it's {text} */ '{text}'"):
        assert run("spark-scan", store, "--sql", f"SELECT length({quoted}\n) AS n").rows == [{"n": count}]


def test_sql_that_python_has_no_value_for(run: Run, store: Path) -> None:
    late = run("spark-scan", store, "--sql", "SELECT DATE'+99999-01-01' AS day")
    assert late.code == 3 and "AS STRING" in late.err
    assert run("spark-scan", store, "--sql", """SELECT parse_json('{"a":1}') AS v""").rows == [
        {"v": '{"a":1}'}
    ]


VALUES = (
    ("CAST(12345678901234567890.123456789012345678 AS DECIMAL(38,18))",
     "12345678901234567890.123456789012345678"),
    ("TIMESTAMP'9999-12-31 23:59:59'", "9999-12-31T23:59:59.000+00:00"),
    ("TIMESTAMP_NTZ'2026-03-31 02:30:00'", "2026-03-31T02:30:00.000"),
    ("TIMESTAMP'1969-12-31 23:59:59.9995Z'", "1970-01-01T00:59:59.999500+01:00"),
    ("named_struct('a', 1, 'a', X'ff')", {"a": 1, "a_2": "/w=="}),
    ("map(X'61', array(1.25, NULL))", {"a": [1.25, None]}),
    ("array(double('NaN'), double('-inf'), 0.5D)", ["NaN", "-Infinity", 0.5]),
    ("INTERVAL '1 2' DAY TO HOUR", "1 02:00:00"),
    ("INTERVAL '-1.5' SECOND", "-0 00:00:01.500000"),
    ("map(true, float(0.1))", {"true": 0.1}),
    ("TIMESTAMP'2024-06-01 12:00:00.123456Z'", "2024-06-01T14:00:00.123456+02:00"),
    ("'reflect('", "reflect("),
)  # fmt: skip
"""Values of SQL, and what is shown of them."""


def test_values_of_sql(run: Run, store: Path) -> None:
    """Nothing gets lost on the way to JSON."""
    columns = ", ".join(f"{value} AS v{number}" for number, (value, _) in enumerate(VALUES))
    found = run("spark-scan", store, "--tz", "Europe/Berlin", "--sql", f"SELECT {columns}")
    assert found.rows == [{f"v{number}": shown for number, (_, shown) in enumerate(VALUES)}]


def test_names_of_sql_that_are_there_twice(run: Run, store: Path) -> None:
    """The number that tells them apart makes no name that is there already."""
    found = run("spark-scan", store, "--sql", "SELECT 1 AS a_3, 2 AS a, 3 AS a, struct(4 AS b, 5 AS b) AS s")
    assert found.rows == [{"a_3": 1, "a": 2, "a_4": 3, "s": {"b": 4, "b_2": 5}}]


@pytest.mark.parametrize("value", ["map(array(1), 2)", "INTERVAL '1' YEAR", "make_interval(1, 2)"])
def test_values_of_sql_that_do_not_reach_python(run: Run, store: Path, value: str) -> None:
    found = run("spark-scan", store, "--sql", f"SELECT {value} AS v")
    assert found.code == 3 and "AS STRING" in found.err


def test_sql_of_many_types(run: Run, store: Path) -> None:
    """What SQL gives back is JSON."""
    query = """SELECT body, keys, properties, storeTimestamp, CAST(1.50 AS DECIMAL(5,2)) AS price, queueId,
        queueId FROM messages ORDER BY physicalOffset LIMIT 1"""
    row = run("spark-scan", store, "--sql", query).rows[0]
    first = run("dump", store, "--limit", "1").rows[0]
    assert (row["body"], row["keys"], row["properties"]) == (
        first["body"],
        first["keys"],
        first["properties"],
    )
    assert (row["storeTimestamp"], row["price"], row["queueId_7"]) == (first["store_time"], 1.5, 0)


@pytest.mark.parametrize(
    "name",
    [DAMAGED, *in_sweeps([REAL, "bad_cq04_misaligned"]), "bad_ix02_chain_loop", "kind_tiered_540/tiered"],
)
def test_verify_finds_the_same(run: Run, cases: Library, name: str) -> None:
    """Findings in their order, and the exit code."""
    folder, _, inner = name.partition("/")
    path = cases.path(folder) / inner
    with unchanged(path):
        here, there = run("verify", path), run("spark-scan", path, "--verify")
    assert (there.code, there.rows) == (here.code, here.rows)
    said = [line for line in there.err.splitlines(keepends=True) if not line.startswith("spark stage ")]
    assert "".join(said).partition(" (")[0] == here.err.partition(" (")[0]


def test_several_stores(run: Run, cases: Library, store: Path) -> None:
    """Rows of both, told apart; findings name the broker."""
    other = cases.path(DAMAGED)
    groups = run("spark-scan", [store, other], "--group-by", "broker_name")
    assert {row["broker_name"] for row in groups.rows} == {REAL, DAMAGED}
    assert groups.code == 1
    assert "damaged range" in groups.err
    found = run("spark-scan", [store, other], "--verify")
    with Store.open(other) as opened:
        codes = [each.problem.code for each in verify(opened)]
    assert [row["problem"] for row in found.rows if row["broker_name"] == DAMAGED] == codes
    assert found.code == 1


def test_rebuild_report(run: Run, cases: Library, store_copy: Callable[[str], Path]) -> None:
    """The queues that rebuild would make anew, with their units."""
    path = store_copy("ok_540_clean")
    sound = run("spark-scan", path, "--rebuild-report")
    assert (sound.code, sound.rows) == (0, [])
    file = sorted((path / "consumequeue" / "pubRetry" / "0").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[20:40] = bytes(20)
    file.write_bytes(data)
    damaged = run("spark-scan", path, "--rebuild-report")
    assert damaged.code == 1
    assert [(row["part"], row["path"], row["units"]) for row in damaged.rows] == [
        ("queues", "consumequeue/pubRetry/0", 1)
    ]
    planned = run("rebuild", path).rows
    assert {row["path"].rpartition("/")[0] for row in planned} >= {row["path"] for row in damaged.rows}


def test_what_is_not_there_is_told(run: Run, cases: Library, store: Path) -> None:
    """Topics of no store, and names that are not looked for inside of batch records."""
    unknown = run("spark-scan", store, "--topic", "nope", "--count")
    assert (unknown.code, unknown.rows) == (1, [{"count": 0}])
    assert "no topic nope" in unknown.err
    expired = cases.path("ok_540_expired")
    assert (
        run("spark-scan", expired, "--from-offset", "0", "--to-offset", "9000000000", "--count").rows
        == run("spark-scan", expired, "--count").rows
    )
    inside = run("spark-scan", cases.path("ok_540_clean"), "--key", "key-3914")
    assert (inside.code, inside.rows) == (0, [])
    assert "rmqtool lookup also searches the messages inside" in inside.err


@pytest.mark.parametrize("form", ["parquet", *in_sweeps(["jsonl", "orc"]), "csv"])
def test_output(run: Run, store: Path, tmp_path: Path, form: str) -> None:
    """Files hold all messages; folders part them."""
    target = tmp_path / "out"
    parts = ("--partition-by", "topic") if form in ("parquet", "csv") else ()
    result = run("spark-scan", store, "--output", str(target), "--output-format", form, *parts)
    assert result.code == 0, result.err
    rows = run("dump", store).rows
    known = {"jsonl": "json"}.get(form, form)
    table = pyarrow.dataset.dataset(target, format=known, partitioning="hive").to_table()
    assert sorted(table["physical_offset"].to_pylist()) == [row["physical_offset"] for row in rows]
    if parts:
        assert {unquote(path.name) for path in target.glob("topic=*")} == {
            f"topic={row['topic']}" for row in rows
        }
    again = run("spark-scan", store, "--output", str(target))
    assert again.code == 4


def test_explain_tells_what_is_pruned(run: Run, store: Path) -> None:
    """Files, bytes and records that are read, against all."""
    (row,) = run("spark-scan", store, "--explain", "--since", "2026-11-21T08:51:00Z").rows
    assert row["bytes_read"] <= row["bytes_total"] == 4 << 20
    assert 0 < row["estimated_records_read"] <= row["estimated_records_total"]
    assert row["partitions"] >= 1
    (topic,) = run("spark-scan", store, "--explain", "--topic", "pubRetry").rows
    assert (topic["access"], topic["estimated_records_read"]) == ("queue", 12)
    (nothing,) = run("spark-scan", store, "--explain", "--since", "2030-01-01T00:00:00Z").rows
    assert nothing["bytes_read"] < row["bytes_total"]
    (whole,) = run("spark-scan", store, "--explain").rows
    known = len(run("dump", store).rows)
    assert (whole["estimated_records_read"], whole["estimated_records_total"]) == (known, known)
    (half,) = run("spark-scan", store, "--explain", "--from-offset", str(3 << 20)).rows  # half of it is empty
    there = len(run("dump", store, "--from-offset", str(3 << 20)).rows)
    assert abs(half["estimated_records_read"] - there) < there / 5
    (unknown,) = run("spark-scan", store, "--explain", "--topic", "nosuch").rows
    assert f"; {unknown['bytes_read']} bytes are of the log itself" in unknown["reason"]
