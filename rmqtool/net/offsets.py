"""The committed offsets of groups while a store is served: the store's own, then what consumers commit.

Commits are kept in memory and, if there is one, in a file outside of the store. The file has the layout of
consumerOffset.json and counts more than the store. It is replaced as a whole: a kill leaves the old or the
new one.

Source: ConsumerOffsetManager.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

from rmqtool.errors import FormatError, RefusedError, UnwritableError
from rmqtool.formats import config_json, fastjson
from rmqtool.read.consumer_offsets import Offsets, known_offsets
from rmqtool.read.store import Store
from rmqtool.storage import durable
from rmqtool.storage.claim import claimed
from rmqtool.storage.open_files import read_head

GROUPS_LIMIT = 10_000
GROUP_LENGTH = 255  # Validators.CHARACTER_MAX_LENGTH: no client has a longer one
_QUEUES_LIMIT = 1_000_000


class CommittedOffsets:
    """By group, topic and queue id the next queue offset to consume."""

    def __init__(
        self,
        begin: Mapping[tuple[str, str], Mapping[int, int]],
        file: Path | None = None,
        held: ExitStack | None = None,
    ) -> None:
        self._table: dict[tuple[str, str], dict[int, int]] = {
            key: dict(queues) for key, queues in begin.items()
        }
        self._groups = {group for _, group in self._table}
        self._count = sum(map(len, self._table.values()))
        self._file = file
        self._is_changed = False
        self._saving = Lock()
        self._held = held or ExitStack()

    def close(self) -> None:
        """Let other runs use the file."""
        self._held.close()

    @classmethod
    def of(cls, store: Store, file: Path | None, note: Callable[[str], None]) -> CommittedOffsets:
        """The store's offsets, and over them those of the file.

        Raises:
            RefusedError: the file lies in the store, is not a plain file, or another run uses it.
            FormatError: the file does not hold offsets.
            UnreadableError, UnwritableError: the file cannot be read, or not be written.
        """
        begin, unknown = known_offsets(store)
        for text in unknown:
            note(f"the store's committed offsets are not known: {text}")
        with ExitStack() as held:
            if file is not None:
                # A link is the file that it leads to. resolve() raises RuntimeError for links in a circle.
                file = Path(os.path.realpath(file))
                _check_outside(store, file)
                durable.check_replaceable(file, "--offsets")
                held.enter_context(claimed(file))
                for key, queues in _read(file).items():
                    begin[key] = {**begin.get(key, {}), **queues}
            return cls(begin, file, held.pop_all())

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset; None without one."""
        return self._table.get((topic, group), {}).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Keep an offset; False if there are too many groups or queues."""
        key = topic, group
        queues = self._table.get(key)
        if queues is None:
            if group not in self._groups and (len(self._groups) >= GROUPS_LIMIT or len(group) > GROUP_LENGTH):
                return False
            self._groups.add(group)
            queues = self._table[key] = {}
        if queue_id not in queues:
            if self._count >= _QUEUES_LIMIT:
                return False
            self._count += 1
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._is_changed = True
        return True

    def groups(self) -> set[str]:
        """All groups with an offset."""
        return self._groups

    def topics_of(self, group: str) -> list[str]:
        """The topics in which a group has offsets."""
        return sorted(topic for topic, each in list(self._table) if each == group)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        return sorted(group for each, group in list(self._table) if each == topic)

    def __iter__(self) -> Iterator[tuple[str, str, int, int]]:
        """All of them: topic, group, queue id, offset."""
        for (topic, group), queues in list(self._table.items()):
            for queue_id, offset in list(queues.items()):
                yield topic, group, queue_id, offset

    @property
    def is_changed(self) -> bool:
        """Whether there is something to save."""
        return self._file is not None and self._is_changed

    def to_save(self) -> dict[str, dict[int, int]]:
        """A copy of the table for `save`, which another thread may run."""
        self._is_changed = False
        return self._copy()

    def _copy(self) -> dict[str, dict[int, int]]:
        return {
            f"{topic}{config_json.TOPIC_GROUP_SEPARATOR}{group}": dict(queues)
            for (topic, group), queues in self._table.items()
        }

    def text(self) -> bytes:
        """As consumerOffset.json has them."""
        return _text(self._copy())

    def save(self, table: dict[str, dict[int, int]]) -> None:
        """Replace the file by a copy of the table. Raises UnwritableError; then it is to be saved again."""
        if self._file is None:
            return
        temporary = self._file.with_name(f"{self._file.name}.tmp")
        with self._saving:
            try:
                durable.remove(temporary)
                durable.write_new(temporary, _text(table))
                durable.rename(temporary, self._file)
            except UnwritableError:
                self._is_changed = True
                raise


def _text(table: dict[str, dict[int, int]]) -> bytes:
    return config_json.dump({"offsetTable": table}, "5.4")


def _read(file: Path) -> Offsets:
    data = read_head(file, fastjson.READ_LIMIT)
    if data is None:
        return {}
    try:
        return config_json.consumer_offsets(config_json.parse(data))
    except FormatError as error:
        raise FormatError(f"not a file of offsets: {error.message}", path=file) from error


def _check_outside(store: Store, file: Path) -> None:
    folder = file.parent
    if not folder.is_dir():
        raise UnwritableError(f"cannot write: {os.strerror(errno.ENOENT)}", path=folder)
    root = store.layout.root
    if root is None or not store.is_local:
        return
    folders = {root.resolve(), *(each.resolve() for each in store.layout.commit_log_folders)}
    if any(file.is_relative_to(each) for each in folders):
        raise RefusedError(
            "the file of offsets lies in the store, which is not changed",
            path=file,
            hint="name a file outside of it",
        )
