"""Inputs of messages: files and pipes of rows become Arrow batches of `table.schema`.

reader.py                     an input, whatever its format: `Input.batches`, `Input.messages`
json_rows.py, json_columns.py, json_kernel.py     JSON lines, by msgspec and in compiled code
files.py                      CSV, Parquet, Arrow
columns.py, rows.py           what the columns of a row mean, for whole columns and value by value
append.py                     an input into a store, or only checked
"""

__all__ = ["append", "reader", "rows"]
