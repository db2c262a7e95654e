"""`rmqtool sql` gives the rows of `spark-scan --sql`, and of the same names and types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.scan_runs import Row, Run, runner
from tests.support.stores import Library
from tests.support.sweep import sample

pytestmark = pytest.mark.sweep

REAL = "ok_540_clean"
OTHER = "ok_497_expired"
DAMAGED = ("bad_cl04_wrong_length", "gap_cl08_zeroed_page")


@pytest.fixture
def run(spark: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """Runs the commands; those of Spark in the shared session."""
    yield runner(capfdbinary)


QUERIES = (
    "SELECT * FROM messages WHERE topic IN ('pubRetry', 'pubTx') ORDER BY physicalOffset",
    "SELECT topic, count(*) AS n, sum(size) AS bytes, min(queueOffset) AS first FROM messages"
    " GROUP BY topic ORDER BY topic",
    "SELECT tags, count(DISTINCT uniqKey) AS n FROM messages WHERE topic = 'pubMultiTag' GROUP BY tags"
    " ORDER BY tags NULLS FIRST",
    "SELECT physicalOffset, storeTimestamp, bornTimestamp, keys, properties FROM messages"
    " WHERE storeTimestamp >= '2026-11-21T08:50:33Z' AND queueId = 1 ORDER BY physicalOffset",
    "SELECT physicalOffset, status, body FROM messages WHERE physicalOffset BETWEEN 359 AND 9000"
    " ORDER BY physicalOffset",
    "SELECT topic, queueId, count(*) AS n, max(queueOffset) AS last, min(tagsCode) AS code"
    " FROM consume_queue GROUP BY topic, queueId ORDER BY topic, queueId",
    "SELECT * FROM consume_queue WHERE topic = 'pubTx' ORDER BY queueId, queueOffset",
    "SELECT * FROM index_entries ORDER BY file, entry LIMIT 200",
    "SELECT m.topic, count(*) AS n FROM messages m JOIN index_entries e"
    " ON m.physicalOffset = e.physicalOffset WHERE m.topic LIKE 'pub%' GROUP BY m.topic ORDER BY m.topic",
    "SELECT a.physicalOffset FROM messages a LEFT JOIN consume_queue b"
    " ON a.physicalOffset = b.physicalOffset AND b.queueId = 0 WHERE b.size IS NULL ORDER BY 1",
    "WITH big AS (SELECT * FROM messages WHERE bodyLength > 1000) SELECT topic, avg(bodyLength) AS mean,"
    " max(bodyCompression) AS how FROM big GROUP BY topic ORDER BY topic",
    "SELECT DISTINCT brokerName, magicVersion, storeHost FROM messages ORDER BY 1, 2, 3",
    "SELECT count(*) AS n FROM messages WHERE tags IS NULL OR tags <> 'flaky'",
)


@pytest.mark.parametrize("query", sample(QUERIES, 4))
def test_rows_are_those_of_spark(run: Run, cases: Library, query: str) -> None:
    """Values, names, types and order."""
    path = cases.path(REAL)
    here, there = run("sql", path, query), run("spark-scan", path, "--sql", query)
    assert here.code == there.code == 0 and here.rows
    assert here.rows == there.rows
    assert [list(row) for row in here.rows] == [list(row) for row in there.rows]


@pytest.mark.parametrize("name", sample(DAMAGED, 2))
def test_damage_is_a_row_as_in_spark(run: Run, cases: Library, name: str) -> None:
    """Where the query reads the status; otherwise only the messages count."""
    path = cases.path(name)
    for query in (
        "SELECT physicalOffset, size, status, file, topic FROM messages ORDER BY physicalOffset",
        "SELECT count(*) AS n, count(topic) AS m FROM messages",
    ):
        here, there = run("sql", path, query), run("spark-scan", path, "--sql", query)
        assert here.rows == there.rows and here.code == 1 and here.err


def test_selections_and_stores_are_those_of_spark(run: Run, cases: Library) -> None:
    """Options that select messages, and several stores."""
    first, second = cases.path(REAL), cases.path(OTHER)
    query = "SELECT brokerName, topic, count(*) AS n FROM messages GROUP BY 1, 2 ORDER BY 1, 2"
    options = ("--topic", "pub*", "--exclude-topic", "pubTx", "--queue", "0-1")
    there: list[Row] = run("spark-scan", [first, second], "--sql", query, *options).rows
    assert there and run("sql", first, query, "--store", str(second), *options).rows == there
