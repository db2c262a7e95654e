"""A cache of the survey's batches, so that staging does not read the log again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from threading import Lock
from typing import TYPE_CHECKING

from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.scan_cache import LIMIT, Packed, Unpacking, pack

if TYPE_CHECKING:
    from rmqtool.log.dispatch import Dispatch
    from rmqtool.log.frames import Frames


@dataclass
class Kept:
    """The batches of a survey, added by any thread; `is_whole` until they exceed the limit."""

    is_whole: bool = True
    _batches: list[Packed] = field(default_factory=list)
    _size: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, frames: Frames, dispatch: Dispatch) -> None:
        """Add one batch."""
        if self.is_whole:
            batch = pack(frames, dispatch)
            if batch is None:
                self.drop()
            else:
                self.take([batch])

    def take(self, batches: Iterable[Packed]) -> None:
        """Add batches that are already packed."""
        with self._lock:
            for batch in batches if self.is_whole else ():
                self._size += batch.nbytes
                self._batches.append(batch)
            if self._size >= LIMIT:
                self.drop()

    def drop(self) -> None:
        """Drop all batches, and ignore further ones."""
        self.is_whole = False
        self._batches.clear()

    def batches(self, start: int) -> Iterator[tuple[Frames, Dispatch]]:
        """The batches in the order of the log, from the one with the record at `start` on."""
        unpacking = Unpacking(self._batches)
        for batch in sorted(self._batches, key=lambda item: item.start):
            if batch.last >= start:
                yield unpacking.of(batch)
