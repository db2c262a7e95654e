"""Two rows of files, compared: which ranges both have, and which bytes differ, against a plain comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.check.diff import windows
from rmqtool.check.diff.log import DifferingRange, _add_runs, _Part
from rmqtool.check.diff.windows import Piece, Unread, common, covered, differing, differing_bytes, equal
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import BytesSource, open_source
from tests.support.build_store import write_sparse


def files_of(*places: tuple[int, int]) -> list[StoreFile]:
    """Files by (offset, size)."""
    return [StoreFile(Path(f"{start}"), start, size) for start, size in places]


rows = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6).map(
    lambda places: files_of(*sorted(places))
)


def offsets(ranges: list[tuple[int, int]]) -> list[int]:
    """Every offset of half-open ranges, in their order."""
    return [offset for low, high in ranges for offset in range(low, high)]


@given(rows, rows, st.integers(0, 90), st.integers(0, 90), st.integers(0, 7))
def test_common_ranges(a: list[StoreFile], b: list[StoreFile], start: int, stop: int, cut: int) -> None:
    """Each offset is in both, in one or in none, once, and in the file that a broker would look in."""
    both = common(a, b, start, stop, cut)
    held = [set(offsets([(low, high) for low, high, _ in covered(side, start, stop)])) for side in (a, b)]
    for side, has in zip((a, b), held, strict=True):
        found = {}
        for file in side:  # the last file that starts at or before an offset is the one
            found |= dict.fromkeys(range(file.file_from_offset, 120), file)
        wanted = {at for at, file in found.items() if at < file.end and start <= at < stop}
        assert has == wanted
    assert offsets([(piece.start, piece.stop) for piece in both.pieces]) == sorted(held[0] & held[1])
    assert offsets(list(both.only_a)) == sorted(held[0] - held[1])
    assert offsets(list(both.only_b)) == sorted(held[1] - held[0])
    assert both.size == len(held[0] & held[1])
    for piece in both.pieces:
        assert piece.a.file_from_offset <= piece.start < piece.stop <= piece.a.end
        assert piece.b.file_from_offset <= piece.start < piece.stop <= piece.b.end
        assert not cut or piece.stop - piece.start <= cut


def piece_of(a: Path, b: Path, start: int = 0, base: int = 0) -> Piece:
    size = a.stat().st_size
    return Piece(start, size, StoreFile(a, 0, size), StoreFile(b, base, b.stat().st_size))


@given(st.data())
def test_differing_bytes_of_arrays(data: st.DataObject) -> None:
    """As `!=` over all of it, at any alignment and length."""
    a = np.frombuffer(data.draw(st.binary(max_size=200)), np.uint8)
    shift = data.draw(st.integers(0, 8))
    flips = data.draw(st.lists(st.integers(0, max(len(a) - 1, 0)), max_size=4 if len(a) else 0))
    b = np.zeros(len(a) + shift, np.uint8)[shift:]
    b[:] = a
    for place in flips:
        b[place] ^= 1
    wanted = np.flatnonzero(a != b).tolist()
    assert equal(a, b) == (not wanted)
    assert [start + int(place) for start, found in differing_bytes(a, b) for place in found] == wanted


def test_windows_that_differ(tmp_path: Path) -> None:
    """Only those, with their offsets, however the files lie in their rows."""
    data = bytes(range(256)) * 100
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(data)
    changed = bytearray(data)
    changed[7], changed[20_000] = 99, 99
    b.write_bytes(changed[5:])
    seen: list[int] = []
    piece = piece_of(a, b, start=5, base=5)
    found = [
        (offset, (np.flatnonzero(left != right) + offset).tolist())
        for offset, left, right in differing(piece, (open_source, open_source), Unread(), 1000, seen.append)
    ]
    assert found == [(5, [7]), (19_005, [20_000])]
    assert sum(seen) == len(data) - 5


def test_holes_are_not_read(tmp_path: Path) -> None:
    """What is a hole on both sides takes no time, however long it is; a hole against bytes differs."""
    size = 1 << 40
    a = write_sparse(tmp_path / "a", size, (0, b"one"), (size - 3, b"end"))
    b = write_sparse(tmp_path / "b", size, (0, b"one"), (size - 3, b"enD"))
    if a.stat().st_blocks > 1000:
        pytest.skip("this file system has no holes")
    found = list(differing(piece_of(a, b), (open_source, open_source), Unread()))
    assert [(offset + int(np.flatnonzero(left != right)[0])) for offset, left, right in found] == [size - 1]
    write_sparse(b, size, (0, b"one"), (1 << 39, b"x"), (size - 3, b"end"))
    found = list(differing(piece_of(a, b), (open_source, open_source), Unread()))
    assert [(offset + int(np.flatnonzero(left != right)[0])) for offset, left, right in found] == [1 << 39]


class Broken(BytesSource):
    """A source some bytes of which cannot be read."""

    def window(self, offset: int, length: int) -> windows.Bytes:
        found = super().window(offset, length).copy()
        if offset <= 100 < offset + length and not self.unreadable:
            found[100 - offset : 110 - offset] = 0
            self.unreadable.append((100, 110))
        return found


def test_bytes_that_cannot_be_read_are_no_difference(tmp_path: Path) -> None:
    """They are told with their place; a difference beside them is found."""
    (tmp_path / "a").write_bytes(b"a" * 1000)
    (tmp_path / "b").write_bytes(b"a" * 990 + b"b" * 10)
    unread = Unread()
    piece = piece_of(tmp_path / "a", tmp_path / "b")

    def opener(path: Path) -> BytesSource:
        return (Broken if path.name == "b" else BytesSource)(path.read_bytes())

    (found,) = differing(piece, (opener, opener), unread)
    assert np.flatnonzero(found[1] != found[2]).tolist() == list(range(990, 1000))
    assert (unread.a, unread.b) == ([], [(100, 110, tmp_path / "b", "input/output error")])


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    """What is gone is told, and is no difference."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"a" * 1000)
    piece = piece_of(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").write_bytes(b"a" * 600)
    unread = Unread()
    assert not list(differing(piece, (open_source, open_source), unread, 100))
    assert unread.b == [(600, 1000, tmp_path / "b", "it became shorter")]


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    """One that is gone and one that is refused are told apart."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"a" * 10)
    b.write_bytes(b"b" * 10)
    piece, unread = piece_of(a, b), Unread()

    def refuse(path: Path) -> BytesSource:
        raise PermissionError(13, "Permission denied", str(path))

    assert not list(differing(piece, (open_source, refuse), unread))
    assert unread.b == [(0, 10, b, "Permission denied")]
    b.unlink()
    assert not list(differing(piece, (open_source, open_source), unread))
    assert unread.gone == [b]


def test_links_to_one_file_are_not_read(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"a" * 10)
    b.hardlink_to(a)

    def never(path: Path) -> BytesSource:
        raise AssertionError(path)

    seen: list[int] = []
    assert not list(differing(piece_of(a, b), (never, never), Unread(), progress=seen.append))
    assert seen == [10]


places = st.integers(0, 60_000) | st.sampled_from([0, 1, 4094, 4095, 4096, 4097, 60_000 - 4095, 60_000])


@given(st.lists(st.lists(places, min_size=1, max_size=8), max_size=5), st.integers(1, 4))
def test_runs_of_differing_bytes(windows_found: list[list[int]], limit: int) -> None:
    """Bytes that are near each other are one range, over windows too; what is counted is all of them."""
    part, everything = _Part(), []
    for number, places in enumerate(windows_found):
        differs = np.array(sorted(set(places)))
        _add_runs(part, number * 60_001, differs, limit)
        everything += (differs + number * 60_001).tolist()
    wanted: list[DifferingRange] = []
    for place in everything:
        if wanted and place - (wanted[-1].stop - 1) <= 4096:
            wanted[-1] = DifferingRange(wanted[-1].start, place + 1, wanted[-1].count + 1)
        else:
            wanted.append(DifferingRange(place, place + 1, 1))
    assert part.ranges == wanted[:limit]
    assert part.more == (len(wanted) > limit)
