"""Texts looked up in a table that is made once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.log.string_ranges import Ranges, TextSet, table_of

KNOWN = [b"", b"order-1", b"order-12345678", b"order-12345679", b"\0"]
SHORT = st.binary(max_size=20) | st.sampled_from(KNOWN)


def ranges_of(texts: Sequence[bytes | None]) -> Ranges:
    data, starts, lengths = table_of(texts)
    return Ranges(data, starts, lengths)


@given(texts=st.lists(SHORT, max_size=40), others=st.lists(st.none() | SHORT, max_size=40))
def test_it_holds_what_a_set_does(texts: list[bytes], others: list[bytes | None]) -> None:
    """Also texts that are given twice; no value is in no set."""
    rows = [*others, *texts, None]
    found = TextSet(texts).holds(ranges_of(rows))
    assert found.tolist() == [row is not None and row in set(texts) for row in rows]


def test_it_holds_many() -> None:
    texts = [b"order-%09d" % number for number in range(300_000)]
    rows = ranges_of([b"order-%09d" % number for number in range(0, 600_000, 6_000)])
    few, many = TextSet(texts[:10]), TextSet(texts)
    assert np.count_nonzero(many.holds(rows)) == 50 and np.count_nonzero(few.holds(rows)) == 1
