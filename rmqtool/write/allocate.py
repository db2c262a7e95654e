"""The next file of the commit log is made by a thread while the current one is filled.

Source: AllocateMappedFileService; spec 01 section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

File = TypeVar("File")


class AllocateAhead(Generic[File]):
    """Makes one file ahead.

    The thread starts here and is spoken to through queues that are whole whatever a signal interrupts: an
    executor that is interrupted while it starts a thread can keep the process from ending.
    """

    def __init__(self, make: Callable[[int], File]) -> None:
        """See the class; `make` takes the file's physical offset."""
        self._make = make
        self._requests: SimpleQueue[int | None] = SimpleQueue()
        self._answers: SimpleQueue[File | None] = SimpleQueue()
        self._asked = False
        self._file: File | None = None
        self._thread = Thread(target=self._run, name="allocate", daemon=True)
        self._thread.start()

    def request(self, start: int) -> None:
        """Begin to make the file at `start`; nothing while there is one that is not `taken`."""
        if not self._asked and self._file is None:
            self._asked = True
            self._requests.put(start)

    def file(self, start: int) -> File:
        """The file at `start`, the one that was asked for; it is given again until it is `taken`.

        Where none was, or making it had failed, it is made now: there may be space again.
        """
        if self._asked and self._file is None:
            self._file = self._answers.get()
        self._asked = False
        if self._file is None:
            self._file = self._make(start)
        return self._file

    def taken(self) -> None:
        """The file that `file` gave is in use: the next is another one."""
        self._file = None

    def close(self) -> File | None:
        """End the thread; the file that was made and not taken."""
        self._requests.put(None)
        self._thread.join()
        with suppress(Empty):
            self._file = self._answers.get_nowait() or self._file
        file, self._file = self._file, None
        return file

    def _run(self) -> None:
        while (start := self._requests.get()) is not None:
            file = None
            try:
                with suppress(Exception):  # whoever needs the file makes it, and is told what is wrong
                    file = self._make(start)
            finally:
                self._answers.put(file)
