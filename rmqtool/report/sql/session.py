"""Queries by DuckDB, in a database of its own in memory that reaches nothing but the tables of the stores.

DuckDB's configuration forbids files, extensions and Python objects, and is locked before a query runs. Only
statements that read are accepted. What does not fit the memory limit goes to a new folder for temporary
files, which is removed at the end. A folder that a killed run has left is removed by the next run.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any, Final

from rmqtool.errors import InputError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.claim import locked_folder

if TYPE_CHECKING:
    from datetime import tzinfo

    import duckdb
    import pyarrow as pa

    from rmqtool.message.rows import Row
    from rmqtool.report.sql.tables import Scans

MEMORY_BYTES: Final = 1 << 30
"""Memory of a query by default."""
MEMORY_MIN: Final = 64 << 20
"""DuckDB needs about this much for a scan of some threads."""
_BATCH_ROWS: Final = 2048
_SIGNALS_S: Final = 0.2  # a signal may arrive just before a wait begins, and wake no thread
_FOLDER: Final = "rmqtool-sql-"
_NEW_S: Final = 60
_READS: Final = ("SELECT", "EXPLAIN")
"""The types of statements that only read: DESCRIBE, SHOW and SUMMARIZE count as SELECT."""
_UNKNOWN_COLUMN: Final = pattern(
    r'(?:Referenced column|does not have a column named) "((?:[^"]|"")+)"(?: not found in FROM clause)?'
)
_NAME: Final = pattern(rb'"([^"]+)"|([A-Za-z_]\w*)')
_KIND: Final = pattern(r"^[A-Z][A-Za-z ]*(?:Error|error): ")


@dataclass
class Result:
    """The result of a query while it runs.

    Attributes:
        names: of the columns, each once.
        types: DuckDB's types of the columns.
    """

    names: Sequence[str]
    types: Sequence[str]
    _reader: pa.RecordBatchReader
    _scans: Scans
    _worker: _Worker

    def rows(self, tz: tzinfo | None) -> Iterator[Row]:
        """The rows as they are computed, times in `tz`. Raises as `Session.run`."""
        from rmqtool.message.arrow_rows import rows_of

        while True:
            with _explained(self._scans):
                try:
                    batch = self._worker.call(self._reader.read_next_batch)
                except StopIteration:
                    return
            yield from rows_of(batch, tz)


@dataclass
class Session:
    """Runs queries, each in a new database.

    Attributes:
        memory_bytes: how much memory DuckDB may use.
        threads: how many threads DuckDB may use.
        temp_folder: for the temporary files of DuckDB; None: what does not fit the memory is an error.
    """

    memory_bytes: int = MEMORY_BYTES
    threads: int = 1
    temp_folder: Path | None = None

    @contextmanager
    def run(self, sql: str, scans: Scans) -> Iterator[Result]:
        """Start a query over the tables of `scans`; it ends with the context.

        Raises:
            UsageError: a query that DuckDB refuses, that does more than read, or that needs more memory.
            RmqtoolError: what a scan raises.
        """
        from rmqtool.message.result_values import numbered

        with ExitStack() as stack:
            database = stack.enter_context(closing(self._connect()))
            stack.enter_context(closing(scans))
            for name, table in scans.tables().items():
                database.register(name, table)
            with _explained(scans):
                _check(database, sql)
                worker = stack.enter_context(closing(_Worker(database)))
                relation = worker.call(lambda: _relation(database, sql))
                types = [str(each) for each in relation.types]
                reader = stack.enter_context(worker.call(lambda: relation.to_arrow_reader(_BATCH_ROWS)))
            yield Result(numbered(relation.columns), types, reader, scans, worker)

    def split(self, text: str) -> list[str]:
        """The queries of a text, in their order. Raises UsageError for one that cannot be parsed."""
        _check_text(text)
        with closing(self._connect()) as database, _explained(None):
            return [each.query for each in database.extract_statements(text)]

    def _connect(self) -> duckdb.DuckDBPyConnection:
        spill = "" if self.temp_folder is None else str(self.temp_folder)
        try:
            database: duckdb.DuckDBPyConnection = _duckdb().connect(":memory:")
        except _duckdb().OutOfMemoryException as error:  # the system's limit, not that of the query
            raise MemoryError from error
        for name, value in (
            ("memory_limit", f"{self.memory_bytes}B"),
            ("threads", self.threads),
            ("temp_directory", spill),
            ("TimeZone", "UTC"),
            ("enable_external_access", False),
            ("python_enable_replacements", False),
            ("autoinstall_known_extensions", False),
            ("autoload_known_extensions", False),
            ("allow_community_extensions", False),
            ("enable_progress_bar", False),
            ("lock_configuration", True),
        ):
            database.execute(f"SET {name} = {_literal(value)}")
        return database


class _Worker:
    """Runs the calls of a database in a thread of its own, one at a time.

    DuckDB looks at signals in some of its loops only: the main thread waits in Python, and interrupts it.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._pool = ThreadPoolExecutor(1, "rmqtool-sql")

    def call(self, work: Callable[[], Any]) -> Any:
        """Return the result of `work`, or raise its error. KeyboardInterrupt ends it first."""
        future = self._pool.submit(work)
        try:
            while True:
                try:
                    return future.result(_SIGNALS_S)
                except TimeoutError:
                    if future.done():  # in the meantime, or with a TimeoutError of its own
                        return future.result()
        except KeyboardInterrupt:
            self._database.interrupt()
            wait([future])
            raise

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()


@contextmanager
def session(memory_bytes: int | None = None, threads: int = 1) -> Iterator[Session]:
    """A session with a folder for temporary files in TMPDIR, removed at the end.

    Raises:
        InputError: DuckDB is not installed.
    """
    _duckdb()
    with ExitStack() as stack:
        folder: Path | None = None
        if os.access(gettempdir(), os.W_OK):
            folder = Path(stack.enter_context(TemporaryDirectory(prefix=_FOLDER)))
            _remove_left(folder.parent)
            with suppress(OSError):  # a file system without locks
                stack.enter_context(locked_folder(folder))
        yield Session(memory_bytes or MEMORY_BYTES, max(threads, 1), folder)


def _remove_left(place: Path) -> None:
    """Removes the folders of killed runs of this user; one that is new may not have its lock yet."""
    for folder in place.glob(f"{_FOLDER}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid == os.geteuid() and status.st_mtime < time.time() - _NEW_S:
                with locked_folder(folder):
                    shutil.rmtree(folder)


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise InputError("DuckDB is not installed", hint="pip install 'rmqtool[sql]'") from error
    return duckdb


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def _check_text(sql: str) -> None:
    """Raises UsageError for a text that DuckDB does not take."""
    if "\0" in sql:
        raise UsageError("the query has a character 0")
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise UsageError("the query is not UTF-8") from None


def _check(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises UsageError unless a text is one statement that reads."""
    _check_text(sql)
    statements = database.extract_statements(sql)
    if not statements:
        raise UsageError("the query is empty")
    if len(statements) > 1:
        raise UsageError(
            f"{len(statements)} queries are given", hint="give one, or pass them on standard input"
        )
    kind = statements[0].type.name
    if kind not in _READS:
        raise UsageError(
            f"sql accepts only queries, and this is {kind}",
            hint="SELECT ..., or rmqtool export to write files",
        )


def _relation(database: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """The query, bound to the tables; columns may have the names of `dump` and `export`, as body_length."""
    duckdb = _duckdb()
    try:
        return database.sql(sql)
    except duckdb.BinderException as error:
        other = with_table_names(sql)
        if other == sql or not _UNKNOWN_COLUMN.search(str(error)):
            raise
        return database.sql(other)


def with_table_names(sql: str) -> str:
    """A query in which the names of columns that `dump` and `export` show are those of the tables."""
    from rmqtool.report.sql.tables import OTHER_NAMES

    duckdb = _duckdb()
    data, done, pieces = sql.encode(), 0, []
    words = (
        duckdb.token_type.identifier,
        duckdb.token_type.keyword,
    )  # `version` is a keyword for the scanner
    for start, kind in duckdb.tokenize(sql):
        if kind not in words or (found := _NAME.match(data, start)) is None:
            continue
        name = OTHER_NAMES.get((found[1] or found[2]).decode().lower())
        if name is not None:
            pieces += [data[done:start], name.encode()]
            done = found.end()
    return b"".join([*pieces, data[done:]]).decode()


@contextmanager
def _explained(scans: Scans | None) -> Iterator[None]:
    """Turn errors of DuckDB into one line; an error of a scan is raised as it was."""
    import pyarrow as pa

    duckdb = _duckdb()
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError, UnicodeError, RuntimeError, ValueError) as error:
        if scans is not None and scans.error is not None:
            raise scans.error from error
        if isinstance(error, duckdb.InterruptException):
            raise KeyboardInterrupt from error
        if isinstance(error, UsageError):
            raise
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
            hint = "--memory-limit 4G"
            raise UsageError("the query needs more memory than it may use", hint=hint) from error
        raise _usage_error(str(error)) from error


_NOT_TEXT = "Failure in decode"
_OF_BYTES = pattern(r"^No function matches .*[(, ]BLOB[,)]")


def _usage_error(text: str) -> UsageError:
    """The error for a message of DuckDB: its first line, and what it suggests as the hint."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = _KIND.sub("", lines[0]) if lines else "the query failed"
    unknown = _UNKNOWN_COLUMN.search(first)
    if unknown is not None and "FROM clause is missing" not in first:
        return _unknown_column(unknown[1])
    if first.startswith(_NOT_TEXT):
        return UsageError(first, hint="for bodies that are text: WHERE body_encoding = 'utf-8'")
    if _OF_BYTES.search(first):
        return UsageError(first, hint="body is bytes: octet_length(body), or decode(body) for its text")
    hints = [line for line in lines[1:] if line.startswith(("Did you mean", "Candidate"))]
    if hints and hints[0].endswith(":"):  # the candidates follow, one in each line
        others = lines[lines.index(hints[0]) + 1 :]
        hints[0] += " " + ", ".join(takewhile(lambda line: not line.startswith("LINE "), others))
    return UsageError(first, hint=hints[0] if hints else None)


def _unknown_column(name: str) -> UsageError:
    """The error for a column that the tables of the query lack: where it is, or the nearest names."""
    from difflib import get_close_matches

    from rmqtool.report.sql.tables import OTHER_NAMES, SCHEMAS

    names = {each.lower(): each for schema in SCHEMAS.values() for each in schema.names} | OTHER_NAMES
    there = [view for view, schema in SCHEMAS.items() if names.get(name.lower()) in schema.names]
    if there:
        return UsageError(
            f"unknown column: {name}",
            hint=f"it is a column of {' and '.join(there)}, which the query does not read",
        )
    near = dict.fromkeys(names[each] for each in get_close_matches(name.lower(), names, n=3))
    nearest = f"nearest: {', '.join(near)}; " if near else ""
    return UsageError(
        f"unknown column: {name}", hint=f"{nearest}DESCRIBE messages lists all columns of a table"
    )
