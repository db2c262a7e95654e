"""Which kind of damage a bad region of the commit log is.

The walk says where no sound record is and why; what it is called follows from the bytes: zeros are
a hole, whole zeroed pages are lost writes, a tail that was never written is a torn tail and no
damage at all.

    region at the log's end      zero bytes reach from inside the record to the file's end: torn
    all bytes zero               zero hole
    whole 4096-byte pages zero   zeroed page
    message magic, wrong lengths wrong length
    anything else                unknown magic

Source: spec 02 section 15.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqtool.scan.events import Bad, Reason

if TYPE_CHECKING:
    from rmqtool.scan.source import ByteSource

PAGE = 4096
_BLOCK = 1 << 20


def kind_of(source: ByteSource, bad: Bad) -> str:
    """The problem code of a bad region that sound records follow, or that is no torn tail."""
    if bad.nonzero_end <= bad.position:
        return "CL02"
    if zero_page(source, bad.position, bad.end) is not None:
        return "CL08"
    return "CL05" if bad.reason is Reason.MAGIC else "CL04"


def is_torn(bad: Bad) -> bool:
    """Whether a region at the log's end is a record whose writer died: its own tail is zero.

    The bytes behind a torn record are zero to the file's end, for nothing was written there yet;
    so the last byte that is not zero lies inside the record, as far as its size is known.
    """
    if not bad.to_end:
        return False
    written = bad.nonzero_end - bad.position
    if bad.reason is Reason.MAGIC:
        return written <= 8
    return 0 < written < bad.declared_size if bad.declared_size > 0 else 0 < written <= 4


def zero_page(source: ByteSource, start: int, stop: int) -> int | None:
    """Position of the first whole page of zeros that touches [start, stop) of the file; None for none.

    A lost page begins wherever the page does, often in the middle of a record whose last bytes
    happen to be zero anyway; so the pages at both ends count too.
    """
    position = start // PAGE * PAGE
    stop = min(-(-stop // PAGE) * PAGE, source.size)
    while position < stop:
        data = source.read(position, min(_BLOCK, stop - position))
        if not data:
            return None
        for page in range(0, len(data) - PAGE + 1, PAGE):
            if data.count(0, page, page + PAGE) == PAGE:
                return position + page
        position += len(data)
    return None
