"""What rmqtool-spark(7) says of each option and column; `options_page` puts it together.

Only what the tables of the source cannot say stands here: no lists of values, no defaults that are
constants there. Marks are those of a guide: headings, `- ` entries, fenced blocks.
"""

from __future__ import annotations

from typing import Final

INTRODUCTION: Final = """
## Description

The data source `rocketmq-store` reads message stores of RocketMQ as data frames and as streams, and makes
new stores of data frames. It is registered where the package is installed; else
`rmqtool.spark.register(spark)` does it. It needs `pip install 'rmqtool[spark]'`.

```python
messages = spark.read.format("rocketmq-store").option("subscribe", "Orders").load("/data/store")
stream = spark.readStream.format("rocketmq-store").option("startingOffsets", "earliest").load("/data/store")
rows.orderBy("storeTimestamp").write.format("rocketmq-store").mode("append").save("/data/new")
```

Names of options are those of Kafka's source where it has one of that meaning, and of rocketmq-spark. Case
does not matter. An option that is not known, a value that makes no sense and options that contradict each
other are errors that name the option.

## Values

- a list. `a,b`, or a JSON list of texts where values have commas in them.
- a size. Bytes, or a number with K, M, G or T (powers of 1024; KB, MB, ... are powers of 1000).
- a time. ISO 8601, milliseconds since 1970, `now`, `today`, `14:30` or `2h ago`, see rmqtool(1). Without an
offset it is in UTC.
- a glob. `*`, `?` and `[...]`; case matters.
- JSON of offsets. `{"topic": {"0": 23, "1": -2}}`: by topic and queue; -2 is the earliest offset, -1 the
latest. With several stores the broker stands between: `{"topic": {"broker-a": {"0": 23}}}`.
- JSON of milliseconds since 1970. The same, with a time in the place of each offset.
"""

_PLACES: Final = {
    "path": (
        "The argument of `load` and `save`. A store, a folder of commit log files, or one of these files;"
        " a glob stands for all stores that it matches. A URL such as `s3://bucket/store` is read through"
        " rmqtool. A write takes one folder, no URL."
    ),
    "paths": "Several stores; what `load` makes of a list. Not together with `path`.",
    "brokerName": (
        "The brokers of the stores: in the order of the paths (those of a glob are sorted), or by path."
        " Without it a broker has the name in the file of `brokerConf` (one store only), else the part of"
        " the path by which the stores differ. Each name may be there once."
    ),
    "brokerConf": "The broker's configuration file, for what it says about the folders of the store.",
    "commitlogPaths": (
        "Further commit log folders of the store, for a log that is spread over several disks."
    ),
    "readOnlyCommitlogPaths": "Such folders that the broker only reads.",
    "storage.": (
        "Goes to the place a URL names, without the prefix: an endpoint, a key, a secret. Never shown in"
        " messages."
    ),
}
_COLUMNS: Final = {
    "columnSet": "Which columns rows have, see COLUMN SETS.",
    "columns": (
        "Single columns in place of a set, in this order, see COLUMNS. A schema that names others"
        " contradicts it, and so does `columnSet` `kafka`; with `full` `properties` is a map."
    ),
    "columnNameOfCorruptRecord": (
        "The name of the column that says what is wrong, see DAMAGE. It must not be that of another column."
    ),
    "includeHeaders": "Whether the column set `kafka` has `headers` too. An error with another set.",
    "includeBody": "With `false` bodies are null, and nothing is read of them.",
    "decompress": "With `false` bodies are as they are stored.",
    "mode": "What damage does, see DAMAGE. Not the save mode of a write.",
    "verifyCrc": (
        "Whether the CRC of bodies, and of properties where there is one, are checked. That is only done"
        " where it can be seen: in a column `status` or the corrupt record column, or where `mode` is not"
        " `PERMISSIVE`."
    ),
}
_TOPICS: Final = {
    "topic": "One topic, by its whole name. rocketmq-spark's name.",
    "subscribe": "Topics, by their whole names. Kafka's name.",
    "topics": "Globs of topics, one must match.",
    "subscribePattern": "The whole name of a topic must match. Kafka's name.",
    "assign": "These queues only. Kafka's name. A broker is named where several stores are read.",
    "excludeTopics": "Globs of topics that are not read.",
    "queueId": "These queues of every topic.",
    "tags": "Tags, one must be the message's.",
    "subExpression": (
        "The same as a consumer writes it: `TagA || TagB`, `*` for all. rocketmq-spark's name."
    ),
    "keys": "Keys, one must be a key or the unique key of the message.",
    "filter": (
        "What the properties of a message must match, in the broker's SQL92 filter language: `a > 1 AND b"
        " = 'x'`."
    ),
}
_BOUNDS: Final = {
    "startingOffsets": (
        "Where a read begins. `latest` (-1) is for streams only, a batch read begins at the earliest"
        " offset. JSON goes with options that name the topics, and must name exactly the queues that are"
        " read. Without it a batch read begins at the earliest, a stream at the latest message."
    ),
    "startingOffsetsByTimestamp": (
        "Store times, by queue, from which on messages are read, as JSON of `startingOffsets`. A stream"
        " starts at the first message of each queue that is not older."
    ),
    "startingTimestamp": (
        "The store time from which on messages are read, of all queues. Times save the reading of whole"
        " files; of a part of one only where more than 64M of it would be read and queues name its records."
        " Ten minutes more are read on both sides, for clocks that were set back. So a short time within one"
        " file may read all of it."
    ),
    "startingOffsetsByTimestampStrategy": (
        "Whether a queue that ends before the time it is to start at is an `error`, or begins at its end"
        " (`latest`). For batch reads with `startingTimestamp` or `startingOffsetsByTimestamp`."
    ),
    "endingOffsets": (
        "Where a batch read ends; the message at an offset is not read. `earliest` (-2) is no end. JSON as"
        " for `startingOffsets`. Without it a read ends at the latest message."
    ),
    "endingOffsetsByTimestamp": "Store times, by queue, before which a batch read ends.",
    "endingTimestamp": "The store time before which a batch read ends, of all queues.",
    "startingPhysicalOffset": (
        "The offset in the commit log from which on records are read. For one store. One outside of the"
        " files of the log is data loss, see `failOnDataLoss`; a stream starts at what is there."
    ),
    "endingPhysicalOffset": (
        "The offset in the commit log before which a batch read ends. For one store. One behind the end of"
        " the last file is data loss, as an end that a queue does not have is with Kafka."
    ),
    "failOnDataLoss": (
        "Whether it is an error that offsets, files or stores that were asked for are not there (any"
        " more). For batch reads that is so for topics of `topic` and `subscribe` and queues of `assign` that"
        " no store has, and for physical offsets outside of the files of the log, too. With `false` what is"
        " there is read, with a warning. A stream waits for topics and queues that are not there yet, and"
        " does not notice that a store was replaced by one whose records lie at the same places."
    ),
}
_WAYS: Final = {
    "via": (
        "The way to the messages. `auto` takes consume queues or the index where these are trusted and"
        " need less reading, else the commit log. The others ask for one way, as far as it can serve."
    ),
    "pushdown": "Whether filters of the query say what is read, see FILTERS.",
    "minPartitions": (
        "Partitions are made smaller until there are about so many, but none is made to read less than 32K of"
        " the log."
    ),
    "maxRecordsPerPartition": "No partition has more records, as far as consume queues know of them.",
    "maxBytesPerPartition": (
        "What a partition reads of the log. Without it an eighth of all that is read, but at least 128M"
        " and at most 512M. Less than 32K counts as that."
    ),
    "maxRowsPerBatch": "Rows of an Arrow batch at most.",
    "maxBytesPerBatch": "Bytes of an Arrow batch, about.",
}
_STREAMS: Final = {
    "streamOffsets": (
        "What a stream counts by. `commitlog`: physical offsets, every record of the log is read once."
        " `queue`: queue offsets as with Kafka, only messages that have a unit in a consume queue are"
        " read. Without it `queue` where `assign`, or JSON of offsets or times, names queues, else"
        " `commitlog`. A checkpoint fits one of the two."
    ),
    "maxOffsetsPerTrigger": (
        "Messages of a micro-batch at most, shared out by what is new in each store or queue."
    ),
    "maxBytesPerTrigger": (
        "Bytes of the log that a micro-batch reads, about. Both limits hold where both are given."
    ),
    "minOffsetsPerTrigger": (
        "A micro-batch waits until there are so many messages. Not above `maxOffsetsPerTrigger`."
    ),
    "maxTriggerDelay": "With `minOffsetsPerTrigger`: it waits no longer than this.",
}
_WRITES: Final = {
    "profile": (
        "The broker that is to open a new store: `4.9`, `5.3` or `5.4`. For writing; a read does not look"
        " at it."
    ),
    "order": (
        "The order of the new log. `given`: that of the rows, whose store times must not fall."
        " `storeTimestamp`: rows are sorted by that column, in the memory of the driver. For writing."
    ),
}
OTHER_TEXTS: Final = {
    "path": "a path, or a JSON list of paths",
    "paths": "a path, or a JSON list of paths",
    "storage.": "a text",
}
"""The values of options that are read before the others."""

_WRITING: Final = """
The save mode has to be named. `mode("append")` wants a path where nothing is, or an empty folder;
`mode("overwrite")` replaces a whole store that is not in use. The store is made beside the path and put
there when it is whole: what fails leaves nothing. The folder must be one that the driver and all executors
reach. Options that name topics, tags, keys or a filter, and starts and ends by queue offset or time, are
refused.

Columns are those of a read (`topic` and `body` or `value` must be there), so a data frame that was read can
be written again; with `columnSet` `kafka` that is refused for system topics. What a store computes is
computed anew; a property without a value, which no consumer sees, is lost. Rows without a queue get one, rows
without a store time the time of the write.

Names with `write.` say how the files are made; in brackets is the broker's setting.
"""

GROUPS: Final = (
    ("Which stores", "", _PLACES),
    ("What rows have", "", _COLUMNS),
    ("Which messages", "All that are given must hold. Without them every message is read.", _TOPICS),
    (
        "From where to where",
        "Starts are included, ends are not.",
        _BOUNDS,
    ),
    ("How it is read", "These change no result.", _WAYS),
    (
        "Streams",
        "`readStream` begins at the latest message, as Kafka's source does: what is in the store already"
        " is not read, unless `startingOffsets` is `earliest`, or another start is given. A stream that"
        " has a checkpoint goes on where it ended, whatever the start. Ends (`endingOffsets`,"
        " `endingTimestamp`, `endingPhysicalOffset`) are errors. The end of the log is that of the last"
        " whole record whose CRC is right, so what a broker is writing just now belongs to a later batch."
        " The trigger `availableNow` ends with what there is when it starts.",
        _STREAMS,
    ),
    ("Writing", _WRITING, _WRITES),
)  # fmt: skip
"""Title, introduction and texts by name of each section of options."""

WRITE_TEXTS: Final = {
    "commitLogFileSize": "Of each file [mappedFileSizeCommitLog].",
    "consumeQueueFileSize": "Of each file, a multiple of 20 [mappedFileSizeConsumeQueue].",
    "batchQueueFileSize": "Of each file, a multiple of 46 [mapperFileSizeBatchConsumeQueue].",
    "indexSlots": "Hash slots of an index file [maxHashSlotNum].",
    "indexEntries": "Places for entries in an index file, place 0 included; 2 or more [maxIndexNum].",
    "index": "Whether keys are indexed [messageIndexEnable].",
    "maxMessageSize": (
        "Of a body. Without it 4 MiB or, where a commit log file is smaller, what fits [maxMessageSize]."
    ),
    "propertyCrc": (
        "Whether records end with a CRC over all of their properties, 5.x only [enabledAppendPropCRC]."
    ),
    "reserve": "Whether the space of a commit log file is taken when the file is made.",
    "cluster": "The property CLUSTER that a broker adds [brokerClusterName].",
    "region": "The property MSG_REGION that a 5.x broker adds [regionId].",
    "compressOver": "Bodies of so many bytes and more are compressed, where the row asks for compression.",
    "queues": "Queues of a topic whose rows name none.",
}

COLUMN_TEXTS: Final = {
    "brokerName": "the broker of the store, see `brokerName` above",
    "propertiesJson": "all properties, as a JSON object",
    "position": "where the record starts in its file",
    "key": "property KEYS, not split; null without",
    "value": "the same as `body`",
    "partition": "the same as `queueId`",
    "offset": "the same as `queueOffset`",
    "timestamp": "the same as `storeTimestamp`",
    "timestampType": "always 1, for the time is the broker's",
    "headers": "all properties, names and bytes; null without any",
    "_corrupt_record": (
        "what is wrong, as JSON; null for sound messages; `columnNameOfCorruptRecord` names it"
    ),
}

REST: Final = """
## Damage

Damage does not end a read unless that is asked for. The option `mode` says what becomes of it:

- PERMISSIVE. A record that is not as it should be is a row like the others, with its codes in `status`. A
range of the log that holds no sound record is one row: `physicalOffset`, `size` (its length), `file`,
`position`, `brokerName`, `status` and the corrupt record column say where and what, all else is null. A log
without any file, beside queues or an index (CL26), is one such row, without an offset.
- DROPMALFORMED. Both are left out. What is left out of the log is told on the standard error of the task.
- FAILFAST. The first of either is an error.

Sound messages have the one code `ok` in `status`. The others are in rmqtool-problems(7). The corrupt record
column is in no column set: name it in `columns` or in a schema. It has the codes and the offset of a
damaged record, and all of the finding for a range without one.

A range without a record has no topic, tag, key or time. It is a row also where options choose messages by
these, for it may be what is looked for; a filter of the query leaves it out. Without `status` and the
corrupt record column damage is told on the standard error of the task instead. Such rows are gone with `where
status[0] = 'ok'`.

Notes, which are normal after a crash, are neither rows nor errors.

## Filters

Options choose what is read, and always rightly. The filters of a query (`where`) are tested by Spark on
every row that is read. With the option `pushdown` `on`, and `spark.sql.python.filterPushdown.enabled`
`true` in the session, they also say what is read: equality, lists and ranges joined by AND, of `topic`
(also by prefix), `queueId`, `queueOffset`, `physicalOffset`, `storeTimestamp`, `storeTimestampMs`, `tags`,
`uniqKey`, `key`, `brokerName`, and the Kafka names of these. Spark tests every row again. Streams take no
filters.

That is for data frames that are scanned once in their life. Spark 4.3.0 keeps one plan for each source that
was loaded, that of the filters which came last: where a data frame or view is scanned twice, in one query
or in two, rows would be missing. Hence the default is off. Give options in place of filters where that does
not suit.
"""
