"""Every kind of damage that rmqtool knows: a table with one row each, and the finding that refers to a row.

Checks yield a `Finding` with a row's code and the facts; wording, severity, the broker's reaction and the
repair are defined here only. Codes are stable: a retired one is never reused.

Severity: a note is normal after a crash, or the next start repairs it; a warning needs attention; an error
is damage. `verify` exits with 1 if there is a warning or an error, and with 3 if something could not be
read or has an unsupported form (see `exit_code` of the rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from rmqtool.errors import AS_OWNER, EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, is_denied, worst_exit_code
from rmqtool.lazy_dataclass import dataclass

Severity = Literal["note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of damage.

    `broker` says what a broker does with it, `repair` how to repair it (None: no repair is needed), `source`
    where the rule comes from. `input_unread` makes the exit code 3, whatever the severity.
    """

    code: str
    name: str
    severity: Severity
    message: str
    broker: str
    repair: str | None
    source: str
    input_unread: bool = False

    @property
    def reaction(self) -> str:
        """What a broker does with it, as a sentence without its end; `broker` may begin with the verb."""
        if self.broker.startswith(_WITH_SUBJECT):
            return self.broker
        return f"the broker {self.broker}"

    @property
    def remedy(self) -> str | None:
        """How to repair it, for a person: what rebuild repairs, recover repairs too."""
        is_rebuilt = (self.repair or "").startswith("rmqtool rebuild STORE: ")
        return f"{self.repair}; rmqtool recover STORE does so too" if is_rebuilt else self.repair

    @property
    def exit_code(self) -> int:
        """The exit code of a command that has a finding of this kind."""
        if self.input_unread:
            return EXIT_INPUT
        return EXIT_OK if self.severity == "note" else EXIT_FINDINGS


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a problem was found.

    `path` is relative to the store root. `physical_offset` is the offset in the commit log for
    commit log findings, else the byte offset from the start of the file `path`; None if the finding has
    no place. `length` is in bytes, `detail` holds the numbers as a JSON object.
    """

    problem: Problem
    path: str
    physical_offset: int | None = None
    length: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    message: str = ""

    def row(self) -> dict[str, Any]:
        """The finding as a row: the names and order of the command line's output."""
        return {
            "problem": self.problem.code,
            "severity": self.problem.severity,
            "message": self.message or self.problem.message,
            "path": self.path,
            "physical_offset": self.physical_offset,
            "length": self.length,
            "detail": self.detail,
            "repair": self.problem.repair,
        }

    @property
    def is_denied(self) -> bool:
        """Whether this user may not read the file, so that nothing is known of what it holds."""
        return self.problem.repair == AS_OWNER


def exit_code(findings: Iterable[Finding]) -> int:
    """The exit code for these findings: 0, 1 or 3."""
    return worst_exit_code(*(finding.problem.exit_code for finding in findings))


OF_CONFIG_PAGE = frozenset({"CF07", "CF08", "CF09", "CF13"})
"""Lost config files: rmqtool-recovery(7) has a section with the steps."""
_WITH_SUBJECT = ("if ", "a start ", "another ", "4.x ", "5.x ")
_LOG_STOP = (
    "if a broker's start examines this place, it ends the log here and loses every later record and file"
    " (rmqtool recover shows which brokers would); a consumer's pull that meets this place loses the rest of"
    " its answer, or delivers the damaged bytes"
)
_OWN_NAME = (
    "while the broker is stopped and before anything else, give the file the name that its first record shows:"
    " verify and doctor print the line, mv -n commitlog/NAME commitlog/OFFSET; move a file away whose records"
    " another one has"
)
_NOT_READ = "this user may not read the file; nothing is known of what it holds"
_MAY_READ = "reads it if it runs as a user that may"
_NOT_NOTICED = "does not detect it; serves the bytes unchanged"
LOAD_FAILS = "does not start: load fails"
_REWRITE_QUEUE = "rmqtool rebuild STORE: rebuilds the queue from the commit log"
_COMPACT_AGAIN = (
    "while the commit log still has all messages of the topic and the broker is stopped, delete compaction/ and"
    " checkpoint, and create an empty file abort: the next start dispatches the log again, and the broker compacts"
    " the topic again; without these three steps consumers get no message of the topic, or only some; 5.4 reads"
    " only the newest 10 files of the log (commitLogRecoverMaxNum: set it to the number of files); with"
    " enableControllerMode or duplicationEnable a start without checkpoint dispatches nothing"
)
_NUMBER_OF_ITS_UNIT = (
    "rmqtool recover STORE: restores the queue offset from the record's unit if the surrounding records"
    " agree; otherwise it stays as it is"
)
_REWRITE_DATABASE = (
    "rmqtool rebuild STORE: rebuilds the database of queues from the commit log (extra rocksdb)"
)
_INDEX_AGAIN = "rmqtool rebuild STORE: rebuilds the index in RocksDB from the commit log (extra rocksdb)"
_REWRITE_INDEX = "rmqtool rebuild STORE: rebuilds the index from the commit log"
_FILLS_GAP = (
    "rmqtool recover STORE: fills the gap; if a slave, a backup or an archive of rmqtool expire has what is"
    " missing, put it back first: a slave's files have the same names and bytes"
)
_RESTORES_SIZE = (
    "rmqtool recover STORE: restores its size; if a slave or a backup has this file, put it back first: a"
    " slave's file has the same name and bytes"
)
_MOVE_AWAY = "rmqtool recover STORE: moves it to the backup"
_MOVE_OFFSET = "rmqtool recover STORE: sets it to the queue's end"
LOG_ELSEWHERE = "is storePathCommitLog elsewhere? Name its folder with --commitlog DIR or --broker-conf FILE"
"""What to ask first where a store has queues or an index, but no commit log."""
NEEDS_STORE = "a repair needs the whole store"
"""What to do about damage of a part of a store that a command repairs."""
_COPY = "copy the file to config/ from a backup, from the host that the store came from, or from a slave"
COPY_CONFIG = f"while the broker is stopped, {_COPY}; a slave gets it from its master every 10 s with 4.9, every minute with 5.x"
IF_NOT_RESET = "if nobody reset them, while the broker is stopped"
OR_SINGLE_GROUPS = "rmqtool reset-offset sets those of single groups"
_LEDGER_STOP = "if it is in the newest three files, the next start ends the log here and all later entries are lost; otherwise the broker does not detect it"
_OUT_OF_LEDGER = (
    "copy the folder dledger-SELFID from a replica that is sound, while the broker is stopped; without one,"
    " rmqtool copy STORE: takes the sound messages to a store without DLedger"
)
_NEW_LEDGER_INDEX = (
    "delete the folder index of the DLedger log while the broker is stopped: a start makes it again"
)
_TIMER = "rmqtool recover STORE: truncates the timer log there, and writes a matching wheel"
_CUT_OR_FILL = "rmqtool recover STORE: fills the range so that brokers skip it, or ends the log here"

PROBLEMS: tuple[Problem, ...] = (
    # commit log: records
    Problem("CL01", "torn tail", "note", "the last record was not written in full",
            "truncates the log here; the next append overwrites it", None, "CommitLog#recoverAbnormally"),
    Problem("CL02", "zero hole", "error", "zeros in the middle of the log; sound records follow",
            _LOG_STOP, _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize, #recoverNormally"),
    Problem("CL03", "body CRC", "error", "the body does not match its CRC",
            _LOG_STOP + "; consumers are never warned", _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    Problem("CL04", "wrong length", "error", "the record's lengths do not add up",
            _LOG_STOP, _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    Problem("CL05", "unknown magic", "error", "unknown magic number: neither a record nor a blank",
            _LOG_STOP, _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    Problem("CL06", "foreign record", "error", "the record's stored physical offset is not its position",
            "does not compare the two; writes the stored offset to queues and index", _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    Problem("CL07", "zombie tail", "warning", "older records follow newer ones: the remains of a truncated log",
            "treats them as valid if they start exactly at the end", "rmqtool recover STORE: truncates the log here and zeroes what follows", "CommitLog#recoverAbnormally"),
    Problem("CL08", "zeroed page", "error", "no record can be read here, and whole pages are zero",
            _LOG_STOP, _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    Problem("CL09", "property CRC", "error", "the record does not match its property CRC",
            "treats it as the end of the log with forceVerifyPropCRC; otherwise does not check", _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    Problem("CL10", "bad blank", "error", "the blank's length is not the remaining length of the file",
            "continues with the next file and never reads the rest of this one", _CUT_OR_FILL, "CommitLog#rollNextFile"),
    Problem("CL11", "no blank", "error", "the file ends without a blank although another file follows",
            "treats it as the end of the log: later files are deleted", _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    Problem("CL12", "unreadable", "error", "the operating system could not read these bytes",
            "crashes or stops here", None, "MappedFileQueue#load", input_unread=True),
    Problem("CL13", "bad properties", "warning", "keys, tags or other properties of the message are damaged",
            "drops the parts that it cannot parse; consumers that select by a tag or property in them, and queries by a key in them, do not find the message", None, "MessageDecoder#string2messageProperties"),
    Problem("CL14", "bad body", "warning", "the body cannot be decompressed, or the batch in it cannot be parsed",
            "does not check; consumers fail", None, "MessageDecoder#decode"),
    Problem("CL15", "queue offset jump", "error", "queue offsets in the log repeat or skip numbers",
            "writes units to the wrong slots of the queue", _NUMBER_OF_ITS_UNIT, "ConsumeQueue#putMessagePositionInfo"),
    Problem("CL16", "queue restarted", "warning", "a queue starts at 0 again: its topic was deleted and created again, or its folder was lost",
            "gives the first message of a queue without files the queue offset 0", None, "DefaultMessageStore#recoverTopicQueueTable, ConsumeQueueStore#recoverOffsetTable"),
    Problem("CL17", "no store time", "error", "the record's store timestamp is zero or negative",
            "never begins its scan after a crash at a file that starts with such a record", None, "CommitLog#isMappedFileMatchedRecover"),
    Problem("CL18", "bad number", "error", "a numeric property (DELAY, INNER_BASE, INNER_NUM) is not a number",
            _LOG_STOP, _CUT_OR_FILL, "CommitLog#checkMessageAndReturnSize"),
    # commit log: the set of files
    Problem("CL20", "missing file", "error", "a file is missing between two others",
            "loads the log; reads in the gap fail, and 4.x may never finish its start", _FILLS_GAP, "MappedFileQueue#findMappedFileByOffset"),
    Problem("CL21", "wrong-size file", "error", "the file does not have the size of a commit log file",
            LOAD_FAILS, _RESTORES_SIZE, "MappedFileQueue#doLoad"),
    Problem("CL22", "stray entry", "error", "an entry in the commit log folder is not a commit log file",
            LOAD_FAILS, _MOVE_AWAY, "MappedFileQueue#doLoad"),
    Problem("CL23", "empty file", "warning", "the file has no bytes",
            "4.x does not start; 5.x deletes it if it is the last", "rmqtool recover STORE: removes it if it is the last", "MappedFileQueue#doLoad"),
    Problem("CL24", "next file", "note", "an all-zero file, preallocated and never used",
            "deletes or keeps it at the next start", None, "MappedFileQueue#getLastMappedFile"),
    Problem("CL25", "misnamed file", "error", "the file's name is not a multiple of the file size, or files overlap",
            "finds records at wrong offsets", _OWN_NAME, "MappedFileQueue#doLoad"),
    Problem("CL26", "log missing", "error", "queues or an index exist, but the commit log has no files",
            "deletes every consume queue", f"find the log before a broker starts: {LOG_ELSEWHERE}; if it is lost, copy it from a slave or a backup",
            "CommitLog#recoverNormally, #recoverAbnormally"),
    Problem("CL27", "stray folder", "warning", "the commit log folder contains a folder",
            "4.x does not start; 5.x skips it", _MOVE_AWAY, "MappedFileQueue#doLoad"),
    # consume queues
    # DLedger log: entries, their index, the files with its state
    Problem("DL01", "wrong entry header", "error", "the header of a DLedger entry does not match its record or its place",
            _LEDGER_STOP, _OUT_OF_LEDGER, "DLedgerMmapFileStore#recover"),
    Problem("DL02", "entry number", "error", "the number of a DLedger entry does not follow that of the entry before",
            _LEDGER_STOP, _OUT_OF_LEDGER, "DLedgerMmapFileStore#recover"),
    Problem("DL03", "falling term", "error", "the term of a DLedger entry is older than that of the entry before",
            _LEDGER_STOP, _OUT_OF_LEDGER, "DLedgerMmapFileStore#recover"),
    Problem("DL04", "wrong index unit", "error", "units of the DLedger index do not match their entries, or are missing between others",
            "a start makes the units of the newest three log files again; it never checks older ones, and cannot send their entries to replicas",
            _NEW_LEDGER_INDEX, "DLedgerMmapFileStore#recover"),
    Problem("DL05", "index behind", "note", "the newest entries are not in the DLedger index yet",
            "makes the units at the next start", None, "DLedgerMmapFileStore#recover"),
    Problem("DL06", "wrong index file", "error", "a file of the DLedger index has the wrong size or name, or one is missing between two others",
            LOAD_FAILS, _NEW_LEDGER_INDEX, "MmapFileList#load, #checkSelf"),
    Problem("DL07", "bad ledger state", "warning", "the file checkpoint or currterm of a DLedger log is missing or wrong",
            "starts without it; without currterm a replica may vote twice in one term", None, "MemberState#loadTerm, DLedgerMmapFileStore#loadCheckPoint"),
    Problem("DL08", "uncommitted entries", "note", "the newest DLedger entries are above committedIndex: a majority of the replicas may not have them",
            "another leader may remove them", None, "DLedgerMmapFileStore#recover"),
    Problem("DL09", "state ahead", "error", "the DLedger checkpoint names entries that the log does not have: its end is lost",
            "continues at the end that it finds; the entries come back only from another replica", "copy the folder dledger-SELFID from a replica that has the entries, while the broker is stopped", "MemberState#loadTerm, DLedgerMmapFileStore#loadCheckPoint"),
    Problem("DL10", "file not read", "warning", "a commit log file that a broker with a DLedger log does not read",
            "reads commit log files only below the first offset of the DLedger log", None, "DLedgerCommitLog#getData"),
    # consume queues
    Problem("CQ01", "queue behind", "note", "the newest records are not in the queue yet",
            "dispatches them at the next start", None, "DefaultMessageStore.ReputMessageService#doReput"),
    Problem("CQ02", "unit missing", "error", "records of the log are not in their queue, and no start will dispatch them",
            "never repairs it; consumers miss the messages, and later units shift", _REWRITE_QUEUE, "ConsumeQueue#putMessagePositionInfo"),
    Problem("CQ03", "queue ahead", "warning", "units point past the end of the log",
            "deletes them at the next start; their queue offsets are reused",
            "rmqtool recover STORE: says which messages are lost with the end of the log, and rebuilds the queue", "ConsumeQueue#truncateDirtyLogicFiles"),
    Problem("CQ04", "misaligned", "error", "units are not in the slots of their records' queue offsets",
            _NOT_NOTICED, _REWRITE_QUEUE, "ConsumeQueue#putMessagePositionInfo"),
    Problem("CQ05", "wrong unit", "error", "the unit does not point to the record that belongs there",
            _NOT_NOTICED, _REWRITE_QUEUE, "DefaultMessageStore#getMessage"),
    Problem("CQ06", "wrong tags code", "error", "the unit's tags code does not match its record",
            "filters by the wrong tag", _REWRITE_QUEUE, "DefaultMessageStore#getMessage"),
    Problem("CQ07", "no delivery time", "warning", "a unit of SCHEDULE_TOPIC_XXXX holds a tag hash, or a delivery time that cannot be right",
            "delivers the message immediately, or at the wrong time", _REWRITE_QUEUE, "CommitLog#checkMessageAndReturnSize"),
    Problem("CQ08", "invalid unit", "error", "an empty or negative unit between valid ones",
            "truncates the queue here and deletes its later files", _REWRITE_QUEUE, "ConsumeQueue#recover"),
    Problem("CQ09", "wrong-size file", "error", "the queue file is longer or shorter than the others",
            LOAD_FAILS + " (5.x deletes an empty last file)", _REWRITE_QUEUE, "MappedFileQueue#doLoad"),
    Problem("CQ10", "missing file", "error", "a queue file is missing between two others",
            "skips the gap when reading", _REWRITE_QUEUE, "MappedFileQueue#findMappedFileByOffset"),
    Problem("CQ11", "stray entry", "warning", "an entry is neither a consume queue file nor a folder",
            "does not start if it is a file inside a queue; otherwise skips it", _MOVE_AWAY, "DefaultMessageStore#loadConsumeQueue, ConsumeQueueStore#loadConsumeQueues"),
    Problem("CQ12", "empty last file", "warning", "the last queue file holds no unit",
            "4.x may count a phantom unit; 5.x may fail to load", _REWRITE_QUEUE, "ConsumeQueue#recover"),
    Problem("CQ13", "queue missing", "error", "the log has records of this queue, but the queue has no files",
            "starts the queue at 0 again: queue offsets are reused", _REWRITE_QUEUE, "DefaultMessageStore#recoverTopicQueueTable, ConsumeQueueStore#recoverOffsetTable"),
    Problem("CQ14", "unit without record", "error", "the unit does not point to a record of the log",
            _NOT_NOTICED, _REWRITE_QUEUE, "DefaultMessageStore#getMessage"),
    Problem("CQ15", "unreadable", "error", "the operating system could not read these bytes",
            "crashes or stops here", _REWRITE_QUEUE, "MappedFileQueue#load", input_unread=True),
    Problem("CQ16", "bad extension", "warning",
            "the unit's extension unit is missing, unreadable or belongs to another message",
            "treats the message as a match for every tag", _REWRITE_QUEUE, "ConsumeQueueExt#get"),
    Problem("CQ17", "bad extension file", "error", "the units of an extension file end too early",
            "does not start if a size points outside the file; otherwise overwrites units that the queue uses",
            _REWRITE_QUEUE, "ConsumeQueueExt#recover"),
    Problem("CQ18", "wrong queue type", "error", "the queues in this folder are not of the type that topics.json gives their topic",
            LOAD_FAILS, "rmqtool recover STORE: adds the topic if topics.json lacks it; otherwise moves the plain queues of a batch topic, or batch queues without files of another one, to the backup; if the folder is right, set queue.type of the topic in config/topics.json"
            " while the broker is stopped: BatchCQ for queues in batchconsumequeue, SimpleCQ for those in consumequeue",
            "ConsumeQueueStore#queueTypeShouldBe"),
    # index
    Problem("IX01", "header against content", "error", "the index header does not match the entries",
            "trusts the header: misses keys or overwrites entries", _REWRITE_INDEX, "IndexFile#load"),
    Problem("IX02", "chain loop", "error", "an entry's chain goes forward, loops or leaves the file",
            "follows the chain until it has enough hits, or forever", _REWRITE_INDEX, "IndexFile#selectPhyOffset"),
    Problem("IX03", "key not found", "error", "a record's key cannot be found through the index",
            "answers without the message", _REWRITE_INDEX, "IndexFile#selectPhyOffset"),
    Problem("IX04", "entry without record", "error", "an index entry does not point to a record with that key",
            "loads the bytes at that offset", _REWRITE_INDEX, "DefaultMessageStore#queryMessage"),
    Problem("IX05", "duplicate entries", "note", "the same key of the same record is in the index twice",
            "writes such entries itself after a crash; returns the message twice", None, "IndexService#buildIndex"),
    Problem("IX06", "wrong-size file", "error", "the index file's size does not match its slots and entries",
            "extends a short file with zeros; reads a long one partially", _REWRITE_INDEX, "IndexService#load"),
    Problem("IX07", "stray entry", "warning", "an entry is not an index file",
            "logs and skips it", _MOVE_AWAY, "IndexService#load"),
    Problem("IX08", "index behind", "note", "the newest records are not in the index yet",
            "adds them when it dispatches the records", None, "IndexService#buildIndex"),
    Problem("IX09", "dropped at start", "note", "the next start deletes this index file, because the last stop was unclean",
            "deletes files newer than the checkpoint's index time", None, "IndexService#load"),
    Problem("IX10", "index missing", "warning", "records have keys, but there is no index for them",
            "answers queries by key without these messages", _REWRITE_INDEX, "IndexService#load"),
    Problem("IX11", "unreadable", "error", "the operating system could not read these bytes",
            "4.x continues without the index; 5.x does not start", _REWRITE_INDEX, "IndexService#load", input_unread=True),
    # checkpoint, abort, lock
    Problem("CP01", "checkpoint missing", "note", "the checkpoint is missing or all zero",
            "does nothing after a clean stop; after a crash, scans the whole log and deletes the index",
            None, "StoreCheckpoint, DefaultMessageStore#load"),
    Problem("CP02", "checkpoint size", "warning", "the checkpoint is not 4096 bytes",
            "extends it with zeros", "rmqtool recover STORE: rewrites it", "StoreCheckpoint"),
    Problem("CP03", "checkpoint in the future", "warning", "the checkpoint is newer than the last record",
            "begins its scan too late after a crash, which leaves holes in queues and index", "rmqtool recover STORE: sets its times back", "CommitLog#isMappedFileMatchedRecover"),
    Problem("CP07", "checkpoint behind", "note", "the checkpoint is older than the last record, although the last stop was clean",
            "scans more of the log after the next crash; normal after an append of older messages: the next message that the broker stores sets it right", None, "CommitLog#isMappedFileMatchedRecover"),
    Problem("CP04", "abort present", "note", "the last stop was unclean, or a broker is running",
            "runs its recovery for an unclean stop when it starts", None, "DefaultMessageStore#isTempFileExist"),
    Problem("CP05", "repair unfinished", "error", "a repair was interrupted; its guard file still exists",
            LOAD_FAILS, "rmqtool recover STORE: undoes its changes, then repairs again", "rmqtool-recovery(7), IF A REPAIR WAS INTERRUPTED"),
    Problem("CP06", "unreadable", "error", "the operating system could not read this file",
            "does not start", None, "StoreCheckpoint", input_unread=True),
    Problem("CP08", "wrong type", "error", "an entry does not have the type that its name implies, for example a pipe instead of a file",
            "fails when it opens the entry", "move it away", "DefaultMessageStore#load"),
    # config
    Problem("CF01", "config unreadable, .bak good", "warning", "the config file is missing, empty or cannot be parsed; its .bak can be read",
            "loads the .bak", "rmqtool recover STORE: copies the .bak over it", "ConfigManager#load"),
    Problem("CF02", "config unreadable", "error", "neither the config file nor its .bak can be read",
            "does not start; if the .bak is missing or empty, starts without the content of the file",
            COPY_CONFIG + "; without one, move the file and its .bak away: rmqtool recover makes topics.json again, and a broker starts without the content of others", "ConfigManager#load"),
    Problem("CF03", "topics unknown", "warning", "topics that have messages and queues are not in topics.json",
            "serves none of these topics until it is created again; 5.x does not load their batch queues",
            "rmqtool recover STORE: adds them to topics.json, as log and queues show them; it is better to " + _COPY + ", while the broker is stopped",
            "TopicConfigManager#decode"),
    Problem("CF04", "consumer offset beyond queue", "warning", "a committed offset is past the end of its queue",
            "returns OFFSET_OVERFLOW; the group stalls or skips messages",
            _MOVE_OFFSET + ", so that the group skips what it has not read there, or that of CID_RMQ_SYS_TRANS to the first open half message;"
            " rmqtool reset-offset (--from earliest or --since TIME) lets other groups receive messages again instead", "DefaultMessageStore#getMessage"),
    Problem("CF05", "delay offset beyond queue", "warning", "the offset of a delay level is outside its queue",
            "moves it into the range of the queue at the next start", _MOVE_OFFSET, "ScheduleMessageService#correctDelayOffset"),
    Problem("CF06", "topics missing", "warning", "topics.json and its .bak are missing",
            "serves no topic until it is created again; 5.x does not load batch queues", "rmqtool recover STORE: makes topics.json again from what is left of it and from the log, without other topics that have no messages; it is better to " + _COPY + ", while the broker is stopped",
            "TopicConfigManager#decode"),
    Problem("CF07", "delay offsets missing", "warning", "delayOffset.json is lost, and its .bak too, or the .bak is older than the log: messages that were delivered would be due again",
            "delivers every stored delayed message again, or those that were delivered since the .bak was written",
            "rmqtool recover STORE: makes it again if the log shows where each level goes on; otherwise, " + COPY_CONFIG, "ScheduleMessageService#load"),
    Problem("CF08", "consumer offsets missing", "error", "consumerOffset.json and its .bak are missing: the committed offsets of all groups are lost",
            "starts; every group without offsets begins at its consumeFromWhere and skips messages or consumes all of them again",
            COPY_CONFIG + "; without one, set each group's offsets with rmqtool reset-offset before a broker starts; rmqtool help recovery has the steps",
            "ConsumerOffsetManager#queryOffset"),
    Problem("CF09", "groups missing", "warning", "subscriptionGroup.json and its .bak are missing, but there were consumer groups",
            "creates groups with default settings when they connect; with autoCreateSubscriptionGroup=false none can consume",
            COPY_CONFIG + "; without one, create the named groups with mqadmin updateSubGroup (rmqtool doctor STORE --all names all)", "SubscriptionGroupManager#findSubscriptionGroupConfig"),
    Problem("CF10", "offsets replaced", "warning", "consumerOffset.json has a larger version than the committed offsets in RocksDB, which are others",
            "takes the offsets of the file alone; groups that only RocksDB has begin at their consumeFromWhere", "move consumerOffset.json and its .bak away while the broker is stopped, unless the file is newer", "RocksDBConsumerOffsetManager#merge, ConsumerOffsetManager#decode"),
    Problem("CF11", "offsets went back", "note", "committed offsets are behind those of consumerOffset.json.bak, which a broker wrote 5 s earlier:"
            " they were reset shortly before the stop, or the file was restored or edited since",
            "starts; the groups receive messages again that they had consumed",
            f"{IF_NOT_RESET}, cp -p STORE/config/consumerOffset.json.bak STORE/config/consumerOffset.json; {OR_SINGLE_GROUPS}",
            "ConfigManager#persist, ConsumerOffsetManager#queryOffset"),
    Problem("CF12", "topics deleted", "note", "the log has messages of topics that are not in topics.json and have no queues, as after a deletion",
            "does not serve them", None, "AdminBrokerProcessor#deleteTopic"),
    Problem("CF13", "old offsets", "warning", "the committed offsets are those of the older consumerOffset.json.bak, because the file was lost",
            "starts; groups receive again what they consumed since it was written, and those without an offset begin at their consumeFromWhere",
            "if a group must not receive messages again, or has no offset, set its offsets with rmqtool reset-offset before a broker starts; rmqtool help recovery has the steps",
            "ConfigManager#load, ConsumerOffsetManager#queryOffset"),
    Problem("CF14", "groups unknown", "note", "groups have committed offsets, but are not in subscriptionGroup.json: they were deleted, or the file is an older one",
            "creates these groups with default settings when they connect; with autoCreateSubscriptionGroup=false they cannot consume",
            "if they were not deleted, copy subscriptionGroup.json to config/ from a backup, the old host or a slave, or create the groups with mqadmin updateSubGroup",
            "SubscriptionGroupManager#findSubscriptionGroupConfig, AdminBrokerProcessor#deleteSubscriptionGroup"),
    Problem("CF15", "messages hidden", "warning", "topics.json hides messages from consumers: readQueueNums is less than the queues that have unread messages, or perm does not allow reading",
            "names no such queue to consumers, and refuses pulls from it", "rmqtool recover STORE: raises readQueueNums to the queues that have unread messages, and leaves writeQueueNums and perm as they are",
            "PullMessageProcessor#processRequest, MQClientInstance#topicRouteData2TopicSubscribeInfo"),
    Problem("CF16", "sent but not read", "note", "topics.json lets producers write to queues that consumers do not read: writeQueueNums is more than readQueueNums, or perm allows writing only",
            "stores messages that no consumer gets", "if this was not done on purpose, mqadmin updateTopic (readQueueNums) or updateTopicPerm changes it, once the broker runs",
            "MQClientInstance#topicRouteData2TopicPublishInfo"),
    Problem("CF17", "group restricted", "note", "a group has unread messages, but consumeEnable is false or retryMaxTimes is 0",
            "refuses its pulls; with retryMaxTimes 0, puts a message into the topic of dead letters when it fails for the first time, unless the client sets the number",
            "if this was not done on purpose, mqadmin updateSubGroup changes it, once the broker runs",
            "PullMessageProcessor#processRequest, AbstractSendMessageProcessor#consumerSendMsgBack"),
    # timer, epoch, compaction
    Problem("TM01", "timer file size", "error", "the timer wheel or its checkpoint does not have its fixed size",
            "does not start", _TIMER, "TimerMessageStore#recover"),
    Problem("TM02", "bad timer unit", "warning", "a timer log unit is damaged or gone",
            "truncates the timer log here; it runs out of memory when slots of the wheel lead to what follows", _TIMER, "TimerMessageStore#recover, #dequeue"),
    Problem("TM03", "timer file lost", "warning", "a file of the timer is lost or wrong: messages are delivered twice or never",
            "starts; it delivers messages twice or never",
            "rmqtool recover STORE: makes the files of the timer again, with the messages that were not delivered yet",
            "TimerMessageStore#recover"),
    Problem("TM04", "timer database lost", "warning", "the timer is in RocksDB, in a database that is lost or cannot be read",
            "starts; it delivers messages twice or never",
            "while the broker is stopped, copy the folder rocksdbstore from a backup; rmqtool stats STORE --delayed lists what waits",
            "TimerMessageRocksDBStore#start, #scanSysTimerTopic"),
    Problem("EP01", "bad epoch file", "warning", "the epoch file's count, CRC or order is wrong",
            "uses the .bak, otherwise an empty list", None, "EpochFileCache"),
    Problem("CC01", "bad compaction checkpoint", "warning", "compaction/position-checkpoint cannot be read",
            "compacts from the start again", "rmqtool recover STORE: restores its .bak, or removes it", "CompactionPositionMgr"),
    Problem("CC02", "damaged compaction log", "error", "the log or the queue of a compacted topic is damaged",
            "does not return the record; its older values are only in the commit log", _COMPACT_AGAIN, "CompactionLog"),
    Problem("CC03", "wrong compaction", "warning", "the compaction log does not hold the last message of each key",
            "returns an older message of a key, or none", _COMPACT_AGAIN, "CompactionLog#compaction"),
    Problem("CC05", "compacted record differs", "error", "a record of the compaction log is not that of the commit log",
            "serves the record of the compaction log", _COMPACT_AGAIN, "CompactionLog#pullMessage"),
    Problem("CC04", "odd compaction file", "warning", "a file in compaction/ does not belong to a log and its queue",
            "does not load the topic's compaction log", _COMPACT_AGAIN, "CompactionLog#load"),
    # tiered storage
    Problem("TS01", "missing segment", "error", "bytes between two segments of tiered storage are missing",
            "fails to read the messages there", None, "FlatAppendFile#readAsync"),
    Problem("TS02", "stray entry", "warning", "an entry in tiered storage is not a segment or its folder",
            "does not read it", _MOVE_AWAY, "PosixFileSegment"),
    Problem("TS03", "segment length", "error", "a segment of tiered storage is too short or too long",
            "returns fewer messages, or cuts a message", None, "FlatAppendFile#recoverFileSize"),
    Problem("TS04", "segment unknown", "error", "a segment of tiered storage is only in the metadata, or only on the disk",
            "reads only segments that the metadata name", None, "FlatAppendFile#recover"),
    Problem("TS05", "bad metadata", "error", "tieredStoreMetadata.json cannot be read",
            "does not start", None, "DefaultMetadataStore"),
    Problem("TS06", "damaged tiered copy", "error", "a record, unit or key of tiered storage is damaged",
            "serves the bytes unchanged, or fails to read them", None, "FlatMessageFile"),
    Problem("TS07", "bad index segment", "error", "the header or the slots of an index segment are wrong",
            "answers queries by key without its messages", None, "IndexStoreFile"),
    # RocksDB
    Problem("RD01", "damaged database", "error", "a part of a file of the RocksDB database with the queues cannot be read",
            "does not start, or fails when it reads the block; of a write-ahead log, it keeps the changes before the damage",
            _REWRITE_DATABASE, "AbstractRocksDBStorage", input_unread=True),
    Problem("RD02", "wrong queue end", "error", "the end that RocksDB notes for a queue does not match the unit there",
            "gives the next message the queue offset after the noted end", _REWRITE_DATABASE, "RocksDBConsumeQueueOffsetTable"),
    Problem("RD03", "wrong store time", "warning", "the store time in a RocksDB unit is not that of its record",
            "finds the wrong offset for a time", _REWRITE_DATABASE, "RocksDBConsumeQueueTable"),
    Problem("RD04", "wrong dispatch end", "warning", "the end of dispatch that RocksDB notes does not match units or log",
            "begins to dispatch there when it starts", _REWRITE_DATABASE, "RocksDBConsumeQueueStore#recover"),
    Problem("RD05", "queues differ", "error", "a queue that is written twice differs between its files and RocksDB",
            "reads the files; reads other messages once RocksDB is preferred", _REWRITE_DATABASE, "CombineConsumeQueueStore"),
    Problem("RD06", "missing database", "error", "the RocksDB database with the queues is missing",
            "creates an empty one; after a clean stop never dispatches the first record, and 5.4 dispatches at most ten files;"
            " where queues are written twice, gives each the end of its files, without the older units",
            _REWRITE_DATABASE, "RocksDBConsumeQueueStore#recover, CommitLog#recoverNormally"),
    Problem("RD07", "entry missing", "error", "a record's key is not in the index in RocksDB",
            "answers queries by key without the message, unless index files have it; never adds the entry, because it indexes no record before the noted end",
            _INDEX_AGAIN, "IndexRocksDBStore#buildIndex, #isMappedFileMatchedRecover"),
    Problem("RD08", "entry without record", "error", "an entry of the index in RocksDB does not match a record with that key and time",
            "loads the bytes at that offset", _INDEX_AGAIN, "MessageRocksDBStorage#queryOffsetForIndex"),
    Problem("RD09", "wrong end of index", "error", "the end that the index in RocksDB notes is not in the log",
            "indexes no new message until the log reaches the noted end", _INDEX_AGAIN, "IndexRocksDBStore#buildIndex"),
    Problem("RD10", "damaged side database", "error", "a part of a file of a RocksDB database without queues cannot be read",
            "does not start if it is the configuration; otherwise starts without what the database holds, or fails when it reads the block",
            "while the broker is stopped, copy the folder from a backup; if only CURRENT is missing or wrong, write the name of the MANIFEST there, and a line end,"
            " into a new file CURRENT; rmqtool rebuild with --broker-conf makes an index again (indexRocksDBEnable)",
            "AbstractRocksDBStorage", input_unread=True),
    Problem("RD11", "write-ahead log missing", "warning", "the write-ahead log of a RocksDB database is missing",
            "starts without the changes that only the log held: those since the last flush, and none after a clean stop",
            "if the broker was not stopped cleanly, copy the folder from a backup, or compare the offsets of groups before their consumers start (rmqtool stats"
            " --by group); after a clean stop nothing is lost, and a start creates a new log", "DBImpl#RecoverLogFiles"),
    Problem("RD12", "second queue incomplete", "warning", "a queue that is written twice lacks units in RocksDB, or has units beyond the log there",
            "gives the queue in RocksDB the end of its files, so that it loses its older units; does not start if clients are served from RocksDB (combineCQPreferCQType)",
            _REWRITE_DATABASE, "CombineConsumeQueueStore#verifyAndInitOffsetForAllStore"),
    Problem("RD13", "missing side database", "warning", "the RocksDB database of index, timer messages or open transactions is missing",
            "creates an empty one, without the index entries, timer messages and open transactions of before",
            "while the broker is stopped, copy the folder from a backup; rmqtool rebuild with --broker-conf makes an index again (indexRocksDBEnable)",
            "MessageRocksDBStorage"),
    Problem("RD14", "missing POP database", "warning", "the RocksDB database of POP records is missing",
            "creates an empty one, and never delivers again what was popped and not acknowledged",
            "while the broker is stopped, copy the folder from a backup; without one, set the offsets of groups that pop back (mqadmin"
            " resetOffsetByTime, once the broker runs)", "PopConsumerRocksdbStore"),
    Problem("RD15", "MANIFEST behind", "error", "the MANIFEST of a RocksDB database has lost its newest records: it does not name tables that are there",
            "starts without what those tables hold, and deletes them",
            "before a broker starts, copy the folder from a backup; rmqtool rebuild makes queues (consumequeue) again",
            "VersionSet#Recover, DBImpl#DeleteObsoleteFiles"),
    # out of reach
    Problem("UN01", "not checked", "warning", "recognised but not checked: rmqtool cannot read this form",
            "reads it normally", None, "rmqtool-concepts(7), PARTS OF A STORE", input_unread=True),
)  # fmt: skip

BY_CODE: dict[str, Problem] = {problem.code: problem for problem in PROBLEMS}
assert len(BY_CODE) == len(PROBLEMS)

LEDGER_CURE = (
    "rmqtool never changes a DLedger log: take its folder from a sound replica while the brokers are stopped,"
    " or write the sound messages as a new store (rmqtool help recovery)"
)
"""What to do in a store with a DLedger log about a problem of which `leaves_ledger` is true."""


def leaves_ledger(problem: Problem) -> bool:
    """Whether a problem, in a store with a DLedger log, leads to a replica or out of DLedger, not to recover."""
    repair = problem.repair or ""
    return repair in (_OUT_OF_LEDGER, LEDGER_CURE) or (
        problem.code.startswith("CL") and repair.startswith("rmqtool recover ")
    )


def rename_line(problem: Problem) -> str | None:
    """The command line that gives a misnamed log file its own name back; None if none is known."""
    return problem.repair if problem.code == "CL25" and problem != BY_CODE["CL25"] else None


def messages_of(code: str, detail: Mapping[str, Any]) -> int:
    """How many messages lack their unit, or have a wrong one, by a finding on a queue; 0 for any other."""
    if code not in _OF_MESSAGES or "last_queue_offset" not in detail:
        return 0
    return int(detail.get("records", detail["last_queue_offset"] - detail["queue_offset"] + 1))


_OF_MESSAGES = frozenset({"CQ01", "CQ02", "CQ05", "CQ13"})


def finding(
    code: str,
    path: str,
    physical_offset: int | None = None,
    length: int | None = None,
    **detail: Any,
) -> Finding:
    """A `Finding` of the row `code`. Raises KeyError for a code that is not in the table.

    Of a file that this user may not read it says only that, and what to do.
    """
    problem = BY_CODE[code]
    if problem.input_unread and is_denied(detail.get("reason")):
        problem = replace(problem, message=_NOT_READ, broker=_MAY_READ, repair=AS_OWNER)
    return Finding(problem, path, physical_offset, length, detail)
