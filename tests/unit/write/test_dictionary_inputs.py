"""Columns of Arrow and Parquet files whose values are in a dictionary."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from rmqtool.write.ingest import files
from rmqtool.write.ingest.rows import RowRules


@pytest.mark.parametrize("way", ["parquet", "arrow", "stream"])
def test_values_of_a_dictionary_count_in_every_row(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of some hundred bytes can stand for gigabytes: no piece decodes to more than a batch has."""
    monkeypatch.setattr(files, "BATCH_SIZE", 1000)
    numbers = pa.array([0] * 30 + [1, None] * 10 + [0] * 5, pa.int32())
    body = pa.DictionaryArray.from_arrays(numbers, pa.array([b"x" * 400, b"y"]))
    table = pa.table({"topic": pa.array(["T"] * len(numbers)), "body": body})
    path = tmp_path / "rows"
    if way == "parquet":
        parquet.write_table(table, path)
    else:
        with (ipc.new_stream if way == "stream" else ipc.new_file)(path, table.schema) as writer:
            writer.write_table(table)
    with path.open("rb") as file:
        if way == "parquet":
            pieces = list(files.parquet_rows(file, RowRules(), lambda size: None))
        else:
            pieces = list(files.arrow_rows(file, RowRules(), stream=way == "stream"))
    bodies = [piece.columns["body"].to_pylist() for piece in pieces]
    assert [value for each in bodies for value in each] == body.to_pylist()
    assert [number for piece in pieces for number in piece.numbers] == [*range(1, len(numbers) + 1)]
    assert max(sum(len(value or b"") for value in each) for each in bodies) <= 1000
    assert max(map(len, bodies)) > 5  # those with the short value stay together
