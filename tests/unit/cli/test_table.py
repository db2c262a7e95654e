"""`rmqtool.table`: the two ways to align cells give the same lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqtool.table import ascii_lines, tabulated_lines

CELLS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=8)
COLOURED = CELLS.filter(str.strip).map(lambda text: f"\x1b[31m{text.strip()}\x1b[0m")


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[str]], list[bool]]:
    """Rows of equal length as `Table` makes them, under a rule; and which columns stand right."""
    count = draw(st.integers(1, 5))
    body = draw(st.lists(st.lists(CELLS | COLOURED, min_size=count, max_size=count), max_size=6))
    rule = ["-" * width for width in draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))]
    return [rule, *body], draw(st.lists(st.booleans(), min_size=count, max_size=count))


@given(tables())
def test_both_ways_align_alike(table: tuple[list[list[str]], list[bool]]) -> None:
    """ASCII cells, with colours and without, as tabulate aligns them."""
    assert ascii_lines(*table) == tabulated_lines(*table)


def test_numbers_stand_right() -> None:
    """Cells of any width; the last column has no white space after it."""
    rows = [["topic", "queues"], ["-----", "------"], ["Orders", "4"], ["A", "12"]]
    assert ascii_lines(rows, [False, True]) == [
        "topic   queues", "-----   ------", "Orders       4", "A           12",
    ]  # fmt: skip
