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

`make bench` measured this on one machine: 2026-11-28, rmqtool 0.2.0 (ca9f2e1edd), AMD EPYC, 2
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
  rmqtool --version             55 ms +-2%
  an empty Typer command        58.6 ms +-1%                           1.06 x
  bare Python                   10.7 ms +-1%                          0.193 x
start, verify of 4 MiB
  rmqtool verify                247 ms +-2%
  an empty Typer command        59.2 ms +-3%                          0.242 x
  import of typer, numpy and LL 131 ms +-1%                           0.527 x
  import of numpy               85.9 ms +-12%                         0.345 x
one message by its key
  rmqtool lookup                113 ms
  mqadmin 5.4.0                 3.65 s                                 32.5 x
one message by its queue offset
  rmqtool lookup                99.7 ms
  mqadmin 5.4.0                 3.68 s                                   37 x
the offsets of all queues
  rmqtool info                  94.5 ms
  mqadmin 5.4.0                 3.7 s                                  39.1 x
info
  rmqtool info                  93.1 ms +-1%
  an empty Typer command        55.5 ms +-18%                         0.598 x
lookup of one key
  rmqtool lookup                92.8 ms +-9%
  an empty Typer command        56.6 ms +-3%                          0.607 x
dump of 10 messages
  rmqtool dump                  89.7 ms +-1%
  an empty Typer command        56.1 ms +-21%                         0.625 x
tail of 10 messages
  rmqtool tail                  97.7 ms +-2%
  an empty Typer command        57.5 ms +-2%                          0.586 x
verify of the checkpoint
  rmqtool verify                96.3 ms +-2%
  an empty Typer command        58.6 ms +-2%                          0.601 x
walk and CRC, from files (in process)
  walk and CRC, one thread      351 ms, 9.19 GB/s
  reading the files             167 ms, 19.34 GB/s                    0.475 x
  reading and summing           199 ms, 16.16 GB/s                    0.568 x
  Python with struct and zlib   1.65 GB/s, of a part                   5.55 x
  Python with construct         45.7 MB/s, of a part                    201 x
  Java 5.4.0, warm              708 ms, 4.55 GB/s                      2.02 x
walk and CRC, two threads (in process)
  walk and CRC, two threads     262 ms +-3%, 12.28 GB/s
  walk and CRC, one thread      357 ms +-2%, 9.01 GB/s                 1.37 x
  reading and summing, two thre 140 ms +-4%, 23.02 GB/s               0.536 x
  reading and summing           193 ms +-15%, 16.71 GB/s               0.72 x
walk with tags codes and keys (in process)
  walk, tags codes and keys     663 ms +-3%, 4.86 GB/s
  walk and CRC, one thread      349 ms +-13%, 9.22 GB/s                0.53 x
walk and CRC, from memory (in process)
  walk and CRC of one file      65.1 ms +-10%, 16.49 GB/s
  sum of 64-bit words           42.1 ms +-11%, 25.52 GB/s             0.647 x
verify, log pass
  verify, log pass              727 ms +-2%, 4.43 GB/s
  cat                           259 ms +-1%, 12.44 GB/s               0.359 x
verify, all passes
  rmqtool verify                1.47 s, 2.19 GB/s
  verify, log pass              790 ms, 4.08 GB/s                     0.537 x
  cat                           258 ms, 12.47 GB/s                    0.176 x
stats
  rmqtool stats                 1.06 s, 3.03 GB/s
  verify, log pass              711 ms, 4.53 GB/s                     0.669 x
  cat                           277 ms, 11.64 GB/s                     0.26 x
stats by topic, queue and hour
  rmqtool stats --by            1.15 s, 2.79 GB/s
  verify, log pass              788 ms, 4.09 GB/s                     0.683 x
  cat                           267 ms, 12.07 GB/s                    0.231 x
grep of a text
  rmqtool dump                  1.29 s, 2.50 GB/s
  verify, log pass              828 ms, 3.89 GB/s                     0.642 x
  cat                           278 ms, 11.60 GB/s                    0.215 x
grep of a regular expression
  rmqtool dump                  1.46 s, 2.21 GB/s
  verify, log pass              810 ms, 3.98 GB/s                     0.556 x
  cat                           263 ms, 12.24 GB/s                    0.181 x
grep in compressed bodies
  rmqtool dump                  5.75 s, 108,733 messages/s
  Python, zlib.decompress       3.7 s, 169,058 messages/s             0.643 x
  verify, log pass              524 ms, 1.19 million messages/s      0.0911 x
export to Parquet
  rmqtool export                8.4 s, 297,453 messages/s
  pyarrow alone                 8.04 s, 310,875 messages/s            0.957 x
  verify, log pass              754 ms, 3.32 million messages/s      0.0897 x
  cat                           294 ms, 8.49 million messages/s       0.035 x
export to Parquet, without bodies
  rmqtool export                1.44 s, 1.74 million messages/s
  pyarrow alone                 495 ms, 5.05 million messages/s       0.345 x
  verify, log pass              777 ms, 3.22 million messages/s       0.541 x
  cat                           262 ms, 9.53 million messages/s       0.183 x
export to Arrow
  rmqtool export                8.35 s, 299,283 messages/s
  cat                           282 ms, 8.87 million messages/s      0.0337 x
dump to JSON lines
  rmqtool dump                  17.6 s, 142,372 messages/s
  rmqtool export                18.9 s, 132,295 messages/s             1.08 x
  Python, json.loads            19.5 s, 128,448 messages/s             1.11 x
  cat                           262 ms, 9.53 million messages/s      0.0149 x
verify, log pass, cold cache
  rmqtool verify                1.31 s, 2.45 GB/s
  cat                           1.74 s, 1.85 GB/s                      1.32 x
verify, all passes, cold cache
  rmqtool verify                3.22 s, 1.00 GB/s
  cat                           2.19 s, 1.47 GB/s                     0.681 x
stats, cold cache
  rmqtool stats                 1.87 s, 1.72 GB/s
  cat                           1.88 s, 1.72 GB/s                         1 x
export to Parquet, cold cache
  rmqtool export                10.9 s, 0.29 GB/s
  cat                           3.12 s, 1.03 GB/s                     0.286 x
recover, the plan, cold cache
  rmqtool recover               2.66 s, 1.21 GB/s
  cat                           1.57 s, 2.05 GB/s                      0.59 x
```

Recovery:

```text
recover, the plan
  rmqtool recover               1.52 s, 2.12 GB/s
  Java 5.4.0, process           11.5 s, 0.28 GB/s                       7.6 x
  Java 5.4.0, process, work alo 7.06 s, 0.46 GB/s                      4.65 x
recover and apply
  rmqtool recover --apply       2.01 s, 1.61 GB/s
  Java 5.4.0, process           11.3 s, 0.29 GB/s                      5.62 x
  Java 5.4.0, process, work alo 6.78 s, 0.48 GB/s                      3.38 x
```

Writing:

```text
append from Parquet, 1 topic
  rmqtool append                2.33 s, 428,876 messages/s
  bare writer                   2.17 s, 460,535 messages/s            0.931 x
  one file per queue            3.35 s, 298,791 messages/s             1.44 x
  Java 5.4.0, warm              3.28 s, 304,726 messages/s             1.41 x
  Java 5.4.0, process           8.89 s, 112,434 messages/s             3.81 x
  Java 5.4.0, process, work alo 4.9 s, 204,122 messages/s               2.1 x
append from Arrow, 1 topic
  rmqtool append                2.33 s, 428,277 messages/s
  bare writer                   2.8 s, 357,237 messages/s               1.2 x
  one file per queue            3.52 s, 284,456 messages/s             1.51 x
  Java 5.4.0, warm              3.33 s, 300,141 messages/s             1.43 x
append from Parquet, 10 topics
  rmqtool append                2.52 s, 397,045 messages/s
  bare writer                   1.98 s, 505,009 messages/s            0.786 x
  one file per queue            3.77 s, 265,353 messages/s              1.5 x
  Java 5.4.0, warm              3.27 s, 306,096 messages/s              1.3 x
append from Parquet, 100 topics
  rmqtool append                2.37 s, 422,717 messages/s
  bare writer                   2.47 s, 404,342 messages/s             1.05 x
  one file per queue            4.03 s, 248,133 messages/s              1.7 x
  Java 5.4.0, warm              4.63 s, 215,835 messages/s             1.96 x
append from Parquet, 1,000 topics
  rmqtool append                2.99 s, 334,785 messages/s
  bare writer                   2.15 s, 465,381 messages/s            0.719 x
  one file per queue            5.46 s, 183,187 messages/s             1.83 x
  Java 5.4.0, warm              6.83 s, 146,362 messages/s             2.29 x
append from Parquet, 10,000 topics
  rmqtool append                12.2 s, 163,302 messages/s
  bare writer                   7.88 s, 253,798 messages/s            0.643 x
  one file per queue            27 s, 74,097 messages/s                 2.2 x
  Java 5.4.0, warm              17.8 s, 112,656 messages/s             1.45 x
append from JSON lines
  rmqtool append                2.32 s, 431,189 messages/s
  bare writer                   912 ms, 1.1 million messages/s        0.393 x
  Python, json.loads            3.9 s, 256,572 messages/s              1.68 x
  Java 5.4.0, warm              2.94 s, 339,997 messages/s             1.27 x
put, one by one (in process)
  StoreWriter.put               4.74 s, 105,532 messages/s
  StoreWriter.put, write buffer 2.53 s, 197,858 messages/s            0.533 x
  a bare Python loop            1.82 s, 274,741 messages/s            0.384 x
  a bare Python loop, pwrite    2.41 s, 207,242 messages/s            0.509 x
  Java 5.4.0, warm              1.31 s, 382,376 messages/s            0.276 x
put, lists of messages (in process)
  StoreWriter.put_many, 16,384  3.78 s, 529,595 messages/s
  StoreWriter.put_many, 1,024   4.33 s, 462,038 messages/s             1.15 x
  Java 5.4.0, warm              6.85 s, 291,800 messages/s             1.81 x
put and flush, 16 threads (in process)
  StoreWriter.put, sync         5.36 s, 9,324 messages/s
  write and flush               618 ms, 80,968 messages/s             0.115 x
  Java 5.4.0, warm              2.31 s, 21,617 messages/s             0.431 x
```

Look-ups:

```text
lookup of 1 key
  rmqtool lookup                120 ms, 8 keys/s
  an empty Typer command        60.2 ms, 17 keys/s                    0.503 x
  Java 5.4.0, process           2.03 s, 0 keys/s                         17 x
  Java 5.4.0, process, work alo 113 ms, 9 keys/s                      0.944 x
  Java 5.4.0, warm              237 us, 4,219 keys/s                0.00198 x
lookup of 1,000 keys
  rmqtool lookup                219 ms, 4,572 keys/s
  an empty Typer command        60.1 ms, 16,644 keys/s                0.275 x
  Java 5.4.0, process           2.04 s, 489 keys/s                     9.34 x
  Java 5.4.0, process, work alo 141 ms, 7,070 keys/s                  0.647 x
  Java 5.4.0, warm              5.29 ms, 189,143 keys/s              0.0242 x
lookup of 1,000 keys, their places
  rmqtool lookup                161 ms +-7%, 6,211 keys/s, CPU 161 ms
  with one key                  102 ms +-9%, 9,810 keys/s, CPU 102 ms
                                                         0.654 x, CPU 0.648 x
  its reads alone               84 ms +-6%, 11,899 keys/s, CPU 83.7 ms
                                                          0.53 x, CPU 0.528 x
lookup of 20,000 keys
  rmqtool lookup                416 ms, 48,062 keys/s
  an empty Typer command        59 ms, 338,957 keys/s                 0.142 x
  Java 5.4.0, process           2.13 s, 9,382 keys/s                   5.12 x
  Java 5.4.0, process, work alo 239 ms, 83,656 keys/s                 0.575 x
  Java 5.4.0, warm              77.1 ms, 259,378 keys/s               0.185 x
lookup of 20,000 keys, their places
  rmqtool lookup                382 ms +-7%, 52,382 keys/s, CPU 377 ms
  with one key                  110 ms +-18%, 181,204 keys/s, CPU 110 ms
                                                         0.288 x, CPU 0.289 x
  its reads alone               106 ms +-5%, 187,995 keys/s, CPU 106 ms
                                                         0.277 x, CPU 0.279 x
lookup of 100,000 keys
  rmqtool lookup                1.04 s, 95,810 keys/s
  an empty Typer command        96.4 ms, 1.04 million keys/s         0.0924 x
  Java 5.4.0, process           2.51 s, 39,827 keys/s                  2.41 x
  Java 5.4.0, process, work alo 565 ms, 176,987 keys/s                0.541 x
  Java 5.4.0, warm              231 ms, 432,383 keys/s                0.222 x
lookup of 100,000 keys, their places
  rmqtool lookup                643 ms +-2%, 155,595 keys/s, CPU 642 ms
  with one key                  106 ms +-1%, 943,716 keys/s, CPU 106 ms
                                                         0.165 x, CPU 0.164 x
  its reads alone               176 ms +-2%, 567,384 keys/s, CPU 176 ms
                                                         0.271 x, CPU 0.271 x
lookup of 100,000 keys, files open (in process)
  lookup_columns                316 ms, 315,981 keys/s
  Java 5.4.0, warm              250 ms, 400,038 keys/s                 0.79 x
```

Replication and serving:

```text
serve, 1 consumer
  rmqtool serve                 2.73 s, 311,332 messages/s, CPU 2.5 s
  broker 5.4.0                  5.34 s, 159,140 messages/s, CPU 8.38 s
                                                           1.96 x, CPU 3.35 x
  asyncio alone                 1.14 s, 745,187 messages/s, CPU 750 ms
                                                           0.418 x, CPU 0.3 x
  asyncio, reads and checks     2.1 s, 404,705 messages/s, CPU 1.74 s
                                                         0.769 x, CPU 0.696 x
serve, 4 consumers
  rmqtool serve                 3.11 s, 273,231 messages/s, CPU 2.87 s
  broker 5.4.0                  3.85 s, 220,834 messages/s, CPU 5.55 s
                                                           1.24 x, CPU 1.93 x
  asyncio alone                 672 ms, 1.26 million messages/s, CPU 560 ms
                                                         0.216 x, CPU 0.195 x
  asyncio, reads and checks     1.88 s, 452,629 messages/s, CPU 1.72 s
                                                         0.604 x, CPU 0.599 x
receive
  rmqtool receive               3.38 s, 0.30 GB/s, CPU 2.03 s
  Java 5.4.0, slave             3.8 s, 0.27 GB/s, CPU 5.55 s
                                                           1.12 x, CPU 2.73 x
receive --dispatch
  rmqtool receive --dispatch    2.23 s, 0.46 GB/s, CPU 1.7 s
  Java 5.4.0, slave             3.61 s, 0.28 GB/s, CPU 5.37 s
                                                           1.62 x, CPU 3.16 x
```

Spark:

```text
start, spark-scan of 4 MiB
  rmqtool spark-scan            15.9 s
  bare PySpark                  13.1 s                                0.821 x
Spark: count by topic (in process)
  rocketmq-store                1.4 s, 1.79 million rows/s
  from memory                   768 ms, 3.25 million rows/s            0.55 x
  an empty source               485 ms, 5.15 million rows/s           0.348 x
Spark: rows of six columns (in process)
  rocketmq-store                946 ms, 2.64 million rows/s
  from memory                   610 ms, 4.1 million rows/s            0.644 x
  from memory, log read         762 ms, 3.28 million rows/s           0.805 x
  struct in mapPartitions       109,197 rows/s, of a part              24.2 x
Spark: rows of six columns, cold cache (in process)
  rocketmq-store                1.41 s, 1.77 million rows/s
  cat                           1.71 s, 1.46 million rows/s            1.21 x
Spark: one topic of 1,000 topics (in process)
  rocketmq-store                169 ms +-7%
  a scan of all messages        1.62 s +-12%                           9.55 x
Spark: one hour (in process)
  rocketmq-store                127 ms +-16%
  a scan of all messages        1.42 s +-0%                            11.4 x
Spark: one key (in process)
  rocketmq-store                111 ms +-5%
  a scan of all messages        1.48 s +-6%                            13.4 x
Spark: plan of 100,000 files (in process)
  plan_scan                     5.19 s, 19,276 files/s
  reading the heads             1.34 s, 74,710 files/s                0.258 x
```

The time of a command at several sizes; memory and open files at the first and the last one. The
slope is the exponent of the time: 1 grows as the size, 0 not at all.

```text
info, bytes of log, slope -0.02
    1.01 GiB    105 ms    15 MiB     10 open files
    2.03 GiB    115 ms    15 MiB     15 open files
    4.06 GiB    111 ms    15 MiB     14 open files
    8.12 GiB    101 ms    15 MiB     28 open files
dump of 10 messages, bytes of log, slope -0.06
    1.01 GiB    109 ms    14 MiB      4 open files
    2.03 GiB    100 ms    14 MiB      4 open files
    4.06 GiB    103 ms    14 MiB      4 open files
    8.12 GiB   95.9 ms    14 MiB      4 open files
tail of 10 messages, bytes of log, slope -0.02
    1.01 GiB    106 ms    15 MiB     11 open files
    2.03 GiB    117 ms    15 MiB     13 open files
    4.06 GiB    105 ms    15 MiB     17 open files
    8.12 GiB    103 ms    15 MiB     17 open files
lookup of one key, bytes of log, slope 0.15
    1.01 GiB    103 ms    15 MiB      5 open files
    2.03 GiB    106 ms    15 MiB      5 open files
    4.06 GiB   99.2 ms    15 MiB      3 open files
    8.12 GiB    142 ms    24 MiB      6 open files
verify, bytes of log, slope 0.64
    1.01 GiB    924 ms    66 MiB     14 open files
    2.03 GiB    1.08 s    75 MiB     26 open files
    4.06 GiB    1.86 s    67 MiB     30 open files
    8.12 GiB    3.52 s    91 MiB     41 open files
stats, bytes of log, slope 0.77
    1.01 GiB    578 ms    49 MiB      5 open files
    2.03 GiB    834 ms    49 MiB      5 open files
    4.06 GiB    1.44 s    49 MiB      4 open files
    8.12 GiB    2.84 s    50 MiB      4 open files
lookup of 1,000 keys, bytes of log, slope 0.20
    1.01 GiB    267 ms    17 MiB      5 open files
    2.03 GiB    248 ms    17 MiB      6 open files
    4.06 GiB    251 ms    17 MiB      8 open files
    8.12 GiB    402 ms    34 MiB     12 open files
export to Parquet, bytes of log, slope 1.07
    1.01 GiB    3.65 s   301 MiB     14 open files
    2.03 GiB    6.85 s   329 MiB     19 open files
    4.06 GiB    13.7 s   298 MiB     24 open files
    8.12 GiB    34.1 s   312 MiB     21 open files
spark-scan, count, bytes of log, slope 0.10
    1.01 GiB    13.9 s   992 MiB     11 open files
    2.03 GiB    14.3 s  1005 MiB     15 open files
    4.06 GiB      15 s  1501 MiB     22 open files
    8.12 GiB    17.3 s  1006 MiB     38 open files
recover, the plan, bytes of log, slope 0.75
    1.01 GiB    795 ms   109 MiB      6 open files
    2.03 GiB    1.07 s   153 MiB      8 open files
    4.06 GiB    2.02 s   209 MiB     11 open files
    8.12 GiB    3.81 s   338 MiB     14 open files
recover and apply, bytes of log, slope 1.00
    1.01 GiB    924 ms   155 MiB      7 open files
    2.03 GiB    1.36 s   227 MiB      6 open files
    4.06 GiB    1.88 s   290 MiB      7 open files
    8.12 GiB    7.47 s   433 MiB      7 open files
append from Parquet, bytes of log, slope 0.98
    1.01 GiB    3.35 s   417 MiB      9 open files
    2.03 GiB    5.89 s   428 MiB     11 open files
    4.06 GiB      12 s   425 MiB     11 open files
    8.12 GiB      26 s   444 MiB     11 open files
info, topics, slope 0.36
           1    102 ms    15 MiB      9 open files
          10    129 ms    15 MiB     45 open files
         100    194 ms    15 MiB     68 open files
       1,000    477 ms    43 MiB     68 open files
      10,000    2.71 s   104 MiB      6 open files
verify, topics, slope 0.31
           1    828 ms    66 MiB     18 open files
          10       1 s    68 MiB    126 open files
         100    1.84 s    78 MiB    582 open files
       1,000    3.59 s   164 MiB    330 open files
      10,000    14.3 s   290 MiB    349 open files
export to Parquet, topics, slope 0.06
           1    3.92 s   300 MiB     13 open files
          10    4.99 s   305 MiB     49 open files
         100    4.03 s   306 MiB     71 open files
       1,000     5.7 s   308 MiB     25 open files
      10,000    6.57 s   370 MiB     25 open files
recover, the plan, topics, slope 0.30
           1    855 ms   128 MiB      7 open files
          10    1.19 s   129 MiB      7 open files
         100    1.13 s   128 MiB      7 open files
       1,000    2.38 s   191 MiB      7 open files
      10,000    13.2 s   516 MiB      7 open files
recover and apply, topics, slope 0.45
           1    992 ms   168 MiB      7 open files
          10    1.46 s   170 MiB      7 open files
         100    1.86 s   170 MiB      7 open files
       1,000    7.27 s   195 MiB      7 open files
      10,000    64.5 s   460 MiB      7 open files
append from Parquet, topics, slope 0.13
           1    3.89 s   426 MiB     11 open files
          10    4.72 s   441 MiB     10 open files
         100     4.6 s   433 MiB     11 open files
       1,000    5.07 s   496 MiB     10 open files
      10,000    12.6 s   543 MiB     10 open files
info, queues, slope 0.85
      10,000    997 ms    47 MiB      5 open files
     100,000       7 s   234 MiB      5 open files
append of one message, queues, slope 0.78
      10,000    815 ms    50 MiB     13 open files
     100,000    4.89 s   184 MiB     12 open files
```
"""
# speed: end
