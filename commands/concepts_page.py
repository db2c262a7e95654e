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
SPEED = r"""
## Speed

`make bench` measured this on one machine: 2026-11-26, rmqtool 0.2.0 (1e44d83c98), AMD EPYC, 2
cores, 24 GiB, Linux 6.18.44-fc-v782, stores on ext4, python 3.11.7, numba 0.68.1, numpy 2.4.6,
pyarrow 26.0.1, pyspark 4.3.0, java 17.0.15.

Each figure of rmqtool is the median time of the whole command, from the start of the process to its
end, with the files in the page cache, and the peak of its memory. A row marked (in process) is a
call without the start. The contenders of a row took turns; +- is half the range of their rounds.
The ratio is the speed of rmqtool divided by that of the peer: above 1 rmqtool is faster. Some peers
do only a part of the work and show a limit of the machine: they read or write the same bytes, or
start and do nothing. Unless a row says otherwise, the log has 2,500,000 messages of 1 KiB.

Reading:

```text
start, version
  rmqtool --version             167 ms +-15%
  an empty Typer command        144 ms +-24%                           1.05 x
  bare Python                   26.8 ms +-30%                         0.183 x
start, verify of 4 MiB
  rmqtool verify                595 ms +-20%
  an empty Typer command        149 ms +-22%                          0.242 x
  import of typer, numpy and LL 332 ms +-22%                          0.536 x
  import of numpy               229 ms +-27%                          0.404 x
  import of numba               631 ms +-23%                           1.01 x
one message by its key
  rmqtool lookup                393 ms
  mqadmin 5.4.0                 4.62 s                                 11.8 x
one message by its queue offset
  rmqtool lookup                238 ms
  mqadmin 5.4.0                 5 s                                      21 x
the offsets of all queues
  rmqtool info                  270 ms
  mqadmin 5.4.0                 4.85 s                                   18 x
info
  rmqtool info                  244 ms +-18%
  an empty Typer command        149 ms +-6%                           0.634 x
lookup of one key
  rmqtool lookup                233 ms +-6%
  an empty Typer command        150 ms +-5%                           0.633 x
dump of 10 messages
  rmqtool dump                  236 ms +-12%
  an empty Typer command        152 ms +-7%                            0.62 x
tail of 10 messages
  rmqtool tail                  263 ms +-10%
  an empty Typer command        170 ms +-10%                          0.677 x
verify of the checkpoint
  rmqtool verify                372 ms +-14%
  an empty Typer command        118 ms +-33%                          0.411 x
walk and CRC, from files (in process)
  walk and CRC, one thread      912 ms, 3.53 GB/s
  reading the files             689 ms, 4.68 GB/s                     0.755 x
  Python with struct and zlib   0.59 GB/s, of a part                   6.02 x
  Python with construct         15.3 MB/s, of a part                    230 x
  Java 5.4.0, warm              1.59 s, 2.03 GB/s                      1.74 x
walk and CRC, two threads (in process)
  walk and CRC, two threads     547 ms +-13%, 5.89 GB/s
  walk and CRC, one thread      704 ms +-20%, 4.58 GB/s                1.32 x
walk with tags codes and keys (in process)
  walk, tags codes and keys     1.3 s +-5%, 2.48 GB/s
  walk and CRC, one thread      728 ms +-4%, 4.42 GB/s                0.567 x
walk and CRC, from memory (in process)
  walk and CRC of one file      151 ms +-3%, 7.13 GB/s
  sum of 64-bit words           122 ms +-3%, 8.77 GB/s                0.821 x
verify, log pass
  verify, log pass              1.87 s +-4%, 1.72 GB/s
  cat                           366 ms +-4%, 8.80 GB/s                0.196 x
verify, all passes
  rmqtool verify                5.13 s, 0.63 GB/s
  verify, log pass              1.73 s, 1.86 GB/s                     0.337 x
  cat                           378 ms, 8.52 GB/s                    0.0737 x
stats
  rmqtool stats                 3.22 s, 1.00 GB/s
  verify, log pass              2.35 s, 1.37 GB/s                     0.731 x
  cat                           419 ms, 7.68 GB/s                      0.13 x
stats by topic, queue and hour
  rmqtool stats --by            2.56 s, 1.26 GB/s
  verify, log pass              1.67 s, 1.93 GB/s                     0.651 x
  cat                           390 ms, 8.25 GB/s                     0.152 x
export to Parquet
  rmqtool export                19.8 s, 126,141 messages/s
  pyarrow alone                 11.4 s, 219,554 messages/s            0.575 x
  verify, log pass              2.2 s, 1.14 million messages/s        0.111 x
  cat                           439 ms, 5.7 million messages/s       0.0221 x
export to Parquet, without bodies
  rmqtool export                2.51 s, 997,935 messages/s
  pyarrow alone                 1.16 s, 2.15 million messages/s       0.464 x
  verify, log pass              1.76 s, 1.42 million messages/s       0.704 x
  cat                           426 ms, 5.87 million messages/s        0.17 x
export to Arrow
  rmqtool export                18.9 s, 132,181 messages/s
  cat                           390 ms, 6.4 million messages/s       0.0206 x
dump to JSON lines
  rmqtool dump                  26.9 s, 92,912 messages/s
  rmqtool export                28.2 s, 88,769 messages/s              1.05 x
  Python, json.loads            30.4 s, 82,206 messages/s              1.13 x
  cat                           505 ms, 4.95 million messages/s      0.0188 x
verify, log pass, cold cache
  rmqtool verify                5.92 s, 0.54 GB/s
  cat                           2.91 s, 1.11 GB/s                     0.491 x
verify, all passes, cold cache
  rmqtool verify                11 s, 0.29 GB/s
  cat                           3.02 s, 1.07 GB/s                     0.276 x
stats, cold cache
  rmqtool stats                 6.29 s, 0.51 GB/s
  cat                           2.82 s, 1.14 GB/s                     0.448 x
export to Parquet, cold cache
  rmqtool export                25.4 s, 0.13 GB/s
  cat                           5.17 s, 0.62 GB/s                     0.204 x
recover, the plan, cold cache
  rmqtool recover               9.98 s, 0.32 GB/s
  cat                           3.86 s, 0.83 GB/s                     0.387 x
```

Recovery:

```text
recover, the plan
  rmqtool recover               5.3 s, 0.61 GB/s
  Java 5.4.0, process           19 s, 0.17 GB/s                        3.59 x
  Java 5.4.0, process, work alo 12.6 s, 0.26 GB/s                      2.37 x
recover and apply
  rmqtool recover --apply       6.97 s, 0.46 GB/s
  Java 5.4.0, process           16.9 s, 0.19 GB/s                      2.42 x
  Java 5.4.0, process, work alo 10.9 s, 0.30 GB/s                      1.56 x
```

Writing:

```text
append from Parquet, 1 topic
  rmqtool append                5.61 s, 178,203 messages/s
  bare writer                   3.96 s, 252,359 messages/s            0.706 x
  one file per queue            7.38 s, 135,590 messages/s             1.31 x
  Java 5.4.0, warm              7.37 s, 135,608 messages/s             1.31 x
  Java 5.4.0, process           14.2 s, 70,324 messages/s              2.53 x
  Java 5.4.0, process, work alo 8.91 s, 112,174 messages/s             1.59 x
append from Arrow, 1 topic
  rmqtool append                4.99 s, 200,433 messages/s
  bare writer                   3.96 s, 252,308 messages/s            0.794 x
  one file per queue            8.47 s, 118,037 messages/s              1.7 x
  Java 5.4.0, warm              5.28 s, 189,563 messages/s             1.06 x
append from Parquet, 10 topics
  rmqtool append                6.15 s, 162,675 messages/s
  bare writer                   4 s, 250,199 messages/s                0.65 x
  one file per queue            9.51 s, 105,124 messages/s             1.55 x
  Java 5.4.0, warm              6.46 s, 154,782 messages/s             1.05 x
```

Look-ups:

```text
lookup of 1 key
  rmqtool lookup                177 ms, 6 keys/s
  an empty Typer command        94.6 ms, 11 keys/s                    0.535 x
  Java 5.4.0, process           3.29 s, 0 keys/s                       18.6 x
  Java 5.4.0, process, work alo 166 ms, 6 keys/s                      0.942 x
  Java 5.4.0, warm              166 us, 6,024 keys/s               0.000939 x
lookup of 1,000 keys
  rmqtool lookup                443 ms, 2,257 keys/s
  an empty Typer command        175 ms, 5,718 keys/s                  0.395 x
  Java 5.4.0, process           8.85 s, 113 keys/s                       20 x
  Java 5.4.0, process, work alo 1.22 s, 820 keys/s                     2.75 x
  Java 5.4.0, warm              44.2 ms, 22,640 keys/s               0.0997 x
lookup of 20,000 keys
  rmqtool lookup                3.99 s, 5,008 keys/s
  an empty Typer command        236 ms, 84,910 keys/s                 0.059 x
  Java 5.4.0, process           9.72 s, 2,057 keys/s                   2.43 x
  Java 5.4.0, process, work alo 934 ms, 21,420 keys/s                 0.234 x
  Java 5.4.0, warm              272 ms, 73,492 keys/s                0.0681 x
lookup of 100,000 keys
  rmqtool lookup                4.15 s, 24,090 keys/s
  an empty Typer command        210 ms, 475,082 keys/s               0.0507 x
  Java 5.4.0, process           10.9 s, 9,159 keys/s                   2.63 x
  Java 5.4.0, process, work alo 3.18 s, 31,445 keys/s                 0.766 x
  Java 5.4.0, warm              603 ms, 165,837 keys/s                0.145 x
lookup of 100,000 keys, files open (in process)
  lookup_columns                1.56 s, 64,291 keys/s
  Java 5.4.0, warm              482 ms, 207,617 keys/s                 0.31 x
```
"""
# speed: end
