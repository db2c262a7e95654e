"""The text of rmqtool-concepts(7): the parts of a store, and the way of a message through them.

Paragraphs, `## headings`, `- ` entries (a term, a full stop, its text) and fenced blocks.
`python -m tests.benchmarks.report` writes the section of measured speed between its two markers.

Source of what a broker does: CommitLog#asyncPutMessage, DefaultMessageStore.ReputMessageService,
FlushRealTimeService, GroupCommitService, ConsumeQueue#putMessagePositionInfoWrapper, IndexFile#putKey.
"""

TEXT = r"""
## Parts of a store

- commit log. The messages of all topics, one after the other, in files of one size. A file is named by the
physical offset of its first byte. Every other part can be rebuilt from the commit log.
- consume queues. One folder for each queue of each topic. A unit of 20 bytes points to a message in the
commit log: its physical offset, its size and the hash of its tag.
- index. Hash tables from keys to physical offsets. An entry holds only the hash of its key, so a reader
compares the key with that of the message.
- checkpoint. The store times up to which commit log, consume queues and index are on the device.
- abort. A file that exists while a broker runs. If a start finds it, the last stop was not clean.

rmqtool-store(5) describes every file, field by field.

## The way of a message

A broker appends a message to the end of the commit log, under one lock for all topics. At that moment the
message has its physical offset and its queue offset, and exists in memory only: in the page cache of the
system. With asynchronous flushing the producer has its answer now. With synchronous flushing it waits until
the message is on the device; messages that wait at the same time share one flush.

Another thread reads the commit log again, message by message, and dispatches: it writes the unit of the
consume queue and the entries of the index. A consumer sees a message when its unit exists. If a broker is
killed, units and entries may be missing; the next start creates them from the commit log.

All messages go to the end of one file, whatever their topics. This is why the number of topics hardly
matters to the device, in contrast to one file for each queue.
"""

# speed: begin
SPEED = ""
# speed: end
