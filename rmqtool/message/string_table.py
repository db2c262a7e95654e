"""Many short texts inside one array of bytes: gathered together, parsed as numbers."""

from __future__ import annotations

import numpy as np

from rmqtool.storage.buffers import Array

_DIGITS_MAX = 18  # this many digits fit into 64 bits
_POWERS = 10 ** np.arange(_DIGITS_MAX, dtype=np.int64)
_ZERO, _COMMA, _SPACE = b"0, "


def gathered(data: Array, starts: Array, lengths: Array) -> tuple[Array, Array]:
    """The pieces data[start : start + length] one after the other (u1), and the end of each (i8).

    Every piece lies inside `data`; lengths are >= 0.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return data[places], ends


def decimals(text: Array, ends: Array) -> tuple[Array, Array, Array]:
    """The decimal numbers in pieces of text, separated by commas and spaces.

    Returns:
        (numbers i8, the piece of each number, per piece whether it contains anything else). Such pieces, and
        pieces with a number of more than 18 digits, give no numbers.
    """
    lengths = np.diff(ends, prepend=0)
    owner = np.repeat(np.arange(len(ends)), lengths)
    digit = text - np.uint8(_ZERO)  # wraps below zero
    is_digit = digit <= 9
    unexpected = ~is_digit & (text != _COMMA) & (text != _SPACE)
    bad = np.zeros(len(ends), np.bool_)
    bad[owner[unexpected]] = True
    before = np.concatenate([[False], is_digit[:-1] & (owner[1:] == owner[:-1])]) if len(text) else is_digit
    starts = np.flatnonzero(is_digit & ~before)
    places = np.flatnonzero(is_digit)
    run = np.cumsum(is_digit & ~before)[places] - 1
    sizes = np.bincount(run, minlength=len(starts)) if len(places) else np.zeros(0, np.int64)
    bad[owner[starts[sizes > _DIGITS_MAX]]] = True
    keep = ~bad[owner[places]]
    places, run = places[keep], run[keep]
    stops = starts + sizes
    values = np.zeros(len(starts), np.int64)
    np.add.at(values, run, digit[places].astype(np.int64) * _POWERS[stops[run] - 1 - places])
    good = ~bad[owner[starts]]
    return values[good], owner[starts[good]], bad
