"""The bytes for a hole: one filler per lost record, fillers of no queue for the rest, a blank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqtool.formats import filler, message
from rmqtool.formats.java import java_utf8_decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.repair.salvage.model import Claim, Hole, LostRecord
from rmqtool.repair.salvage.owners import Free, Parts, owner_of

_TAG_SIZE = len(f"TAGS\x01{filler.TAG}\x02")
_REST_MIN = filler.SIZE_MIN + len(filler.TAG) + message.PROPERTY_CRC_SIZE
"""A shorter rest of a range is added to the filler before it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`size` bytes from the physical offset `start` for one filler; without `claim` a filler of no queue."""

    start: int
    size: int
    claim: Claim | None
    is_sure: bool


@dataclass(frozen=True, slots=True)
class Filled:
    """The result for a hole: `content` from its start on, and the records lost there."""

    content: bytes
    lost: tuple[LostRecord, ...]
    fillers: int


def fill_hole(parts: Parts, *, property_crc: bool) -> Filled:
    """The bytes for one hole; a hole at a file's end gets a blank after the last filler."""
    hole = parts.hole
    pieces = [Piece(claim.start, claim.size, claim, parts.sure[claim.start]) for claim in parts.claims]
    for free in parts.free:
        pieces += _pieces(free)
    pieces.sort(key=lambda piece: piece.start)
    after, before = hole.after_ms, hole.before_ms
    time = min((ms for ms in (after, before) if ms > 0), default=1)
    content = [_encode(piece, time, property_crc) for piece in pieces]
    lost = tuple(_lost(piece, hole) for piece in pieces)
    if hole.to_end:
        position = pieces[-1].start + pieces[-1].size if pieces else hole.start
        content.append(message.encode_blank(hole.stop - position))
        if hole.stop - position >= (hole.next_size or filler.SIZE_MIN) + message.BLANK_SIZE:
            # the first record of the next file would have fitted here, so another record was here
            lost += (unknown(position, hole.stop, hole),)
    return Filled(b"".join(content), lost, len(pieces))


def _pieces(free: Free) -> Iterator[Piece]:
    """The fillers of a free range: of equal size for the missing records, else of no queue.

    If the end of the last record is left, the last filler is for a record of its topic, and as long as this
    end.
    """
    end = free.end
    topic = b"" if end is None else end.topic
    wanted = sorted(
        free.wanted,
        key=lambda item: (item[0].topic == topic, item[0].topic, item[0].queue_id, item[0].queue_offset),
    )
    count, length = len(wanted), free.stop - free.start
    if not count:
        if not free.to_end:
            yield from _ownerless(free.start, free.stop)
        return
    sizes = [claim.size for claim, _ in wanted]
    if free.to_end:
        if sum(sizes) + count * _TAG_SIZE + message.BLANK_SIZE <= length:
            sizes = [size + _TAG_SIZE for size in sizes]
        rest = 0
    else:
        sizes = _even(sizes, length)
        if end is not None and wanted[-1][0].topic == topic:
            wanted[-1][0].known_from = "end"
            last = max(sizes[-1], free.stop - end.topic_at + message.HEAD_SIZE_V4)
            least = [claim.size for claim, _ in wanted[:-1]]
            if sum(least) + last <= length:
                sizes = [*_even(least, length - last), last]
        rest = length - sum(sizes)
        if rest < _REST_MIN:
            sizes[-1] += rest
            rest = 0
    position = free.start
    for size, (claim, is_sure) in zip(sizes, wanted, strict=True):
        yield Piece(position, size, claim, is_sure)
        position += size
    if rest:
        yield from _ownerless(position, free.stop)


def _even(sizes: Sequence[int], length: int) -> list[int]:
    """Equal sizes for fillers in `length` bytes, or `sizes`, the least, if one of them is above that."""
    share = min(length // max(len(sizes), 1), filler.SIZE_MAX)
    return [share] * len(sizes) if share >= max(sizes, default=0) else list(sizes)


def _ownerless(start: int, stop: int) -> Iterator[Piece]:
    """Fillers of no queue for [start, stop): as few as possible, of about equal size."""
    count = -(-(stop - start) // filler.SIZE_MAX)
    share = (stop - start) // count
    for number in range(count):
        position = start + number * share
        yield Piece(position, share if number < count - 1 else stop - position, None, is_sure=False)


def _encode(piece: Piece, time: int, property_crc: bool) -> bytes:
    owner, with_crc = None, property_crc
    if piece.claim is not None:
        owner = owner_of(piece.claim, piece.size, property_crc=property_crc)
        if owner is None and property_crc:
            owner = owner_of(piece.claim, piece.size, property_crc=False)
            with_crc = owner is None
    if piece.size < filler.smallest(owner, property_crc=with_crc):
        with_crc = False
    return filler.encode(
        piece.size, piece.start, born_timestamp=time, store_timestamp=time, owner=owner, property_crc=with_crc
    )


def unknown(start: int, stop: int, hole: Hole) -> LostRecord:
    """The entry for lost bytes [start, stop) of a hole whose records are unknown."""
    after, before = hole.after_ms or None, hole.before_ms or None
    return LostRecord(None, None, None, 0, start, stop - start, after, before, False, "none", "filled")


def _lost(piece: Piece, hole: Hole) -> LostRecord:
    claim = piece.claim
    if claim is None:
        return unknown(piece.start, piece.start + piece.size, hole)
    return LostRecord(
        topic=java_utf8_decode(claim.topic),
        queue_id=claim.queue_id,
        queue_offset=claim.queue_offset,
        count=claim.step,
        physical_offset=piece.start,
        size=piece.size,
        after_ms=hole.after_ms or None,
        before_ms=hole.before_ms or None,
        sure=piece.is_sure,
        known_from=claim.known_from,
        fate="taken" if claim.taken else "filled",
    )
