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

`make bench` measured this on one machine: 2026-11-27, rmqtool 0.2.0 (e637f99ce9), AMD EPYC, 2
cores, 24 GiB, Linux 6.18.44-fc-v669, stores on ext4, python 3.11.7, numba 0.68.1, numpy 2.4.6,
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
  rmqtool --version             57.8 ms +-2%
  an empty Typer command        62.2 ms +-3%                           1.05 x
  bare Python                   11.2 ms +-6%                          0.194 x
start, verify of 4 MiB
  rmqtool verify                268 ms +-5%
  an empty Typer command        61.9 ms +-13%                         0.225 x
  import of typer, numpy and LL 137 ms +-13%                          0.514 x
  import of numpy               85.6 ms +-10%                         0.325 x
  import of numba               282 ms +-4%                            1.05 x
one message by its key
  rmqtool lookup                127 ms +-5%
  mqadmin 5.4.0                 3.71 s +-0%                            29.3 x
one message by its queue offset
  rmqtool lookup                148 ms +-20%
  mqadmin 5.4.0                 3.86 s +-0%                            27.1 x
the offsets of all queues
  rmqtool info                  134 ms
  mqadmin 5.4.0                 3.8 s                                  28.5 x
info
  rmqtool info                  116 ms +-5%
  an empty Typer command        62.7 ms +-8%                          0.564 x
lookup of one key
  rmqtool lookup                103 ms +-6%
  an empty Typer command        62.5 ms +-6%                          0.605 x
dump of 10 messages
  rmqtool dump                  103 ms +-5%
  an empty Typer command        62.3 ms +-5%                          0.613 x
tail of 10 messages
  rmqtool tail                  106 ms +-2%
  an empty Typer command        62.5 ms +-5%                           0.59 x
verify of the checkpoint
  rmqtool verify                109 ms +-10%
  an empty Typer command        61.7 ms +-21%                         0.552 x
walk and CRC, from files (in process)
  walk and CRC, one thread      371 ms, 8.68 GB/s
  reading the files             164 ms, 19.63 GB/s                    0.442 x
  Python with struct and zlib   1.64 GB/s, of a part                   5.29 x
  Python with construct         44.8 MB/s, of a part                    194 x
  Java 5.4.0, warm              708 ms, 4.55 GB/s                      1.91 x
walk and CRC, two threads (in process)
  walk and CRC, two threads     278 ms +-5%, 11.57 GB/s
  walk and CRC, one thread      378 ms +-3%, 8.52 GB/s                 1.39 x
walk with tags codes and keys (in process)
  walk, tags codes and keys     679 ms +-10%, 4.74 GB/s
  walk and CRC, one thread      367 ms +-4%, 8.79 GB/s                0.536 x
walk and CRC, from memory (in process)
  walk and CRC of one file      72 ms +-1%, 14.91 GB/s
  sum of 64-bit words           47.8 ms +-1%, 22.46 GB/s              0.665 x
verify, log pass
  verify, log pass              767 ms +-2%, 4.20 GB/s
  cat                           261 ms +-1%, 12.33 GB/s               0.341 x
verify, all passes
  rmqtool verify                1.36 s +-1%, 2.37 GB/s
  verify, log pass              753 ms +-5%, 4.28 GB/s                0.553 x
  cat                           264 ms +-0%, 12.21 GB/s               0.194 x
stats
  rmqtool stats                 1.31 s +-3%, 2.46 GB/s
  verify, log pass              777 ms +-4%, 4.15 GB/s                0.621 x
  cat                           269 ms +-2%, 11.97 GB/s                0.21 x
stats by topic, queue and hour
  rmqtool stats --by            1.11 s +-2%, 2.91 GB/s
  verify, log pass              775 ms +-4%, 4.16 GB/s                 0.69 x
  cat                           263 ms +-2%, 12.25 GB/s               0.243 x
export to Parquet
  rmqtool export                11.5 s, 218,147 messages/s
  pyarrow alone                 10.8 s, 231,350 messages/s            0.943 x
  verify, log pass              1.06 s, 2.36 million messages/s      0.0923 x
  cat                           286 ms, 8.73 million messages/s       0.025 x
export to Parquet, without bodies
  rmqtool export                1.59 s +-0%, 1.57 million messages/s
  pyarrow alone                 474 ms +-3%, 5.28 million messages/s  0.298 x
  verify, log pass              782 ms +-2%, 3.2 million messages/s   0.492 x
  cat                           263 ms +-1%, 9.52 million messages/s  0.165 x
export to Arrow
  rmqtool export                8.82 s, 283,514 messages/s
  cat                           289 ms, 8.66 million messages/s      0.0327 x
dump to JSON lines
  rmqtool dump                  18.5 s, 135,305 messages/s
  rmqtool export                19.9 s, 125,732 messages/s             1.08 x
  Python, json.loads            19.3 s, 129,775 messages/s             1.04 x
  cat                           418 ms, 5.98 million messages/s      0.0226 x
verify, log pass, cold cache
  rmqtool verify                3.29 s, 0.98 GB/s
  cat                           1.48 s, 2.17 GB/s                     0.451 x
verify, all passes, cold cache
  rmqtool verify                4.67 s, 0.69 GB/s
  cat                           2.01 s, 1.60 GB/s                     0.431 x
stats, cold cache
  rmqtool stats                 3.39 s, 0.95 GB/s
  cat                           2.59 s, 1.25 GB/s                     0.764 x
export to Parquet, cold cache
  rmqtool export                11.7 s, 0.28 GB/s
  cat                           5.15 s, 0.63 GB/s                     0.441 x
recover, the plan, cold cache
  rmqtool recover               4.75 s, 0.68 GB/s
  cat                           3.7 s, 0.87 GB/s                      0.777 x
```

Recovery:

```text
recover, the plan
  rmqtool recover               1.56 s, 2.06 GB/s
  Java 5.4.0, process           11.3 s, 0.29 GB/s                      7.21 x
  Java 5.4.0, process, work alo 6.87 s, 0.47 GB/s                       4.4 x
recover and apply
  rmqtool recover --apply       1.87 s, 1.72 GB/s
  Java 5.4.0, process           11 s, 0.29 GB/s                        5.88 x
  Java 5.4.0, process, work alo 6.6 s, 0.49 GB/s                       3.53 x
```

Writing:

```text
append from Parquet, 1 topic
  rmqtool append                2.06 s, 485,889 messages/s
  bare writer                   2.04 s, 490,887 messages/s             0.99 x
  one file per queue            3.72 s, 269,054 messages/s             1.81 x
  Java 5.4.0, warm              3.81 s, 262,230 messages/s             1.85 x
  Java 5.4.0, process           9.23 s, 108,349 messages/s             4.48 x
  Java 5.4.0, process, work alo 4.88 s, 205,015 messages/s             2.37 x
append from Arrow, 1 topic
  rmqtool append                2.86 s, 349,364 messages/s
  bare writer                   2.01 s, 496,568 messages/s            0.704 x
  one file per queue            3.25 s, 307,464 messages/s             1.14 x
  Java 5.4.0, warm              3.75 s, 266,794 messages/s             1.31 x
append from Parquet, 10 topics
  rmqtool append                1.69 s, 592,279 messages/s
  bare writer                   2.49 s, 401,428 messages/s             1.48 x
  one file per queue            3.52 s, 283,809 messages/s             2.09 x
  Java 5.4.0, warm              4.16 s, 240,324 messages/s             2.46 x
append from Parquet, 100 topics
  rmqtool append                2.39 s, 417,628 messages/s
  bare writer                   1.85 s, 539,908 messages/s            0.774 x
  one file per queue            3.58 s, 279,387 messages/s             1.49 x
  Java 5.4.0, warm              4 s, 249,736 messages/s                1.67 x
append from Parquet, 1,000 topics
  rmqtool append                3.44 s, 290,886 messages/s
  bare writer                   1.9 s, 527,418 messages/s             0.552 x
  one file per queue            5.05 s, 198,009 messages/s             1.47 x
  Java 5.4.0, warm              6.72 s, 148,788 messages/s             1.96 x
append from Parquet, 10,000 topics
  rmqtool append                12.3 s, 163,244 messages/s
  bare writer                   7.29 s, 274,177 messages/s            0.595 x
  one file per queue            25.1 s, 79,641 messages/s              2.05 x
  Java 5.4.0, warm              17.3 s, 115,623 messages/s             1.41 x
append from JSON lines
  rmqtool append                2.38 s, 419,742 messages/s
  bare writer                   2.4 s, 417,143 messages/s              1.01 x
  Python, json.loads            4.28 s, 233,706 messages/s              1.8 x
  Java 5.4.0, warm              3.18 s, 314,024 messages/s             1.34 x
put, one by one (in process)
  StoreWriter.put               4.34 s, 115,297 messages/s
  StoreWriter.put, write buffer 2.57 s, 194,814 messages/s            0.592 x
  a bare Python loop            1.1 s, 453,591 messages/s             0.254 x
  a bare Python loop, pwrite    2.26 s, 221,096 messages/s            0.521 x
  Java 5.4.0, warm              1.31 s, 381,528 messages/s            0.302 x
put, lists of messages (in process)
  StoreWriter.put_many, 16,384  3.76 s, 532,087 messages/s
  StoreWriter.put_many, 1,024   4.12 s, 485,212 messages/s              1.1 x
  Java 5.4.0, warm              7.11 s, 281,130 messages/s             1.89 x
put and flush, 16 threads (in process)
  StoreWriter.put, sync         4.55 s, 10,995 messages/s
  write and flush               564 ms, 88,660 messages/s             0.124 x
  Java 5.4.0, warm              2.12 s, 23,569 messages/s             0.467 x
```

Look-ups:

```text
lookup of 1 key
  rmqtool lookup                147 ms, 7 keys/s
  an empty Typer command        64.4 ms, 16 keys/s                    0.438 x
  Java 5.4.0, process           2.08 s, 0 keys/s                       14.1 x
  Java 5.4.0, process, work alo 92.9 ms, 11 keys/s                    0.632 x
  Java 5.4.0, warm              89.5 us, 11,173 keys/s             0.000608 x
lookup of 1,000 keys
  rmqtool lookup                211 ms, 4,739 keys/s
  an empty Typer command        57.3 ms, 17,458 keys/s                0.271 x
  Java 5.4.0, process           2.05 s, 488 keys/s                      9.7 x
  Java 5.4.0, process, work alo 143 ms, 6,975 keys/s                   0.68 x
  Java 5.4.0, warm              5.38 ms, 185,770 keys/s              0.0255 x
lookup of 1,000 keys, their places
  rmqtool lookup                155 ms +-2%, 6,453 keys/s, CPU 155 ms
  with one key                  102 ms +-1%, 9,833 keys/s, CPU 101 ms
                                                         0.658 x, CPU 0.659 x
  its reads alone               78.7 ms +-1%, 12,701 keys/s, CPU 78.4 ms
                                                         0.507 x, CPU 0.507 x
lookup of 20,000 keys
  rmqtool lookup                533 ms, 37,509 keys/s
  an empty Typer command        63.8 ms, 313,421 keys/s                0.12 x
  Java 5.4.0, process           2.37 s, 8,438 keys/s                   4.45 x
  Java 5.4.0, process, work alo 266 ms, 75,047 keys/s                   0.5 x
  Java 5.4.0, warm              71.9 ms, 278,178 keys/s               0.135 x
lookup of 20,000 keys, their places
  rmqtool lookup                377 ms +-4%, 52,994 keys/s, CPU 377 ms
  with one key                  103 ms +-2%, 193,482 keys/s, CPU 103 ms
                                                         0.274 x, CPU 0.274 x
  its reads alone               99.8 ms +-10%, 200,351 keys/s, CPU 99.1 ms
                                                         0.261 x, CPU 0.261 x
lookup of 100,000 keys
  rmqtool lookup                902 ms, 110,835 keys/s
  an empty Typer command        60.1 ms, 1.66 million keys/s         0.0667 x
  Java 5.4.0, process           2.46 s, 40,688 keys/s                  2.72 x
  Java 5.4.0, process, work alo 513 ms, 194,994 keys/s                0.568 x
  Java 5.4.0, warm              212 ms, 472,044 keys/s                0.235 x
lookup of 100,000 keys, their places
  rmqtool lookup                598 ms +-5%, 167,118 keys/s, CPU 598 ms
  with one key                  103 ms +-4%, 974,850 keys/s, CPU 102 ms
                                                          0.17 x, CPU 0.169 x
  its reads alone               166 ms +-6%, 601,864 keys/s, CPU 166 ms
                                                          0.28 x, CPU 0.279 x
lookup of 100,000 keys, files open (in process)
  lookup_columns                277 ms +-1%, 361,345 keys/s
  Java 5.4.0, warm              206 ms +-1%, 484,393 keys/s           0.746 x
```

Replication and serving:

```text
serve, 1 consumer
  rmqtool serve                 3.24 s, 262,308 messages/s, CPU 2.98 s
  broker 5.4.0                  3.72 s, 228,332 messages/s, CPU 5.69 s
                                                           1.15 x, CPU 1.91 x
serve, 4 consumers
  rmqtool serve                 3.91 s, 217,294 messages/s, CPU 3.63 s
  broker 5.4.0                  2.83 s, 300,553 messages/s, CPU 3.55 s
                                                         0.723 x, CPU 0.978 x
receive
  rmqtool receive               2.71 s, 0.38 GB/s, CPU 1.63 s
  Java 5.4.0, slave             3.88 s, 0.26 GB/s, CPU 5.73 s
                                                           1.44 x, CPU 3.51 x
receive --dispatch
  rmqtool receive --dispatch    2.31 s, 0.45 GB/s, CPU 1.82 s
  Java 5.4.0, slave             3.02 s, 0.34 GB/s, CPU 4.92 s
                                                            1.31 x, CPU 2.7 x
```

Spark:

```text
start, spark-scan of 4 MiB
  rmqtool spark-scan            14 s
  bare PySpark                  12 s                                  0.856 x
Spark: count by topic (in process)
  rocketmq-store                1.13 s +-14%, 2.22 million rows/s
  from memory                   680 ms +-2%, 3.68 million rows/s      0.614 x
  an empty source               349 ms +-5%, 7.16 million rows/s      0.314 x
Spark: rows of six columns (in process)
  rocketmq-store                1.04 s +-5%, 2.4 million rows/s
  from memory                   593 ms +-1%, 4.21 million rows/s       0.57 x
  from memory, log read         790 ms +-2%, 3.16 million rows/s       0.76 x
  struct in mapPartitions       115,012 rows/s, of a part              20.9 x
Spark: rows of six columns, cold cache (in process)
  rocketmq-store                2.68 s, 934,575 rows/s
  cat                           2.55 s, 979,327 rows/s                0.954 x
Spark: one topic of 1,000 topics (in process)
  rocketmq-store                141 ms +-32%
  a scan of all messages        1.42 s +-9%                            10.2 x
Spark: one hour (in process)
  rocketmq-store                134 ms +-18%
  a scan of all messages        1.69 s +-6%                            12.8 x
Spark: one key (in process)
  rocketmq-store                120 ms +-27%
  a scan of all messages        1.5 s +-7%                             11.9 x
Spark: plan of 100,000 files (in process)
  plan_scan                     5.06 s, 19,777 files/s
  reading the heads             1.45 s, 68,734 files/s                0.288 x
```

The time of a command at several sizes; memory and open files at the first and the last one. The
slope is the exponent of the time: 1 grows as the size, 0 not at all.

```text
info, bytes of log, slope -0.10
    1.01 GiB    133 ms    16 MiB     10 open files
    2.03 GiB    128 ms    16 MiB     14 open files
    4.06 GiB    126 ms    16 MiB     21 open files
    8.12 GiB    107 ms    16 MiB     29 open files
dump of 10 messages, bytes of log, slope -0.14
    1.01 GiB    130 ms    15 MiB      4 open files
    2.03 GiB    107 ms    15 MiB      4 open files
    4.06 GiB    113 ms    15 MiB      3 open files
    8.12 GiB   97.1 ms    15 MiB      4 open files
tail of 10 messages, bytes of log, slope -0.07
    1.01 GiB    120 ms    15 MiB      9 open files
    2.03 GiB    125 ms    15 MiB     13 open files
    4.06 GiB    129 ms    15 MiB     17 open files
    8.12 GiB    104 ms    15 MiB     21 open files
lookup of one key, bytes of log, slope 0.67
    1.01 GiB    114 ms    15 MiB      4 open files
    2.03 GiB    117 ms    15 MiB      5 open files
    4.06 GiB    105 ms    15 MiB      5 open files
    8.12 GiB    457 ms    46 MiB      7 open files
verify, bytes of log, slope 0.61
    1.01 GiB    827 ms    67 MiB     14 open files
    2.03 GiB    1.08 s    67 MiB     26 open files
    4.06 GiB    1.72 s    67 MiB     30 open files
    8.12 GiB    2.93 s    91 MiB     41 open files
stats, bytes of log, slope 0.71
    1.01 GiB    604 ms    49 MiB      4 open files
    2.03 GiB    917 ms    49 MiB      5 open files
    4.06 GiB    1.57 s    49 MiB      4 open files
    8.12 GiB    2.63 s    49 MiB      4 open files
lookup of 1,000 keys, bytes of log, slope 0.62
    1.01 GiB    269 ms    18 MiB      6 open files
    2.03 GiB    327 ms    17 MiB      6 open files
    4.06 GiB    257 ms    18 MiB      8 open files
    8.12 GiB    972 ms    54 MiB     13 open files
export to Parquet, bytes of log, slope 0.90
    1.01 GiB    4.45 s   304 MiB     13 open files
    2.03 GiB    8.83 s   297 MiB     18 open files
    4.06 GiB    17.1 s   293 MiB     25 open files
    8.12 GiB    28.9 s   317 MiB     21 open files
spark-scan, count, bytes of log, slope 0.07
    1.01 GiB    14.8 s  1103 MiB     11 open files
    2.03 GiB    15.7 s  1019 MiB     16 open files
    4.06 GiB    15.4 s  1032 MiB     21 open files
    8.12 GiB    16.9 s  1122 MiB     37 open files
recover, the plan, bytes of log, slope 0.75
    1.01 GiB    835 ms   109 MiB      7 open files
    2.03 GiB    1.17 s   155 MiB      7 open files
    4.06 GiB    1.99 s   211 MiB     10 open files
    8.12 GiB    3.99 s   343 MiB     14 open files
recover and apply, bytes of log, slope 0.92
    1.01 GiB    1.08 s   154 MiB      7 open files
    2.03 GiB    1.31 s   224 MiB      7 open files
    4.06 GiB    2.04 s   292 MiB      7 open files
    8.12 GiB    7.24 s   401 MiB      7 open files
append from Parquet, bytes of log, slope 0.91
    1.01 GiB    3.97 s   420 MiB     10 open files
    2.03 GiB    8.14 s   450 MiB     11 open files
    4.06 GiB    13.8 s   459 MiB     11 open files
    8.12 GiB    26.5 s   474 MiB     11 open files
info, topics, slope 0.36
           1    117 ms    16 MiB      9 open files
          10    115 ms    16 MiB     45 open files
         100    141 ms    17 MiB     68 open files
       1,000    574 ms    43 MiB     68 open files
      10,000    3.12 s   105 MiB      6 open files
verify, topics, slope 0.41
           1    736 ms    67 MiB     18 open files
          10    849 ms    68 MiB    126 open files
         100    2.91 s    75 MiB    582 open files
       1,000    12.2 s   111 MiB    518 open files
export to Parquet, topics, slope -0.02
           1    4.97 s   305 MiB     13 open files
          10    4.06 s   295 MiB     49 open files
         100    4.81 s   302 MiB     71 open files
       1,000    4.48 s   315 MiB     26 open files
recover, the plan, topics, slope 0.26
           1    831 ms   127 MiB      7 open files
          10    937 ms   128 MiB      6 open files
         100    1.32 s   128 MiB      7 open files
       1,000    5.06 s   150 MiB      7 open files
recover and apply, topics, slope 0.32
           1    1.17 s   167 MiB      7 open files
          10    1.15 s   168 MiB      7 open files
         100    1.75 s   172 MiB      7 open files
       1,000    10.5 s   195 MiB      7 open files
append from Parquet, topics, slope 0.06
           1    3.44 s   430 MiB     10 open files
          10    3.87 s   424 MiB     10 open files
         100    4.39 s   481 MiB     10 open files
       1,000    5.37 s   514 MiB     10 open files
```
"""
# speed: end
