"""Columns of texts as the lines of a table, made column by column; `rmqtool.table` is the reference.

Columns of ASCII are measured and padded by Arrow. In other columns each text is measured as the table does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.message.cells import TextColumns
from rmqtool.table import terminal_width
from rmqtool.terminal import escape

_ESCAPED = r"[\x00-\x1f\x7f-\x{9f}\x{61c}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]"
_GAP = "  "
_PIECE_BYTES = 16 << 20


def _escaped(texts: pa.Array) -> pa.Array:
    odd = pc.match_substring_regex(texts, _ESCAPED).fill_null(False)
    if not pc.any(odd).as_py():
        return texts
    values = [escape(text) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(texts, odd, pa.array(values, pa.string()))


class ColumnLines:
    """See `rmqtool.table.CellBlock`."""

    def __init__(self, texts: TextColumns) -> None:
        self._columns = [_escaped(column) for column in texts.columns]
        self._count, self._block_rows = texts.count, texts.block_rows

    def aligned(
        self, is_right: Sequence[bool], widths: Sequence[int]
    ) -> tuple[Iterator[memoryview], list[int]]:
        """See `CellBlock`."""
        measured = [_Measured(texts) for texts in self._columns]
        starts = np.arange(0, self._count, self._block_rows)
        # Widths never shrink, so most blocks have those of the block before: they are padded together.
        wide = np.maximum.accumulate(
            [[*widths], *zip(*(np.maximum.reduceat(each.widths, starts) for each in measured), strict=True)]
        )[1:]
        return self._pieces(measured, is_right, wide), wide[-1].tolist()

    def _pieces(
        self, measured: Sequence[_Measured], is_right: Sequence[bool], wide: Any
    ) -> Iterator[memoryview]:
        """The lines; `wide` are the widths, shape (blocks, columns). A column may be megabytes wide."""
        firsts = np.flatnonzero(np.any(np.diff(wide, axis=0, prepend=wide[:1] - 1), axis=1)).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(wide)], strict=True):
            limits = wide[first].tolist()
            if not is_right[-1]:
                limits[-1] = 0  # nothing follows it
            stop = min(last * self._block_rows, self._count)
            step = max(_PIECE_BYTES // max(sum(limits), 1), 1)
            for start in range(first * self._block_rows, stop, step):
                cells = [
                    each.padded(start, min(start + step, stop), width, right=right)
                    for each, width, right in zip(measured, limits, is_right, strict=True)
                ]
                lines = pc.ascii_rtrim(pc.binary_join_element_wise(*cells, _GAP), characters=" ")
                data = pc.binary_join_element_wise(lines, "", "\n")
                _, offsets, held = data.buffers()
                ends = np.frombuffer(offsets, np.int32)[[data.offset, data.offset + len(data)]]
                yield memoryview(held)[int(ends[0]) : int(ends[1])]


class _Measured:
    """A column with the width that each text takes on a terminal, shape (rows,)."""

    def __init__(self, texts: pa.Array) -> None:
        self._is_ascii = pc.all(pc.string_is_ascii(texts)).as_py()
        self._texts: Any
        if self._is_ascii:
            self.widths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
            self._texts = pc.ascii_trim(texts, characters=" ")
        else:
            values = texts.to_pylist()
            self.widths = np.array(list(map(terminal_width, values)))
            self._texts = list(map(str.strip, values))

    def padded(self, start: int, stop: int, width: int, *, right: bool) -> pa.Array:
        """Some texts without spaces around them, padded to a width."""
        if self._is_ascii:
            pad = pc.ascii_lpad if right else pc.ascii_rpad
            return pad(self._texts.slice(start, stop - start), width=width, padding=" ")
        padded = []
        for text in self._texts[start:stop]:
            gap = " " * (width - terminal_width(text))
            padded.append(gap + text if right else text + gap)
        return pa.array(padded, pa.string())
