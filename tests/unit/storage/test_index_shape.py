"""Slots and entries of an index file are found from its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqtool.formats.index import DEFAULT_SHAPE, HEADER_SIZE, Shape
from rmqtool.storage.index_shape import index_shape
from rmqtool.storage.layout import detect
from tests.support.build_store import KEYS, one_queue, patch, write_index, write_log, write_sparse


class TestIndexShape:
    @pytest.mark.parametrize("shape", [Shape(100, 400), Shape(7, 1000), Shape(1000, 201), DEFAULT_SHAPE])
    def test_from_the_entries(self, tmp_path: Path, shape: Shape) -> None:
        path = write_index(tmp_path / "index", shape, KEYS)
        assert index_shape([(path, shape.size)]) == shape

    def test_a_hint_is_checked_like_any_other(self, tmp_path: Path) -> None:
        shape = Shape(35, 130)
        path = write_index(tmp_path / "index", shape, KEYS[:100])
        wrong = Shape(30, 131)
        assert wrong.size == shape.size
        assert index_shape([(path, shape.size)], [wrong]) == shape

    def test_the_next_file_tells_where_one_is_damaged(self, tmp_path: Path) -> None:
        shape = Shape(7, 1000)
        empty = write_sparse(tmp_path / "1", shape.size)
        path = write_index(tmp_path / "2", shape, KEYS)
        assert index_shape([(tmp_path / "gone", 1), (empty, shape.size), (path, shape.size)]) == shape

    def test_a_few_damaged_entries_do_not_hide_it(self, tmp_path: Path) -> None:
        shape = Shape(100, 400)
        path = write_index(tmp_path / "index", shape, KEYS)
        with path.open("r+b") as file:
            file.seek(shape.entry_offset(3))
            file.write(b"\xff" * 200)
        assert index_shape([(path, shape.size)]) == shape

    @pytest.mark.parametrize("shape", [Shape(16, 40), Shape(1, 43), Shape(3, 43), Shape(41, 40)])
    def test_few_slots(self, tmp_path: Path, shape: Shape) -> None:
        """Another division whose entries lie a multiple of 20 bytes off fits some, and is not taken."""
        for count in range(1, 40):
            keys = [(text, offset - 100) for text, offset in KEYS[:count]]
            path = write_index(tmp_path / "index", shape, keys)
            assert index_shape([(path, shape.size)]) == shape, count

    @pytest.mark.parametrize("shape", [Shape(16, 40), Shape(100, 400), Shape(5, 1001)])
    def test_slots_are_ahead_of_the_header_after_a_crash(self, tmp_path: Path, shape: Shape) -> None:
        path = write_index(tmp_path / "index", shape, KEYS[:39])
        early = write_index(tmp_path / "early", shape, KEYS[:10])
        patch(path, 0, early.read_bytes()[:HEADER_SIZE])
        assert index_shape([(path, shape.size)]) == shape

    def test_nothing_tells(self, tmp_path: Path) -> None:
        noise = write_sparse(tmp_path / "noise", 90_000, (0, bytes(range(256)) * 300))
        assert index_shape([(noise, 90_000)]) is None

    def test_many_hits_of_the_last_offset_end(self, tmp_path: Path) -> None:
        header = b"".join(n.to_bytes(8) for n in (1, 2, 3, 0x0101010101010101)) + (5).to_bytes(4) * 2
        path = write_sparse(tmp_path / "index", 1 << 20, (0, header + b"\1" * ((1 << 20) - 40)))
        assert index_shape([(path, 1 << 20)]) is None

    def test_an_empty_file_gets_the_usual_ratio(self, tmp_path: Path) -> None:
        write_log(tmp_path / "commitlog", one_queue(3))
        write_sparse(tmp_path / "index/20260101000000000", Shape(10, 40).size)
        found = detect(tmp_path)
        assert (found.index_slots, found.index_entries) == (10, 40)
