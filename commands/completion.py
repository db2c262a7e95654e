"""`rmqtool completion`: the script with which a shell completes the command line, and the values it offers.

The script runs rmqtool for every press of the tab key, with the typed words in the environment (Typer's
protocol). Then `complete` answers instead of a command. It lists the folders of config and queues, reads one
config file, or what stands for it in RocksDB, up to READ_LIMIT, or for tags the newest messages, and prints
nothing if anything fails: a message would break the line that the user types. Shells expand what they are
given, so a name that a broker would refuse is never offered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rmqtool.commands import COMMANDS
from rmqtool.errors import EXIT_OK
from rmqtool.lazy_pattern import pattern

PROGRAM = "rmqtool"
VARIABLE = "_RMQTOOL_COMPLETE"
"""Set by the script when it asks for completions."""
READ_LIMIT = 8 << 20
"""A larger config file is not read: 8 MiB take 0.1 s."""
NAMES_MAX = 20_000
"""At most so many entries of a folder are looked at."""
TAGS_BYTES, TAGS_MESSAGES = 4 << 20, 2000
"""So much of the end of the log is read for tags; 2,000 messages take 0.1 s."""

# Without `|`, which a broker allows: most shells would take it as a pipe.
_NAME = pattern(r"[%a-zA-Z0-9_-]{1,255}")
_RETRY = "%RETRY%"
_BY = ("topic", "queue", "tag", "hour", "day", "size", "group")
_GROUP_BY = ("topic", "queue", "tag", "hour", "day")

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]


def completion(shell: Shell) -> int:
    """Print a shell script that completes commands, options and values.

    Completes commands and options; topics for --topic, consumer groups for --group, tags for --tag, names of
    fields for --fields, formats, codes of problems and the like. Topics, groups and tags are those of the
    STORE that was typed before them. Topics and groups are read only from config/topics.json and
    config/consumerOffset.json (or the databases that replace them) and from the names of the store's queue
    folders, tags from the newest messages; a store at a URL or in an archive is not read at all.

    \b
      bash   add to ~/.bashrc:  source <(rmqtool completion bash)
      zsh    add to ~/.zshrc, after compinit:  source <(rmqtool completion zsh)
      fish   rmqtool completion fish >~/.config/fish/completions/rmqtool.fish

    Exits with 0, or with 2 for another shell.
    """  # noqa: D301  a backspace character keeps the lines as they are
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)
    typer.echo(script)
    return EXIT_OK


def typed_words() -> list[str]:
    """Return the words after `rmqtool` that are complete, as the completion script passes them."""
    from typer._click.shell_completion import get_completion_class
    from typer._completion_classes import completion_init

    completion_init()
    _join_equals_signs(os.environ)
    protocol = get_completion_class(os.environ[VARIABLE].partition("_")[2])
    assert protocol is not None, "the script names its shell"
    return protocol(typer.core.TyperGroup(), {}, PROGRAM, VARIABLE).get_completion_args()[0]


def complete(group: Any, words: Sequence[str]) -> int:
    """Answer the request of a completion script on stdout; returns the exit code.

    Args:
        group: the program, with at least the command of the line.
        words: those of `typed_words`.
    """
    from typer.completion import shell_complete

    for name, command in group.commands.items():
        for parameter in command.params:
            offered = _values(name, max(parameter.opts, key=len))
            if offered is not None:
                # The public method of every parameter; a class of parameters of our own would have to be
                # named at each of them.
                parameter.shell_complete = partial(_items, offered, words)
    code = shell_complete(group, {}, PROGRAM, VARIABLE, os.environ[VARIABLE])
    sys.stdout.flush()
    return code


def _join_equals_signs(environment: MutableMapping[str, str]) -> None:
    """Join `--topic`, `=`, `Orders` to two words: bash splits the line at equals signs."""
    words = environment.get("COMP_WORDS", "").split("\n")
    at = int(environment.get("COMP_CWORD") or 0)
    if "=" not in words:
        return
    joined: list[str] = []
    for number, word in enumerate(words):
        if word == "=" and joined and joined[-1].startswith("--") and number < at:
            at -= 1
        else:
            joined.append(word)
    environment.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(at))


Offered = Callable[[Path | None, str], Iterable[str]]
"""Returns values for the word that is being typed; the path is the folder of the store, if there is one."""


def _items(offered: Offered, words: Sequence[str], context: typer.Context, incomplete: str) -> list[Any]:
    from typer._click.shell_completion import CompletionItem

    values = (value for value in offered(_store(context, words), incomplete) if value.startswith(incomplete))
    return [CompletionItem(value) for value in values]


def _values(command: str, parameter: str) -> Offered | None:
    """Return what completes a parameter of a command; None leaves it to the shell: it offers files."""
    from rmqtool.formats.versions import BROKERS

    if parameter in ("--topic", "--exclude-topic"):
        return lambda store, _: topics(store) if store else ()
    if parameter == "--group" and command != "append":  # there it is a group of producers
        return lambda store, _: groups(store) if store else ()
    if parameter == "--tag":
        return lambda store, _: tags(store) if store else ()
    if parameter in ("--fields", "--columns"):
        from rmqtool.commands.field_names import field_names

        return _list_of(partial(field_names, command))
    if parameter in ("--by", "--group-by"):
        return _list_of(lambda: _BY if parameter == "--by" else _GROUP_BY)
    if parameter == "--code" or (command, parameter) == ("problems", "codes"):
        return lambda _, incomplete: _codes(incomplete)
    if (command, parameter) == ("help", "name"):
        return lambda *_: _pages()
    if parameter == "--pass":
        from rmqtool.check.verify import PASSES

        return lambda *_: PASSES
    if parameter == "--broker":
        return lambda *_: BROKERS
    if parameter == "--tz":
        return lambda *_: ("UTC", "local")
    return None


def _list_of(names: Callable[[], Iterable[str]]) -> Offered:
    """Values for a list with commas: what is typed before the last comma stays, and is not offered again."""

    def offered(_: Path | None, incomplete: str) -> list[str]:
        before, comma, _last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name not in before.split(",")]

    return offered


def _codes(incomplete: str) -> list[str]:
    from rmqtool.problems import BY_CODE

    typed = incomplete[:2]
    return [typed + code[len(typed) :] for code in BY_CODE if code.startswith(typed.upper())]


def _pages() -> list[str]:
    from rmqtool.commands.pages import TOPICS

    return [name.replace("_", "-") for name in COMMANDS] + list(TOPICS)


def _store(context: typer.Context, words: Sequence[str]) -> Path | None:
    """Return the folder of the store that the line names; None if it names none on this machine."""
    from rmqtool.storage.locate import is_elsewhere

    # Without the option whose value is being typed: with it the line cannot be parsed.
    given = list(words[1:-1] if words[-1].startswith("-") else words[1:])
    with context.command.make_context(context.info_name, given, resilient_parsing=True) as parsed:
        values: Any = next(filter(None, map(parsed.params.get, ("store", "stores", "store_a"))), None)
    named = values[0] if isinstance(values, list | tuple) else values
    if named is None or is_elsewhere(Path(named)):
        return None
    path = Path(os.path.expandvars(named)).expanduser()  # a shell passes the word as it was typed
    return path if path.is_dir() else None


def topics(store: Path) -> list[str]:
    """Return the topics of topics.json, and those that have a folder of queues, sorted."""
    from rmqtool.formats import config_json
    from rmqtool.storage.config_files import TOPICS

    return _names((*_keys(store, TOPICS, config_json.topics), *_folders(store)))


def groups(store: Path) -> list[str]:
    """Return the groups with committed offsets, and those with a retry topic, sorted."""
    from rmqtool.formats import config_json

    named = _keys(store, "consumerOffset.json", config_json.consumer_offsets)
    retrying = (name.removeprefix(_RETRY) for name in _folders(store) if name.startswith(_RETRY))
    return _names((*(group for _, group in named), *retrying))


def tags(store: Path) -> list[str]:
    """Return the tags of the newest messages, sorted."""
    from rmqtool.errors import RmqtoolError
    from rmqtool.formats import properties
    from rmqtool.read.store import Store

    found: set[str] = set()
    left = TAGS_BYTES
    try:
        with Store.open(store) as opened:
            for each in islice(opened.messages(reverse=True, damage="skip"), TAGS_MESSAGES):
                found.add(properties.decode(each.message.properties_bytes).get(properties.TAGS, ""))
                left -= each.message.total_size
                if left <= 0:
                    break
    except RmqtoolError:
        pass  # what was found counts
    return _names(found)


def _names(found: Iterable[str]) -> list[str]:
    return sorted({name for name in found if _NAME.fullmatch(name)})


def _folders(store: Path) -> list[str]:
    try:
        with os.scandir(store / "consumequeue") as entries:
            return [entry.name for entry in islice(entries, NAMES_MAX) if entry.is_dir()]
    except OSError:
        return []  # the config file may have names all the same


def _keys(store: Path, name: str, read: Callable[[Any], Mapping[Any, Any]]) -> list[Any]:
    """Return the keys of the table in a config file; none if it is missing, too large or cannot be read."""
    from rmqtool.errors import RmqtoolError
    from rmqtool.formats import config_json
    from rmqtool.storage.config_files import FOLDER, read_file
    from rmqtool.storage.listing import Listing

    folder, listing = store / FOLDER, Listing()
    sizes = [size for each in listing.folders(folder) for _, size in listing.files(folder / each)]
    if sum(sizes) > READ_LIMIT:
        return []
    try:
        if sizes:  # a configuration in RocksDB looks like its files
            from rmqtool.storage.rocksdb.config import RocksdbConfig

            folder = RocksdbConfig(folder).root
        data = read_file(folder / name, READ_LIMIT + 1)
        return (
            list(read(config_json.load_with_bak(name, data, None).document))
            if len(data) <= READ_LIMIT
            else []
        )
    except RmqtoolError:
        return []  # folders may have names all the same
