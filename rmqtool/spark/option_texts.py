"""Texts of rmqtool-spark(7) on each option and column; `options_page` assembles the page.

This module holds only what the tables of the source cannot say: no lists of values, and no defaults that
are constants there. The markup is that of a guide: headings, `- ` entries, fenced blocks.
"""

from __future__ import annotations

from typing import Final

INTRODUCTION: Final = """
## Description

The data source `rocketmq-store` reads RocketMQ message stores as data frames and as streams, and creates new
stores from data frames. It is registered automatically where the package is installed; elsewhere call
`rmqtool.spark.register(spark)`. Install it with `pip install 'rmqtool[spark]'`.

```python
source = spark.read.format("rocketmq-store")
messages = source.option("subscribe", "Orders").load("/data/store")
stream = spark.readStream.format("rocketmq-store").load("/data/store")
sink = rows.orderBy("storeTimestamp").write.format("rocketmq-store")
sink.mode("append").save("/data/new")
```

If Kafka's source or rocketmq-spark has an option with the same meaning, the option has the same name here.
Names are not case-sensitive. An unknown option, an invalid value and options that contradict each other are
errors; the message names the option.

## Values

- a list. `a,b`, or a JSON list of strings if values contain commas.
- a size. Bytes, or a number with K, M, G or T (powers of 1024; KB, MB, ... are powers of 1000).
- a time. ISO 8601, milliseconds since 1970, `now`, `today`, `14:30` or `2h ago`, see rmqtool(1). A time
without an offset is in UTC.
- a glob. `*`, `?` and `[...]`; it is case-sensitive.
- JSON of offsets. `{"topic": {"0": 23, "1": -2}}`: by topic and queue; -2 is the earliest offset, -1 the
latest. With several stores, the broker name comes between: `{"topic": {"broker-a": {"0": 23}}}`.
- JSON of milliseconds since 1970. Like JSON of offsets, with a time instead of each offset.
"""

_PLACES: Final = {
    "path": (
        "The argument of `load` and `save`: a store, a folder of commit log files, or one of these files."
        " A glob stands for all stores that it matches. rmqtool itself reads URLs such as"
        " `s3://bucket/store`. A write takes one folder, and no URL."
    ),
    "paths": "Several stores; `load` sets it when it is given a list. It cannot be combined with `path`.",
    "brokerName": (
        "The broker names of the stores, by path or in the order of the paths (the stores of a glob are"
        " sorted). By default a broker has the name in the file of `brokerConf` (one store only), otherwise"
        " the part of the path by which the stores differ. Names must be unique."
    ),
    "brokerConf": "The broker's configuration file, which names the folders of the store.",
    "commitlogPaths": "Further commit log folders of the store, if its log is spread over several disks.",
    "readOnlyCommitlogPaths": "Further commit log folders that the broker only reads.",
    "storage.": (
        "Passed without the prefix to the storage that a URL names: an endpoint, a key, a secret. Values are"
        " never shown in messages."
    ),
}
_COLUMNS: Final = {
    "table": (
        "Selects what a row is, see TABLES. The options that other tables than `messages` accept are listed"
        " there. Streams read only messages."
    ),
    "columnSet": "Selects the columns of a row, see COLUMN SETS.",
    "columns": (
        "Selects single columns instead of a set, in this order, see COLUMNS. It contradicts a schema that"
        " names other columns, and `columnSet` `kafka`. With `full`, `properties` is a map."
    ),
    "columnNameOfCorruptRecord": (
        "The name of the column that describes damage, see DAMAGE. It must differ from all other columns."
    ),
    "includeHeaders": "Adds `headers` to the column set `kafka`. It is an error with another set.",
    "includeBody": "`false` sets bodies to null and reads none of their bytes.",
    "decompress": "`false` returns bodies as they are stored.",
    "mode": "Selects how damage is handled, see DAMAGE. It is not the save mode of a write.",
    "verifyCrc": (
        "Checks the CRC of bodies, and of properties that have one. The check runs only if its result is"
        " visible: in a column `status`, in the corrupt record column, or because `mode` is not `PERMISSIVE`."
    ),
}
_TOPICS: Final = {
    "topic": "Selects one topic by its full name. rocketmq-spark's name for the option.",
    "subscribe": "Selects topics by their full names. Kafka's name for the option.",
    "topics": "Selects topics that match one of these globs.",
    "subscribePattern": (
        "Selects topics whose full name matches this expression. Kafka's name for the option."
    ),
    "assign": (
        "Selects single queues. Kafka's name for the option. With several stores, the value also names the"
        " broker."
    ),
    "excludeTopics": "Excludes topics that match one of these globs.",
    "queueId": "Selects these queues of every topic.",
    "tags": "Selects messages with one of these tags.",
    "subExpression": (
        "Selects tags in a consumer's syntax: `TagA || TagB`, `*` for all. rocketmq-spark's name for the"
        " option."
    ),
    "keys": "Selects messages with one of these keys or unique keys.",
    "filter": (
        "Selects messages by their properties, in the broker's SQL92 filter language: `a > 1 AND b = 'x'`."
    ),
}
_BOUNDS: Final = {
    "startingOffsets": (
        "The offsets at which a read starts. By default a batch read starts at the earliest message and a"
        " stream at the latest. `latest` (-1) is for streams only. JSON requires options that name the"
        " topics, and must name exactly the queues that are read."
    ),
    "startingOffsetsByTimestamp": (
        "The store time at which each queue starts, as JSON like that of `startingOffsets`. A stream starts"
        " at the first message of each queue that is not older."
    ),
    "startingTimestamp": (
        "The store time at which all queues start. A start time skips whole files. It skips part of a file"
        " only if more than 64M of it would be read and queues name its records. The read begins ten minutes"
        " earlier and ends ten minutes later, for clocks that were set back. A short time range inside one"
        " file may therefore read all of it."
    ),
    "startingOffsetsByTimestampStrategy": (
        "Selects what happens to a queue that ends before its start time: an `error`, or a start at its end"
        " (`latest`). This option applies to batch reads with `startingTimestamp` or"
        " `startingOffsetsByTimestamp`."
    ),
    "endingOffsets": (
        "The offsets at which a batch read ends; the message at an offset is not read. By default a read ends"
        " after the latest message. `earliest` (-2) is not a valid end. JSON is as for `startingOffsets`."
    ),
    "endingOffsetsByTimestamp": "The store time before which a batch read of each queue ends.",
    "endingTimestamp": "The store time before which a batch read of all queues ends.",
    "startingPhysicalOffset": (
        "The commit log offset at which a read starts. It requires a single store. An offset outside the"
        " files of the log is data loss, see `failOnDataLoss`; a stream starts at the first offset that"
        " exists."
    ),
    "endingPhysicalOffset": (
        "The commit log offset before which a batch read ends. It requires a single store. An offset after"
        " the end of the last file is data loss, as Kafka treats an end offset that a queue does not have."
    ),
    "failOnDataLoss": (
        "The read fails if requested offsets, files or stores do not exist (any more). For batch reads this"
        " includes topics of `topic` and `subscribe` and queues of `assign` that no store has, and physical"
        " offsets outside the files of the log. With `false` rmqtool reads what exists and warns. A stream"
        " waits for topics and queues that do not exist yet. It does not detect that a store was replaced by"
        " one whose records have the same offsets."
    ),
}
_WAYS: Final = {
    "via": (
        "Selects the access path. `auto` uses consume queues or the index if they can be trusted and"
        " need less reading, otherwise the commit log. Each other value requests one access path, which is"
        " used as far as it can answer."
    ),
    "pushdown": "Lets filters of the query limit what is read, see FILTERS.",
    "minPartitions": "Makes partitions smaller, down to 32K of the log, until there are about this many.",
    "maxRecordsPerPartition": (
        "Limits the records of a partition, as far as consume queues show their number."
    ),
    "maxBytesPerPartition": (
        "Limits the bytes of the log that a partition reads. By default it is an eighth of all bytes that are"
        " read, at least 128M and at most 512M. The minimum is 32K."
    ),
    "maxRowsPerBatch": "Limits the rows of an Arrow batch.",
    "maxBytesPerBatch": "Limits the bytes of an Arrow batch, approximately.",
}
_STREAMS: Final = {
    "streamOffsets": (
        "Selects what a stream counts. `commitlog`: physical offsets; every record of the log is read once."
        " `queue`: queue offsets, as in Kafka; only messages that have a unit in a consume queue are read."
        " The default is `queue` if `assign`, or JSON of offsets or times, names queues, otherwise"
        " `commitlog`. A checkpoint fits only the setting that wrote it. A tiered copy and the logs of"
        " compacted topics need `queue`: physical offsets in them change when a queue gets a segment."
    ),
    "maxOffsetsPerTrigger": (
        "Limits the messages of a micro-batch. They are divided in proportion to the new messages of each"
        " store or queue."
    ),
    "maxBytesPerTrigger": (
        "Limits the bytes of the log that a micro-batch reads, approximately. Both limits apply if both are"
        " given."
    ),
    "minOffsetsPerTrigger": (
        "Delays a micro-batch until there are this many messages. It must not exceed `maxOffsetsPerTrigger`."
    ),
    "maxTriggerDelay": "With `minOffsetsPerTrigger`: limits the delay.",
}
_WRITES: Final = {
    "profile": (
        "The version of the broker that will open a new store: `4.9`, `5.3` or `5.4`. It applies to writes;"
        " a read ignores it."
    ),
    "order": (
        "The order of the new log. `given`: the order of the rows, whose store times must not decrease."
        " `storeTimestamp`: rows are sorted by that column, in the memory of the driver. It applies to"
        " writes."
    ),
}
OTHER_TEXTS: Final = {
    "path": "a path, or a JSON list of paths",
    "paths": "a path, or a JSON list of paths",
    "storage.": "a string",
}
"""The values of options that are read before the others."""

_WRITING: Final = """
A write must name its save mode. `mode("append")` requires a path that does not exist, or an empty folder.
`mode("overwrite")` replaces a whole store that is not in use. The new store is built next to the path and
moved there when it is complete, so a failed write leaves nothing. The driver and all executors must be able
to reach the folder. Options that select topics, tags, keys or a filter, and start and end options by queue
offset or time, are refused.

The columns are those of a read; `topic` and `body` (or `value`) are required. A data frame that was read can
therefore be written again; only system topics with `columnSet` `kafka` are refused. Values that a store
computes are computed again. A property without a value, which consumers cannot see, is lost. rmqtool assigns
a queue to rows without one, and the time of the write to rows without a store time.

A write allocates a whole commit log file at once, 1 GiB by default (`write.commitLogFileSize`), unless
`write.reserve` is `false`.

Options with the prefix `write.` describe the new files. The broker's name of the setting is in brackets.
"""

GROUPS: Final = (
    ("Selecting stores", "", _PLACES),
    ("Content of rows", "", _COLUMNS),
    ("Selecting messages", "All given options must match. Without any, every message is read.", _TOPICS),
    (
        "Start and end",
        "Starts are inclusive, ends are exclusive.",
        _BOUNDS,
    ),
    ("Partitions and access path", "These options do not change the result.", _WAYS),
    (
        "Streams",
        "`readStream` starts after the latest message, as Kafka's source does. To read what is already in"
        " the store, set `startingOffsets` to `earliest` or give another start. A stream with a checkpoint"
        " resumes where it stopped and ignores the start. End options (`endingOffsets`, `endingTimestamp`,"
        " `endingPhysicalOffset`) are errors. The log ends with the last complete record whose CRC matches,"
        " so a record that a broker is still writing belongs to a later batch. The trigger `availableNow`"
        " stops at the end that the log has when the stream starts.",
        _STREAMS,
    ),
    ("Writing", _WRITING, _WRITES),
)  # fmt: skip
"""Title, introduction and texts by name of each section of options."""

WRITE_TEXTS: Final = {
    "commitLogFileSize": "Size of a commit log file [mappedFileSizeCommitLog].",
    "consumeQueueFileSize": "Size of a consume queue file, a multiple of 20 [mappedFileSizeConsumeQueue].",
    "batchQueueFileSize": "Size of a batch queue file, a multiple of 46 [mapperFileSizeBatchConsumeQueue].",
    "indexSlots": "Hash slots of an index file [maxHashSlotNum].",
    "indexEntries": "Capacity of an index file in entries, unused entry 0 included; 2 or more [maxIndexNum].",
    "index": "Indexes keys [messageIndexEnable].",
    "maxMessageSize": (
        "Limits the size of a body. The default is 4 MiB or, if a commit log file is smaller, what fits"
        " [maxMessageSize]."
    ),
    "propertyCrc": "Ends each record with a CRC over the whole record, 5.x only [enabledAppendPropCRC].",
    "reserve": "Allocates the whole space of a commit log file when the file is created.",
    "cluster": "Value of the property CLUSTER that a broker adds [brokerClusterName].",
    "region": "Value of the property MSG_REGION that a 5.x broker adds [regionId].",
    "compressOver": "Compresses bodies of at least this many bytes if the row requests compression.",
    "queues": "Number of queues of a topic whose rows name none.",
}

COLUMN_TEXTS: Final = {
    "brokerName": "the broker of the store, see `brokerName` above",
    "propertiesJson": "all properties, as a JSON object",
    "position": "where the record starts in its file",
    "key": "property KEYS, not split; null if absent",
    "value": "the same as `body`",
    "partition": "the same as `queueId`",
    "offset": "the same as `queueOffset`",
    "timestamp": "the same as `storeTimestamp`",
    "timestampType": "always 1, because the broker sets the time",
    "headers": "all properties, names and bytes; null if there are none",
    "_corrupt_record": (
        "what is wrong, as JSON; null for sound messages; `columnNameOfCorruptRecord` renames it"
    ),
}

TABLES: Final = """
## Tables

The option `table` selects what is read. Besides messages, a store has consume queues and an index:

```python
source = spark.read.format("rocketmq-store")
units = source.option("table", "units").load("/data/store")
units.groupBy("topic", "queueId").count().show()
```

A row of `units` is a unit of a consume queue file. Zeros, and the fillers before the first message of a
queue, are not rows. The table accepts `topic`, `subscribe`, `topics`, `subscribePattern`, `excludeTopics` and
`queueId`, and `failOnDataLoss` for topics that do not exist. A row of `index_entries` is an entry that an
index file uses. Both tables accept `columns` or a schema, the options that name stores, and
`maxBytesPerPartition`, here the bytes of files, by default 64M. All other options that select or shape
messages are errors. Rows are not checked against the log; `rmqtool verify` does that.

Name the columns that a query needs in `columns`. Otherwise all columns are read, because Spark does not tell
a Python data source which ones the query needs.
"""
REST: Final = """
## Damage

Damage ends a read only with `mode` `FAILFAST`. The option `mode` selects how damage is handled:

- PERMISSIVE. A damaged record is a row like the others, with its codes in `status`. A range of the log
without a sound record is one row: `physicalOffset`, `size` (its length), `file`, `position`, `brokerName`,
`status` and the corrupt record column locate and describe it; all other columns are null. A missing commit
log next to existing queues or an index (CL26) is one such row, without an offset.
- DROPMALFORMED. Both kinds of row are left out. The standard error of the task reports what was left out of
the log.
- FAILFAST. The first damaged record or range is an error.

Sound messages have the single code `ok` in `status`. All other codes are listed in rmqtool-problems(7). No
column set contains the corrupt record column: name it in `columns` or in a schema. It holds the codes and
the offset of a damaged record, and the whole finding for a range without a record.

A range without a record has no topic, tag, key or time. Such a range is a row even if options select messages
by these, because it may hold a selected message. A filter of the query excludes it. Without `status` and the
corrupt record column, damage is reported on the standard error of the task instead. To exclude such rows, use
`where status[0] = 'ok'`.

Notes describe what is normal after a crash. They are neither rows nor errors.

## Filters

Options select exactly what is read. Spark tests the filters of a query (`where`) on every row that is read.
With the option `pushdown` `on`, and `spark.sql.python.filterPushdown.enabled` `true` in the session, filters
also limit what is read: equality, lists and ranges joined by AND, of `topic` (also by prefix), `queueId`,
`queueOffset`, `physicalOffset`, `storeTimestamp`, `storeTimestampMs`, `tags`, `uniqKey`, `key`, `brokerName`,
and the Kafka names of these. Spark tests every row again. Streams accept no filters.

Use pushdown only for data frames that are scanned only once. Spark 4.3.0 keeps one plan for each loaded
source, that of the most recent filters. If a data frame or view is scanned twice, in one query or in two,
rows would be missing. The default is therefore `off`. Where pushdown is not possible, use options instead of
filters.

## Python of the executors

The data source is registered automatically if rmqtool is installed in Spark's Python: the one named by
`PYSPARK_PYTHON`, otherwise `python3` on the PATH. The Python that runs your driver script does not matter.
`rmqtool spark-scan` sets `PYSPARK_PYTHON` to its own Python.

```python
import os, sys

# before the session is created
os.environ["PYSPARK_PYTHON"] = sys.executable
```

## Clusters

Every executor must reach the store under the same path or URL. Every executor also needs Python 3.11 or newer
with rmqtool and its extra `spark`, at the path of `PYSPARK_PYTHON`, which is the same for the driver and the
executors. A relative path is a path inside an archive of such an environment; `venv-pack` and `conda-pack`
create these archives. `rmqtool spark-scan` sends its own rmqtool to the executors, so they may have another
version of rmqtool, or only its dependencies.

On YARN, with HADOOP_CONF_DIR set, unpack the archive for the driver too:

```sh
mkdir -p env && tar xzf env.tar.gz -C env
PYSPARK_PYTHON=./env/bin/python \\
    rmqtool spark-scan webhdfs://namenode:9870/rmq/store \\
    --group-by topic --master yarn --conf spark.archives=env.tar.gz#env
```

On Kubernetes, use an image with Spark and the environment; here both are at the same path:

```sh
PYSPARK_PYTHON=/opt/rmqtool/bin/python \\
    rmqtool spark-scan s3://bucket/store --group-by topic \\
    --master k8s://https://cluster.example:6443 \\
    --conf spark.kubernetes.container.image=registry.example/spark-rmqtool \\
    --conf spark.driver.host="$(hostname -i)"
```

On Databricks and similar platforms, install rmqtool as a library of the cluster, without its extra `spark`.
In the notebook, register the source:

```python
import rmqtool.spark

rmqtool.spark.register(spark)
messages = spark.read.format("rocketmq-store").load("s3://bucket/store")
messages.groupBy("topic").count().show()
```

For `spark-submit` of your own job, `rmqtool.spark.package.write_package` creates the zip file for
`--py-files`. If rmqtool is not installed for the driver, also put the zip file on the driver's `PYTHONPATH`:
Spark plans streams in a process that does not see the files of `--py-files`.

Spark reads stores on `s3://` through rmqtool. It writes there through Hadoop's connector: use `--output
s3a://bucket/...` and add hadoop-aws, in the version of Spark's Hadoop, to its jars. `rmqtool export` needs no
connector.

## Scalability

Each task reads 128 to 512 MiB of log (see `maxBytesPerPartition`) and uses about 500 bytes of driver memory.

`make bench` plans over sparse files: 100 brokers of 2.1 TB each, in files of 2 GiB, with
`maxBytesPerPartition=2G`, give 100,000 partitions. Planning them took 12 s and 95 MiB. Spark had all of them
after 24 s and 0.9 GiB of the driver's JVM, so `--driver-memory 2g` is enough.

If executors read 1 GB/s of each broker's log, all 210 TB take a calculated 35 minutes. A query for a topic,
an hour or a key of a named topic uses queues, times and the index, and reads only the part of the log that
can hold the messages.
"""
