"""Dispatch in the background: queues and index follow the log, and both are put on the device in turn.

Source: ReputMessageService, FlushConsumeQueueService; spec 01 section 11, spec 02 section 5.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import NamedTuple

from rmqtool.errors import RmqtoolError
from rmqtool.write.dispatcher import Dispatcher
from rmqtool.write.recent import ENOUGH

_POLL_S = 0.02
_PATIENCE_S = 0.2  # after which less is dispatched, and what was dispatched is written
_BUSY_PATIENCE_S = 2.0  # the latter while there is enough to dispatch
_REST = 9  # times as long as writing took, with tens of thousands of queues seconds, it waits to write again
_STEP = 64 << 20  # bytes of log between two looks at whether to stop
_TOPICS_S = 1.0  # between two looks at whether topics were added


class Reached(NamedTuple):
    """The progress of queues and index.

    `position` is a physical offset; `store_timestamp` that of the record before it, `index_timestamp` the
    end of the newest full index file, both ms, 0 for none.
    """

    position: int
    store_timestamp: int
    index_timestamp: int


class Reput:
    """Runs a dispatcher that follows a log; `error` is what its last step failed with, None for nothing.

    After an error that is not rmqtool's it ends: what was dispatched is not known then.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        limit: Callable[[], int],
        *,
        save_topics: Callable[[], None],
        save: Callable[[], None],
        interval_ms: int,
    ) -> None:
        """See the class.

        Args:
            dispatcher: the dispatcher.
            limit: gives the physical offset up to which the log may be dispatched.
            save_topics: writes topics.json when topics were added.
            save: puts log, queues, index and checkpoint on the device.
            interval_ms: between two calls of `save`.
        """
        self.error: Exception | None = None
        self._dispatcher = dispatcher
        self._limit = limit
        self._save_topics = save_topics
        self._save = save
        self._interval_s = interval_ms / 1000
        self._lock = Lock()
        self._written_at = self._topics_at = self._saved_at = 0.0
        self._rest_s = 0.0
        self._stopped = False
        self._work = Event()
        dispatcher.recent.wake = self._work.set
        self._thread = Thread(target=self._run, name="reput", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is not dispatched stays so."""
        self._stopped = True
        self._work.set()
        if self._thread.ident is not None:
            self._thread.join()

    def catch_up(self, *, sync: bool = False) -> Reached:
        """Bring queues and index level with the log, in the files or (`sync`) on the device.

        Returns:
            How far that is done.

        Raises:
            UnwritableError: they cannot be written; a later call resumes there.
        """
        with self._lock:
            if self.error is not None and not isinstance(self.error, RmqtoolError):
                raise self.error
            self._dispatcher.run(self._limit())
            if sync:
                self._dispatcher.sync()
            else:
                self._dispatcher.write_out()
            dispatcher = self._dispatcher
            return Reached(dispatcher.position, dispatcher.store_timestamp, dispatcher.index_timestamp)

    def _run(self) -> None:
        """Until stopped; after a failure it tries again, for a full disk may have space later."""
        now = time.monotonic()
        self._written_at, self._topics_at, self._saved_at = now, now, now
        while not self._stopped:
            self._work.wait(_POLL_S)
            self._work.clear()
            try:
                self._step(time.monotonic())
            except RmqtoolError as error:
                self.error = error
            except Exception as error:  # raised again in the threads that put, flush and close
                self.error = error
                return
            else:
                self.error = None

    def _step(self, now: float) -> None:
        waited = now - self._written_at
        with self._lock:
            behind = self._limit() - self._dispatcher.position
            is_busy = behind >= ENOUGH
            if is_busy or (behind > 0 and waited >= _PATIENCE_S):
                self._dispatcher.run(self._dispatcher.position + min(behind, _STEP))
            if waited >= max(self._rest_s, _BUSY_PATIENCE_S if is_busy else _PATIENCE_S):
                began = time.monotonic()
                self._dispatcher.write_out()
                self._written_at = time.monotonic()
                self._rest_s = _REST * (self._written_at - began)
        if now - self._topics_at >= _TOPICS_S:
            self._save_topics()
            self._topics_at = now
        if now - self._saved_at >= self._interval_s:
            self._save()
            self._saved_at = now
