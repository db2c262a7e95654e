"""What `rmqtool spark-scan` says on stderr: what was bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.terminal import counted, print_error

if TYPE_CHECKING:
    from rmqtool.spark.scan_job_damage import Bad


def tell_bad(bad: Bad) -> int:
    """Tells of ranges that hold no record, which no count has in it, and of damaged records, which are in it.

    Returns the exit code.
    """
    told = [
        f"{counted(count, what)} {how}"
        for count, what, how in (
            (bad.ranges, "bad place", "not counted"), (bad.records, "damaged record", "counted"),
        )
        if count
    ]  # fmt: skip
    if not told:
        return EXIT_OK
    print_error(f"rmqtool: {', '.join(told)}; --verify tells them all")
    return EXIT_FINDINGS
