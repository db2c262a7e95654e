"""The extension files of a queue during a start: recovered, cut, and extended by every dispatch.

A broker writes an extension unit for each dispatched record before it checks whether the queue has the
record already. So a start after a crash writes extension units that no unit of the queue refers to.

Source: ConsumeQueueExt#recover, #put, #truncateByMaxAddress, #truncateByMinAddress,
ConsumeQueue#putMessagePositionInfoWrapper; spec 01 5.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.broker.load import Loaded, QueueKey
from rmqtool.broker.queue_reader import QueueReader
from rmqtool.broker.queues import QueueFile, QueueState
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats.consume_queue import (
    EXT_END,
    EXT_END_ROOM,
    EXT_HEAD,
    UNIT_SIZE,
    ext_offset,
    is_ext_address,
)
from rmqtool.lazy_dataclass import dataclass
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.queue.extension import Extension
from rmqtool.storage.layout import QueueFiles, StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

_SIGN = np.int64(-(1 << 63))


@dataclass
class ExtensionState:
    """The extension files of one queue; `changed` are offsets of files whose bytes change."""

    file_size: int
    files: list[QueueFile] = field(default_factory=list)
    unopened: dict[int, Path] = field(default_factory=dict)  # on disk but not opened: overwritten
    deleted: list[StoreFile] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)

    def copy(self) -> ExtensionState:
        """An independent copy."""
        files = [QueueFile(file.path, file.file_from_offset, file.position) for file in self.files]
        return ExtensionState(
            self.file_size, files, dict(self.unopened), list(self.deleted), set(self.made), set(self.changed)
        )

    def delete(self, file: QueueFile) -> None:
        """Delete a file."""
        self.files.remove(file)
        if file.path is None:
            self.made.discard(file.file_from_offset)
        else:
            self.deleted.append(StoreFile(file.path, file.file_from_offset, self.file_size))

    def cut(self, end: int) -> None:
        """End the files at an offset. Source: MappedFileQueue#truncateDirtyFiles."""
        for file in list(self.files):
            if file.file_from_offset + self.file_size > end:
                if end >= file.file_from_offset:
                    file.position = end % self.file_size
                else:
                    self.delete(file)

    def cut_before(self, address: int) -> None:
        """Delete files before the queue's first unit, at `address`. Source: #truncateByMinAddress."""
        if is_ext_address(address):
            for file in list(self.files):
                if file.file_from_offset + self.file_size < ext_offset(address):
                    self.delete(file)

    def put(self, heads: Array, open_files: OpenFiles) -> Array:
        """Append units, packed as EXT_HEAD; returns their addresses, i8."""
        addresses = np.empty(len(heads), np.int64)
        done, unit = 0, EXT_HEAD.size
        while done < len(heads):
            file = self.files[-1] if self.files else None
            if file is None or file.position == self.file_size:
                file = self._make(0 if file is None else file.file_from_offset + self.file_size)
            room = (self.file_size - file.position - EXT_END_ROOM) // unit
            if room <= 0:
                self._write(file, EXT_END, open_files)
                file.position = self.file_size
                continue
            count = min(room, len(heads) - done)
            start = file.file_from_offset + file.position
            addresses[done : done + count] = (start + unit * np.arange(count)) ^ _SIGN
            self._write(file, heads[done : done + count].tobytes(), open_files)
            file.position += count * unit
            done += count
        return addresses

    def _make(self, file_from_offset: int) -> QueueFile:
        """Add a file; one on disk that was not opened keeps its bytes. Source: DefaultMappedFile#init."""
        path = self.unopened.pop(file_from_offset, None)
        file = QueueFile(path, file_from_offset, 0)
        if path is None:
            self.made.add(file_from_offset)
        self.files.append(file)
        return file

    def _write(self, file: QueueFile, data: bytes, open_files: OpenFiles) -> None:
        offset = file.file_from_offset
        if file.path is None or offset in self.changed:
            return
        if open_files.read(file.path, file.position, len(data)) != data:
            self.changed.add(offset)

    def destroy(self) -> None:
        """Delete all files."""
        for file in list(self.files):
            self.delete(file)


class Extensions:
    """The extension files of all queues of a store during one start.

    Attributes:
        states: the state by queue.
    """

    def __init__(self, layout: StoreLayout, open_files: OpenFiles, loaded: Loaded) -> None:
        self.states: dict[QueueKey, ExtensionState] = {}
        self._layout = layout
        self._files = open_files
        for key in loaded.queues:
            self.states[key] = self._recovered(key, loaded)

    def _recovered(self, key: QueueKey, loaded: Loaded) -> ExtensionState:
        size, found = self._layout.ext_queue_file_size, loaded.extensions.get(key, ())
        state = ExtensionState(size, [QueueFile(file.path, file.file_from_offset, size) for file in found])
        queue = loaded.queues[key]
        if not queue:  # ConsumeQueue#recover does nothing
            return state
        files = QueueFiles(*key, queue[0].path.parent, queue)
        address = ConsumeQueue(files, self._files).last_address()
        if found:
            state.cut(Extension(found, self._files.read).end(address))
        return state

    def state(self, key: QueueKey) -> ExtensionState:
        """The state of a queue; for a queue that dispatch creates, no existing file is opened."""
        state = self.states.get(key)
        if state is None:
            queue = self._layout.ext_queues.get(key)
            there = {} if queue is None else {file.file_from_offset: file.path for file in queue.files}
            state = self.states[key] = ExtensionState(self._layout.ext_queue_file_size, unopened=there)
        return state

    def put(self, key: QueueKey, entries: Array) -> Array:
        """Write extension units for ENTRY rows of one queue, in log order; returns their tags codes, i8."""
        heads = np.zeros(len(entries), EXT_HEAD.dtype)
        heads["size"] = EXT_HEAD.size
        heads["tags_code"], heads["store_timestamp"] = entries["tags_code"], entries["store_timestamp"]
        return self.state(key).put(heads, self._files)

    def cut_before(self, state: QueueState, reader: QueueReader, before: int, *, searches: bool) -> None:
        """Delete the files that the search for a queue's smallest offset deletes.

        Source: ConsumeQueue#correctMinOffset.
        """
        number = state.min_logic // UNIT_SIZE
        if not state.files or number >= state.end // UNIT_SIZE:
            return
        file = state.files[0]
        first = file.file_from_offset // UNIT_SIZE
        if searches and before == state.min_logic >= file.file_from_offset:
            return  # 5.x stops here
        low, high = state.written or (0, 0)
        if number == low < high:
            code = state.first_code
        elif low < number < high or not 0 <= number - first < state.file_size // UNIT_SIZE:
            return  # not modelled: no known start finds such a unit first
        else:
            code = int(reader.units(state, file, number - first, 1)[0]["tags_code"])
        self.state((state.topic, state.queue_id)).cut_before(code)

    def copy_from(self, other: Extensions) -> None:
        """Copy the states of another."""
        self.states = {key: state.copy() for key, state in other.states.items()}

    def files(self, name: Any) -> tuple[set[str], set[str], set[str]]:
        """Files that are deleted, made and changed, by name."""
        gone: set[str] = set()
        made: set[str] = set()
        changed: set[str] = set()
        for (topic, queue_id), state in self.states.items():
            folder = f"consumequeue_ext/{topic}/{queue_id}"
            gone |= {name(file.path) for file in state.deleted}
            made |= {f"{folder}/{offset:020}" for offset in state.made}
            changed |= {f"{folder}/{offset:020}" for offset in state.changed}
        return gone - made, made - gone, changed | (gone & made)


def check_extension(files: Sequence[StoreFile], open_files: OpenFiles) -> tuple[str, Path] | None:
    """The reason why load fails because of an extension file, and that file; None if it does not fail."""
    extension = Extension(files, open_files.read)
    for file in files:
        try:
            extension.end_of(file)
        except UnreadableError:
            raise
        except FormatError as error:
            return error.message, file.path
    return None
