"""Damage that a read met: ranges that hold no record, and records that are not as they should be.

Both say so in the column DAMAGE. Only the first are no messages: they have no RECORD.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqtool.problems import BY_CODE, Finding, finding

if TYPE_CHECKING:
    from pyspark.sql import Column

Report = Callable[[str, Finding], None]
"""Takes the name of a broker, and something bad in its store."""

DAMAGE = "_corrupt_record"
"""Spark's name of the column that says what is wrong: with a range, or with a record."""
RECORD = "bodyLength"
"""A column that every record has, however damaged, and no range without a record."""


@dataclass(frozen=True, slots=True)
class Bad:
    """How many ranges held no record, and how many records were not as they should be."""

    ranges: int = 0
    records: int = 0

    def __add__(self, other: Bad) -> Bad:
        """Both together."""
        return Bad(self.ranges + other.ranges, self.records + other.records)


def bad_sums() -> list[Column]:
    """The aggregates that `bad_of` reads."""
    from pyspark.sql import functions

    has_none = functions.col(RECORD).isNull()
    return [
        functions.count_if(has_none).alias("bad_ranges"),
        functions.count_if(~has_none & functions.col(DAMAGE).isNotNull()).alias("bad_records"),
    ]


def bad_of(row: Any) -> Bad:
    """What a row with the aggregates of `bad_sums` tells; `row` is one of Spark's, or a dict."""
    return Bad(int(row["bad_ranges"]), int(row["bad_records"]))


def findings_of(values: Mapping[str, Any]) -> Iterator[Finding]:
    """What `dump` reports where it meets the same.

    Args:
        values: of a row, by Spark name: DAMAGE, RECORD, file, physicalOffset, size.
    """
    if values[DAMAGE] is None:
        return
    told = json.loads(values[DAMAGE])
    if values[RECORD] is None:
        place = (told["path"], told["physical_offset"], told["length"], told["detail"], told["message"])
        yield Finding(BY_CODE[told["problem"]], *place)
        return
    for code in told["status"]:
        yield finding(code, values["file"], values["physicalOffset"], values["size"])
