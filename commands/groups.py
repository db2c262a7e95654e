"""Groups of options: classes whose fields are options. A command takes groups, Typer sees the options.

    class OrderOptions(Group):
        by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Sort by this field.")] = None

    @with_groups
    def count(
        *,
        store: options.StoreOptions,
        selected: Annotated[options.SelectionOptions, Only("topic queue")],
        shown: options.RowOutput,
        order: Annotated[OrderOptions, Before("format")],
    ) -> int: ...

A program that calls the function passes the options by name, as Typer does: `count(path, topic=["T"])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import Parameter, Signature, get_annotations, signature
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform, get_origin, get_type_hints

Mark = TypeVar("Mark")


@dataclass_transform(kw_only_default=True)
class Group:
    """Options that belong together: the fields hold Typer's declarations and defaults.

    To a type checker it is a dataclass. A real one would take each run of rmqtool 0.3 ms to define.

    Attributes:
        OPTIONS: which of its options a command has, in the order of the help; empty for all.
    """

    OPTIONS: ClassVar[Sequence[str]] = ()

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def but(self, **changes: Any) -> Self:
        """Return the same options with other values for some of them."""
        return type(self)(**{**vars(self), **changes})


class Only:
    """Annotation of a group: the command has only these of its options, in this order.

    `names` are separated by spaces.
    """

    def __init__(self, names: str) -> None:
        self.names = names.split()


class Before:
    """Annotation of an option or a group: the help shows it before the option `name`.

    The parameter of that option comes earlier in the signature.
    """

    def __init__(self, name: str) -> None:
        self.name = name


def with_groups(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with one parameter for each option, in the order of the help.

    The command has those of a group's options that `Only` names; otherwise those of OPTIONS; otherwise all.
    """
    groups: dict[str, tuple[type[Group], list[str]]] = {}
    shown: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        kind = getattr(parameter.annotation, "__origin__", parameter.annotation)
        options = [parameter]
        if isinstance(kind, type) and issubclass(kind, Group):
            options = list(_options(kind, parameter))
            groups[parameter.name] = kind, [option.name for option in options]
        place = _place(parameter, shown, len(shown))
        for option in options:
            place = _place(option, shown, place)
            shown.insert(place, option.replace(kind=Parameter.POSITIONAL_OR_KEYWORD))
            place += 1
    expanded = Signature(sorted(shown, key=lambda option: option.default is not Parameter.empty))

    @wraps(command)
    def run(*args: Any, **given: Any) -> int:
        bound = expanded.bind(*args, **given)
        bound.apply_defaults()
        values = bound.arguments
        built = {
            name: kind(**{option: values.pop(option) for option in names})
            for name, (kind, names) in groups.items()
        }
        return command(**built, **values)

    run.__annotations__ = {}  # those of `expanded` count
    run.__signature__ = expanded  # type: ignore[attr-defined]
    return run


def _marks(parameter: Parameter, kind: type[Mark]) -> list[Mark]:
    return [mark for mark in getattr(parameter.annotation, "__metadata__", ()) if isinstance(mark, kind)]


def _place(parameter: Parameter, shown: Sequence[Parameter], otherwise: int) -> int:
    """Return the index in `shown` at which the help shows a parameter."""
    for mark in _marks(parameter, Before):
        return [other.name for other in shown].index(mark.name)
    return otherwise


def _options(group: type[Group], parameter: Parameter) -> Iterator[Parameter]:
    """Return the options of a group that a command has."""
    types: dict[str, Any] = {}
    for base in reversed(group.__mro__):
        types |= get_annotations(base)
    if any(isinstance(kind, str) for kind in types.values()):
        types = get_type_hints(group, include_extras=True)
    names = group.OPTIONS or [name for name, kind in types.items() if get_origin(kind) is Annotated]
    for mark in _marks(parameter, Only):
        names = mark.names
    for name in names:
        default = getattr(group, name, Parameter.empty)
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
