"""Unique ids for messages that have none: the property UNIQ_KEY.

Source: MessageClientIDSetter#createUniqID; spec 01 section 4.
"""

from __future__ import annotations

import os
import threading
from datetime import datetime
from typing import NamedTuple

IDS_PER_MS = 1 << 16
_NTP_STEP_MS = 1_000_000  # a clock that went back by less does not turn the ids' time back
_PORT_SIZE = 4
_MAX_PREFIXES = 1024


class IdRange(NamedTuple):
    """Some ids in a row.

    The i-th is `prefix`, then `month_ms + (first + i) // 65536` in 8 and `(first + i) % 65536` in 4
    upper-case hex digits.
    """

    prefix: str
    month_ms: int
    first: int

    def id(self, index: int) -> str:
        """The id at `index`, from 0."""
        ms, count = divmod(self.first + index, IDS_PER_MS)
        return "%s%08X%04X" % (self.prefix, self.month_ms + ms, count)  # noqa: UP031


class UniqueIdMaker:
    """Makes ids that differ from each other and from those of other processes.

    Java distinguishes processes of one host by the hash code of a class loader; here it is a random
    number, drawn again in a forked child. A ms has 65,536 ids: when they are used up, the next ms is
    taken early. Java's counter runs on over ms instead, and its ids come round again.
    """

    def __init__(self) -> None:
        self._now_ms = 0
        self._used = 0  # ids of that ms
        self._month = range(0)  # ms since 1970 of the month of `_now_ms`
        self._start_process()
        os.register_at_fork(after_in_child=self._start_process)

    def _start_process(self) -> None:
        self._lock = threading.Lock()
        self._process = (os.getpid() & 0xFFFF).to_bytes(2, "big") + os.urandom(4)
        self._prefixes: dict[bytes, str] = {}

    def make(self, host: bytes, now_ms: int) -> str:
        """A new id; see `reserve`."""
        return self.reserve(1, host, now_ms).id(0)

    def reserve(self, count: int, host: bytes, now_ms: int) -> IdRange:
        """`count` new ids.

        Args:
            count: at least 1.
            host: 8 or 20 bytes, whose address says where the messages were made.
            now_ms: ms since 1970; the ids count them from the start of its month in local time.
        """
        address = host[:-_PORT_SIZE]
        with self._lock:
            prefix = self._prefixes.get(address) or self._prefix(address)
            if now_ms > self._now_ms or now_ms < self._now_ms - _NTP_STEP_MS:
                self._now_ms, self._used = now_ms, 0
            if self._now_ms not in self._month:
                self._month = _month_of(self._now_ms)
            made = IdRange(prefix, self._now_ms - self._month.start, self._used)
            ahead_ms, self._used = divmod(self._used + count, IDS_PER_MS)
            self._now_ms += ahead_ms
        return made

    def _prefix(self, address: bytes) -> str:
        if len(self._prefixes) == _MAX_PREFIXES:
            self._prefixes.clear()
        self._prefixes[address] = (address + self._process).hex().upper()
        return self._prefixes[address]


def _month_of(now_ms: int) -> range:
    """The ms of the month, in local time."""
    month = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    return range(int(month.timestamp() * 1000), int(following.timestamp() * 1000))
