"""The text of rmqtool-recovery(7): what to do when a broker does not start, or messages are gone.

Paragraphs, `## headings`, `- ` entries (a term, a full stop, its text) and fenced blocks. The console
blocks are run by the tests, one after the other in one folder: `python -m tests.tools.readme` writes outputs
that differ anew, `...` stands for any text. The store in them is a real one of broker 5.4.0 that was
killed and of which one body was damaged.

Source of what a broker does: DefaultMessageStore#load, CommitLog#recoverNormally, #recoverAbnormally,
ConsumeQueue#recover, IndexService#load, CleanCommitLogService; spec 02 sections 1 to 3, 7, 12, 15.
"""

TEXT = r"""
## In short

```text
1  Do not start the broker again: each start may delete more than the one before.
2  rmqtool info STORE               Is the store in use, was it stopped cleanly?
3  rmqtool recover STORE            What a start would do, and what recover would do.
4  rmqtool recover STORE --apply    Do it. What is changed is kept in a backup first.
5  rmqtool verify STORE             Must say: sound.
6  Start the broker. Keep the backup until its consumers have caught up.
```

Steps 2, 3 and 5 change nothing, on a store in use neither; step 3 has no answer (exit code 5) while
something writes to the store. Do not delete files by hand, also those that look wrong.

## What a broker does when it starts

It opens every file of the commit log and of the queues. One file that has not the configured size, or a
stray file among them, and the broker ends with exit code -3; before version 5 also where a folder is among
them. Only its log says why. `recover` puts a stray file into the backup; one that holds sound messages was a
file of the log, and goes only with `--yes`: give it back the name that `recover` says.

Then it looks for the end of the log. If there is a file `abort`, the last stop was no clean one: the broker
begins with the newest log file whose first message is older than the checkpoint; 5.4 tries ten files at
most. Without `abort`, 4.9 begins with the third-last file, 5.x with the file of the newest queue entry or one
before it. From there it reads message by message, up to the first one that is not whole or does not match
its CRC. That is the end of the log, whatever lies behind it: later files are deleted, the rest of this one is
written over from now on, and the queue entries of what was given up are cut. Their queue offsets are given
to new messages.

After an unclean stop it deletes the newest index files, and makes entries only for the messages that it
reads in its start.

The lock of the store is taken after all that. A second broker that is started on the same store by mistake
is refused, but only when it has already cut the log.

## How messages get lost

- Damage in the middle of the log. A bad sector, or a page of zeros after a power failure, is one message or
a few. A start takes it for the end of the log and gives up everything behind it.
- A start that ended the log too early. Consumers have offsets beyond the ends of their queues, and new
messages get queue offsets that were there before: consumers that are past them never see these.
- Queue files deleted by hand. One queue that lacks entries is not mended by a start after a clean stop: its
new messages get wrong offsets. Without any queue file, 5.4 makes entries for the last ten log files only.
- Log files deleted by hand. Without the last one queue offsets are used twice; without one in the middle 4.9
may wait for ever in its start.
- A power failure. With asynchronous flushing the last half second or more is in memory only. `rmqtool info`
says what a power failure now could cost.
- A full disk. Above 85% the broker deletes log files whatever their age, consumed or not.
- A slave that was ahead of its master. From there on the two logs hold different messages for ever, and no
broker says so: `rmqtool diff` says that they have diverged, and from which offset on.
- An older broker. 4.x takes a record of a topic whose name is longer than 127 bytes, as 5.x writes it, for
the end of the log.

## What a start would do

```console
$ rmqtool info store
store        store
written by   broker 5.4, record version 1
state        unclean: abort is there, the next start recovers
commit log   4 files of 1.0 MiB (detected), offsets 0 to 3718465
...
```

```console
$ rmqtool recover store --broker 4.9 --broker 5.4
store        store
state        unclean: abort is there
mode         best: every valid record is kept, fillers take the place of lost ones
plan         4 changes, ...

a start would          4.9                            5.4                            recover
---------------------  -----------------------------  -----------------------------  ---------
                       load                           load
scan the log from      3145728                        3145728                        its start
end the log at         3511773                        3511773                        3718465
bytes behind that end  201.8 KiB                      201.8 KiB                      0
lose sound messages    261                            261                            0
stored from            2026-11-21T08:50:33.180+00:00  2026-11-21T08:50:33.180+00:00
until                  2026-11-21T08:51:16.716+00:00  2026-11-21T08:51:16.716+00:00
...
damaged      1 record ...
topic     queue_id  queue_offset  physical_offset  size  stored_from...
--------  --------  ------------  ---------------  ----  -----------...
pubBatch         3             3          3511773  4229  2026-11-21T08:50:33.180+00:00...

changes      1 fill in commitlog, 1 replace in consumequeue, 1 replace in index, 1 delete in abort
...
rmqtool: nothing was changed; to do it: rmqtool recover store --apply
```

The columns of the versions are what their start would do, computed from the bytes of the store; beside them
is the plan of rmqtool. Here one message is damaged, and a start would give up 261 sound ones behind it.
`--format json` gives all of it to a program. `--write-plan FILE` keeps the plan: `--apply --plan FILE` does
just that, and refuses when the store has changed meanwhile.

## Recover

```console
$ rmqtool recover store --apply --backup-dir backup
...
applied      4 changes
backup       ...
```

Every message that is valid stays where it is. A filler takes the place of each that is lost: of the same
topic, queue and queue offset, with the tag RMQTOOL_FILLER, so that brokers and consumers of every version
step over it. A consumer that subscribes to `*` sees it, and has to leave out messages with that tag. Queues
and index files that did not agree with the log were made anew, the others were not touched. A record whose
topic, queue id or queue offset was damaged, which the body's CRC does not cover, gets back what its queue's
entry and the records around it say, where these agree; else it stays as it is.

```console
$ rmqtool verify store
checked 4099 records in 4 files ...: sound
```

```console
$ rmqtool recover store --broker 5.4
store        store
state        stopped cleanly
mode         best: every valid record is kept, fillers take the place of lost ones
plan         nothing to do
...
```

Where no queue file or no index file is left, nothing tells their sizes: `recover` says so, and makes the
usual ones. A broker with others in its configuration does not load these: give it with `--broker-conf`.

Without `--backup-dir` the backup lies beside the store. With `--fill none` no filler is made: the log ends
at the first hole, and the messages behind it are written to a file that `rmqtool append` takes. With
`--mode broker --broker 5.4` the log ends where that broker would end it, but what is given up is kept. A
start looks at a part of the log only, and the next one at another part: so the same run once more may cut
the log again, at damage farther ahead, as the broker's next start would. The plan warns of it and says where;
`--mode best` looks at all of the log, and a second run changes nothing.

## If it was interrupted

A run that was killed leaves the file `commitlog/rmqtool-repair`, and as long as it is there no broker loads
the store. Run the same command again: it first gives back what the other one had changed, from its backup,
and then does all of it again. With the same `--backup-dir DIR` its own backup is `DIR-2`, beside the first.
Do not delete the file by hand, and keep the backup until then: it may hold what nothing else does, as the
committed offsets of all groups. If it is lost for good, `--force` goes on from what is there.

## Undo

```console
$ rmqtool recover store --undo backup
undone       4 files as before, from backup
```

Every file is what it was, byte for byte. Once a broker has written to the store this is refused.

## A slave or a copy may have what is lost

The commit log of a slave is its master's, byte for byte at the same offsets. Before messages are given up,
see who has them:

```console
$ rmqtool diff store slave
A            store (broker 5.4, not cleanly stopped), log 0 to 3718465
B            slave (broker 5.4, stopped cleanly), log 0 to 3599769
commit log   0 to 3599769 in both, 3.4 MiB compared: the byte at 3513861 differs
differs      3513861 to 3513862: 1 byte, in body; the record is sound in B only
...
             in A 3511773 to 3516002: pubBatch queue 3 offset 3, ...: its body does not match its CRC
             in B 3511773 to 3516002: pubBatch queue 3 offset 3, ...: sound
...
only A       3599769 to 3718465, 115.9 KiB, 160 records, ...
ahead        A by 115.9 KiB
queues       57 with 3939 units in both: 20 identical, 37 reach further on one side
...
config       6 files compared: identical by value
...
result       the stores differ
```

Here the slave has the damaged message, and lacks the last 160 records. A slave that is sound and not behind
can take the master's place. `--common` exits with 0 when nothing differs but how far each log reaches.

## Queues or topics are wrong, the log is sound

`rmqtool rebuild STORE` makes the queues and index files that do not agree with the log anew, all or those of
`--topic`, and a topics.json that is lost. It shows a plan first and keeps what it replaces, as recover does.

## The disk is full

`rmqtool expire STORE` shows which files the broker would delete now, why, and which messages nobody has
consumed yet. `--until-free 100G --apply --archive DIR` copies what goes to another disk first; without
`--archive` nothing is kept. What a group has not consumed, and delayed, half and timer messages that still
wait, are not deleted without `--force`. A topic that no group has ever read is only warned of, with its
count: look at the plan before `--apply`. Where consumerOffset.json is lost, nobody knows who waits: that is
refused too. The broker has to be stopped.

To bring an archive back, stop the broker, raise fileReservedTime (or it deletes the files again), and copy
the folders, not the manifests, over the store:

```text
cp -an DIR/*/ STORE
rmqtool verify STORE                Must say: sound.
```

Of several archives the newest goes back first: a commit log has no gap. Files of commit log folders outside
of STORE are in DIR/outside, under their whole paths.

## What cannot be helped

What a broker has written over is gone, unless somebody has a copy: so do not start it again. Queues, index
and configuration in RocksDB are recognised, not mended.
"""
