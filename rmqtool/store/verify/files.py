"""Pass `files`: the set of files. Names, sizes, gaps, strays; what is out of reach.

No content is read here, except to tell an unused next file from a file that was zeroed.

Source: MappedFileQueue#doLoad, spec 02 sections 1.3 and 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqtool.problems import Finding, finding
from rmqtool.store.layout import QueueFiles, StoreFile
from rmqtool.store.verify.context import Context


def check_files(context: Context) -> Iterator[Finding]:
    """Findings on the store's files and folders as such."""
    layout = context.layout
    for part in layout.unsupported:
        yield finding("UN01", context.name(part.path), what=part.what, form=part.form)
    for path, reason in layout.unreadable:
        yield finding("CP06", context.name(path), reason=reason)
    if layout.guard is not None:
        yield finding("CP05", context.name(layout.guard))
    yield from _commit_log(context)
    for queues, size in (
        (layout.consume_queues, layout.consume_queue_file_size),
        (layout.batch_queues, layout.batch_queue_file_size),
    ):
        for queue in queues.values():
            yield from _queue(context, queue, size)
    for stray in (*layout.consume_queue_strays, *layout.batch_queue_strays):
        yield finding("CQ11", context.name(stray))
    for stray in layout.index_strays:
        yield finding("IX07", context.name(stray))
    expected = layout.index_file_size
    for file in layout.index_files:
        if file.size != expected:
            yield finding("IX06", context.name(file.path), 0, file.size, expected_bytes=expected)


def _commit_log(context: Context) -> Iterator[Finding]:
    layout = context.layout
    files, size = layout.commit_log, layout.commit_log_file_size
    for stray in layout.commit_log_strays:
        yield finding("CL22", context.name(stray))
    if not files and layout.kind == "store" and _has_content(context):
        yield finding("CL26", "commitlog")
    for file in files:
        where = context.name(file.path)
        if file.size == 0:
            yield finding("CL23", where, file.file_from_offset, 0)
        elif file.size != size and layout.kind != "commitlog":
            yield finding("CL21", where, file.file_from_offset, file.size, expected_bytes=size)
        if file.file_from_offset % size:
            yield finding("CL25", where, file.file_from_offset, file.size, file_size=size)
    for before, after in _pairs(files):
        start, stop = before.file_from_offset + size, after.file_from_offset
        if start < stop:
            yield finding("CL20", context.name(before.path), start, stop - start, next=after.path.name)
        elif start > stop and after.file_from_offset % size == 0:
            yield finding("CL25", context.name(after.path), stop, start - stop, overlaps=before.path.name)


def _has_content(context: Context) -> bool:
    layout = context.layout
    queues = (*layout.consume_queues.values(), *layout.batch_queues.values())
    return any(queue.files for queue in queues) or bool(layout.index_files)


def _queue(context: Context, queue: QueueFiles, size: int) -> Iterator[Finding]:
    for stray in queue.strays:
        yield finding("CQ11", context.name(stray))
    for file in queue.files:
        if file.size != size and context.layout.kind == "store":
            yield finding("CQ09", context.name(file.path), 0, file.size, expected_bytes=size)
    for before, after in _pairs(queue.files):
        start, stop = before.file_from_offset + size, after.file_from_offset
        if start < stop:
            yield finding("CQ10", context.name(before.path), start, stop - start, next=after.path.name)


def _pairs(files: Sequence[StoreFile]) -> Iterator[tuple[StoreFile, StoreFile]]:
    return zip(files, files[1:], strict=False)
