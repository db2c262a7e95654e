"""The outcome of a broker's start as actions: what it deletes is deleted, what it cuts becomes zero.

A broker only lowers its positions: the bytes behind them stay, and come back when a later crash makes
the log end right before them (spec 02 C14). What dispatch then adds to queues and index is not among
the actions: that is a rebuild over the log as it is afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.errors import RefusedError, UnreadableError
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.scan.reference import nonzero_end
from rmqtool.scan.source import open_source
from rmqtool.store.layout import StoreFile
from rmqtool.store.open_files import data_ranges, opened
from rmqtool.store.plan.action import Action

if TYPE_CHECKING:
    from rmqtool.store import Store
    from rmqtool.store.predict.prediction import Prediction


def broker_actions(store: Store, prediction: Prediction) -> list[Action]:
    """What the start that was predicted deletes and cuts, in the order commit log, queues, index.

    Args:
        store: the store, as it was when it was predicted.
        prediction: of one broker.

    Raises:
        RefusedError: that broker does not start with the store.
        UnreadableError: a file cannot be read.
    """
    if not prediction.loads or prediction.hangs:
        why = prediction.load_error or f"start() waits for ever at {prediction.hangs_at}"
        raise RefusedError(f"broker {prediction.broker} does not start with this store: {why}")
    actions = [*_of_log(store, prediction), *_of_queues(store, prediction)]
    index = set(prediction.index_files_deleted)
    for file in store.layout.index_files:
        name = store.layout.relative(file.path)
        if name in index:
            actions.append(_delete(name, file.path, file.size, "newer than the checkpoint's index time"))
    return actions


def _of_log(store: Store, prediction: Prediction) -> Iterator[Action]:
    layout, end = store.layout, prediction.end_offset
    gone = {*prediction.log_files_deleted, *prediction.files_deleted}
    for file in layout.commit_log:
        name = layout.relative(file.path)
        if name in gone:
            yield _delete(name, file.path, file.size, f"behind the log's end at {end}")
        elif file.file_from_offset <= end < file.end and not prediction.ends_with_blank:
            cut = _cut(name, file, end - file.file_from_offset, f"behind the log's end at {end}")
            if cut is not None:
                yield cut


def _of_queues(store: Store, prediction: Prediction) -> Iterator[Action]:
    layout = store.layout
    gone = set(prediction.files_deleted)
    for queue in (*layout.consume_queues.values(), *layout.batch_queues.values()):
        for file in queue.files:
            name = layout.relative(file.path)
            if name in gone:
                yield _delete(name, file.path, file.size, f"behind the end of queue {queue.queue_id}")
    for key, queue in layout.consume_queues.items():
        predicted = prediction.queues.get(key)
        if predicted is None:
            continue
        end = predicted.max_after * UNIT_SIZE
        for file in queue.files:
            name = layout.relative(file.path)
            if name not in gone and file.file_from_offset <= end < file.end:
                reason = f"behind the end of queue {queue.queue_id} at {predicted.max_after}"
                cut = _cut(name, file, end - file.file_from_offset, reason)
                if cut is not None:
                    yield cut


def _cut(name: str, file: StoreFile, start: int, reason: str) -> Action | None:
    """Zero a file from the position `start` on; None where it is zero already."""
    try:
        source = open_source(file.path)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    try:
        stop = nonzero_end(source, start, min(file.size, source.size))
    finally:
        source.close()
    if stop <= start:
        return None
    return Action("cut", name, start, stop - start, reason)


def _delete(name: str, path: Path, size: int, reason: str) -> Action:
    try:
        with opened(path) as descriptor:
            data = sum(high - low for low, high in data_ranges(descriptor, size))
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    return Action("delete", name, 0, size, reason, detail={"data_bytes": data})
