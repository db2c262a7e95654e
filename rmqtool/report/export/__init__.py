"""Messages of a store as files: the engine of `rmqtool export`.

    request.py   the request, checked; the names of its files and partitions
    columns.py   which columns, and what has to be read for them
    text.py      columns as lines of JSON and CSV
    lines.py     the same for dump and tail, identical to the text of their rows
    hit_lines.py the same for hits of lookup
    writers.py   one file of each format
    outputs.py   local folders, object stores, other URLs; a file appears when it is complete
    records.py   bytes of records, read a second time
    cursor.py    where the next run continues
    run.py       a whole export

Batches come from `read.messages`, in the order of the log. Damage is reported.
"""

__all__ = ["columns", "hit_lines", "lines", "new_file", "outputs", "request", "run", "text"]
