"""The extension files of a queue: the one place that says what a unit's tags code stands for.

With enableConsumeQueueExt a unit holds the address of an extension unit, which has the tags code, the
store time and, where the broker computed one, the bits of a filter. A broker that cannot read the
extension unit takes the message for a match, and computes again when a delayed one is due.

A broker that starts goes through all files, unit by unit, up to the first without a size; then it ends
them after the unit that the queue's last address names. If the size of a unit leads out of its file,
load() fails. Units that no unit of the queue names are normal: each record that is dispatched gets one,
also where the queue has it already.

Source: ConsumeQueueExt#get, #put, #recover, #truncateByMaxAddress, ConsumeQueue#recover; spec 01 5.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats.consume_queue import (
    EXT_END,
    EXT_HEAD,
    MAX_EXT_ADDRESS,
    ExtUnit,
    decode_ext_unit,
    ext_offset,
    is_ext_address,
)
from rmqtool.storage.layout import StoreFile

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

Read = Callable[[Path, int, int], bytes]
"""Bytes of a file: path, offset, length; fewer at its end. Raises OSError or UnreadableError."""

_WINDOW = 1 << 20
_GAP_MAX = 16 << 10  # bytes between two units that are read along with them
_USUAL_BYTES = 64  # of a unit with its bits, at most
_SIZE_BYTES = len(EXT_END)
_SIGN = -(1 << 63)


class ExtUnits(NamedTuple):
    """The extension units at some addresses: arrays of one shape; undefined where `there` is false."""

    there: Array
    tags_code: Array
    store_timestamp: Array
    size: Array


class Run(NamedTuple):
    """Units of one size that follow each other, from byte `start` of a file on."""

    start: int
    size: int
    units: int

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.start + self.size * self.units


class Extension:
    """The extension files of one queue; for one thread where `read` is."""

    def __init__(self, files: Sequence[StoreFile], read: Read) -> None:
        self.files = files
        self._read = read

    @property
    def path(self) -> Path | None:
        """The first of its files."""
        return self.files[0].path if self.files else None

    def _file_of(self, offset: int) -> StoreFile | None:
        return next((file for file in self.files if file.file_from_offset <= offset < file.end), None)

    def unit(self, address: int) -> ExtUnit | None:
        """The extension unit of an address; None if there is none, or it cannot be read."""
        offset = ext_offset(address)
        file = self._file_of(offset)
        if file is None:
            return None
        try:
            data = self._read(file.path, offset - file.file_from_offset, _USUAL_BYTES)
            size = int.from_bytes(data[:_SIZE_BYTES], "big", signed=True)
            if size > _USUAL_BYTES:
                data = self._read(file.path, offset - file.file_from_offset, size)
            return decode_ext_unit(data)
        except (FormatError, OSError):
            return None

    def tags_code(self, code: int) -> int | None:
        """The tags code that a unit's own stands for; None if it is lost."""
        if not is_ext_address(code):
            return code
        unit = self.unit(code)
        return None if unit is None else unit.tags_code

    def tags_codes(self, codes: Array) -> tuple[Array, Array]:
        """As `tags_code`, of many: the codes, i8, and which of them are known."""
        import numpy as np

        codes = codes.astype(np.int64)
        named = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
        known = np.ones(len(codes), bool)
        if len(named):
            found = self.units(codes[named])
            known[named] = found.there
            codes[named[found.there]] = found.tags_code[found.there]
        return codes, known

    def units(self, addresses: Array) -> ExtUnits:
        """The extension units of many addresses, i8, in any order."""
        import numpy as np

        count = len(addresses)
        there = np.zeros(count, bool)
        heads = np.zeros(count, EXT_HEAD.dtype)
        offsets = addresses.astype(np.int64) ^ np.int64(_SIGN)
        order = np.argsort(offsets, kind="stable")
        for file in self.files:
            low, high = np.searchsorted(offsets[order], (file.file_from_offset, file.end)).tolist()
            mine = order[low:high]
            places = offsets[mine] - file.file_from_offset
            for first, stop in _reads(places):
                chosen = mine[first:stop]
                start = int(places[first])
                found = self._heads(file, start, places[first:stop] - start)
                if found is None:
                    continue
                heads[chosen], whole = found
                there[chosen] = whole
        sizes, bits = heads["size"].astype(np.int32), heads["bit_map_size"].astype(np.int32)
        there &= (bits >= 0) & (sizes == EXT_HEAD.size + bits)
        ends = offsets + sizes
        limits = np.zeros(count, np.int64)
        for file in self.files:
            limits[(offsets >= file.file_from_offset) & (offsets < file.end)] = file.end
        there &= ends <= limits
        return ExtUnits(
            there, heads["tags_code"].astype(np.int64), heads["store_timestamp"].astype(np.int64), sizes
        )

    def _heads(self, file: StoreFile, start: int, places: Array) -> tuple[Array, Array] | None:
        """The heads at `places` after byte `start` of a file, and which are whole; None if unreadable."""
        import numpy as np

        try:
            data = self._read(file.path, start, int(places[-1]) + EXT_HEAD.size)
        except OSError:
            return None
        whole = places + EXT_HEAD.size <= len(data)
        octets = np.zeros(int(places[-1]) + EXT_HEAD.size, np.uint8)
        octets[: len(data)] = np.frombuffer(data, np.uint8)
        picked = octets[places[:, None] + np.arange(EXT_HEAD.size)]
        return np.ascontiguousarray(picked).view(EXT_HEAD.dtype)[:, 0], whole

    # as a broker that starts goes through them

    def runs(self, file: StoreFile) -> Iterator[Run]:
        """The units of one file from its beginning, up to the first without a size.

        Raises:
            FormatError: the size of a unit leads out of the file.
            UnreadableError, OSError: it cannot be read.
        """
        import numpy as np

        position, base, data = 0, 0, b""
        while True:
            if position + _SIZE_BYTES > base + len(data):
                if position + _SIZE_BYTES > file.size:
                    raise _leads_out(file, position)
                base, data = position, self._read(file.path, position, min(_WINDOW, file.size - position))
                if len(data) < _SIZE_BYTES:
                    raise UnreadableError("cannot read: the file is shorter than it was", path=file.path)
            size = int.from_bytes(data[position - base : position - base + _SIZE_BYTES], "big", signed=True)
            if size <= 0:
                return
            if position + size > file.size:
                raise _leads_out(file, position)
            octets = np.frombuffer(data, np.uint8)[position - base :]
            whole = len(octets) // size
            same = octets[: whole * size].reshape(whole, size)[:, :_SIZE_BYTES] == octets[:_SIZE_BYTES]
            others = np.flatnonzero(~same.all(axis=1)) if size >= _SIZE_BYTES else np.ones(1, np.int64)
            count = max(int(others[0]) if len(others) else whole, 1)
            yield Run(position, size, count)
            position += size * count

    def end_of(self, file: StoreFile) -> int:
        """The byte of a file after its units, see `runs`."""
        end = 0
        for run in self.runs(file):
            end = run.end
        return end

    def end(self, address: int | None) -> int:
        """The offset at which a broker would go on, once it has started: after the unit of `address`.

        Args:
            address: the last one that the queue names; None for none.

        Raises:
            FormatError, UnreadableError, OSError: as `runs`: load() fails.
        """
        end = 0
        for file in self.files:
            end = file.file_from_offset + self.end_of(file)
        if address is None:
            return end
        offset = ext_offset(address)
        # In the last file only what was gone through can be read.
        unit = self.unit(address) if offset < end or offset < self._last_start else None
        return end if unit is None else offset + unit.size

    @property
    def _last_start(self) -> int:
        return self.files[-1].file_from_offset if self.files else 0


def _leads_out(file: StoreFile, position: int) -> FormatError:
    return FormatError(
        "the size of an extension unit points outside its file", path=file.path, physical_offset=position
    )


def _reads(places: Array) -> Iterator[tuple[int, int]]:
    """Half-open ranges of rising places that are read at once."""
    import numpy as np

    first = 0
    while first < len(places):
        near = np.searchsorted(places, places[first] + _WINDOW, side="right")
        cuts = np.flatnonzero(np.diff(places[first:near]) > _GAP_MAX)
        stop = first + int(cuts[0]) + 1 if len(cuts) else int(near)
        yield first, stop
        first = stop
