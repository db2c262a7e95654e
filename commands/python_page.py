"""The text of rmqtool-python(7): the public names of the Python package, with examples that run.

Paragraphs, `## headings`, `- ` entries (a term, a full stop, its text) and fenced blocks. The tests run every
example in a folder that holds a real store as `store`, and compare the entries with `rmqtool.__all__`.
"""

TEXT = r"""
## Description

Everything that the commands do is also a Python function. The names on this page are imported from `rmqtool`
and stay compatible within a version series; all other modules may change. `import rmqtool` is fast, because a
name is loaded when it is first used. The docstring of each name lists its arguments and the errors that it
raises (`help(rmqtool.lookup)`).

Offsets are in bytes, times in milliseconds since 1970, and ranges are half-open. Reading never changes a
store and works while a broker uses it. Every error is an `rmqtool.RmqtoolError` with `message`, `hint` and
`exit_code`. Damage is not an error: functions that find damage call `report` with a `Finding`, or skip it.

## Names

- Store. A store that is open for reading. `Store.open` takes a folder, a single file, an archive or a URL.
`messages`, `get`, `get_by_id`, `get_by_queue_offset` and `queue_messages` return stored messages; `queues`,
`min_offset` and `max_offset` describe queues.
- Selection. Conditions that messages must match: topics (globs), queues, tags, keys, times, physical offsets;
and a limit.
- StoredMessage. A record with its place: `message`, `physical_offset`, `file`, `status`.
- Message. The fields of a record, as stored.
- message_row. The columns of a message as a dictionary, with body and properties decoded: what `dump` prints.
- message_batches. The selected messages as Arrow record batches; it uses queues and index where that saves
reading.
- lookup. Finds messages by key, unique key, tag, message id or offset, through the index. The kind `any`
  takes message ids, unique keys and keys.
- lookup_columns. Finds the messages of thousands of keys and returns their places as columns, at several
hundred thousand keys a second.
- Hit. A result of `lookup`: `stored`, `found_by`, `names`.
- export. Writes messages to Parquet, Arrow, ORC, JSON lines or CSV files.
- verify. Checks a store and yields findings.
- Finding. One problem with its place: `problem`, `path`, `physical_offset`, `length`, `detail`.
- predict. Predicts what a start of a broker would do to a store.
- get_message. Answers a pull as a broker would, with the same statuses, next offset and limits.
- query_message. Answers queryMessage as a broker would, including hash collisions.
- StoreWriter. A store that is open for writing: `put`, `put_many`, `put_batch` and `put_table`.
- NewMessage. A message to be written.
- RmqtoolError. The base of all errors.

`rmqtool.spark.register` registers the data source in a Spark session; see rmqtool-spark(7).

## Reading messages

The messages of a selection, in the order of the log:

```python
from rmqtool import Selection, Store, message_row

with Store.open("store") as store:
    for stored in store.messages(Selection(topics=["pubRetry"], limit=3)):
        row = message_row(stored.message, stored.physical_offset, stored.file)
        print(row["queue_id"], row["queue_offset"], row["store_time"])
        print(row["keys"], row["body"][:20])
```

For many messages use Arrow: only the named columns are computed, and whole batches at a time.
`pa.Table.from_batches` makes one table, and its `to_pandas` a data frame:

```python
import pyarrow as pa
from rmqtool import Selection, Store, message_batches

with Store.open("store") as store:
    wanted = Selection(topics=["pub*"], exclude_topics=["pubTx"])
    columns = ["topic", "queue_id", "store_time", "body"]
    batches = message_batches(store, wanted, columns=columns)
    table = pa.Table.from_batches(batches)
print(table.group_by("topic").aggregate([("body", "count")]).sort_by("topic"))
```

## Looking messages up

By key. The index leads to the messages; the parts of the log that it does not cover are scanned:

```python
from rmqtool import Store, lookup

with Store.open("store") as store:
    for hit in lookup(store, "rty3"):
        found = hit.stored
        print(hit.found_by, found.message.topic, found.physical_offset)
```

By message id. `kind` is `key`, `uniq_key`, `tag`, `msg_id`, `offset` or `queue_offset`:

```python
from rmqtool import Selection, Store, lookup, message_row

with Store.open("store") as store:
    stored = next(store.messages(Selection(topics=["pubRetry"])))
    row = message_row(stored.message, stored.physical_offset, stored.file)
    by_id = list(lookup(store, row["offset_msg_id"], kind="msg_id"))
    by_unique_key = list(lookup(store, row["uniq_key"], kind="uniq_key"))
    assert store.get_by_id(row["offset_msg_id"]) == stored == by_id[0].stored
print(len(by_id), [hit.stored.message.topic for hit in by_unique_key])
```

Many keys at once. The column `key` is the position of the key in the list:

```python
from rmqtool import Store, lookup_columns

with Store.open("store") as store:
    found = lookup_columns(store, ["rty3", "rty4", "nothing"], "pubRetry")
print(found.to_arrow())
```

## Queues

The messages of a queue by queue offset, and a pull as a broker answers it:

```python
from rmqtool import Store, get_message, query_message

with Store.open("store") as store:
    print(store.min_offset("pubTopicOne", 0))
    print(store.max_offset("pubTopicOne", 0))
    for stored in store.queue_messages("pubTopicOne", 0, 10, 12):
        print(stored.message.queue_offset, stored.physical_offset)
    pulled = get_message(store, "pubTopicOne", 0, 10, max_messages=8)
    print(pulled.status, pulled.next_begin_offset)
    print(len(list(pulled.messages(store))))
    print(query_message(store, "pubRetry", "rty3").physical_offsets)
```

## Checking and predicting

Every finding, as `verify` prints it:

```python
from rmqtool import Store, verify

with Store.open("store") as store:
    findings = list(verify(store))
print(f"{len(findings)} findings")
for finding in findings:
    print(finding.problem.code, finding.problem.severity)
    print(finding.path, finding.physical_offset)
```

What a broker's start would do:

```python
from rmqtool import Store, predict

with Store.open("store") as store:
    start = predict(store, "5.4")
print(start.loads, start.end_offset)
print(start.messages_abandoned, start.index_files_deleted)
```

## Exporting

To Parquet. An `output` that ends with `/` is a folder, which `partition_by` divides:

```python
from rmqtool import Selection, Store, export

with Store.open("store") as store:
    wanted = Selection(topics=["pubTopicOne"])
    columns = ["keys", "body"]
    result = export(store, "messages.parquet", wanted, columns=columns)
print(result.messages, result.files)
```

## Writing

A new store, for example for a test, takes a few milliseconds:

```python
from rmqtool import NewMessage, Store, StoreWriter

options = {"commit_log_file_size": 1 << 20, "auto_create_queues": 4}
with StoreWriter.create("new", profile="5.4", **options) as writer:
    for number in range(10):
        key = f"order-{number}"
        writer.put(NewMessage("Orders", b"1 book", tags="paid", keys=[key]))
with Store.open("new") as store:
    print([stored.message.queue_id for stored in store.messages()])
```

Messages are added to an existing store one by one, as a list, or as an Arrow table. `put_many` stores a list
as a loop of `put` does, but several times as fast. `put_table` is faster still; its columns have the names of
message rows:

```python
import pyarrow as pa
from rmqtool import NewMessage, StoreWriter

with StoreWriter.open("store") as writer:
    books = NewMessage("pubTopicOne", b"2 books", keys=["order-11"])
    result = writer.put(books)
    print(result.message_ids, result.queue_offset)
    pens = [NewMessage("pubTopicOne", b"%d pens" % n) for n in range(100)]
    results = writer.put_many(pens)
    print(len(results), results[99].queue_offset)
    columns = {"topic": ["pubTopicOne"] * 3, "queue_id": [0, 0, 0]}
    table = pa.table({**columns, "body": [b"a", b"b", b"c"]})
    print(writer.put_table(table).rows)
```

## Spark

The data source in a session. Spark's workers need a Python in which rmqtool is installed:

```python
import os
import sys
from pyspark.sql import SparkSession
import rmqtool.spark

os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master("local[1]")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
rmqtool.spark.register(spark)
frame = spark.read.format("rocketmq-store").load("store")
print(frame.groupBy("topic").count().orderBy("topic").first())
```
"""
