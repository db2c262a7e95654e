"""Consume queues that 5.4 writes twice (rocksdbCQDoubleWriteEnable), in files and in RocksDB, during a start.

Both sides are loaded, recovered and cut as if each were alone: `dispatch.Folder` and `rocksdb.RocksdbFolder`.
They share the dispatch. Without abort it begins after the end of the shorter side, and both get every record
from there on. One side gives the queue offsets (combineAssignOffsetCQType), by default the files. The scan
begins in a log file from which this side can be completed, and at most combineCQMaxExtraSearchCommitLogFiles
files before it for the other. If clients are served from the other side (combineCQPreferCQType), a start
fails that would leave it incomplete.

After the dispatch a queue in RocksDB whose end differs gets the end of the files as its first and its next
offset: it then has none of its older units; and a start fails that serves from there. If RocksDB gives the
queue offsets, only queues that were asked for before are compared, which are none of the topics of users.

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
    """Accepts the log file where the scan begins.

    Attributes:
        fails: none is accepted, because the side from which clients are served would stay incomplete.
    """

    def __init__(self, noted: int, settings: StartSettings) -> None:
        self.fails = False
        self._noted = noted
        self._left = settings.files_for_rocksdb
        self._assigns_from_rocksdb = settings.assigns_from_rocksdb
        self._may_stay_incomplete = settings.serves_from_rocksdb == settings.assigns_from_rocksdb

    def accepts(self, first_offset: int, *, completes_files: bool) -> bool:
        """Whether the scan may begin at the file whose first record is at this offset, or cannot begin.

        `completes_files`: the queue files can be completed from there.
        """
        assigning, other = completes_files, first_offset <= self._noted
        if self._assigns_from_rocksdb:
            assigning, other = other, assigning
        if not assigning:
            return False
        if other:
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
