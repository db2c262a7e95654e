"""Puts of several threads share a flush: each gets its own result or error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rmqtool import NewMessage
from rmqtool.errors import IllegalMessageError, UnwritableError
from rmqtool.write.group_commit import GroupCommit
from rmqtool.write.put_result import PutResult
from tests.support.programs import until

TIMEOUT_MS = 60_000


class Log:
    """What is stored and what is flushed. The first flush waits for `go_on`."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.flushed = 0
        self.flushes = 0
        self.at_flush, self.go_on = threading.Event(), threading.Event()
        self.refused: Exception | None = None

    def append(self, message: NewMessage) -> PutResult:
        if message.body == b"illegal":
            raise IllegalMessageError("illegal", status="MESSAGE_ILLEGAL")
        if message.body == b"interrupted":
            raise KeyboardInterrupt
        self.stored.append(message.body)
        place = len(self.stored)
        return PutResult(place, place, 1, message.topic, 0, 0, (place,), b"", False)

    def flush(self) -> None:
        stored = len(self.stored)
        self.flushes += 1
        self.at_flush.set()
        assert self.go_on.wait(60)
        if self.refused is not None:
            raise self.refused
        self.flushed = stored


class Putting:
    """A thread that puts one message: what came of it."""

    def __init__(self, commit: GroupCommit, body: bytes) -> None:
        self.result: PutResult | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(commit, body))
        self._thread.start()

    def _run(self, commit: GroupCommit, body: bytes) -> None:
        try:
            self.result = commit.put(NewMessage("T", body))
        except BaseException as error:
            self.error = error

    def end(self) -> Putting:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self


@contextmanager
def first_at_flush(*bodies: bytes) -> Iterator[tuple[Log, GroupCommit, list[Putting]]]:
    """One thread is at a flush, and further ones, with these bodies, wait in this order."""
    log = Log()
    commit = GroupCommit(log.append, log.flush, TIMEOUT_MS)
    puts = [Putting(commit, b"first")]
    assert log.at_flush.wait(60)
    for number, body in enumerate(bodies, 1):
        puts.append(Putting(commit, body))
        until(lambda number=number: len(commit._waiting) == number)
    try:
        yield log, commit, puts
    finally:
        log.go_on.set()
        for put in puts:
            put.end()


def test_those_who_wait_share_the_next_flush() -> None:
    with first_at_flush(b"1", b"2", b"3") as (log, _, puts):
        assert log.stored == [b"first"]
    assert log.stored == [b"first", b"1", b"2", b"3"]
    assert (log.flushes, log.flushed) == (2, 4)
    assert [put.result.physical_offset for put in puts if put.result and put.result.flushed] == [1, 2, 3, 4]


def test_a_wrong_message_is_the_error_of_its_thread_alone() -> None:
    with first_at_flush(b"1", b"illegal", b"2") as (log, _, puts):
        pass
    assert log.stored == [b"first", b"1", b"2"]
    assert [type(put.error) for put in puts] == [type(None), type(None), IllegalMessageError, type(None)]
    assert [put.result is None for put in puts] == [False, False, True, False]


def test_a_failed_flush_is_the_error_of_all_that_it_was_for() -> None:
    with first_at_flush(b"1", b"2") as (log, commit, puts):
        log.refused = UnwritableError("no space")
        log.go_on.set()
        assert [type(put.end().error) for put in puts] == [UnwritableError] * 3
        log.refused = None
        assert commit.put(NewMessage("T", b"later")).flushed


def test_after_the_timeout_a_put_does_not_count_as_flushed() -> None:
    log = Log()
    log.go_on.set()
    assert not GroupCommit(log.append, log.flush, -1).put(NewMessage("T", b"late")).flushed


def test_an_interrupted_leader_leaves_no_thread_waiting() -> None:
    """The thread that stores for the others is interrupted at its own message: those after it fail."""
    with first_at_flush(b"interrupted", b"1", b"2") as (log, commit, puts):
        log.go_on.set()
        errors = [type(put.end().error) for put in puts]
        assert errors == [type(None), KeyboardInterrupt, UnwritableError, UnwritableError]
        assert commit.put(NewMessage("T", b"later")).flushed
    assert log.stored == [b"first", b"later"]


def test_an_interrupted_wait_stores_nothing() -> None:
    """Ctrl-C while a put waits for its turn, as the next that leads: the one after it leads."""
    main = threading.get_ident()
    with first_at_flush() as (log, commit, puts):

        def interrupt() -> None:
            until(lambda: len(commit._waiting) == 1)
            puts.append(Putting(commit, b"1"))
            until(lambda: len(commit._waiting) == 2)
            signal.pthread_kill(main, signal.SIGINT)
            until(lambda: len(commit._waiting) == 1)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            commit.put(NewMessage("T", b"interrupted"))
        interrupting.join()
    assert log.stored == [b"first", b"1"]
    assert all(put.result and put.result.flushed for put in puts)
