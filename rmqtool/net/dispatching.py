"""Queues and index of a store that receives, kept level with its log by the dispatcher that `append` uses.

Only what is on the device is dispatched: units never name bytes that a loss of power takes away. Order of
every change: log, flush, queues and index, flush, `dispatchCheckpoint` (marks.py), `checkpoint`. Files of
queues and index expire after those of the log, when all that was dispatched is on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqtool.errors import FormatError, InputError, RefusedError, UsageError
from rmqtool.formats.config_json import topics
from rmqtool.formats.index import Shape
from rmqtool.formats.remoting_codes import Request
from rmqtool.net import broker_client
from rmqtool.net.broker_client import RequestRefusedError
from rmqtool.net.ha_connection import Address, ConnectionLostError
from rmqtool.net.marks import CLOSED, DISPATCHED, OPEN, REBUILD_HINT, rebuild_line
from rmqtool.read.store import Store
from rmqtool.repair.expire.remove import remove_followers
from rmqtool.storage.layout import StoreLayout, detect
from rmqtool.write import opening
from rmqtool.write.cut_back import cut_back
from rmqtool.write.dispatcher import Dispatcher
from rmqtool.write.reput import Reput
from rmqtool.write.topics import TopicTable

if TYPE_CHECKING:
    from rmqtool.net.replica import Replica

_SAVE_MS = 10_000
_AHEAD_BYTES = 256 << 20
"""Bytes of log that a single step dispatches at most: so long the end of a run waits."""
_ASK_SECONDS = 1.0  # between two questions for the topics of a master that does not answer


class Dispatching:
    """Dispatches the log of one replica, in a thread of its own between `start` and `stop`.

    Args:
        replica: the store.
        settings: the configuration of the master, by name; None if it is not known.
        address: where to ask for topics; None: those of the store are taken.
        confirmed: gives the physical offset up to which the master has confirmed its log, -1 if it does not.
        expires: whether files that refer only to the deleted part of the log are deleted.
    """

    def __init__(
        self, replica: Replica, settings: dict[str, str] | None, address: Address | None,
        confirmed: Callable[[], int], *, expires: bool = False,
    ) -> None:  # fmt: skip
        self._replica = replica
        self._settings = settings
        self._topics = _Topics(address, replica)
        self._confirmed = confirmed
        self._expires = expires
        self._dispatcher: Dispatcher | None = None
        self._reput: Reput | None = None
        self._saved = self._limit = -1
        self._expired_before = 0
        self._is_ending = False

    @property
    def position(self) -> int:
        """The physical offset up to which queues and index are level with the log; -1 before `start`."""
        return -1 if self._dispatcher is None else self._dispatcher.position

    @property
    def saved(self) -> int:
        """The physical offset up to which they are on the device; -1 before `start`."""
        return self._saved

    @property
    def is_level(self) -> bool:
        """Whether all that may be dispatched is."""
        return self._dispatcher is None or self._dispatcher.position >= self._end()

    def start(self) -> None:
        """Begin, unless it has begun; first clear what a run that was killed has left.

        Raises:
            RefusedError: queues and index do not belong to this log, or must not be written.
            InputError: a size in the master's configuration that a broker could not use.
            FormatError, UnreadableError, UnwritableError: a file.
        """
        if self._reput is not None:
            return
        root = self._replica.root
        layout = self._layout()
        opening.check_layout(layout, root, is_clean=False)
        opening.check_entries(layout, root)
        try:
            options = opening.dispatch_options(layout, self._replica.profile, self._settings)
        except (InputError, UsageError) as error:
            raise InputError(f"the configuration of {self._replica.master}: {error.message}") from error
        start = self._begin(layout, options.index_shape)
        layout = self._layout()
        opening.check_sizes(layout, options)
        DISPATCHED.save(root, start, OPEN)
        self._saved = start
        self._is_ending = False
        self._dispatcher = Dispatcher(
            root, options, layout, start=start, batch_topics=lambda topic: self._is_batch(topic)
        )
        self._reput = Reput(
            self._dispatcher, self._until, save_topics=lambda: None, save=lambda: self._save(is_open=True),
            interval_ms=_SAVE_MS,
        )  # fmt: skip
        self._reput.start()

    def _layout(self) -> StoreLayout:
        """The files of the store, without one of the log that is being made."""
        layout = detect(self._replica.root)
        size = layout.commit_log_file_size = self._replica.file_size
        layout.commit_log = tuple(file for file in layout.commit_log if file.size == size)
        return layout

    def _begin(self, layout: StoreLayout, shape: Shape) -> int:
        """Where dispatch goes on; nothing of the log after it has a unit or an entry then."""
        replica, root = self._replica, self._replica.root
        with Store(layout) as store:
            newest = store.newest_units().end
            mark = DISPATCHED.read(root)
            if newest < 0:
                start, is_open = replica.start, True
            elif mark is not None and mark.offset > replica.end:
                raise RefusedError(
                    f"it says that queues are complete up to {mark.offset}, but the log ends at"
                    f" {replica.end}",
                    path=root / DISPATCHED.name, hint=REBUILD_HINT.format(rebuild=rebuild_line(root)),
                )  # fmt: skip
            elif mark is not None:
                start, is_open = max(mark.offset, replica.start), mark.text == OPEN
            elif replica.was_unclean or newest > replica.end:
                raise RefusedError(
                    "it is not known up to where its queues are complete", path=root,
                    hint=rebuild_line(root),
                )  # fmt: skip
            else:
                start, is_open = max(newest, replica.start), False
            if is_open or newest > start:

                def time_of(offset: int) -> int | None:
                    head = store.head(offset)
                    return None if head is None else head.store_timestamp

                cut_back(layout, start, shape, time_of)
        return start

    def _end(self) -> int:
        """Up to where the log may be dispatched."""
        confirmed = self._confirmed()
        end = self._replica.dispatchable
        return end if confirmed < 0 else min(end, confirmed)

    def _until(self) -> int:
        """Up to where the next step dispatches."""
        assert self._dispatcher is not None
        if not self._is_ending:
            self._limit = min(self._end(), self._dispatcher.position + _AHEAD_BYTES)
        return self._limit

    def _is_batch(self, topic: str) -> bool:
        return self._topics.is_batch(topic, self._limit)

    def _save(self, *, is_open: bool) -> None:
        """Bring queues and index to the device, and note that."""
        assert self._reput is not None
        reached = self._reput.catch_up(sync=True)
        if reached.position != self._saved or not is_open:
            DISPATCHED.save(self._replica.root, reached.position, OPEN if is_open else CLOSED)
            self._saved = reached.position
            self._replica.save_checkpoint(reached.store_timestamp, reached.index_timestamp)
        self._expire()

    def _expire(self) -> None:
        """Delete the files that lead nowhere since the log begins later. Nothing waits in the dispatcher.

        Source: DefaultMessageStore.CleanConsumeQueueService, which looks only when the log's start has moved.
        """
        assert self._dispatcher is not None
        start = self._replica.start
        if self._expires and start > self._expired_before:
            if remove_followers(self._layout(), start):
                self._dispatcher.look_again(self._layout())
            self._expired_before = start

    def raise_failure(self, *, waits: bool = True) -> None:
        """Raise what keeps it from going on; a master that does not answer is waited for, if it `waits`."""
        error = None if self._reput is None else self._reput.error
        if error is not None and not (waits and isinstance(error, ConnectionLostError | RequestRefusedError)):
            raise error

    def stop(self) -> None:
        """Bring what can be dispatched soon to the device, and end; nothing before `start`.

        Raises:
            UnwritableError, UnreadableError: that failed; the next run repeats it.
        """
        reput, dispatcher = self._reput, self._dispatcher
        if reput is None or dispatcher is None:
            return
        reput.stop()
        try:
            try:
                reput.catch_up()
            except (ConnectionLostError, RequestRefusedError):
                pass  # a topic is not known: its records and all after them are left to the next run
            self._is_ending, self._limit = True, dispatcher.position
            self._save(is_open=False)
        finally:
            self._reput = None
            dispatcher.close()


class _Topics:
    """Which topics have batch queues: as the master says, or as the store's topics.json says."""

    def __init__(self, address: Address | None, replica: Replica) -> None:
        self._address = address
        self._replica = replica
        self._table: TopicTable | None = None
        self._batch: dict[str, bool] = {}
        self._asked_until = -1  # records before it came before the master was asked
        self._failed: InputError | None = None
        self._failed_at = 0.0

    def is_batch(self, topic: str, until: int) -> bool:
        """Whether the queues of a topic, of a record before the physical offset `until`, are batch queues.

        Raises:
            ConnectionLostError, RequestRefusedError: the master does not say.
            FormatError: its answer cannot be read.
        """
        if self._address is None:
            if self._table is None:
                self._table = TopicTable.load(self._replica.root, self._replica.profile)
            return self._table.is_batch(topic)
        if topic not in self._batch and self._asked_until < until:
            self._ask(self._address)
        return self._batch.get(topic, False)

    def _ask(self, address: Address) -> None:
        if self._failed is not None and time.monotonic() - self._failed_at < _ASK_SECONDS:
            raise self._failed
        until = self._replica.end
        try:
            document = broker_client.document(address, Request.GET_ALL_TOPIC_CONFIG)
        except (ConnectionLostError, RequestRefusedError) as error:
            self._failed, self._failed_at = error, time.monotonic()
            raise
        try:
            self._batch = {name: config.is_batch for name, config in topics(document or {}).items()}
        except FormatError as error:
            raise FormatError(f"{address} sends topics that cannot be read: {error.message}") from error
        self._failed, self._asked_until = None, until
