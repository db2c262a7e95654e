"""The text of rmqtool-concepts(7): the parts of a store, and the life of a message in them.

Paragraphs, `## headings`, `- ` entries (a term, a full stop, its text) and fenced blocks.
`python -m tests.benchmarks.report` writes the section of measured speed between its two markers. A test
compares the figures of the section "What it costs" with the store that they describe.

Sources: specs 01 (sections 5 to 11), 02 (2 to 8, 13, 14) and 04; the page names the classes of RocketMQ where
they settle a dispute.
"""

TEXT = r"""
## Parts of a store

- commit log. The messages of all topics, one after the other, in files of one size, 1 GiB by default. A file
is named by the physical offset of its first byte. Every other part but the configuration can be rebuilt from
the commit log.
- consume queues. One folder for each queue of each topic. A unit of 20 bytes points to a message in the
commit log: its physical offset, its size and the hash of its tag. Unit number n is the message with queue
offset n.
- index. Hash tables from keys to physical offsets. An entry holds only the hash of its key, so a reader
compares the key with that of the message.
- checkpoint. The store times up to which commit log, consume queues and index are on the device.
- abort. A file that exists while a broker runs. If a start finds it, the last stop was not clean.
- lock. A file that a running broker locks. The file itself stays after a stop and means nothing.
- DLedger. With enableDLegerCommitLog the log lies in a folder dledger-SELFID, and the header of an entry
precedes each message. rmqtool reads it like any other log, and never changes it. `rmqtool copy STORE --output
NEW` writes its messages as a store without DLedger; rmqtool-recovery(7) says when.
- tiered storage. With TieredMessageStore a broker copies messages to other storage, with a log for each
queue. A copy of the posix provider (tieredStoreFilePath) is read as a store: `rmqtool dump STORE/tiered`.
rmqtool reads its complete index files; what they lack, a look-up scans.
- compaction. A topic with cleanup.policy=COMPACTION has a second log, which keeps the last message of each
key. Its consumers read that log; the commit log keeps all messages until they expire. `rmqtool dump
STORE/compaction` shows what the log keeps. In these two kinds of store a physical offset is the number of a
segment times 2,000,000,000, plus the position in it; `rmqtool info --json` lists the logs. They are only
read.
- config. Topics, consumer offsets, consumer groups and delay offsets as JSON, each with the version before it
in a file `.bak`. Consumer offsets cannot be rebuilt from the commit log: without a slave or a backup that
holds them, a group begins again where its consumers say (consumeFromWhere).

rmqtool-store(5) describes every file, field by field.

## Append

A broker appends a message to the end of the commit log, under one lock for all topics. The lock gives the
message its store time and its physical offset. Store times therefore grow along the log, except where the
clock of the host was set back. The queue offset comes from a table in memory, which no file holds: a start
reads it from the ends of the consume queues. If the folder of a queue is lost and not rebuilt, the offsets of
the queue begin at 0 again.

A message never crosses a file. If it does not fit, a blank of 8 bytes or more fills the rest of the file, and
the message becomes the first of the next one. While a file is in use the next one already exists, in full
size and full of zeros. After a crash an empty last file is therefore normal; a clean stop deletes it.

A half message of a transaction and a delayed message are first stored under a system topic, and again under
their own topic when they are committed or due: the commit log holds such a message twice.

All messages go to the end of one file, whatever their topics. This is why the number of topics hardly
matters to the device, in contrast to one file for each queue.

## Page cache

After the append the message is in memory only: in the page cache of the operating system, because the files
are mapped. If the broker process dies, nothing is lost, since the operating system still has the pages. If
the host loses power, everything that was not flushed is lost.

With a write buffer (transientStorePoolEnable) the message is first in the memory of the process. A thread
writes it to the file every 200 ms. Until then consumers cannot see it, and it is lost with the process.

Consumers that are level with the log read from the page cache. A consumer that is far behind reads from the
device, and what it reads displaces other pages.

## Flush

- asynchronous flush. The default. The producer has its answer at once. A thread flushes every 500 ms if
4 pages or more have changed, and everything every 10 s. A loss of power costs about that much.
- synchronous flush. The producer has its answer when its message is on the device, or after 5 s the status
FLUSH_DISK_TIMEOUT; the message is stored in both cases. Messages that wait at the same time share one flush.
A message whose property WAIT is false is not waited for.

Consume queues are flushed every second if 2 pages or more have changed, and in full every 60 s. An index file
is flushed when it is full. The checkpoint is written at a full flush of the queues, when an index file is
full, and at the stop; by 5.x also every second.

## Dispatch

Another thread reads the commit log again, message by message, every millisecond. It writes the unit of the
consume queue, then the entries of the index. A message exists for consumers from the moment its unit exists.
A 5.x broker with synchronous flush dispatches only what is flushed.

If a broker is killed, units and entries may be missing. The next start creates them from the commit log, from
the point that the consume queues and the checkpoint give. It does not look at each queue: a queue that lost
units while another is ahead is not repaired by a clean start.

## Queue

A consumer asks for a queue and a queue offset. The broker computes the position of the unit, 20 times the
offset, and skips units whose hash is not one of the subscribed tags. It reads the messages of the others at
their physical offsets. Two tags may have the same hash, so the consumer compares the tag itself again.

The unit of a delayed message holds the time when it is due where others hold the hash of the tag.

Time is looked up in the consume queue too: a binary search over the units reads the store time of each
message that it visits. Two times that are out of order, after a clock was set back, can mislead it.

## Index

The header of an index file has 40 bytes, its hash slots 4 bytes each, its entries 20 bytes each. Entries of
one slot form a chain from the newest to the oldest. A broker follows the chain, takes at most 64 offsets, and
returns the messages there without comparing their keys; the client does that.

The unique key and each key of a message take one entry each; a 5.4 broker adds one for the tag. A file with
the default 5,000,000 slots and 20,000,000 entries has 420,000,040 bytes, although most of it is a hole
at first.

## Long polling

A consumer that has read everything sends its request all the same, and the broker keeps it: 15 s for a push
consumer. The dispatch of a message to the queue answers it at once; a look every 5 s catches what was missed.
This is why a message reaches a waiting consumer within milliseconds although consumers only ever ask.

## Replication

A slave holds the bytes of its master's commit log at the same offsets. It reports how far it has come, and
the master sends what follows. The slave dispatches by itself: its consume queues have the same units, its
index files other names. Topics, groups and offsets of consumers come over another connection, every few
seconds; consumers' offsets on a slave are therefore older than its messages.

A slave acknowledges what is in its memory, not what it has flushed. Nothing compares the bytes. If a slave
was ahead of a master that lost its tail, both continue with different bytes at the same offsets, for ever and
without a report. `rmqtool diff MASTER SLAVE` finds the place.

## Expiry

The unit of expiry is a file of the commit log, and its age is its time of last modification. In the hour of
deleteWhen, 4 o'clock by default, a broker deletes files older than fileReservedTime, 72 hours by default.
Consumers are not asked. The last file is never deleted.

A full disk changes this. Above 75 % a broker deletes expired files at any hour. Above 85 % it deletes the
oldest files whatever their age, up to 10 every 10 s. Above 90 % it also rejects messages.

Queue files and index files follow when all that they point to is gone. A queue's first units may point to
deleted messages; readers skip them.

## Recovery

A start without the abort file trusts the last files: 4.9 checks the last three files of the commit log,
5.x those after the last dispatched message. A start with it begins at the newest file whose first message is
older than the checkpoint minus 3 s, and dispatches again from there; 5.4 looks at ten files at most.

In both cases the first record that is not sound is the end of the log. Files after it are deleted, units that
point beyond it are cut off, and the next message overwrites it. That is right for a torn end, and wrong for a
damaged sector in the middle of sound messages. `rmqtool recover STORE` shows what each version would delete
before a start does it.

## What it costs

The figures are those of a store that a 5.4 broker wrote, with the messages of 25 topics:

- commit log. 3,718,465 bytes for 4,099 records: 907 bytes a record.
- consume queues. 4,099 units, 2.2 % of the commit log.
- index. 11,494 entries, 2.8 a record: 6.2 % of the commit log.

## Often said, not so

- With synchronous flush a loss of power costs nothing. It costs no acknowledged record of the commit log on a
device that keeps its promises. Consume queues, index, checkpoint and consumer offsets are flushed at other
times and may be older. Before 5.4 a flush that failed counts as done (DefaultMappedFile#flush), and the
producer gets its acknowledgement.
- The disk is cleaned at 72 %. 72 is fileReservedTime, in hours. The limits of the disk are 75, 85 and 90 %
(DefaultMessageStore.CleanCommitLogService#isSpaceToDelete).
- A message is deleted when it is consumed, or 72 hours after it was stored. It is deleted with its file,
by the modification time of the file (MappedFileQueue#deleteExpiredFileByTime). A copy of a store that does
not keep these times starts the 72 hours again.
- The checkpoint is written every 60 s. By 4.x, with the full flush of the consume queues. A 5.x broker also
writes it every second (DefaultMessageStore#addScheduleTask).
- The checkpoint says how much is safe. It holds the time of messages, not offsets, and a 5.x broker may write
a time whose queue units are not yet on the device (StoreCheckpoint). `rmqtool verify` compares the units.
- Index slots have 20 bytes. Slots have 4 bytes, entries have 20 (IndexFile).
- A look-up by time uses the index. It is a binary search in a consume queue (method
getOffsetInQueueByTime of ConsumeQueue). The times in the index only limit a look-up by key.
- The index finds a message. It finds offsets of messages whose key has the same hash, and no message that
was not indexed; after an unclean stop the last index file is deleted and only in part made again
(IndexService#load).
- Only the newest file of the commit log is mapped. A file stays mapped until it is deleted
(DefaultMappedFile#destroy).
- Consumers read the commit log in order. They read it at the offsets that their queue gives; with many
topics that is an order of its own for each queue.
- An unclean stop loses messages. What was in the page cache survives the death of the process; only a write
buffer does not. The start after it checks the end of the log, dispatches again, and rebuilds part of the
index. Messages are lost when that start meets a damaged record before the end.
- A slave is a backup. It follows the deletions of expiry by its own clock and disk, and it
acknowledges before it flushes (DefaultHAClient).
"""

# speed: begin
SPEED = ""
# speed: end
