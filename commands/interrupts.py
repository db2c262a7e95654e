"""Signals that end a command: KeyboardInterrupt in the main thread, where it does no harm."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeVar

_Entered = TypeVar("_Entered")
_Item = TypeVar("_Item")

# Service managers, closing terminals and timeout(1) send two signals; the second is not another request.
_ONE_INTERRUPT_SECONDS = 1.0
_LATER_SECONDS = 0.001
_MAX_DELAYS = 100

# An exception in these leaves a lock taken that another thread then waits for without end, or free
# that is to be released: `with condition` calls them outside of its own protection.
_HOLDING = frozenset(
    getattr(threading.Condition, name).__code__
    for name in ("__enter__", "__exit__", "_acquire_restore", "_release_save")
)
_WAITING = threading.Condition.wait.__code__

_holds = 0  # how many `interrupts_held` the main thread is in
_is_pending = False  # whether a signal waits for the end of the outermost one


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt; restore the former handlers afterwards.

    A signal that is ignored stays so (`nohup`). Only a main thread can set handlers; in another
    one nothing changes.
    """
    last = -_ONE_INTERRUPT_SECONDS
    delays = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last, delays
        global _is_pending
        now = time.monotonic()
        if now - last < _ONE_INTERRUPT_SECONDS:
            return
        if has_timer and delays < _MAX_DELAYS and _is_between(frame):
            delays += 1
            signal.setitimer(signal.ITIMER_REAL, _LATER_SECONDS)
            return
        last, delays = now, 0
        if _holds and not _is_pending:
            _is_pending = True
            return
        raise KeyboardInterrupt

    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
        handlers = {number: signal.getsignal(number) for number in numbers if number is not None}
    # None: set by something that is not Python, and cannot be restored.
    handlers = {number: old for number, old in handlers.items() if old not in (signal.SIG_IGN, None)}
    has_timer = bool(handlers) and _has_timer()
    if has_timer:
        handlers[signal.SIGALRM] = signal.SIG_DFL
    try:
        for number in handlers:
            signal.signal(number, interrupt)
        yield
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, old in handlers.items():
            signal.signal(number, old)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay the KeyboardInterrupt of a signal to the end of this block; a second signal raises it at once.

    Use it for work that must be completed, such as a put. It delays the exceptions of `signals_interrupt`,
    so it does nothing outside of a command.
    """
    global _holds, _is_pending
    _holds += 1
    try:
        yield
    finally:
        _holds -= 1
        was_pending = _is_pending and not _holds
        if was_pending:
            _is_pending = False
    if was_pending:
        raise KeyboardInterrupt


@contextmanager
def entering(make: Callable[[], AbstractContextManager[_Entered]]) -> Iterator[_Entered]:
    """Enter and leave the context manager that `make` returns.

    An interrupt during the entry waits until the entry is complete, so that the context is always left.
    """
    with ExitStack() as stack:
        with interrupts_held():
            entered = stack.enter_context(make())
        yield entered


def _has_timer() -> bool:
    """Whether the platform has the process timer and no other code handles its signal."""
    return hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def _is_between(frame: FrameType | None) -> bool:
    """Whether a frame or one of its callers is acquiring or releasing the lock of a condition.

    Everything that waits for another thread uses a condition: futures, events, semaphores, queues.
    """
    while frame is not None:
        if frame.f_code in _HOLDING or (frame.f_code is _WAITING and "saved_state" not in frame.f_locals):
            return True
        frame = frame.f_back
    return False


def uninterrupted(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yields the items; an interrupt while one is used waits until the next is requested."""
    for item in items:
        with interrupts_held():
            yield item
