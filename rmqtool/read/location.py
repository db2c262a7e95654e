"""What opens a store again: in another process, on another machine that reaches the same place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.storage.locate import located

if TYPE_CHECKING:
    from rmqtool.read.store import Store


_PATHS = ("commitlog_paths", "read_only_paths")


def _lasting(name: str, value: Any) -> Any:
    if name in _PATHS:
        return tuple(located(path).absolute() for path in value)
    if name == "broker_conf" and isinstance(value, str | Path):
        return located(value).absolute()
    return value


@dataclass(frozen=True, slots=True)
class Location:
    """A store's place and the arguments that it was opened with; to be pickled.

    What is printed of it shows no secret; what is pickled holds them, for they are needed there.
    """

    path: Path
    arguments: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, path: Path, arguments: Mapping[str, Any]) -> Location:
        """Of the store at `path`, opened with these arguments; relative paths are made absolute."""
        return cls(path.absolute(), tuple((name, _lasting(name, value)) for name, value in arguments.items()))

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> Store:
        """The same store, opened for reading. Raises as `Store.open` does."""
        from rmqtool.read.store import Store

        store: Store = Store.open(self.path, **dict(self.arguments))
        return store
