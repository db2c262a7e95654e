"""When the commit log is put on the device: timed in the background, or before a put returns.

Source: CommitLog.FlushRealTimeService, CommitRealTimeService, GroupCommitService; spec 01 section 11.
"""

from __future__ import annotations

import time
from threading import Condition, Event, Thread

from rmqtool.errors import UnwritableError
from rmqtool.write.log_writer import LogWriter
from rmqtool.write.options import WriteOptions

_PAGE = 4096
_GATHER_S = 20e-6
_FAST_S = 2e-4
"""A flush in less time than it takes to wait for others, seconds."""


class TimedFlush:
    """The background half of an `async` writer: flushes by dirty pages and time, commits the write buffer.

    A failure stops it; the log is marked as failed by then, so the next append raises it.
    """

    def __init__(self, log: LogWriter, options: WriteOptions) -> None:
        self._log = log
        self._options = options
        self._stop = Event()
        self._thread = Thread(target=self._run, name="flush", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits for a flush that is under way. Bytes not flushed by then stay so."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        options, log = self._options, self._log
        flushes = options.flush == "async"
        interval_ms = options.flush_interval_ms
        if options.write_buffer:
            interval_ms = min(interval_ms, options.commit_interval_ms)
        thorough_at = flush_at = time.monotonic()
        try:
            while not self._stop.wait(interval_ms / 1000):
                log.commit()
                now = time.monotonic()
                if not flushes or (now - flush_at) * 1000 < options.flush_interval_ms:
                    continue
                flush_at = now
                pages = log.end // _PAGE - log.flushed // _PAGE
                thorough = (now - thorough_at) * 1000 >= options.flush_thorough_interval_ms
                if pages >= options.flush_least_pages or thorough:
                    log.flush()
                    thorough_at = now if thorough else thorough_at
        except UnwritableError:
            return


class GroupCommit:
    """The `sync` half: threads that wait for the device share its flushes.

    One of those that wait flushes for all that are there. Before it does, it waits for as many as the last
    time, half as long as a flush takes: they are mostly on their way. On a fast device each goes to the log
    itself, which one of them flushes for those queued after it.

    Source: CommitLog.GroupCommitService.
    """

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._changed = Condition()
        self._busy = False
        self._wanted: list[int] = []
        self._expected = 0

    def flush_to(self, offset: int) -> None:
        """Return when the log is on the device up to `offset`. Raises UnwritableError."""
        log = self._log
        if log.flush_seconds < _FAST_S:
            log.flush(offset)
            return
        with self._changed:
            self._wanted.append(offset)
            while self._busy and log.flushed < offset:
                self._changed.wait()
            if log.flushed >= offset:
                return
            self._busy = True
        try:
            self._gather()
            log.flush()
        finally:
            with self._changed:
                self._busy = False
                self._expected = len(self._wanted)
                self._wanted = [wanted for wanted in self._wanted if wanted > log.flushed]
                self._changed.notify_all()

    def _gather(self) -> None:
        stop = time.perf_counter() + self._log.flush_seconds / 2
        while len(self._wanted) < self._expected and time.perf_counter() < stop:
            time.sleep(_GATHER_S)
