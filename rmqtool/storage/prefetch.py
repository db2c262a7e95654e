"""Items produced in advance by another thread."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, Queue
from threading import Event, Thread
from typing import TypeVar

# A signal that arrives just before the main thread begins to wait does not end the wait, and Python runs
# its handler in the main thread only. So no wait for the other thread is longer than this.
LONGEST_WAIT_S = 1.0

Item = TypeVar("Item")


def ahead(items: Iterator[Item], count: int) -> Iterator[Item]:
    """The items, up to `count` of them produced in advance by another thread.

    An exception of `items` is raised here. If the caller stops early, the thread stops after its current
    item and closes `items`.
    """
    ready: Queue[tuple[Item | None, BaseException | None]] = Queue(count)
    abandoned = Event()

    def work() -> None:
        try:
            for item in items:
                ready.put((item, None))
                if abandoned.is_set():
                    break
            else:
                ready.put((None, None))
        except BaseException as error:  # raised again in the thread that takes the items
            ready.put((None, error))
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    # Not joined if the caller stops early: it may wait for bytes that never come.
    thread = Thread(target=work, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item, error = ready.get(timeout=LONGEST_WAIT_S)
            except Empty:
                continue
            if error is not None:
                raise error
            if item is None:
                thread.join()
                return
            yield item
    finally:
        abandoned.set()
        while not ready.empty():
            ready.get_nowait()
