"""What `rmqtool export` says: what was lost, on stderr, and the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqtool.output import Output
from rmqtool.terminal import print_error

if TYPE_CHECKING:
    from rmqtool.report.export.run import ExportResult


def summary(result: ExportResult, writer: Output) -> None:
    """What became of an export: the losses on stderr, the sums on stdout."""
    if result.resumed is not None:
        writer.note(f"rmqtool: the previous run had finished {result.resumed}; this run resumes after it")
    if result.lost is not None:
        first, last = result.lost
        print_error(
            f"rmqtool: error: bytes {first} to {last} of the log have expired since the cursor was written;"
            " no run exported their messages"
        )
    writer.write_object({
        "messages": result.messages,
        "files": [
            {"file": name, "messages": messages, "bytes": size} for name, messages, size in result.files
        ],
        "next_offset": result.next_offset,
    })  # fmt: skip
