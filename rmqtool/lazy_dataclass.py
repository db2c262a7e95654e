"""`dataclass` as of the standard library, which generates the methods of a class when one is first used.

The standard decorator compiles up to six methods for each class while its module loads. A command loads two
hundred classes and uses a few of them, and compiling the others took a quarter of its start. Here a class
gets descriptors where its generated methods will be. The first use of one calls the standard decorator on a
copy of the class, and moves what it generated to the class. From then on the class is an ordinary dataclass:
`fields`, `replace`, `asdict`, pickling and pattern matching work, before and after.

Most classes are only instantiated. `_init` therefore makes `__init__` alone: a fifth of the work.

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


class _Factory:
    """The default of a parameter whose field has a default_factory; signatures show `<factory>`."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
_TABLES = ("__dataclass_fields__", "__match_args__")


class _Generated:
    """An attribute of a class that is generated when it is first read.

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
        if self.name == "__init__":
            self.cls.__init__ = _init(self.cls, self.declared, self.options)  # type: ignore[misc]
        else:
            self._generate()
        return getattr(owner if instance is None else instance, self.name)

    def _generate(self) -> None:
        """Move all attributes but `__init__` from a complete copy to the class; only tables, if one is read.

        Threads that do so at the same time move equal attributes.
        """
        copied = type(self.cls)(self.cls.__name__, self.cls.__bases__, dict(self.declared))
        is_table = self.name in _TABLES
        fewer = {"eq": False, "repr": False} if is_table else {}
        complete = vars(dataclasses.dataclass(copied, init=False, **{**self.options, **fewer}))
        for name, value in list(vars(self.cls).items()):
            if isinstance(value, _Generated) and name != "__init__" and (name in _TABLES) == is_table:
                setattr(self.cls, name, complete[name])


def _init(cls: Any, declared: dict[str, Any], options: dict[str, Any]) -> Callable[..., None]:
    """Return `__init__` of a class: it sets the fields, then calls `__post_init__` if there is one."""
    if any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__):
        parts: dict[str, tuple[Any, Any]] = {each.name: (each.type, each) for each in dataclasses.fields(cls)}
    else:
        kinds_by_name = _annotations(cls).items()
        parts = {name: (kind, declared.get(name, dataclasses.MISSING)) for name, kind in kinds_by_name}
    values: dict[str, Any] = {"_factory": _FACTORY, "_set": object.__setattr__}
    parameters, lines, kinds = ["self"], [], {}
    value: Any
    factory: Any
    for name, (kind, default) in parts.items():
        value, factory, is_parameter = default, dataclasses.MISSING, True
        if isinstance(default, dataclasses.Field):
            value, factory, is_parameter = default.default, default.default_factory, default.init
        source = name
        if factory is not dataclasses.MISSING:
            values[f"_make_{name}"] = factory
            source = (
                f"_make_{name}() if {name} is _factory else {name}" if is_parameter else f"_make_{name}()"
            )
            value = _FACTORY
        if is_parameter:
            kinds[name] = kind
            parameters.append(name if value is dataclasses.MISSING else f"{name}=_default_{name}")
        elif factory is dataclasses.MISSING:
            if value is dataclasses.MISSING or not options["slots"]:
                continue  # `__post_init__` sets it, or the class has its value
            source = f"_default_{name}"
        values[f"_default_{name}"] = value
        lines.append(f" _set(self, {name!r}, {source})" if options["frozen"] else f" self.{name} = {source}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines or [" pass"]), values)
    made: Callable[..., None] = values["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {**kinds, "return": None}
    return made


def _annotations(cls: type) -> dict[str, Any]:
    """Return the types of the fields that the body of a class declares."""
    return {name: kind for name, kind in get_annotations(cls).items() if not str(kind).startswith("ClassVar")}


def _declare(cls: type, options: dict[str, Any]) -> type:
    """Return the class with a descriptor per attribute to generate; a new class if it has slots."""
    declared = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    declared["__doc__"] = cls.__doc__ or cls.__name__  # else the standard decorator writes one: the signature
    declared["__qualname__"] = cls.__qualname__  # error messages name it
    added: dict[str, Any] = {
        name: _Generated(name, declared, options) for name in _generated(options) if name not in declared
    }
    if options["eq"] and not options["frozen"]:
        added.setdefault("__hash__", declared.get("__hash__"))
    names = list(_annotations(cls))
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
    yield from ("__init__", *_TABLES, "__dataclass_params__")
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
