"""The options `write.*` of a store that is written: those of `WriteOptions`, spelled in camelCase."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rmqtool.errors import UsageError
from rmqtool.spark.values import parse_bool, parse_count, parse_size, parse_text

if TYPE_CHECKING:
    from rmqtool.spark.options import SourceOptions

PARSERS: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "commitLogFileSize": ("commit_log_file_size", parse_size),
    "consumeQueueFileSize": ("consume_queue_file_size", parse_size),
    "batchQueueFileSize": ("batch_queue_file_size", parse_size),
    "indexSlots": ("index_slots", parse_count),
    "indexEntries": ("index_entries", parse_count),
    "index": ("index", parse_bool),
    "maxMessageSize": ("max_message_size", parse_size),
    "propertyCrc": ("property_crc", parse_bool),
    "reserve": ("reserve", parse_bool),
    "cluster": ("cluster", parse_text),
    "region": ("region", parse_text),
    "compressOver": ("compress_over", parse_size),
    "queues": ("auto_create_queues", parse_count),
}
DEFAULT_QUEUES: Final = 4


def write_arguments(options: SourceOptions) -> dict[str, Any]:
    """The arguments of `StoreWriter.create`.

    Raises:
        UsageError: an unknown option, a value that makes no sense, or a profile that is not known.
    """
    from rmqtool.storage.profile import profile_named

    profile_named(options.profile)
    known = {name.lower(): name for name in PARSERS}
    found: dict[str, Any] = {"auto_create_queues": DEFAULT_QUEUES}
    for given, text in options.write:
        low = given.lower()
        if low not in known:
            near = difflib.get_close_matches(low, known, 1)
            hint = f"did you mean write.{known[near[0]]}?" if near else None
            names = ", ".join(f"write.{name}" for name in PARSERS)
            raise UsageError(f"unknown option write.{given}", hint=hint or f"there are {names}")
        attribute, parse = PARSERS[known[low]]
        found[attribute] = parse(f"write.{known[low]}", text)
    return found
