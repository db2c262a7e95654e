"""Pass `bodies`: does every compressed body decompress, can every batch in a body be read?

Not among the default passes: it decompresses the whole log, one body after the other, and a body
that matches its CRC is what the producer sent.

Source: spec 01 sections 3.3 and 10.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.errors import FormatError, MissingCodecError
from rmqtool.formats import batch, body
from rmqtool.formats.message import COMPRESSED, INNER_BATCH
from rmqtool.log.events import BODY_CRC
from rmqtool.problems import Finding, finding

if TYPE_CHECKING:
    from rmqtool.log.frames import Frames


def check_bodies(frames: Frames, where: str) -> Iterator[Finding]:
    """Findings on the bodies of one window; those that do not match their CRC are left out."""
    rows, starts = frames.rows, frames.body_starts()
    coded = (rows["sys_flag"] & (COMPRESSED | INNER_BATCH)) != 0
    sound = ((rows["status"] & BODY_CRC) == 0) & (rows["body_length"] > 0)
    for row in np.flatnonzero(coded & sound).tolist():
        sys_flag, length = int(rows["sys_flag"][row]), int(rows["body_length"][row])
        stored = bytes(frames.data[starts[row] : starts[row] + length])
        offset = int(rows["physical_offset"][row])
        try:
            content = body.decompress(stored, sys_flag)
            if sys_flag & INNER_BATCH:
                for _ in batch.decode_items(content):
                    pass
        except MissingCodecError as error:
            yield finding("UN01", where, offset, length, what="bodies", form=error.message)
        except FormatError as error:
            yield finding("CL14", where, offset, int(rows["size"][row]), reason=error.message)
