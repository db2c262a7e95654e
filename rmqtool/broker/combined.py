"""Consume queues that 5.4 writes twice (rocksdbCQDoubleWriteEnable), in files and in RocksDB, during a start.

Both sides are loaded, recovered and cut as if each were alone: `dispatch.Folder` and `rocksdb.RocksdbFolder`.
They share the dispatch. Without abort it begins after the end of the shorter side, and both get every record
from there on. The files give the queue offsets. The scan begins in a log file from which the files can be
completed, and at most combineCQMaxExtraSearchCommitLogFiles files before it for RocksDB. After the dispatch a
queue in RocksDB whose end differs gets the end of the files as its first and its next offset: it then has
none of its older units. If clients are served from RocksDB (combineCQPreferCQType), a start fails that would
serve less than the files.

RocksDB is written by a thread of its own; predictions assume that it is finished when ends are compared.

Source: CombineConsumeQueueStore#recover, #isMappedFileMatchedRecover, #getDispatchFromPhyOffset,
#verifyAndInitOffsetForAllStore of 5.4.0; spec 06 2.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmqtool.broker.rocksdb import RocksdbFolder, RocksdbState
from rmqtool.broker.rules import StartSettings

if TYPE_CHECKING:
    from rmqtool.broker.load import QueueKey
    from rmqtool.broker.queues import QueueState


class StartFileSearch:
    """Accepts the log file where the scan begins, among those from which the queue files can be completed.

    Attributes:
        fails: none is accepted, because clients are served from RocksDB and it would stay incomplete.
    """

    def __init__(self, noted: int, settings: StartSettings) -> None:
        self.fails = False
        self._noted = noted
        self._left = settings.files_for_rocksdb
        self._may_stay_incomplete = not settings.serves_from_rocksdb

    def accepts(self, first_offset: int) -> bool:
        """Whether the scan may begin at the file whose first record is at this offset, or cannot begin."""
        if first_offset <= self._noted:
            return True
        self._left -= 1
        if self._left >= 0:
            return False
        self.fails = not self._may_stay_incomplete
        return True


def differing(files: Mapping[QueueKey, QueueState], database: RocksdbFolder) -> dict[QueueKey, int]:
    """The queues whose end in RocksDB is not that in files, with the end in RocksDB; 0 without units."""
    found = {}
    for key, state in files.items():
        other, end = database.states.get(key), state.span()[1]
        theirs = 0 if other is None else other.span()[1]
        if end != theirs and max(end, theirs) > 0:
            found[key] = theirs
    return found


def initialize(files: Mapping[QueueKey, QueueState], database: RocksdbFolder) -> None:
    """Give the queues in RocksDB that differ the ends of the files. Source: #initializeWithOffset."""
    for key in differing(files, database):
        state = database.states.setdefault(key, RocksdbState(*key, False, 0))
        assert isinstance(state, RocksdbState)
        state.top = files[key].span()[1]
        state.begin_at(state.top)
