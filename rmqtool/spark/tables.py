"""The tables `units` and `index_entries`: the driver lists and groups files, a task reads them.

The driver lists the files and groups them into partitions; a task makes the requested columns of their
blocks (`read/table_files`). The columns are those of `schema.TABLE_FIELDS`; a `Block` has their values by
`Field.source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rmqtool.read.table_files import TableFile, column_array, index_files, queue_files
from rmqtool.spark.bounds import check_names, queue_test
from rmqtool.spark.errors import explain_errors
from rmqtool.spark.stores import find_places, open_place

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqtool.spark.options import SourceOptions
    from rmqtool.spark.schema import RequestedColumn

_TASK_BYTES: Final = 64 << 20
_TASK_FILES: Final = 200


def plan_files(options: SourceOptions) -> list[list[TableFile]]:
    """The files that a read of a table reads, in the order of stores and files, by task.

    Raises:
        DataLossError: a topic that options name is not there, unless `failOnDataLoss` is false.
        UsageError, InputError: a store cannot be found or read.
    """
    stores, files = [], list[TableFile]()
    for place in find_places(options):
        with open_place(place, options) as store:
            stores.append((place, store))
            if options.table == "units":
                files += queue_files(place.broker_name, store, queue_test(options))
            else:
                files += index_files(place.broker_name, store)
    check_names(options, stores)
    tasks: list[list[TableFile]] = []
    size, size_max = 0, options.max_bytes_per_partition or _TASK_BYTES
    for each in files:
        if not tasks or size + each.file.size > size_max or len(tasks[-1]) >= _TASK_FILES:
            tasks.append([])
            size = 0
        tasks[-1].append(each)
        size += each.file.size
    return tasks


def read_files(
    files: Sequence[TableFile], columns: Sequence[RequestedColumn], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of files with the columns `columns`, of which `schema` is Spark's. Raises InputError."""
    import pyarrow as pa

    sources = [each.field.source for each in columns]  # only the broker has none
    with explain_errors():
        for file in files:
            for rows, values in file.blocks():
                if rows:
                    arrays = [
                        column_array(values[source] if source else file.broker_name, rows, field.type)
                        for source, field in zip(sources, schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
