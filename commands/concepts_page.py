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

`make bench` measured this on one machine: 2026-11-28, rmqtool 0.2.0 (89176ebe3c), AMD EPYC, 2
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
  rmqtool --version             54.6 ms +-2%
  an empty Typer command        57.7 ms +-19%                          1.04 x
  bare Python                   10.6 ms +-4%                          0.191 x
start, verify of 4 MiB
  rmqtool verify                238 ms +-3%
  an empty Typer command        59 ms +-2%                            0.246 x
  import of typer, numpy and LL 131 ms +-4%                            0.55 x
  import of numpy               81.3 ms +-15%                         0.339 x
one message by its key
  rmqtool lookup                110 ms +-3%
  mqadmin 5.4.0                 3.85 s +-2%                            35.1 x
one message by its queue offset
  rmqtool lookup                104 ms +-5%
  mqadmin 5.4.0                 3.75 s +-1%                            36.3 x
the offsets of all queues
  rmqtool info                  121 ms +-3%
  mqadmin 5.4.0                 3.64 s +-1%                            30.1 x
info
  rmqtool info                  97.4 ms +-4%
  an empty Typer command        59.1 ms +-3%                          0.602 x
lookup of one key
  rmqtool lookup                95.8 ms +-11%
  an empty Typer command        58.4 ms +-5%                           0.61 x
dump of 10 messages
  rmqtool dump                  116 ms +-123%
  an empty Typer command        76.3 ms +-48%                         0.576 x
tail of 10 messages
  rmqtool tail                  109 ms +-8%
  an empty Typer command        62.8 ms +-6%                          0.575 x
verify of the checkpoint
  rmqtool verify                104 ms +-3%
  an empty Typer command        63.2 ms +-5%                          0.617 x
walk and CRC, from files (in process)
  walk and CRC, one thread      367 ms, 8.78 GB/s
  reading the files             165 ms, 19.50 GB/s                     0.45 x
  reading and summing           204 ms, 15.81 GB/s                    0.556 x
  Python with struct and zlib   1.57 GB/s, of a part                    5.6 x
  Python with construct         44.1 MB/s, of a part                    199 x
  Java 5.4.0, warm              688 ms, 4.68 GB/s                      1.88 x
walk and CRC, two threads (in process)
  walk and CRC, two threads     253 ms +-4%, 12.74 GB/s
  walk and CRC, one thread      345 ms +-7%, 9.33 GB/s                 1.39 x
  reading and summing, two thre 143 ms +-1%, 22.53 GB/s               0.566 x
  reading and summing           197 ms +-2%, 16.34 GB/s               0.783 x
walk with tags codes and keys (in process)
  walk, tags codes and keys     657 ms +-3%, 4.90 GB/s
  walk and CRC, one thread      354 ms +-5%, 9.09 GB/s                0.544 x
walk and CRC, from memory (in process)
  walk and CRC of one file      73.1 ms +-1%, 14.68 GB/s
  sum of 64-bit words           47.8 ms +-1%, 22.44 GB/s              0.659 x
verify, log pass
  verify, log pass              733 ms +-3%, 4.40 GB/s
  cat                           260 ms +-1%, 12.38 GB/s               0.359 x
verify, all passes
  rmqtool verify                1.37 s +-3%, 2.35 GB/s
  verify, log pass              713 ms +-2%, 4.52 GB/s                0.521 x
  cat                           260 ms +-5%, 12.41 GB/s                0.19 x
stats
  rmqtool stats                 1.08 s +-8%, 2.99 GB/s
  verify, log pass              767 ms +-7%, 4.20 GB/s                0.706 x
  cat                           271 ms +-4%, 11.90 GB/s               0.253 x
stats by topic, queue and hour
  rmqtool stats --by            1.11 s +-1%, 2.89 GB/s
  verify, log pass              756 ms +-2%, 4.26 GB/s                0.678 x
  cat                           266 ms +-1%, 12.12 GB/s               0.238 x
grep of a text
  rmqtool dump                  1.17 s +-4%, 2.75 GB/s
  verify, log pass              701 ms +-2%, 4.60 GB/s                0.593 x
  cat                           259 ms +-1%, 12.45 GB/s               0.219 x
grep of a regular expression
  rmqtool dump                  1.24 s +-1%, 2.59 GB/s
  verify, log pass              742 ms +-2%, 4.34 GB/s                0.599 x
  cat                           263 ms +-5%, 12.24 GB/s                0.21 x
grep in compressed bodies
  rmqtool dump                  5.55 s, 112,606 messages/s
  Python, zlib.decompress       3.68 s, 170,040 messages/s            0.662 x
  verify, log pass              426 ms, 1.47 million messages/s      0.0768 x
export to Parquet
  rmqtool export                11.4 s, 220,237 messages/s
  pyarrow alone                 8.57 s, 291,566 messages/s            0.755 x
  verify, log pass              772 ms, 3.24 million messages/s       0.068 x
  cat                           271 ms, 9.23 million messages/s      0.0239 x
export to Parquet, without bodies
  rmqtool export                1.25 s +-2%, 2 million messages/s
  pyarrow alone                 453 ms +-1%, 5.51 million messages/s  0.362 x
  verify, log pass              787 ms +-6%, 3.18 million messages/s  0.629 x
  cat                           259 ms +-0%, 9.65 million messages/s  0.207 x
export to Arrow
  rmqtool export                10.1 s, 246,743 messages/s
  cat                           351 ms, 7.13 million messages/s      0.0346 x
dump to JSON lines
  rmqtool dump                  18.8 s, 132,661 messages/s
  rmqtool export                18.8 s, 132,852 messages/s            0.999 x
  Python, json.loads            20.6 s, 121,623 messages/s             1.09 x
  cat                           511 ms, 4.89 million messages/s      0.0271 x
verify, log pass, cold cache
  rmqtool verify                1.72 s +-2%, 1.88 GB/s
  cat                           1.61 s +-14%, 2.00 GB/s               0.941 x
verify, all passes, cold cache
  rmqtool verify                3.19 s, 1.01 GB/s
  cat                           2.2 s, 1.46 GB/s                      0.691 x
stats, cold cache
  rmqtool stats                 1.89 s, 1.70 GB/s
  cat                           2.82 s, 1.14 GB/s                      1.49 x
export to Parquet, cold cache
  rmqtool export                12.2 s, 0.26 GB/s
  cat                           4.05 s, 0.80 GB/s                     0.332 x
recover, the plan, cold cache
  rmqtool recover               3.07 s, 1.05 GB/s
  cat                           2.8 s, 1.15 GB/s                      0.914 x
```

Recovery:

```text
recover, the plan
  rmqtool recover               1.47 s, 2.19 GB/s
  Java 5.4.0, process           12.7 s, 0.25 GB/s                      8.62 x
  Java 5.4.0, process, work alo 8.13 s, 0.40 GB/s                      5.51 x
recover and apply
  rmqtool recover --apply       2.02 s, 1.59 GB/s
  Java 5.4.0, process           11.1 s, 0.29 GB/s                      5.49 x
  Java 5.4.0, process, work alo 6.74 s, 0.48 GB/s                      3.33 x
```

Writing:

```text
append from Parquet, 1 topic
  rmqtool append                1.87 s, 534,218 messages/s
  bare writer                   1.68 s, 596,870 messages/s            0.895 x
  one file per queue            3.71 s, 269,212 messages/s             1.98 x
  Java 5.4.0, warm              3.3 s, 303,014 messages/s              1.76 x
  Java 5.4.0, process           8.69 s, 115,123 messages/s             4.64 x
  Java 5.4.0, process, work alo 4.62 s, 216,455 messages/s             2.47 x
append from Arrow, 1 topic
  rmqtool append                1.98 s, 504,504 messages/s
  bare writer                   1.66 s, 603,646 messages/s            0.836 x
  one file per queue            3.68 s, 272,080 messages/s             1.85 x
  Java 5.4.0, warm              2.87 s, 349,033 messages/s             1.45 x
append from Parquet, 10 topics
  rmqtool append                2.05 s, 488,095 messages/s
  bare writer                   2.15 s, 465,395 messages/s             1.05 x
  one file per queue            3.55 s, 281,528 messages/s             1.73 x
  Java 5.4.0, warm              3.09 s, 324,091 messages/s             1.51 x
append from Parquet, 100 topics
  rmqtool append                2.41 s, 414,756 messages/s
  bare writer                   2.06 s, 485,181 messages/s            0.855 x
  one file per queue            4.38 s, 228,384 messages/s             1.82 x
  Java 5.4.0, warm              4.74 s, 211,066 messages/s             1.97 x
append from Parquet, 1,000 topics
  rmqtool append                3.64 s, 274,981 messages/s
  bare writer                   2.98 s, 335,628 messages/s            0.819 x
  one file per queue            5.52 s, 181,173 messages/s             1.52 x
  Java 5.4.0, warm              7.32 s, 136,585 messages/s             2.01 x
append from Parquet, 10,000 topics
  rmqtool append                15.1 s, 132,272 messages/s
  bare writer                   7.57 s, 264,093 messages/s            0.501 x
  one file per queue            28.5 s, 70,137 messages/s              1.89 x
  Java 5.4.0, warm              18.9 s, 105,574 messages/s             1.25 x
append from JSON lines
  rmqtool append                2.14 s, 466,727 messages/s
  bare writer                   1.92 s, 520,455 messages/s            0.897 x
  Python, json.loads            3.99 s, 250,365 messages/s             1.86 x
  Java 5.4.0, warm              2.79 s, 358,687 messages/s              1.3 x
put, one by one (in process)
  StoreWriter.put               4.41 s, 113,282 messages/s
  StoreWriter.put, write buffer 2.74 s, 182,262 messages/s            0.622 x
  a bare Python loop            1.13 s, 443,272 messages/s            0.256 x
  a bare Python loop, pwrite    2.19 s, 227,858 messages/s            0.497 x
  Java 5.4.0, warm              1.72 s, 290,096 messages/s             0.39 x
put, lists of messages (in process)
  StoreWriter.put_many, 16,384  3.33 s, 600,706 messages/s
  StoreWriter.put_many, 1,024   3.35 s, 596,581 messages/s             1.01 x
  Java 5.4.0, warm              6.65 s, 300,812 messages/s                2 x
put and flush, 16 threads (in process)
  StoreWriter.put, sync         4.48 s, 11,161 messages/s
  write and flush               565 ms, 88,545 messages/s             0.126 x
  Java 5.4.0, warm              2.11 s, 23,678 messages/s             0.471 x
```

Look-ups:

```text
lookup of 1 key
  rmqtool lookup                113 ms, 9 keys/s
  an empty Typer command        84.6 ms, 12 keys/s                    0.747 x
  Java 5.4.0, process           2 s, 1 keys/s                          17.6 x
  Java 5.4.0, process, work alo 122 ms, 8 keys/s                       1.08 x
  Java 5.4.0, warm              160 us, 6,231 keys/s                0.00142 x
lookup of 1,000 keys
  rmqtool lookup                260 ms, 3,841 keys/s
  an empty Typer command        105 ms, 9,562 keys/s                  0.402 x
  Java 5.4.0, process           2.23 s, 449 keys/s                     8.56 x
  Java 5.4.0, process, work alo 136 ms, 7,327 keys/s                  0.524 x
  Java 5.4.0, warm              8.17 ms, 122,362 keys/s              0.0314 x
lookup of 1,000 keys, their places
  rmqtool lookup                170 ms +-23%, 5,873 keys/s, CPU 170 ms
  with one key                  114 ms +-11%, 8,808 keys/s, CPU 113 ms
                                                         0.667 x, CPU 0.668 x
  its reads alone               97.3 ms +-16%, 10,277 keys/s, CPU 96.9 ms
                                                         0.583 x, CPU 0.586 x
lookup of 20,000 keys
  rmqtool lookup                619 ms, 32,331 keys/s
  an empty Typer command        74.6 ms, 268,242 keys/s               0.121 x
  Java 5.4.0, process           2.8 s, 7,132 keys/s                    4.53 x
  Java 5.4.0, process, work alo 301 ms, 66,464 keys/s                 0.486 x
  Java 5.4.0, warm              66.1 ms, 302,547 keys/s               0.107 x
lookup of 20,000 keys, their places
  rmqtool lookup                373 ms +-2%, 53,685 keys/s, CPU 372 ms
  with one key                  106 ms +-4%, 189,221 keys/s, CPU 105 ms
                                                           0.28 x, CPU 0.28 x
  its reads alone               109 ms +-3%, 184,040 keys/s, CPU 107 ms
                                                         0.292 x, CPU 0.288 x
lookup of 100,000 keys
  rmqtool lookup                984 ms, 101,649 keys/s
  an empty Typer command        68.3 ms, 1.46 million keys/s         0.0694 x
  Java 5.4.0, process           2.9 s, 34,537 keys/s                   2.94 x
  Java 5.4.0, process, work alo 659 ms, 151,813 keys/s                 0.67 x
  Java 5.4.0, warm              227 ms, 440,528 keys/s                0.231 x
lookup of 100,000 keys, their places
  rmqtool lookup                720 ms +-12%, 138,947 keys/s, CPU 719 ms
  with one key                  116 ms +-22%, 858,664 keys/s, CPU 116 ms
                                                          0.16 x, CPU 0.159 x
  its reads alone               209 ms +-16%, 478,347 keys/s, CPU 208 ms
                                                         0.272 x, CPU 0.272 x
lookup of 100,000 keys, files open (in process)
  lookup_columns                359 ms +-6%, 278,800 keys/s
  Java 5.4.0, warm              243 ms +-1%, 411,046 keys/s           0.681 x
```

Replication and serving:

```text
serve, 1 consumer
  rmqtool serve                 3.03 s, 280,990 messages/s, CPU 2.87 s
  broker 5.4.0                  4.59 s, 185,235 messages/s, CPU 6.92 s
                                                           1.52 x, CPU 2.41 x
  asyncio alone                 1.14 s, 748,614 messages/s, CPU 800 ms
                                                         0.375 x, CPU 0.279 x
  asyncio, reads and checks     2.31 s, 368,569 messages/s, CPU 1.82 s
                                                         0.762 x, CPU 0.634 x
serve, 4 consumers
  rmqtool serve                 5.72 s, 148,604 messages/s, CPU 4.65 s
  broker 5.4.0                  4.82 s, 176,251 messages/s, CPU 5.07 s
                                                          0.843 x, CPU 1.09 x
  asyncio alone                 1.41 s, 604,554 messages/s, CPU 1.11 s
                                                         0.246 x, CPU 0.239 x
  asyncio, reads and checks     2.71 s, 313,224 messages/s, CPU 2.4 s
                                                         0.474 x, CPU 0.516 x
receive
  rmqtool receive               4.28 s, 0.24 GB/s, CPU 2.3 s
  Java 5.4.0, slave             5.51 s, 0.19 GB/s, CPU 8.33 s
                                                           1.29 x, CPU 3.63 x
receive --dispatch
  rmqtool receive --dispatch    2.64 s, 0.39 GB/s, CPU 2.01 s
  Java 5.4.0, slave             4.06 s, 0.25 GB/s, CPU 6.29 s
                                                           1.54 x, CPU 3.13 x
```

Spark:

```text
start, spark-scan of 4 MiB
  rmqtool spark-scan            18.6 s
  bare PySpark                  16.2 s                                0.873 x
Spark: count by topic (in process)
  rocketmq-store                1.37 s, 1.83 million rows/s
  from memory                   712 ms, 3.51 million rows/s           0.521 x
  an empty source               442 ms, 5.66 million rows/s           0.323 x
Spark: rows of six columns (in process)
  rocketmq-store                1.12 s +-0%, 2.24 million rows/s
  from memory                   637 ms +-2%, 3.92 million rows/s       0.57 x
  from memory, log read         787 ms +-4%, 3.18 million rows/s      0.704 x
  struct in mapPartitions       93,457 rows/s, of a part               23.9 x
Spark: rows of six columns, cold cache (in process)
  rocketmq-store                1.57 s, 1.59 million rows/s
  cat                           2.49 s, 1 million rows/s               1.59 x
Spark: one topic of 1,000 topics (in process)
  rocketmq-store                157 ms +-35%
  a scan of all messages        1.44 s +-12%                           9.85 x
Spark: one hour (in process)
  rocketmq-store                106 ms +-27%
  a scan of all messages        1.42 s +-10%                           13.4 x
Spark: one key (in process)
  rocketmq-store                110 ms +-26%
  a scan of all messages        1.49 s +-12%                           15.1 x
Spark: plan of 100,000 files (in process)
  plan_scan                     5.45 s, 18,354 files/s
  reading the heads             1.38 s, 72,226 files/s                0.254 x
```

The time of a command at several sizes; memory and open files at the first and the last one. The
slope is the exponent of the time: 1 grows as the size, 0 not at all.

```text
info, bytes of log, slope 0.01
    1.01 GiB   97.2 ms    15 MiB      9 open files
    2.03 GiB    111 ms    15 MiB     14 open files
    4.06 GiB    107 ms    15 MiB     10 open files
    8.12 GiB   98.6 ms    15 MiB     28 open files
dump of 10 messages, bytes of log, slope 0.02
    1.01 GiB    108 ms    14 MiB      4 open files
    2.03 GiB   98.1 ms    14 MiB      4 open files
    4.06 GiB   99.6 ms    14 MiB      4 open files
    8.12 GiB    114 ms    14 MiB      4 open files
tail of 10 messages, bytes of log, slope -0.02
    1.01 GiB    108 ms    15 MiB      9 open files
    2.03 GiB    123 ms    15 MiB     12 open files
    4.06 GiB    106 ms    15 MiB     17 open files
    8.12 GiB    104 ms    15 MiB     17 open files
lookup of one key, bytes of log, slope 0.16
    1.01 GiB   96.8 ms    15 MiB      6 open files
    2.03 GiB    104 ms    15 MiB      5 open files
    4.06 GiB    104 ms    15 MiB      3 open files
    8.12 GiB    136 ms    25 MiB      8 open files
verify, bytes of log, slope 0.71
    1.01 GiB    825 ms    66 MiB     14 open files
    2.03 GiB    1.09 s    75 MiB     26 open files
    4.06 GiB    1.87 s    67 MiB     30 open files
    8.12 GiB    3.59 s    92 MiB     41 open files
stats, bytes of log, slope 0.72
    1.01 GiB    612 ms    49 MiB      4 open files
    2.03 GiB    819 ms    49 MiB      4 open files
    4.06 GiB    1.38 s    49 MiB      5 open files
    8.12 GiB    2.72 s    49 MiB      5 open files
lookup of 1,000 keys, bytes of log, slope 1.93
    1.01 GiB    247 ms    17 MiB      5 open files
    2.03 GiB    249 ms    17 MiB      6 open files
    4.06 GiB    245 ms    17 MiB      8 open files
    8.12 GiB    13.6 s    26 MiB     12 open files
export to Parquet, bytes of log, slope 1.02
    1.01 GiB    3.76 s   300 MiB     13 open files
    2.03 GiB    7.38 s   300 MiB     18 open files
    4.06 GiB    16.4 s   296 MiB     25 open files
    8.12 GiB    31.1 s   318 MiB     21 open files
spark-scan, count, bytes of log, slope 0.07
    1.01 GiB    14.6 s  1002 MiB     10 open files
    2.03 GiB    13.7 s  1084 MiB     15 open files
    4.06 GiB    14.4 s  1019 MiB     22 open files
    8.12 GiB      17 s  1084 MiB     37 open files
recover, the plan, bytes of log, slope 0.81
    1.01 GiB    800 ms   110 MiB      7 open files
    2.03 GiB    1.12 s   153 MiB      8 open files
    4.06 GiB    1.91 s   213 MiB     10 open files
    8.12 GiB    4.34 s   332 MiB     15 open files
recover and apply, bytes of log, slope 0.96
    1.01 GiB    936 ms   155 MiB      7 open files
    2.03 GiB    1.42 s   226 MiB      6 open files
    4.06 GiB    1.92 s   288 MiB      6 open files
    8.12 GiB     6.9 s   423 MiB      7 open files
append from Parquet, bytes of log, slope 1.02
    1.01 GiB    3.61 s   445 MiB     10 open files
    2.03 GiB    6.15 s   425 MiB     11 open files
    4.06 GiB    12.4 s   449 MiB     11 open files
    8.12 GiB    30.4 s   474 MiB     11 open files
info, topics, slope 0.38
           1    133 ms    15 MiB      9 open files
          10    106 ms    15 MiB     45 open files
         100    147 ms    16 MiB     68 open files
       1,000    605 ms    43 MiB     68 open files
      10,000    4.35 s   104 MiB      6 open files
verify, topics, slope 0.38
           1    817 ms    67 MiB     18 open files
          10    943 ms    67 MiB    126 open files
         100    2.82 s    77 MiB    583 open files
       1,000    11.4 s   112 MiB    518 open files
      10,000    27.6 s   286 MiB    518 open files
export to Parquet, topics, slope 0.04
           1    4.68 s   298 MiB     13 open files
          10     4.2 s   304 MiB     49 open files
         100    3.87 s   322 MiB     71 open files
       1,000    4.39 s   316 MiB     25 open files
      10,000    6.86 s   368 MiB     26 open files
recover, the plan, topics, slope 0.50
           1    955 ms   128 MiB      7 open files
          10    953 ms   129 MiB      8 open files
         100    1.18 s   128 MiB      8 open files
       1,000    4.02 s   149 MiB      7 open files
      10,000    93.7 s   502 MiB      7 open files
recover and apply, topics, slope 0.50
           1    1.21 s   168 MiB      7 open files
          10    1.23 s   169 MiB      7 open files
         100    1.56 s   171 MiB      7 open files
       1,000    8.85 s   197 MiB      7 open files
      10,000     119 s   424 MiB      7 open files
append from Parquet, topics, slope 0.00
           1    4.26 s   416 MiB     10 open files
          10    3.65 s   421 MiB     11 open files
         100    4.32 s   435 MiB     11 open files
       1,000    4.38 s   508 MiB     10 open files
```
"""
# speed: end
