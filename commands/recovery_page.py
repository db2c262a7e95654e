"""The text of rmqtool-recovery(7): what to do when a broker does not start, or messages are gone.

Paragraphs, `## headings`, `- ` entries (a term, a full stop, its text) and fenced blocks. The console
blocks are run by the tests, one after the other in one folder: `python -m tests.tools.readme` rewrites
outputs that differ; `...` stands for any text. The store in them is a real one of broker 5.4.0 that was
killed and of which one body was damaged.

Source of what a broker does: DefaultMessageStore#load, CommitLog#recoverNormally, #recoverAbnormally,
ConsumeQueue#recover, IndexService#load, CleanCommitLogService; spec 02 sections 1 to 3, 7, 12, 15.
"""

TEXT = r"""
## In short

```text
1  Do not start the broker again: each start may delete more than the last.
2  rmqtool doctor STORE           What is wrong? Was it stopped cleanly?
3  rmqtool recover STORE          What a start would do, and what recover
                                  would do.
4  rmqtool recover STORE --apply  Repair the store. This backs up all changes.
5  rmqtool verify STORE           Must say: sound, or only warnings that
                                  recover cannot repair.
6  Start the broker. Keep the backup until its consumers have caught up.
```

Steps 2, 3 and 5 change nothing, even on a store that is in use. While a program writes to the store, step 3
cannot give an answer and exits with code 5. Do not delete files by hand, even if they look wrong.

## What a broker does when it starts

The broker opens every file of the commit log and of the queues. If any file has the wrong size, or an
unexpected file is present, the broker exits with code -3. Before version 5 an unexpected folder has the
same effect. Only the broker's log states the reason. `recover` moves an unexpected file to the backup. A
file that contains sound messages belongs to the log: rename it to the name that `recover` shows. `recover`
moves such a file only with `--yes`.

Then the broker looks for the end of the log. If a file `abort` exists, the last stop was not clean: the
scan begins at the newest log file whose first message is older than the checkpoint; 5.4 tries at most ten
files. Without `abort`, the scan of 4.9 begins at the third-last file, and that of 5.x at the file to which
the newest queue unit points, or the file before it. From there the broker reads message by message, up to
the first one that is incomplete or does not match its CRC. It treats that place as the end of the log, even
if sound messages follow: it deletes later files, overwrites the rest of this file with new messages, and
removes the queue units of the lost messages. New messages reuse the queue offsets of the lost ones.

After an unclean stop the broker also deletes the newest index files. It creates index entries only for the
messages that it reads during this start.

The broker takes the lock of the store only after all these steps. A second broker that is started on the
same store by mistake is refused, but by then it has truncated the log.

## How messages get lost

- Damage in the middle of the log. A bad sector, or a page of zeros after a power failure, damages one
message or a few. A start treats it as the end of the log and gives up every later message.
- A start that ended the log too early. Consumer offsets are then past the ends of their queues, and new
messages reuse queue offsets. Consumers that are already past these offsets never receive these messages.
- Queue files deleted by hand. After a clean stop, a start does not repair a queue that lacks units; new
messages of the queue get wrong offsets. If all queue files are missing, 5.4 creates units for only the last
ten log files.
- Log files deleted by hand. Without the last file, queue offsets are reused. Without a file in the middle,
a start of 4.9 may never finish.
- A power failure. With asynchronous flushing, the last half second or more exists only in memory. `rmqtool
info` shows what a power failure now could cost.
- A full disk. Above 85% disk usage the broker deletes log files of any age, consumed or not.
- A slave that was ahead of its master. From the offset where they differ, the two logs hold different
messages permanently, and no broker reports it. `rmqtool diff` shows that they have diverged, and at which
offset.
- An older broker. 5.x can store records of topics with names longer than 127 bytes. 4.x treats such a
record as the end of the log.

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
mode         best: keep every valid message; put a filler where one is lost
plan         4 changes, ...
...

a start would         4.9                   5.4                   recover
--------------------  --------------------  --------------------  ---------
load the store        yes                   yes
examine the log from  3145728               3145728               the start
end the log at        3511773               3511773               3718465
give up log bytes     201.8 KiB             201.8 KiB             0
lose sound messages   261                   261                   0
...
lost already 1 message of 1 queue; ...
...
topic     queue_id  queue_offset  physical_offset  size  from_time...
--------  --------  ------------  ---------------  ----  ---------...
pubBatch         3             3          3511773  4229  2026-11-21...
readable     header and properties of 1 record; status says what is damaged
...
save first   rmqtool dump store --explain 3511773 -o damaged-3511773.body ...
             dump says how much of a body is in a .body file. ...
...

changes      fill 1 range in commitlog, replace 1 file in consumequeue,
...
verdict      Do not start a broker yet. A start of 4.9 or 5.4 gives up 261
...
rmqtool: nothing was changed; to apply the plan: rmqtool recover store ...
```

The column of a version shows what a start of that version would do, computed from the bytes of the store.
Without `--broker` there are columns for the versions that may have written the store. The last column shows
the plan of rmqtool. Here one message is damaged, and a start would give up 261 sound messages after it. The
line `save first` saves what can be read of the damaged message: its body in one file, its fields in another,
for a person to read, who may send the message again. Of a record that lacks its start or its end, recover
says which parts are left. `--json` prints everything for programs. `--write-plan FILE` saves the plan.
`--apply --plan FILE` applies exactly that plan, and refuses if the store has changed in the meantime.

Before you start the broker again, check its slave. A slave that holds more than this log is now ahead of
it. Classic replication keeps the extra bytes forever and reports nothing; controller mode truncates them.
Use `rmqtool diff STORE SLAVE` to see the extra messages. Save those that you need, then empty a slave that
is ahead.

## Recover

```console
$ rmqtool recover store --apply --backup-dir backup
...
applied      4 changes
backup       ...
undo         rmqtool recover store --undo ...

verdict      The plan was applied. Check the store before you start a broker.
...
next         rmqtool verify store
```

Every valid message stays where it is. Each lost message is replaced by a filler with the same topic, queue
and queue offset and the tag RMQTOOL_FILLER. Brokers of every version read past fillers, and consumers that
subscribe to tags do not receive them. A consumer that subscribes to `*` receives them and has to ignore
messages with that tag. Fillers of delayed messages, and of places whose messages are unknown, have no tag:
`verify` does not count them. Queues and index files that disagree with the log are rebuilt; the others are
not touched. The CRC of the body does not cover the topic, the queue id and the queue offset of a record. If
one of these is damaged, `recover` restores it from the record's queue unit and the surrounding records,
provided that these agree; otherwise the record is not changed.

A message whose body is sound stays even if its properties end in zeros, as long as others follow it. Its keys
and tags may be lost, and only a slave or a copy still has them. `recover` names such messages, and `verify`
shows them as the warning CL13. A broker may be started with them.

This does not hold for the last message of the log: there rmqtool takes a record that ends in zeros for one
that was not written in full (CL01), and `recover` gives it up, although a broker's start keeps it if its body
is whole. `recover` says so, and prints a command line that saves the message and one that stores it again
after `--apply`, with the properties that are left. It gets the same queue offset if it is stored before a
broker starts.

```console
$ rmqtool verify store
checked 4099 records in 4 files ...: sound
1 tagged filler of recover in 1 topic, for lost messages: rmqtool dump ...
A start of 5.4 loses nothing.
```

```console
$ rmqtool recover store --broker 5.4
store        store
state        stopped cleanly
mode         best: keep every valid message; put a filler where one is lost
plan         nothing to do
...
```

If no queue file or no index file is left, their sizes are unknown: `recover` says so and uses the default
sizes. A broker with another mappedFileSizeConsumeQueue does not start with these queue files. One with
another maxHashSlotNum or maxIndexNum loads these index files, but finds no key in them. So name its
broker.conf with `--broker-conf`, or a file with just these settings.

Without `--backup-dir` the backup is next to the store. Its README.txt shows how to undo the repair, and how
to read what was replaced: `rmqtool dump BACKUP/ranges/commitlog/FILE --explain OFFSET` shows a record that
was changed, byte by byte, and `rmqtool dump BACKUP/files/FILE` a queue or an index file. A backup has only
what was changed, so it is not a store.

With `--fill none` the log ends at the first hole, and the messages after it are written to a file for
`rmqtool append`. A record before the hole whose properties end in zeros is given up too, and is in that
file with what is left of them. With `--mode broker --broker 5.4` the log ends where that broker would end
it, but the backup keeps everything that is given up.

A start examines only part of the log, and the next start examines another part. A second run of `--mode
broker` may therefore truncate the log again, at earlier damage, as the broker's next start would. The plan
warns of this and shows the offset. `--mode best` examines the whole log, and a second run changes nothing.

## If a repair was interrupted

An interrupted run leaves the file `commitlog/rmqtool-repair`. While it exists, no broker loads the store.
Rerun the same command: it first undoes the changes of the interrupted run from its backup, and then starts
over. With the same `--backup-dir DIR`, the new backup is `DIR-2`, next to the first. Until then do not
delete the file by hand, and keep the backup: it may hold the only copy of some data, such as the committed
offsets of all groups. If the backup is lost for good, `--force` continues with the store in its present
state.

## Undo

```console
$ rmqtool recover store --undo backup
undone       4 files restored: the store is as it was before rmqtool recover
backup       backup
next         before a broker starts again: rmqtool recover store
```

Every file is restored byte for byte. Once a broker has written to the store, undo is refused.

## A slave or a copy may have the lost messages

A slave has its master's commit log, byte for byte at the same offsets. Before you give up messages, check
whether a slave or a copy has them:

```console
$ rmqtool diff store slave
A            store (broker 5.4, not cleanly stopped), log 0 to 3718465
B            slave (broker 5.4, stopped cleanly), log 0 to 3599769
commit log   0 to 3599769 in both, 3.4 MiB compared: the byte at 3513861
             differs
differs      3513861 to 3513862: 1 byte, in body; the record is sound in B
             only
...
             in A 3511773 to 3516002: pubBatch queue 3 offset 3, ...
...
             in B 3511773 to 3516002: pubBatch queue 3 offset 3, ...
...
only A       3599769 to 3718465, 115.9 KiB, 160 records, ...
...
ahead        A by 160 messages, 115.9 KiB
queues       57 with 3939 units in both: 20 identical, 37 have messages ...
...
config       6 files compared: identical by value
...
verdict      The stores differ. In 1 differing range only B is sound: A is
             damaged there.

carry over   Stop both brokers and choose the store that stays. ...
...
if A stays   1 message (1 of pubBatch) where A is damaged
first        A was not stopped cleanly and is damaged in 1 place: ...
...
run          rmqtool recover store --apply
run          rmqtool dump slave --from-offset 3511773 --to-offset 3516002 ...
if B stays   124 messages only in A: ...
...
run          rmqtool dump store --from-offset 3599769 --to-offset 3718465 ...
```

Here the slave holds the damaged message intact, and lacks the last 160 records. A slave that is sound and up
to date can replace the master. This one is not, so choose the store that stays, and run what is printed for
it. If the damaged store stays, that is `rmqtool recover` first. It puts fillers in the place of lost
messages; then `rmqtool dump slave ... --json | rmqtool append store ...` adds these messages at the end of
the log, with new queue offsets. Run that line once: a second run would add them again. With `--common` the
exit code is 0 if nothing differs except how far each log reaches. Then the verdict says which store is ahead
and by how many messages, and below it is the line that adds these to the other store, if that is the one that
you keep.

If a commit log file is missing or has the wrong size, and the slave or a backup has it, put that file back
first: a slave's file has the same name and the same bytes. `recover` can only fill the gap.

Of a file of the log fsck may leave a part, without a name, in lost+found. `rmqtool dump PART`, `export` and
`copy` read it, and say from which physical offset up to which it reaches. To join it with the rest of the
log, write it into the file that lacks it: the last one whose name is not above this offset; names are
offsets too, in steps of the size of a file. `seek` is the offset minus the name. Here a part from 1548576 on
goes into the second file of 1 MiB. Then run `recover`:

```text
truncate -s 1048576 STORE/commitlog/00000000000001048576
dd if=PART of=STORE/commitlog/00000000000001048576 \
    oflag=seek_bytes seek=500000 conv=notrunc
```

## Two stores have parted

After a failover or a split, two brokers may each have stored messages that the other lacks, at the same
offsets. No broker merges two such logs. Stop both brokers, and choose the store that stays.

- 1. Compare. `rmqtool diff A B` shows where the logs part, how many messages only one of them has, by
unique key, and under carry over the command lines for the next steps.
- 2. Repair. If a store was not stopped cleanly or is damaged, run the line `rmqtool recover A --apply` that
`diff` prints, and then `diff` again.
- 3. Carry over. Run what `diff` prints for the store that stays, once. If A stays, that is
`rmqtool dump B ... --json | rmqtool append A ...`. The messages get new queue offsets at the end of A. A
second run would add them again.
- 4. Consumer offsets. Keep consumerOffset.json of A. An offset means the same in both stores up to the
place where its queue parts; past it, it counts messages of one store, and in the other it names different
ones. `diff` says under offsets whether all offsets fit both stores. For the others it gives the value that
fits, and for the store that stays a line `rmqtool reset-offset` that sets it: no message is skipped then,
but those that a group had consumed in B after the parting arrive once more.
- 5. Check. `rmqtool diff A B` now says that A holds every message of B, and `rmqtool verify A` must say:
sound. A note CP07 does no harm: the messages keep their times, which are older than those before them.
- 6. Start the broker of A. Empty the other store before it becomes a slave of A.

A topic that A lacks is created with as many queues as B has, if `diff` prints `--queues`; otherwise `diff`
names the topics that you have to create first. Delayed messages that were delivered already are delivered
again.

## Consumer offsets or the folder config are lost

Without consumerOffset.json and its .bak every group begins where its consumers say (consumeFromWhere): it
skips messages, or consumes all of them again. Without delayOffset.json the broker delivers every stored
delayed message again, and without subscriptionGroup.json it creates groups with default settings. The broker
writes these files within seconds after a start, so that a loss can no longer be seen: do not start it before
step 7.

- 1. See what is missing. `rmqtool doctor STORE` names each lost file (CF06 to CF09; TM03 for timercheck), and
says first if the whole folder is missing. CF03 is a topics.json that lacks topics with messages, as that of a
new broker: no consumer gets these messages. CF15 reports a topics.json that hides unread messages, for
example one that was written from a template: its readQueueNums is too small, and recover raises it, or its
perm does not allow reading, and stays as it is.
- 2. Before anything else, copy each lost file back into config/ from a backup, from the host that the
store came from, or from a slave. A slave gets these files from its master every 10 seconds with 4.9 and
every minute with 5.x; a copy that `rmqtool receive` keeps has them too. What a group consumed
after the copy was made, it receives again.
- 3. topics.json, delayOffset.json or timercheck without a copy. `rmqtool recover STORE --apply` makes them
again from the log, adds the topics that topics.json lacks, and keeps the topics that are whole in a
topics.json that is cut. Compare the others with your notes: topics without messages are missing, and order
and permissions of a topic are not in the log. Of each delay level the first message without a
delivered copy in the log is the next to deliver, but none before the offset in a .bak; the plan says how many
messages are delivered twice.
- 4. Offsets without a copy. Keep the consumers stopped. `rmqtool reset-offset STORE --group '*' --since TIME`
prints a command for each group whose retry messages show what it consumes, and names the other groups
that topics or files still show: nothing shows what they consume.
- 5. Run the line of each group with the time up to which it had consumed: it shows how many messages the
group then receives. Add `--topic TOPIC` for each other topic that it consumes. `--from latest` instead of
`--since` lets it skip all. `rmqtool tail` with the same `--topic` and `--since` shows the messages.
- 6. Run it again with `--apply`: it writes the file.
- 7. `rmqtool verify STORE` names the groups that still have no offset (CF08); leave those that never
consumed. Start the broker, then the consumers.

If only consumerOffset.json is lost, a broker reads its .bak, and recover makes the file of it. Its offsets
are older, and a group may be missing in it: doctor says so, before and after recover (CF13). Run step 5 for
each group that must not receive messages again, or that has no offset. Leave a group that consumes nothing:
CF13 names it until a broker has started and written the file.

`rmqtool reset-offset` also lets a group consume messages again, or skip them, while its broker is stopped.
Stop the group's consumers too: otherwise they go on where they were, and commit their own offsets again.

If groups receive messages again, `rmqtool doctor STORE` says whether committed offsets are behind those of
consumerOffset.json.bak (CF11), which a broker writes five seconds earlier. If nobody reset them, put the .bak
back before a broker starts, with the line that doctor prints: seconds after a start the .bak has the offsets
of the file.

A broker whose queues are in RocksDB only has topics, groups and offsets in the folders config/topics,
config/subscriptionGroups and config/consumerOffsets (5.4 with useSingleRocksDBForAllConfigs: config/metadata;
with configManagerVersion=v2: config/rdb): look for these in the backup. If all of them are gone, recover and
reset-offset write topics.json and consumerOffset.json. The broker takes them over when it starts, because
its new databases have a smaller version; with configManagerVersion=v2 it reads no file. While one of the
databases is there, reset-offset is refused: start the broker without consumers, and use `mqadmin
resetOffsetByTime`.

## Read while the broker is down

`rmqtool serve STORE` lets consumers, mqadmin and the dashboard read the store while no broker runs: the
damaged store itself, or a backup. It changes nothing, so it can run before you decide on a repair. Start it
on the machine of the broker, and give clients its address as that of the name server:

```text
rmqtool serve STORE --broker-conf broker.conf --bind 0.0.0.0 \
    --offsets served-offsets.json
mqadmin topicStatus -n HOST:10911 -t Orders
```

The dashboard also connects two ports below that, here to 10909: a firewall must let both through.

Consumer groups continue at the offsets in the store. What they commit meanwhile is saved only in the file
of `--offsets`, which has the layout of consumerOffset.json: a broker that is started later does not know
these offsets, and delivers the messages again. Sends are refused. A damaged record is left out and
reported. Messages without a queue unit, as after a crash, are served only after `rmqtool rebuild STORE
--apply`.

## Queues or topics are wrong, the log is sound

`rmqtool rebuild STORE` rebuilds the queues and index files that do not agree with the log (all of them, or
the queues of `--topic`) and a lost topics.json. Like `recover`, it shows a plan first and backs up what it
replaces.

## The disk is full

`rmqtool expire STORE` shows which files the broker would delete now and at the next hour of deleteWhen,
why, and which messages groups have not consumed yet. `--until-free 100G --apply --archive DIR` first copies
the files to DIR, which should be on another disk; without `--archive` they are lost. Messages that a group
has not consumed, and pending delayed, half and timer messages, are not deleted without `--force`. For a
topic for which no group has an offset, the plan only warns and gives the number of messages: read the plan
before `--apply`. If consumerOffset.json is lost, it is unknown which groups still need messages, and
`--apply` is refused too. Stop the broker before `--apply`.

Delayed messages that are overdue hold a file until they are delivered. After `rmqtool deliver STORE --apply`
their copies are at the end of the log, and nothing of them is lost with the old file.

A group that is behind holds its files too. If it cannot catch up first, save the messages that it has not
consumed, let it skip them, and store them again at the end of the log:

```text
rmqtool tail STORE --group GROUP --retry --json > unread.jsonl
rmqtool reset-offset STORE --group GROUP --from latest --apply
rmqtool append STORE --input unread.jsonl
rmqtool expire STORE                Which files are free to go?
rmqtool expire STORE --before OFFSET --archive DIR --apply
```

The group then receives each message once, as a copy. A group without any offset needs its topics named, here
`--topic %RETRY%GROUP`. If you have stored the copies before reset-offset, it would skip them with `--from
latest`: let it skip the originals alone. For retry messages that is `rmqtool reset-offset STORE --group GROUP
--topic %RETRY%GROUP --from OFFSET --apply`, where OFFSET is the queue offset of the first copy; `rmqtool
expire STORE` prints these lines if nothing else needs the file. Do not use `--force` for this: it also
deletes half, delayed and timer messages that still wait.

To restore an archive, stop the broker and raise fileReservedTime (otherwise it deletes the files again).
Then copy the folders, but not the manifests, over the store. README.txt in the archive has these lines with
the names of your folders:

```text
cp -an DIR/commitlog DIR/consumequeue DIR/index STORE
rmqtool verify STORE                Must say: sound.
```

A commit log must not have a gap. So if you restore single log files, begin with the newest in the archive,
which ends where the log of the store begins, and go on with the one before it. The manifest says from when
to when the messages of each file were stored. Then copy the queue and index files too: without them no
consumer and no query by key finds the messages. More of these files than the log needs do no harm:

```text
cp -an DIR/commitlog/00000000002147483648 STORE/commitlog/
cp -an DIR/consumequeue DIR/index STORE
rmqtool verify STORE                Must say: sound.
```

If `verify` reports CL20, there is a gap: copy the log file that is missing there from the archive; `recover`
does not know of it. If there are several archives, restore the newest first. Files from commit log folders
outside STORE are in DIR/outside, under their full paths.

## The host of the broker is lost

A copy that `rmqtool receive` has kept on another host is a store: it has the log, the topics, the groups and
the consumer offsets. Stop `receive`. A copy that was kept with `--dispatch` has the queues and the index too.
Otherwise build them, with the broker.conf of the lost broker if its file sizes are not the default ones. Then
start a broker with this configuration on the copy:

```text
rmqtool rebuild COPY --apply --broker-conf broker.conf
rmqtool verify COPY                 Must say: sound.
```

With brokerRole SYNC_MASTER no message is lost if its producer got SEND_OK while `receive` was connected. A
slave broker that survived can receive the rest of a log: stop its master, run `rmqtool send-log STORE` on
the store that has more, and make the slave connect to it with `--slave` (4.x: haMasterAddress). First make
sure with `rmqtool diff --common` that both logs have the same messages: a slave does not compare them.

## The log is in DLedger

A broker with enableDLegerCommitLog keeps its log in a folder dledger-SELFID; `rmqtool info` shows it.
rmqtool reads such a store, and never changes its log: otherwise the replicas of a group would differ.
expire and append refuse it. recover repairs everything else as the log says: queues, index, checkpoint, lost
config files, and the timer. It does not predict what a start does to the DLedger log. Where the log is
damaged, recover says so, and one of these helps:

- A replica is sound. While both brokers are stopped, replace the folder dledger-SELFID of the damaged
replica by that of the sound one.
- No replica is sound, or you leave DLedger. Copy the sound messages to a store without it, check the copy,
and start a broker without DLedger on it:

```text
rmqtool verify STORE                Which messages are damaged?
rmqtool copy STORE --output NEW     The sound messages, as a new store.
rmqtool verify NEW                  Must say: sound.
```

The copy has new queue offsets and no committed offsets: set each group's offsets with `rmqtool
reset-offset` before the broker starts. rmqtool copy shows which topics it left out. If delayed or timer
messages still wait, it counts them, and shows the lines that take them along:

```text
rmqtool copy STORE --output NEW --topic '*' \
    --topic SCHEDULE_TOPIC_XXXX --topic rmq_sys_wheel_timer
rmqtool recover NEW --apply         Which of them were delivered?
```

Without recover the broker delivers again what was delivered before. Half messages of open transactions are
never copied: their producers have to send them again. This holds for a copy of any store.

## Files of the timer are lost

Without timerwheel, the files of timerlog or config/timercheck (TM03) a 5.x broker starts, and delivers
messages twice or never. recover makes the three files again from the messages in the log: with every message
that was not delivered yet, and none that was. So it does where units of the timer log are gone or damaged
(TM02), at which a broker runs out of memory. Name broker.conf if mappedFileSizeTimerLog is set in it.

Of a timer in RocksDB (timerRocksDBEnable) whose database is lost or damaged, TM04 counts the pending
messages, and rmqtool stats STORE --delayed says when they are due. Copy rocksdbstore from a backup.

## What cannot be repaired

Data that a broker has overwritten is lost unless a copy exists: do not start the broker again. rmqtool
reads the configuration in RocksDB but cannot repair it.
"""
