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
A parameter of the type `Given` gets all of them as the user typed them, for command lines that repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, get_annotations, signature
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform, get_origin, get_type_hints

from typer.models import OptionInfo

from rmqtool.command_line import argument, command_line, typed

Mark = TypeVar("Mark")
PRESENTATION = frozenset(
    "format json format_string fields body body_limit quiet progress all jobs io_limit keep_cache".split()
)
"""Options that change neither a plan nor a result: how it is shown, and how fast it is found."""


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

    def words(self, accepted: Collection[str] | None = None) -> list[str]:
        """Return the options that were given, as words of a command line; of `accepted` if it names some."""
        given = {name: value for name, value in vars(self).items() if accepted is None or name in accepted}
        return [*_words(_arguments_first(_declared(type(self))), given)]


class Given:
    """The options that a command was given, for a command line that runs it again with others."""

    def __init__(self, name: str, declared: Iterable[Parameter], values: Mapping[str, Any]) -> None:
        self._name = name
        self._declared = list(declared)
        self._values = values

    def has(self, name: str) -> bool:
        """Return whether an option has a value other than none."""
        return self._values.get(name) not in (None, [])

    def line(self, *words: str, without: Collection[str] = ()) -> str:
        """Return the command line, for a shell: what was given, and then `words`.

        Left out are the options `without`, and those that change only how a result is shown, or how fast it
        is found.
        """
        kept = {
            name: value
            for name, value in self._values.items()
            if name not in without and name not in PRESENTATION
        }
        return command_line("rmqtool", self._name, *_words(self._declared, kept), *words)


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
    repeats: list[str] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        kind = getattr(parameter.annotation, "__origin__", parameter.annotation)
        if kind is Given:
            repeats.append(parameter.name)
            continue
        options = [parameter]
        if isinstance(kind, type) and issubclass(kind, Group):
            options = list(_options(kind, parameter))
            groups[parameter.name] = kind, [option.name for option in options]
        place = _place(parameter, shown, len(shown))
        for option in options:
            place = _place(option, shown, place)
            shown.insert(place, option.replace(kind=Parameter.POSITIONAL_OR_KEYWORD))
            place += 1
    expanded = Signature(_arguments_first(shown))

    @wraps(command)
    def run(*args: Any, **given: Any) -> int:
        bound = expanded.bind(*args, **given)
        bound.apply_defaults()
        values = bound.arguments
        name = command.__name__.replace("_", "-")
        typed = {each: Given(name, expanded.parameters.values(), dict(values)) for each in repeats}
        built = {
            name: kind(**{option: values.pop(option) for option in names})
            for name, (kind, names) in groups.items()
        }
        return command(**built, **values, **typed)

    run.__annotations__ = {}  # those of `expanded` count
    run.__signature__ = expanded  # type: ignore[attr-defined]
    return run


def marks(parameter: Parameter, kind: type[Mark]) -> list[Mark]:
    """Return what the annotation of a parameter says of one kind."""
    return [mark for mark in getattr(parameter.annotation, "__metadata__", ()) if isinstance(mark, kind)]


def _place(parameter: Parameter, shown: Sequence[Parameter], otherwise: int) -> int:
    """Return the index in `shown` at which the help shows a parameter."""
    for mark in marks(parameter, Before):
        return [other.name for other in shown].index(mark.name)
    return otherwise


def _arguments_first(declared: Iterable[Parameter]) -> list[Parameter]:
    """Return the parameters, those without a default first."""
    return sorted(declared, key=lambda option: option.default is not Parameter.empty)


def _words(declared: Iterable[Parameter], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of the arguments and options whose values are not the defaults.

    In `Annotated`, Typer's `default` is the first name of the option.
    """
    for parameter in declared:
        value = values.get(parameter.name, parameter.default)
        if value == parameter.default or value in (None, []):
            continue
        several = value if isinstance(value, list) else [value]
        option = next((str(mark.default) for mark in marks(parameter, OptionInfo)), None)
        for each in several:
            if option is None:
                yield argument(each)
            elif isinstance(each, bool):
                yield option.split("/")[not each]
            else:
                is_whole = isinstance(each, float) and each.is_integer()
                yield from (option, typed(int(each) if is_whole else each))


def _declared(group: type[Group]) -> list[Parameter]:
    """Return all options of a group."""
    types: dict[str, Any] = {}
    for base in reversed(group.__mro__):
        types |= get_annotations(base)
    if any(isinstance(kind, str) for kind in types.values()):
        types = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            name, Parameter.KEYWORD_ONLY, default=getattr(group, name, Parameter.empty), annotation=kind
        )
        for name, kind in types.items()
        if get_origin(kind) is Annotated
    ]


def _options(group: type[Group], parameter: Parameter) -> Iterator[Parameter]:
    """Return the options of a group that a command has."""
    declared = {option.name: option for option in _declared(group)}
    names = group.OPTIONS or list(declared)
    for mark in marks(parameter, Only):
        names = mark.names
    yield from (declared[name] for name in names)
