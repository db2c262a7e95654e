"""The configuration of a master, kept with its log, in the order that loses nothing.

The offsets of consumers are fetched first, then the end of the master's log is asked for. They are written
once the store holds the log up to there, on the device. So no offset in the store is beyond its log: a broker
would give such queue offsets out again, and the group would skip the new messages.

Source: SlaveSynchronize; spec 04 7.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rmqtool.errors import FormatError, RmqtoolError
from rmqtool.formats.remoting_codes import Request
from rmqtool.net import broker_client
from rmqtool.net.broker_client import RequestRefusedError
from rmqtool.net.ha_connection import Address, ConnectionLostError
from rmqtool.storage import config_files
from rmqtool.storage.profile import Profile

_LOOK_SECONDS = 0.05
_LEAST_SECONDS = 0.5
_ASK_SECONDS = 5.0  # between two questions for the end of the master's log
_MAPPING = "topicQueueMapping.json"


class ConfigSync:
    """Fetches and writes the configuration in a thread of its own.

    Attributes:
        written: how often all files have been written.
        master_end: the end of the master's log, as it said last; -1: never.
    """

    def __init__(
        self, address: Address, root: Path, profile: Profile, flushed: Callable[[], int], seconds: float
    ) -> None:
        """Make it; `flushed` gives the end of the log on the device, `seconds` 0 fetches nothing."""
        self.written = 0
        self.master_end = -1
        self._address = address
        self._folder = root / config_files.FOLDER
        self._profile = profile
        self._flushed = flushed
        self._seconds = seconds
        self._stop, self._wake = Event(), Event()
        self._cuts = 0  # of the log; what was fetched before the last one may be ahead of it
        self._written_after = 0  # how many cuts there had been when this was fetched
        self._failure: RmqtoolError | None = None  # set by the thread
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="config", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End; what was fetched and not written is dropped."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def fetch_again(self) -> None:
        """The log was cut: what was fetched before may be ahead of it, and is replaced."""
        self._cuts += 1
        self._wake.set()

    def raise_failure(self) -> None:
        """Raise what made it impossible to go on, once."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            due = time.monotonic()
            while not self._stop.is_set():
                if self._seconds and (self._cuts > self._written_after or time.monotonic() >= due):
                    if self._round():
                        due = time.monotonic() + self._seconds
                else:
                    with suppress(ConnectionLostError, RequestRefusedError):
                        _, self.master_end = broker_client.offsets_of(self._address)
                self._wake.wait(min(max(due - time.monotonic(), _LEAST_SECONDS), _ASK_SECONDS))
                self._wake.clear()
        except RmqtoolError as error:
            self._failure = error

    def _round(self) -> bool:
        """Fetch once, wait for the log, write; False if the broker is away, or the log was cut meanwhile."""
        cuts = self._cuts
        try:
            documents = fetch(self._address)
            _, goal = broker_client.offsets_of(self._address)
        except (ConnectionLostError, RequestRefusedError):
            return False
        self.master_end = goal
        while self._flushed() < goal and self._cuts == cuts:
            if self._stop.wait(_LOOK_SECONDS):
                return False
        if self._cuts != cuts:
            return False
        for name, document in documents.items():
            config_files.write_config(self._folder, name, document, self._profile)
        self.written += 1
        self._written_after = cuts
        return True


def fetch(address: Address) -> dict[str, Any]:
    """The configuration of a broker: documents by file name, offsets of consumers last.

    Raises:
        ConnectionLostError: it does not answer.
        RequestRefusedError, FormatError: an answer that is an error, or cannot be read.
    """
    documents: dict[str, Any] = {}
    topics = _object(address, Request.GET_ALL_TOPIC_CONFIG)
    documents["topics.json"] = {
        name: topics[name] for name in ("dataVersion", "topicConfigTable") if name in topics
    }
    if topics.get("topicQueueMappingDetailMap"):
        documents[_MAPPING] = {
            "dataVersion": topics.get("mappingDataVersion"),
            "topicQueueMappingInfoMap": topics["topicQueueMappingDetailMap"],
        }
    documents["subscriptionGroup.json"] = _object(address, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    documents["delayOffset.json"] = _object(address, Request.GET_ALL_DELAY_OFFSET)
    documents["consumerOffset.json"] = _object(address, Request.GET_ALL_CONSUMER_OFFSET)
    return documents


def _object(address: Address, code: Request) -> dict[str, Any]:
    found = broker_client.document(address, code)
    if not isinstance(found, dict):
        raise FormatError(f"{address}: the answer to {code.name} is not an object")
    return found
