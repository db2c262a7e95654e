"""A store opened so that what is seen of it belongs together.

To change it, while its lock is held: first the lock, then the look (design section 9). To plan alone no
lock is taken, and it is looked at again where a writer has passed by meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rmqtool.errors import StoreInUseError, UsageError
from rmqtool.read.store import Store
from rmqtool.repair.plan.fingerprint import FileState, listed
from rmqtool.storage import lock
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock

OpenStore = Callable[[], Store]
"""Opens the store for reading, each time anew: a plan is made of what lies there once the lock is held."""

_LOOKS = 3
T = TypeVar("T")


@contextmanager
def held_store(
    open_store: OpenStore, *, settle: Callable[[StoreLayout, StoreLock], object] | None = None
) -> Iterator[tuple[Store, StoreLock]]:
    """The store as it is once its lock is held, and the lock, which is given back at the end.

    Args:
        open_store: opens it.
        settle: called with the lock held before the store is looked at, as `roll_back` is.

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
        if settle is not None:
            settle(store.layout, held)
        with open_store() as store:
            yield store, held
    finally:
        held.release()


def steady(open_store: OpenStore, look: Callable[[Store], T]) -> T:
    """What `look` finds in a store whose files nobody changes meanwhile; no lock is taken.

    Where one came by whose lock is free again it is looked at once more. Config files, which an idle
    broker writes every few seconds, count only where the look failed.

    Raises:
        StoreInUseError: the files do not come to rest.
    """
    for _ in range(_LOOKS):
        with open_store() as store:
            before = _listed(store)
        with open_store() as store:  # anew: what a layout lists is not older than what is compared
            try:
                found = look(store)
            except Exception:
                if _listed(store) == before:
                    raise
            else:
                if _without_config(_listed(store)) == _without_config(before):
                    return found
            holder = store.holder
        if holder.is_held:
            break
    who = f"process {holder.pid} holds its lock, and" if holder.pid else "something"
    raise StoreInUseError(
        f"the store is in use: {who} writes to it while it is read", path=store.layout.root,
        hint="stop it first",
    )  # fmt: skip


def _listed(store: Store) -> dict[str, FileState]:
    return listed(store.layout) if store.is_local and store.layout.root is not None else {}


def _without_config(files: dict[str, FileState]) -> dict[str, FileState]:
    return {path: state for path, state in files.items() if not path.startswith("config/")}
