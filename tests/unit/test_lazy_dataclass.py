"""`rmqtool.lazy_dataclass`: classes behave as those of the standard decorator, at the first use and later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict, astuple, field, fields, is_dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from rmqtool.lazy_dataclass import dataclass
from tests import ROOT
from tests.docs.test_shape import MODULES

T = TypeVar("T")
OPTIONS: list[dict[str, bool]] = [
    {"frozen": frozen, "slots": slots, "eq": eq, "repr": shown}
    for frozen in (False, True) for slots in (False, True) for eq in (False, True) for shown in (False, True)
]  # fmt: skip


def declared(decorator: Any, options: dict[str, bool]) -> Any:
    """A class with every kind of field, made by `decorator`."""

    class Range:
        """A range."""

        LIMIT: ClassVar[int] = 7
        begin: int
        end: int = 5
        notes: list[str] = field(default_factory=list, compare=False)
        length: int = field(init=False)
        hidden: int = field(default=3, repr=False)
        unit: str = field(init=False, default="byte")
        parts: dict[str, int] = field(init=False, default_factory=dict, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", self.end - self.begin)

        def doubled(self) -> int:
            return 2 * self.length

    return decorator(**options)(Range)


def outcome(work: Any) -> Any:
    """What a call returns, or the kind and text of what it raises."""
    try:
        return work()
    except Exception as error:
        return type(error), str(error)


USES = {
    "repr": lambda cls: repr(cls(1)).partition(" object at ")[0],
    "equal": lambda cls: (cls(1) == cls(1), cls(1) == cls(2), cls(1) == 1, cls(1, notes=["x"]) == cls(1)),
    "unequal": lambda cls: (cls(1) != cls(1, 5), cls(1) != cls(1, 6)),
    "hash": lambda cls: len({cls(1), kept := cls(2), kept}),
    "is hashable": lambda cls: cls.__hash__ is None,
    "signature": lambda cls: str(inspect.signature(cls.__init__)),
    "too few": lambda cls: cls(),
    "too many": lambda cls: cls(1, 2, [], 4, 5),
    "unknown": lambda cls: cls(1, other=2),
    "fields": lambda cls: [(each.name, each.default, each.init, each.repr) for each in fields(cls)],
    "fields of one": lambda cls: [each.name for each in fields(cls(1))],
    "is one": lambda cls: (is_dataclass(cls), is_dataclass(cls(1))),
    "replace": lambda cls: astuple(replace(cls(1), end=9)),
    "asdict": lambda cls: asdict(cls(1, notes=["x"])),
    "parameters": lambda cls: (cls.__dataclass_params__.frozen, cls.__dataclass_params__.eq),
    "match": lambda cls: cls.__match_args__,
    "set": lambda cls: setattr(cls(1), "end", 2),
    "set another": lambda cls: setattr(cls(1), "other", 2),
    "delete": lambda cls: delattr(cls(1), "end"),
    "slots": lambda cls: getattr(cls, "__slots__", None),
    "attributes": lambda cls: hasattr(cls(1), "__dict__"),
    "copy": lambda cls: astuple(copy.copy(cls(1, 8))),
    "class": lambda cls: (cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__, cls.LIMIT),
    "method": lambda cls: cls(1).doubled(),
    "lists are new": lambda cls: cls(1).notes is cls(1).notes,
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(k for k, v in options.items() if v))
def test_as_the_standard_decorator(options: dict[str, bool]) -> None:
    """Each use gives the same, as the first use of a class and as a later one."""
    for name, use in USES.items():
        wanted = outcome(partial(use, declared(dataclasses.dataclass, options)))
        if name == "set another" and options["frozen"] and options["slots"]:
            # not TypeError, as in some versions
            wanted = FrozenInstanceError, "cannot assign to field 'other'"
        cls = declared(dataclass, options)
        assert outcome(partial(use, cls)) == wanted, name
        assert outcome(partial(use, cls)) == wanted, name


@dataclass(frozen=True)
class Place:
    """A base of other classes."""

    path: str
    offset: int = 0

    @cached_property
    def shown(self) -> str:
        """Kept in the instance, which a frozen class allows."""
        return f"{self.path}@{self.offset}"


@dataclass(frozen=True)
class SizedPlace(Place):
    """A dataclass of a dataclass."""

    size: int = 1


class NamedPlace(Place):
    """A plain class of a dataclass."""


@dataclass(frozen=True, slots=True)
class Pair(Generic[T]):
    """A class with a parameter, which pickling has to find by its name."""

    first: T
    second: T


def test_classes_of_classes() -> None:
    """A class inherits the fields, whichever of the classes is used first."""
    assert [each.name for each in fields(SizedPlace)] == ["path", "offset", "size"]
    assert SizedPlace("a", 2, 3) == SizedPlace("a", 2, 3) != SizedPlace("a", 2, 4)
    assert repr(NamedPlace("a")) == "NamedPlace(path='a', offset=0)"
    assert NamedPlace("a") != Place("a")
    assert Place("a", 2).shown == "a@2"
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'path'"):
        NamedPlace("a").path = "b"  # type: ignore[misc]
    named = NamedPlace("a")
    named.other = 5  # type: ignore[attr-defined]
    assert vars(named)["other"] == 5


def test_pickle_before_the_first_use() -> None:
    """A process that only loads an instance gets a class that has not been used."""
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
    shown = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(Pair(1, 2)), capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert shown.stdout == b"Pair(first=1, second=2)\n"


def test_matching() -> None:
    """Positional patterns bind the fields in their order."""
    match Pair(1, 2):
        case Pair(first, second):
            assert (first, second) == (1, 2)


def test_first_use_in_many_threads() -> None:
    """Each thread gets a complete class."""
    for _ in range(50):
        cls = declared(dataclass, {"frozen": True, "slots": True})
        barrier, made = threading.Barrier(4), []

        def make(cls: Any = cls, barrier: threading.Barrier = barrier, made: list[Any] = made) -> None:
            barrier.wait()
            made.append((repr(cls(1, 4)).rpartition(".")[2], hash(cls(1, 4)), cls(1, 4) == cls(1, 4)))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(made) == 4
        assert len(set(made)) == 1


def dataclasses_of_the_package() -> Iterator[type]:
    """Every dataclass of rmqtool, in the module that declares it."""
    for name in MODULES:
        module = import_module(name)
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == name and is_dataclass(cls):
                yield cls


def test_every_declaration_is_right() -> None:
    """The standard decorator accepts every class, though a run generates the methods of few."""
    count = 0
    for cls in dataclasses_of_the_package():
        assert isinstance(fields(cls), tuple)
        assert callable(cls.__init__)
        assert repr(cls.__eq__)
        assert repr(cls.__repr__)
        count += 1
    assert count > 200
