"""What both ways to count a stream share: its stores, opened anew each time, and limits of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqtool.spark.queue_bounds import tell_loss
from rmqtool.spark.stores import StoreLocation, find_places, open_place

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch has at most: messages, and bytes of the log. None is no limit."""

    rows: int | None = None
    size: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether there is no limit."""
        return self.rows is None and self.size is None

    def share(self, part: int, whole: int) -> Limits:
        """The limits of one store that has `part` of the `whole` that is new."""

        def of(limit: int | None) -> int | None:
            return None if limit is None else max(limit * part // max(whole, 1), 1)

        return Limits(of(self.rows), of(self.size))


class StreamPlaces:
    """The stores of a stream. A store that is open does not see new files: each look opens it anew."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def find(self) -> tuple[StoreLocation, ...]:
        """The stores that there are now; a glob may find more than before."""
        return find_places(self.options)

    @contextmanager
    def opened(self, place: StoreLocation) -> Iterator[Store]:
        """One of them, opened."""
        with open_place(place, self.options) as store:
            yield store

    def lost(self, place: StoreLocation | str, what: str) -> None:
        """Messages that were to be read are gone: an error, or a warning, as `failOnDataLoss` says."""
        tell_loss(self.options, what, place if isinstance(place, str) else place.path)
