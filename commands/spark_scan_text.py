"""What `rmqtool spark-scan` says on stderr: what was bad, which options mean nothing to a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.terminal import counted, print_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from rmqtool.output import Output
    from rmqtool.read.selection import Selection
    from rmqtool.spark.scan_job import Bad

_OF_QUEUES = ("--topic", "--exclude-topic", "--queue")
"""What units of queues are selected by too; entries of the index by nothing."""


def tell_bad(bad: Bad) -> int:
    """Tells of ranges that hold no record, which no count has in it, and of damaged records, which are in it.

    Returns the exit code.
    """
    told = [
        f"{counted(count, what)} {how}"
        for count, what, how in (
            (bad.ranges, "damaged range", "not counted"), (bad.records, "damaged record", "counted"),
        )
        if count
    ]  # fmt: skip
    if not told:
        return EXIT_OK
    print_error(f"rmqtool: {', '.join(told)}; --verify shows all of them")
    return EXIT_FINDINGS


def tell_unselected(views: Collection[str], selection: Selection, writer: Output) -> None:
    """Says which selections do not hold for the views of queues and index that a query reads."""
    given = _given(selection)
    of_queues = [name for name in given if name not in _OF_QUEUES]
    views_and_names = (("consume_queue", of_queues), ("index_entries", given))
    told = [
        f"{view} ignores {', '.join(names)}" for view, names in views_and_names if view in views and names
    ]
    if told:
        writer.note(f"rmqtool: {'; '.join(told)}: these options select only messages")


def _given(selection: Selection) -> list[str]:
    """The options that select messages, of those that were given."""
    lists = {
        "--topic": selection.topics, "--exclude-topic": selection.exclude_topics,
        "--queue": selection.queues, "--tag": selection.tags, "--key": selection.keys,
    }  # fmt: skip
    single = {
        "--filter": selection.filter, "--since": selection.since, "--until": selection.until,
        "--from-offset": selection.from_offset, "--to-offset": selection.to_offset,
    }  # fmt: skip
    return [
        *(name for name, values in lists.items() if values),
        *(name for name, value in single.items() if value is not None),
    ]
