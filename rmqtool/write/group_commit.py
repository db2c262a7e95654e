"""Puts that return when their message is on the device share the flushes.

A thread that finds no other one at work stores its message, flushes the log and returns. Threads that come
meanwhile leave their messages and wait: after the flush, the first of them stores and flushes the messages
of all. So no thread waits for the put lock, and each is woken once. To pass that lock, and the one of the
interpreter, from thread to thread takes several times as long as storing a message.

Source: CommitLog.GroupCommitService.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock

from rmqtool.errors import UnwritableError
from rmqtool.write.put_result import PutResult
from rmqtool.write.records.message import NewMessage

_PAUSE_S = 20e-6


class _Put:
    """A message to store. Its thread continues when `gate` is released: it is done, or the thread leads."""

    __slots__ = ("error", "gate", "message", "result", "started")

    def __init__(self, message: NewMessage) -> None:
        self.message = message
        self.result: PutResult | None = None
        self.error: BaseException | None = None
        self.started = time.perf_counter()
        self.gate = Lock()
        self.gate.acquire()


class GroupCommit:
    """Stores messages of several threads, and flushes the log once for all of them."""

    def __init__(
        self, append: Callable[[NewMessage], PutResult], flush: Callable[[], object], timeout_ms: int
    ) -> None:
        """See the module.

        Args:
            append: stores a message, without a flush.
            flush: brings all that was stored to the device.
            timeout_ms: a put that takes longer does not count as flushed.
        """
        self._append = append
        self._flush = flush
        self._timeout_s = timeout_ms / 1000
        self._lock = Lock()
        self._waiting: list[_Put] = []
        self._leader: _Put | None = None
        self._expected = 0  # puts of the group, judged by the last one
        self._flush_s = 0.0  # how long the last flush took

    def put(self, message: NewMessage) -> PutResult:
        """Store a message and bring it to the device. Raises what `append` and `flush` raise."""
        mine = _Put(message)
        with self._lock:
            self._waiting.append(mine)
            if self._leader is None:
                self._lead_next()
        try:
            mine.gate.acquire()
            if self._leader is mine:
                self._commit()
        except BaseException:  # also a signal's, while it waits: then another thread has to lead
            with self._lock:
                self._waiting = [put for put in self._waiting if put is not mine]
                if self._leader is mine:
                    self._lead_next()
            raise
        if mine.error is not None:
            raise mine.error
        assert mine.result is not None, "without an error there is a result"
        return mine.result

    def _lead_next(self) -> None:
        """Let the first thread that waits store the messages of all. The caller holds the lock."""
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.gate.release()

    def _commit(self) -> None:
        """Store and flush the messages that wait; then their threads go on, and the next one leads."""
        group: list[_Put] = []
        try:
            self._gather()
            with self._lock:
                group, self._waiting = self._waiting, []
            for put in group:
                try:
                    put.result = self._append(put.message)
                except Exception as error:
                    put.error = error
            self._flush_all(group)
        finally:
            with self._lock:
                self._expected = len(group) + len(self._waiting)
                leader = self._leader
                self._lead_next()
            for put in group:
                if put.result is None and put.error is None:  # a signal has ended the loop
                    put.error = UnwritableError("the thread that stores for all was interrupted")
                if put is not leader:
                    put.gate.release()

    def _gather(self) -> None:
        """Wait for the threads that the last flush woke, half as long as it took: most come again."""
        stop = time.perf_counter() + self._flush_s / 2
        while len(self._waiting) < self._expected and time.perf_counter() < stop:
            time.sleep(_PAUSE_S)

    def _flush_all(self, group: Sequence[_Put]) -> None:
        started = time.perf_counter()
        try:
            self._flush()
        except Exception as error:
            for put in group:
                put.result, put.error = None, put.error or error
            return
        ended = time.perf_counter()
        self._flush_s = ended - started
        for put in group:
            if put.result is not None and ended - put.started <= self._timeout_s:
                put.result = put.result._replace(flushed=True)
