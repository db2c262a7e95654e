"""A view of the commit log as it will be after planned changes.

Nothing is written: a window of a file that will change is copied, and the planned bytes are put into the
copy. So a plan can include the queues and the index for the changed log.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.ranges import contains, merged
from rmqtool.storage.source import ByteSource, BytesSource, RateLimiter, open_source

if TYPE_CHECKING:
    from rmqtool.repair.plan import Action
    from rmqtool.storage.source import Bytes


class Patch(NamedTuple):
    """Bytes [offset, end) of a file that will be written; without content: zeros."""

    offset: int
    end: int
    content: bytes | None


class LogView:
    """The files of a commit log after some actions.

    Attributes:
        layout: the store's, with the files of the commit log as they will be, and without `abort`: it is the
            store that a clean start would find.
    """

    def __init__(self, layout: StoreLayout, actions: Sequence[Action] = ()) -> None:
        """The log of `layout` after `actions`; actions on other parts of the store are ignored.

        Raises:
            ValueError: an action creates or replaces a log file without giving its content.
        """
        self._patches: dict[Path, list[Patch]] = {}
        self._based: dict[Path, bytes | None] = {}  # files whose present bytes are replaced
        files = {file.path: file for file in layout.commit_log}
        folders = {layout.relative(folder): folder for folder in layout.commit_log_folders}
        for action in actions:
            folder, _, name = action.path.rpartition("/")
            if folder in folders:
                self._take(files, folders[folder] / name, action)
        log = sorted(files.values(), key=lambda file: (file.file_from_offset, file.path))
        self.layout = replace(layout, commit_log=tuple(log), abort=None, guard=None)

    def _take(self, files: dict[Path, StoreFile], path: Path, action: Action) -> None:
        if action.kind == "delete":
            files.pop(path, None)
            self._patches.pop(path, None)
            self._based.pop(path, None)
        elif action.kind in ("create", "replace"):
            if action.from_staging:
                raise ValueError(f"{action.path} is a log file without content")
            self._based[path] = action.content
            self._patches.pop(path, None)
            if path.name.isascii() and path.name.isdigit():
                files[path] = StoreFile(path, int(path.name), action.length)
        elif path in files:
            end = max(files[path].size, action.end)
            files[path] = files[path].resized(end)
            self._patches.setdefault(path, []).append(Patch(action.offset, action.end, action.content))

    def changes(self, path: Path) -> bool:
        """Whether the planned changes affect a log file."""
        return path in self._patches or path in self._based

    def open(
        self, path: Path, *, keep_cache: bool = False, limiter: RateLimiter | None = None
    ) -> ByteSource | None:
        """A source over a log file as it will be; None for a file that does not change.

        Raises:
            OSError: its present bytes cannot be opened.
        """
        if not self.changes(path):
            return None
        file = next((file for file in self.layout.commit_log if file.path == path), None)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if path in self._based:
            base: ByteSource = BytesSource(self._based[path] or b"", str(path))
        else:
            base = open_source(path, keep_cache=keep_cache, limiter=limiter)
        return PatchedSource(base, file.size, self._patches.get(path, []))


class PatchedSource:
    """A source with planned bytes on top of its own; zeros where neither has any."""

    def __init__(self, base: ByteSource, size: int, patches: Sequence[Patch]) -> None:
        self.name = base.name
        self.size = size
        self.unreadable: list[tuple[int, int]] = []
        self._base = base
        order = sorted(range(len(patches)), key=lambda number: patches[number].offset)
        self._patches = [(number, patches[number]) for number in order]
        self._starts = [patch.offset for _, patch in self._patches]
        self._longest = max((patch.end - patch.offset for patch in patches), default=0)
        self._covered = merged((patch.offset, patch.end) for patch in patches)

    def window(self, offset: int, length: int) -> Bytes:
        """See ByteSource."""
        import numpy as np

        stop = max(min(offset + length, self.size), offset)
        found = self._base.window(offset, stop - offset)
        self._note()
        patches = self._within(offset, stop)
        if len(found) == stop - offset and not patches:
            return found
        window = np.zeros(stop - offset, np.uint8)
        window[: len(found)] = found
        self._lay(window, offset, stop, patches)
        window.flags.writeable = False
        return window

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        import numpy as np

        stop = max(min(offset + length, self.size), offset)
        found = self._base.read(offset, stop - offset)
        self._note()
        patches = self._within(offset, stop)
        if len(found) == stop - offset and not patches:
            return found
        data = np.zeros(stop - offset, np.uint8)
        data[: len(found)] = np.frombuffer(found, np.uint8)
        self._lay(data, offset, stop, patches)
        return data.tobytes()

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        found = self._base.data_from(offset) if offset < self._base.size else self.size
        place = bisect_left(self._starts, offset - self._longest)
        for _, patch in self._patches[place:]:
            if patch.offset >= found:
                break
            if patch.content is not None and patch.end > offset:
                return max(offset, patch.offset)
        return min(found, self.size)

    def close(self) -> None:
        """See ByteSource."""
        self._base.close()

    def _within(self, start: int, stop: int) -> list[Patch]:
        """The patches that overlap [start, stop), in the order in which they are written."""
        low, high = bisect_left(self._starts, start - self._longest), bisect_left(self._starts, stop)
        found = [item for item in self._patches[low:high] if item[1].end > start]
        return [patch for _, patch in sorted(found, key=lambda item: item[0])]

    def _lay(self, window: Bytes, start: int, stop: int, patches: Sequence[Patch]) -> None:
        import numpy as np

        for patch in patches:
            low, high = max(patch.offset, start), min(patch.end, stop)
            if patch.content is None:
                window[low - start : high - start] = 0
            else:
                count, skip = high - low, low - patch.offset
                window[low - start : high - start] = np.frombuffer(patch.content, np.uint8, count, skip)

    def _note(self) -> None:
        """Update `unreadable`: unreadable ranges that will not be overwritten."""
        self.unreadable = [item for item in self._base.unreadable if not contains(self._covered, *item)]
