"""The one table of message columns: the fields of a message row, in this order, under these names.

JSON, CSV and Parquet use the engine names (snake_case), Spark the Spark names (camelCase, a
superset of those of rocketmq-spark, so its queries run unchanged). `arrow_type` is the type as
pyarrow prints it; it is text here, so that reading this table needs no pyarrow. Rows in JSON carry
times as RFC 3339 text and bodies as text; Arrow carries timestamps and bytes.

`version` is Spark's `magicVersion`. `born_time` and `store_time` are its `bornTimestamp` and
`storeTimestamp`, because these have Spark's timestamp type.
"""

from __future__ import annotations

from rmqtool.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a message row.

    `unit` is `bytes`, `ms since 1970`, `index` (a count of units from 0) or empty. An `optional`
    column is in a JSON row only if it has a value, and in fixed columns only if it is requested by
    name.
    """

    name: str
    spark_name: str
    arrow_type: str
    unit: str
    text: str
    optional: bool = False

    @property
    def spark_text(self) -> str:
        """`text` for a list of Spark names: other columns have these there, too."""
        pieces = self.text.split("`")
        return "`".join(BY_NAME[piece].spark_name if piece in BY_NAME else piece for piece in pieces)


_TIMESTAMP = "timestamp[us, tz=UTC]"
_MS = "ms since 1970"

COLUMNS: tuple[Column, ...] = (
    Column("physical_offset", "physicalOffset", "int64", "bytes",
           "where the record starts in the commit log"),
    Column("size", "size", "int32", "bytes", "size of the whole record"),
    Column("version", "magicVersion", "int8", "", "record version: 1, or 2 (topic length of two bytes)"),
    Column("topic", "topic", "string", "", "topic as stored; delayed and half messages have a system topic"),
    Column("queue_id", "queueId", "int32", "", "queue within the topic"),
    Column("queue_offset", "queueOffset", "int64", "index",
           "number of the record's unit in its consume queue"),
    Column("flag", "flag", "int32", "", "the application's flag"),
    Column("sys_flag", "sysFlag", "int32", "", "bits: compression, transaction, IPv6 hosts, inner batch"),
    Column("body_crc", "bodyCrc", "int32", "", "CRC-32 of the stored body, top bit cleared"),
    Column("born_timestamp_ms", "bornTimestampMs", "int64", _MS, "when the producer created the message"),
    Column("born_time", "bornTimestamp", _TIMESTAMP, "",
           "the same as `born_timestamp_ms`, as a time; null outside the years 1-9999"),
    Column("born_host", "bornHost", "string", "", "producer, ip:port; IPv6 in brackets"),
    Column("store_timestamp_ms", "storeTimestampMs", "int64", _MS, "when the broker stored the record"),
    Column("store_time", "storeTimestamp", _TIMESTAMP, "",
           "the same as `store_timestamp_ms`, as a time; null outside the years 1-9999"),
    Column("store_host", "storeHost", "string", "", "broker, ip:port; IPv6 in brackets"),
    Column("reconsume_times", "reconsumeTimes", "int32", "", "how often a consumer sent the message back"),
    Column("prepared_transaction_offset", "preparedTransactionOffset", "int64", "bytes",
           "in a committed message: physical offset of its half message"),
    Column("body_length", "bodyLength", "int32", "bytes", "length of the stored body, before decompression"),
    Column("body", "body", "binary", "",
           "the body, decompressed; of a batch record (BatchCQ) the packed messages; null if not requested or"
           " not readable"),
    Column("body_encoding", "bodyEncoding", "string", "",
           "what body is: utf-8 for text, otherwise binary where body is a column of bytes (Parquet, Arrow,"
           " SQL, Spark), and base64 or hex in a row of text; null if body is null"),
    Column("body_compression", "bodyCompression", "string", "",
           "compression of the stored body: none, zlib, lz4, zstd; null if unknown"),
    Column("stored_body", "storedBody", "binary", "",
           "the stored bytes of the body, if compressing `body` would not reproduce them", optional=True),
    Column("tags", "tags", "string", "",
           "property TAGS, which the store hashes as a single value; null if absent"),
    Column("keys", "keys", "list<item: string>", "", "property KEYS, split at spaces"),
    Column("uniq_key", "uniqKey", "string", "", "property UNIQ_KEY, the client's unique id; null if absent"),
    Column("offset_msg_id", "offsetMsgId", "string", "", "store host and physical offset in hex"),
    Column("properties", "properties", "map<string, string>", "", "all properties, in stored order"),
    Column("properties_base64", "propertiesBase64", "string", "",
           "the stored bytes of the properties, if encoding `properties` would not reproduce them",
           optional=True),
    Column("status", "status", "list<item: string>", "",
           "codes of the record's damage, see rmqtool-problems(7); `ok` if it is sound"),
    Column("file", "file", "string", "", "file that contains the record, relative to the store root"),
    Column("system", "system", "string", "",
           "decoded content of the record of a system topic (half, op, delayed, retry, ...), a JSON object",
           optional=True),
)  # fmt: skip

BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
NAMES: tuple[str, ...] = tuple(BY_NAME)
FIXED_NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS if not column.optional)
"""The columns that every row has: the header of CSV and TSV."""

assert len(BY_NAME) == len(COLUMNS) == len({column.spark_name for column in COLUMNS})
