"""`dataclass` as of the standard library, which generates the methods of a class when one is first used.

The standard decorator compiles up to six methods for each class while its module loads. A command loads two
hundred classes and uses a few of them, and compiling the others took a quarter of its start. Here a class
gets descriptors in place of its generated methods. The first use of one calls the standard decorator on a
copy of the class, and moves what it generated to the class. From then on the class is an ordinary dataclass:
`fields`, `replace`, `asdict`, pickling and pattern matching work, before and after.

Errors in a declaration, as a mutable default, appear at the first use; a test uses every class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from inspect import get_annotations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002  the standard name
    ) -> type | Callable[[type], type]:
        """Make a class a dataclass. The options are those of `dataclasses.dataclass`."""

        def declare(cls: type) -> type:
            return _declare(cls, {"frozen": frozen, "slots": slots, "eq": eq, "repr": repr})

        return declare if cls is None else declare(cls)


_INIT = ("__init__", "__dataclass_fields__", "__match_args__")


class _Generated:
    """An attribute of a class that the standard decorator generates when it is first read.

    Attributes:
        name: of the attribute.
        cls: the class that has it. A subclass reads it too.
        declared: what the body of the class says, with the defaults of fields.
        options: of the standard decorator.
    """

    __slots__ = ("cls", "declared", "name", "options")

    def __init__(self, name: str, declared: dict[str, Any], options: dict[str, Any]) -> None:
        self.name, self.declared, self.options = name, declared, options
        self.cls: type = object

    def __get__(self, instance: object, owner: type) -> Any:
        self._generate()
        return getattr(owner if instance is None else instance, self.name)

    def _generate(self) -> None:
        """Move the attribute, and those that are generated with it, from a complete copy to the class.

        Threads that do so at the same time move equal attributes.
        """
        is_init = self.name in _INIT
        chosen = {"init": True, "eq": False, "repr": False} if is_init else {"init": False}
        copied = type(self.cls)(self.cls.__name__, self.cls.__bases__, dict(self.declared))
        complete = vars(dataclasses.dataclass(copied, **{**self.options, **chosen}))
        for name, value in list(vars(self.cls).items()):
            if isinstance(value, _Generated) and (name in _INIT) == is_init:
                setattr(self.cls, name, complete[name])


def _declare(cls: type, options: dict[str, Any]) -> type:
    """Return the class with descriptors in place of generated attributes; a new class if it has slots."""
    declared = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    declared["__doc__"] = cls.__doc__ or cls.__name__  # else the standard decorator writes one: the signature
    declared["__qualname__"] = cls.__qualname__  # error messages name it
    added: dict[str, Any] = {
        name: _Generated(name, declared, options) for name in _generated(options) if name not in declared
    }
    if options["eq"] and not options["frozen"]:
        added.setdefault("__hash__", declared.get("__hash__"))
    names = [name for name, kind in get_annotations(cls).items() if not str(kind).startswith("ClassVar")]
    if options["slots"]:
        kept = {name: value for name, value in declared.items() if name not in names}
        kept["__slots__"] = tuple(names)
        cls = type(cls)(cls.__name__, cls.__bases__, kept)
    else:
        for name in names:
            default = declared.get(name)
            if isinstance(default, dataclasses.Field):
                if default.default is dataclasses.MISSING:
                    delattr(cls, name)
                else:
                    setattr(cls, name, default.default)
    if options["frozen"]:
        added["__setattr__"], added["__delattr__"] = _frozen(cls)
    for name, value in added.items():
        if isinstance(value, _Generated):
            value.cls = cls
        setattr(cls, name, value)
    return cls


def _generated(options: dict[str, Any]) -> Iterator[str]:
    """Yield the names of what the standard decorator generates, but for what freezes a class."""
    yield from (*_INIT, "__dataclass_params__")
    if options["repr"]:
        yield "__repr__"
    if options["eq"]:
        yield "__eq__"
    if options["eq"] and options["frozen"]:
        yield "__hash__"
    if options["slots"] and options["frozen"]:
        yield from ("__getstate__", "__setstate__")


def _frozen(cls: Any) -> tuple[Callable[[Any, str, Any], None], Callable[[Any, str], None]]:
    """Return (`__setattr__`, `__delattr__`) of a frozen class, which raise FrozenInstanceError.

    As in the standard library, a subclass may have other attributes. An attribute that is not a field of a
    class with slots raises FrozenInstanceError too; some versions of the standard library raise TypeError.
    """

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return set_attribute, delete_attribute
