"""One task of Spark: it reads one piece of one store, and returns its rows as Arrow batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rmqtool.errors import InputError
from rmqtool.log.damage import CODE_BY_STATUS
from rmqtool.message.columns import NAMES
from rmqtool.problems import BY_CODE, Finding
from rmqtool.spark.bounds import DataLossError
from rmqtool.spark.convert import Converter, sound
from rmqtool.spark.errors import explain_errors
from rmqtool.spark.request import ExtraFilter
from rmqtool.spark.schema import RequestedColumn, arrow_schema_of, shows_damage
from rmqtool.spark.stores import open_place

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions
    from rmqtool.spark.partitions import Piece

_OF_RECORDS = frozenset(CODE_BY_STATUS.values())
"""The codes of damage of a record, which is still a row, with the code in `status`."""
_REPORTED_MAX = 20  # findings that a task reports on stderr


class DamageError(InputError):
    """Damage was met while `mode` is FAILFAST."""


def read_piece(
    piece: Piece, options: SourceOptions, columns: Sequence[RequestedColumn], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in batches of at most `maxRowsPerBatch` rows and about `maxBytesPerBatch` bytes.

    Raises:
        DamageError: damage, when `mode` is FAILFAST.
        DataLossError: files have gone since the read was planned, unless `failOnDataLoss` is false.
        InputError: the store cannot be read.
    """
    with explain_errors():
        yield from _read(piece, options, columns, schema)


def _read(
    piece: Piece, options: SourceOptions, columns: Sequence[RequestedColumn], schema: StructType
) -> Iterator[pa.RecordBatch]:
    from rmqtool.read.messages import message_batches

    converter = Converter(columns, arrow_schema_of(schema), piece.place.broker_name, options.include_body)
    keep = ExtraFilter(piece.request.rest)
    judges = options.mode != "PERMISSIVE"
    read = converter.columns | piece.request.rest.columns | ({"status"} if judges else set())
    names = [name for name in NAMES if name in read] or ["size"]
    unpacks = options.decompress and (options.include_body or "body" in names)
    damage = _Damage(piece, options, shows_damage(columns))
    with _store_of(piece, options) as store:
        damage.check_files(store)
        batches = message_batches(
            store,
            piece.request.selection,
            columns=names,
            access=piece.access,
            body="plain" if unpacks else "stored",
            max_rows=options.batch_rows,
            max_bytes=options.batch_bytes,
            crc=options.verify_crc and "status" in names,
            report=damage.report,
        )
        for batch in batches:
            batch = keep(batch)
            if judges:
                batch = damage.judged(batch)
            if damage.rows:
                yield converter.damage(damage.take())
            if len(batch):
                yield converter.batch(batch)
        if damage.rows:
            yield converter.damage(damage.take())


_opened: dict[tuple[str, str], Store] = {}


def _store_of(piece: Piece, options: SourceOptions) -> Store:
    """The store of a piece, opened once for all pieces of a plan that one worker reads."""
    key = (piece.plan, piece.place.path)
    if key not in _opened:
        store = open_place(piece.place, options)
        _opened.clear()
        _opened[key] = store
    return _opened[key]


class _Damage:
    """Handles the damage that a task meets."""

    def __init__(self, piece: Piece, options: SourceOptions, shown: bool) -> None:
        """`shown`: rows can say that they are damage."""
        self._piece = piece
        self._options = options
        # Also where options select by topic or key: what is damaged may be what they are to give.
        self._shown = shown and options.mode == "PERMISSIVE"
        self._reported = 0
        self.rows: list[Finding] = []

    def take(self) -> list[Finding]:
        """Return the damaged ranges since the last call, which become rows."""
        rows, self.rows = self.rows, []
        return rows

    def check_files(self, store: Store) -> None:
        """Raise DataLossError for a file that has gone since the read was planned, if that is an error.

        Raises:
            InputError: a queue of queue logs has got a segment since, so that others have other places.
        """
        layout = store.layout
        there = {layout.relative(file.path): file.file_from_offset for file in layout.commit_log}
        for each in self._piece.access.ranges:
            if each.path not in there:
                self._lost(each.path, each.start)
            elif there[each.path] != each.file_from_offset:
                raise InputError(
                    "segments have been added since the read was planned",
                    path=self._piece.place.path,
                    hint="run the query again",
                )

    def _lost(self, path: str, physical_offset: int) -> None:
        what = "the file has gone since the read was planned: its messages are lost"
        if self._options.fail_on_data_loss:
            raise DataLossError(what, path=path, physical_offset=physical_offset)
        self._report(f"{what}: {self._piece.place.path}: {path}")

    def report(self, found: Finding) -> None:
        """Report a damaged range that is skipped, or a record with a wrong status."""
        problem, start = found.problem, found.physical_offset
        if problem.severity == "note":
            return
        where = found.path if start is None else f"{found.path} at {start}"
        if problem.code in _OF_RECORDS and start is not None:
            if not self._shown:
                self._report(f"{problem.code} {problem.message}: {where}")
            return
        if problem.code == "CL12" and start is not None and not self._is_there(found.path):
            self._lost(found.path, start)
            return
        if self._options.mode == "FAILFAST":
            raise DamageError(f"{problem.code} {problem.message}", path=found.path, physical_offset=start)
        if self._shown and (start is None or self._piece.request.selection.matches_offset(start)):
            self.rows.append(found)  # one without an offset is of the whole log
        else:
            self._report(f"{problem.code} {problem.message}: {where}")

    def _is_there(self, path: str) -> bool:
        with open_place(self._piece.place, self._options) as store:
            return path in {store.layout.relative(file.path) for file in store.layout.commit_log}

    def _report(self, what: str) -> None:
        """Print a message that no row holds to the task's stderr; only the first ones are printed."""
        if self._reported < _REPORTED_MAX:
            print(f"rmqtool: {self._piece.place.broker_name}: {what}", file=sys.stderr)  # noqa: T201
        self._reported += 1

    def judged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The sound rows of a batch; raises DamageError with FAILFAST where one is not."""
        good = sound(batch.column("status"))
        if good.all():
            return batch
        if self._options.mode == "FAILFAST":
            row = batch.slice(int(good.argmin()), 1)
            codes = row.column("status")[0].as_py()
            messages = ", ".join(f"{code} {BY_CODE[code].message}" for code in codes)
            raise DamageError(f"a record is damaged: {messages}", path=self._piece.place.path)
        return batch.filter(pa.array(good))
