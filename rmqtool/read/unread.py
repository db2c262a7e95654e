"""Parts of the log and the queues that exist but cannot be read: why a message may not be found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from rmqtool.problems import Finding, finding
from rmqtool.read.store import Store
from rmqtool.storage.out_of_reach import NOT_A_FILE, not_files_of_log, unreadable_code
from rmqtool.storage.single_file import offset_of_name


def unread(store: Store, *, queues: bool) -> Iterator[Finding]:
    """Folders that could not be listed, log files this user may not read, entries that are not plain files.

    Of tiered storage also segments of the logs that are missing.

    Nothing is opened here: files that failed earlier reads are reported. `queues`: report queues
    too, not the log alone.
    """
    layout = store.layout
    for path, reason in layout.unreadable:
        code = unreadable_code(layout, path)
        if code == "CL12" or queues:
            yield finding(code, layout.relative(path), reason=reason)
    yield from _failed(store, queues=queues)
    if layout.queue_logs is not None:
        from rmqtool.log.segments import missing_of_log

        yield from (each for _, each in missing_of_log(layout))
    if not store.is_local:
        return
    for file in layout.commit_log:
        if file.path in store.failures:
            continue
        # A file that is gone is none that cannot be read: a broker, or `expire`, has deleted it.
        if not os.access(file.path, os.R_OK) and os.path.lexists(file.path):
            name, reason = layout.relative(file.path), "Permission denied"
            yield finding("CL12", name, file.file_from_offset, file.size, reason=reason)
    yield from not_files_of_log(layout)
    if not queues:
        return
    for queue in layout.unit_queues:
        for path in queue.strays:
            if offset_of_name(path.name) is not None and not path.is_file():
                yield finding("CQ15", layout.relative(path), reason=NOT_A_FILE)


def _failed(store: Store, *, queues: bool) -> Iterator[Finding]:
    layout = store.layout
    starts = {file.path: file.file_from_offset for file in layout.commit_log}
    for path, failure in store.failures.items():
        code = unreadable_code(layout, path)
        if code == "CQ15" and not queues:
            continue
        place = None if failure.offset is None else starts.get(path, 0) + failure.offset
        yield finding(code, layout.relative(path), place, failure.length, reason=failure.reason)


def unserved(store: Store, keys: Iterable[tuple[str, int]]) -> Iterator[Finding]:
    """Of the queues `keys`, (topic, queue id), those with empty units in front of others.

    A broker serves them up to the first empty one. Nothing is said of a store in use.
    """
    if store.live:
        return
    layout = store.layout
    for key in keys:
        queue = store.queue(*key)
        found = None if queue is None else queue.after_end()
        if queue is None or found is None:
            continue
        end, number = found
        at, size = end * queue.unit_size, (number - end) * queue.unit_size
        file = next(file for file in queue.files if at < file.end)
        place = max(at - file.file_from_offset, 0)
        numbers = {"queue_offset": end, "last_queue_offset": number - 1}
        yield finding("CQ08", layout.relative(file.path), place, size, **numbers)
