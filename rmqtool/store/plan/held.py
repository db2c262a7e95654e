"""A store opened while its lock is held: first the lock, then the look (design section 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rmqtool.errors import UsageError
from rmqtool.store import Store, lock
from rmqtool.store.lock import StoreLock

OpenStore = Callable[[], Store]
"""Opens the store for reading, each time anew: a plan is made of what lies there once the lock is held."""


@contextmanager
def held_store(open_store: OpenStore) -> Iterator[tuple[Store, StoreLock]]:
    """The store as it is once its lock is held, and the lock, which is given back at the end.

    Raises:
        UsageError: it is no store root.
        StoreInUseError: a broker holds the lock.
    """
    with open_store() as store:
        root = store.layout.root
        if root is None or store.layout.kind != "store":
            raise UsageError("only a whole store can be changed", hint="name the folder that holds commitlog")
    held = lock.acquire(root / "lock")
    try:
        with open_store() as store:
            yield store, held
    finally:
        held.release()
