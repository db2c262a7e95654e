"""The command line: builds the app from `commands/` and maps every outcome to an exit code.

A command returns its exit code, or raises. There is one path for errors: at most three lines on
stderr (what and where, what to do); a traceback only with `--debug`. An unexpected exception is a bug
in rmqtool: the exit code is 70. It is 130 after an interrupt (SIGINT, SIGTERM, SIGHUP), and 0 if the
reader of a command that only reads closes the pipe.
"""

from __future__ import annotations

import atexit
import gc
import os
import platform
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from rmqtool import __version__
from rmqtool.commands import ALIASES, COMMANDS, OPTION_ALIASES
from rmqtool.commands.interrupts import signals_interrupt
from rmqtool.errors import (
    EXIT_BUG,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    RmqtoolError,
    in_one_line,
    worst_exit_code,
)
from rmqtool.output import Output, OutputClosedError, forget_stdout, lost_output, page_text
from rmqtool.terminal import counted, let_go_of_stderr, print_error

PROGRAM = "rmqtool"
COMPLETION_VARIABLE = "_RMQTOOL_COMPLETE"
"""Set in the environment by a shell that completes the command line."""
_DEBUG_HELP = "Show a traceback for every error."


class _Command(TyperCommand):
    """A command that also takes `--debug` after its name, where people type it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            TyperOption(param_decls=["--debug"], is_flag=True, expose_value=False, help=_DEBUG_HELP)
        )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the options; an alias of one stands for it, and every error knows its command."""
        own = OPTION_ALIASES.get(ctx.info_name or "", {})
        end = args.index("--") if "--" in args else len(args)
        parts = [(word, *word.partition("=")) for word in args[:end]]
        spelled = [
            f"{own[name]}{equals}{value}" if name in own else word for word, name, equals, value in parts
        ]
        words = [*spelled, *args[end:]]
        try:
            self._show_field_names(ctx, words)
            return super().parse_args(ctx, words)
        except typer.TyperException as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def _show_field_names(self, ctx: Any, words: Sequence[str]) -> None:
        """Ends the command after the names of fields, if they are requested: also without STORE."""
        if ctx.resilient_parsing or not any("help" in word and word != "--help" for word in words):
            return
        from rmqtool.commands.field_names import requested

        given, _, _ = self.make_parser(ctx).parse_args(args=list(words))
        names = requested(ctx.info_name or "", given)
        if names is not None:
            Output().show_names(names)

    def get_help(self, ctx: Any) -> str:
        """The text of `--help`: how to use the command first, its options by purpose, the details last."""
        from rmqtool.commands.pages import command_help

        return page_text(command_help(ctx.info_name or "", self)).removesuffix("\n")


class _Group(TyperGroup):
    """The program, whose help lists the commands by purpose."""

    def get_help(self, ctx: Any) -> str:
        """The text of `--help`."""
        from rmqtool.commands.pages import main_help

        return page_text(main_help(self)).removesuffix("\n")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help=_DEBUG_HELP)] = False,
) -> None:
    """Read, check, repair and write RocketMQ message stores, without a broker.

    STORE is a store root, or a single commitlog, consume queue or index file. Data goes to standard
    output, everything else to standard error. Read-only commands never modify the store.

    \b
      What is wrong?               rmqtool doctor STORE
      The broker does not start    rmqtool recover STORE
      Is the store damaged?        rmqtool verify STORE
      Where is my message?         rmqtool lookup STORE ORDER-17 --trace
      Which message has a text?    rmqtool dump STORE --grep 'order 17'
      Look around                  rmqtool info STORE
      The disk is full             rmqtool expire STORE
      Which groups lag?            rmqtool stats STORE --by group
      Get the messages out         rmqtool export STORE --output messages.parquet
      Support wants to see it      rmqtool bundle STORE --redact --output s.tar.gz
    """  # noqa: D301  a backspace character keeps the lines as they are


def build_app(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The Typer app with the commands `names`, in that order."""
    # Help without rich keeps an empty command at 0.1 s; without Typer's tracebacks every error takes
    # the path below.
    app = typer.Typer(
        name=PROGRAM,
        cls=_Group,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        function = getattr(import_module(f"rmqtool.commands.{name}"), name)
        app.command(name.replace("_", "-"), cls=_Command)(function)
        for alias in (each for each, command in ALIASES.items() if command == name):
            app.command(alias, cls=_Command, hidden=True)(function)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: `sys.argv`); returns the exit code."""
    if arguments is None and os.environ.get(COMPLETION_VARIABLE):
        return _complete()
    with signals_interrupt():
        code = _ending(sys.argv[1:] if arguments is None else list(arguments))
        lost = lost_output()
        if lost is not None:
            reported = _report(lost)
            code = code if code in (EXIT_USAGE, EXIT_INTERRUPTED) else worst_exit_code(code, reported)
    _let_go_of_stdout()
    let_go_of_stderr()
    if arguments is None:
        _end_threads(code)
        # Skip the last garbage collection of the interpreter, which takes 20 ms.
        gc.freeze()
    return code


def _complete() -> int:
    """Answers a shell that completes the command line; whatever fails, nothing is printed besides."""
    try:
        from rmqtool.commands.completion import complete, typed_words

        words = typed_words()
        return complete(typer.main.get_command(build_app(_commands_for(words))), words)
    except Exception:  # a message would be printed into the line that the user types
        forget_stdout()
        return EXIT_OK


def _end_threads(code: int) -> None:
    """Ends the process at once if a daemon thread is still running.

    The thread may be running or loading compiled code. The interpreter would free what that code uses,
    and the process would end by a signal instead of with its exit code. pyarrow has such threads, unknown to
    Python: one that reads in advance may still be at work, or just begin, after an error.
    """
    has_threads = any(each.daemon and each.is_alive() for each in threading.enumerate())
    if has_threads or "pyarrow" in sys.modules:
        atexit._run_exitfuncs()
        os._exit(code)


def _ending(arguments: Sequence[str]) -> int:
    debug = "--debug" in arguments
    notes: Sequence[str] = ()
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OutputClosedError, BrokenPipeError):
        forget_stdout()
        return EXIT_OK
    except KeyboardInterrupt as stop:
        code, notes = EXIT_INTERRUPTED, getattr(stop, "__notes__", ())
    except Exception as error:  # the one place where every error ends
        if debug:
            for line in traceback.format_exc().splitlines():
                print_error(line)
        code = _report(error)
        return _as_plugin(error) if code == EXIT_USAGE and _is_plugin(arguments) else code
    if code == EXIT_INTERRUPTED:
        # If an interrupt passed through an exec() of text (dataclasses use it while modules load), Python
        # remembers it and would end by SIGINT. The next exec() clears that.
        exec("")
        print_error(f"{PROGRAM}: interrupted; results so far were printed")
        for note in notes:
            print_error(f"{PROGRAM}: {note}")
    return code


def _is_plugin(arguments: Sequence[str]) -> bool:
    return "--nagios" in arguments and tuple(_commands_for(arguments)) == ("doctor",)


def _as_plugin(error: Exception) -> int:
    """Prints a usage error as a plugin of Nagios does, to which the code of usage errors means CRITICAL."""
    from rmqtool.commands.doctor_text import nagios_unknown

    message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    line, code = nagios_unknown(message)
    typer.echo(line)
    return code


def _run(arguments: Sequence[str]) -> int:
    if all(each == "--debug" for each in arguments):
        from rmqtool.commands.pages import overview

        typer.echo(page_text(overview(typer.main.get_command(build_app(())))), nl=False)
        return EXIT_OK
    command = typer.main.get_command(build_app(_commands_for(arguments)))
    try:
        result = command.main(list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as stop:
        # Typer exits itself after shell completion, and with 1 if stdout is closed.
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        return stop.code if isinstance(stop.code, int) else EXIT_OK
    return result if isinstance(result, int) else EXIT_OK


def _commands_for(arguments: Sequence[str]) -> Sequence[str]:
    """Only the requested command, because loading all takes time; all for `help` or if none is named."""
    given = next((each for each in arguments if each != "--debug"), "")
    if given == "--version":
        return ()
    first = given.replace("-", "_")
    first = ALIASES.get(first, first)
    return (first,) if first in COMMANDS and first != "help" else COMMANDS


_UNITS = {"SECONDS": "second", "HOURS": "hour"}
"""What a number means, by the metavar of its option."""
_MESSAGE_MAX = 1000  # characters of an error of a command line
_NO_THREAD = "can't start new thread"
"""What Python says where the system starts none."""
_NOT_MAPPED = "failed to map segment"
"""What the loader of libraries says where the system gives no memory, or may not run what is on a disk."""


def _report(error: Exception) -> int:
    if isinstance(error, RmqtoolError):
        _print_lines(error.in_one_line, error.hint, *error.lines)
        return error.exit_code
    if isinstance(error, typer.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else PROGRAM
        message = _out_of_range(error) or error.format_message().replace("\n\t", " ")
        hint = f"see '{path} --help'"
        from rmqtool.commands.other_words import instead

        if other := instead(path.rpartition(" ")[2], message.partition("(")[0]):
            hint = other
            message = message.partition(" Did you mean")[0].partition(" (Possible options")[0]
        if len(message) > _MESSAGE_MAX:  # it repeats a value
            message = f"{message[:_MESSAGE_MAX]}... ({len(message)} characters)"
        _print_lines(message, hint)
        return EXIT_USAGE
    limit = "ulimit -v, MemoryMax of a service, memory of a container"
    if isinstance(error, MemoryError):
        _print_lines("the system gives no more memory", f"raise the limit ({limit})")
        return EXIT_INPUT
    if isinstance(error, (ImportError, OSError)) and _NOT_MAPPED in str(error):
        why = f"the limit of memory is reached ({limit}), or the file system of the library is mounted noexec"
        _print_lines(f"a library cannot be loaded: {error}", why)
        return EXIT_INPUT
    if isinstance(error, OSError):
        _print_lines(in_one_line(error.strerror or str(error), error.filename))
        return EXIT_INPUT
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        what = "no thread can be started: the number of processes and threads is limited"
        _print_lines(what, "raise the limit (ulimit -u, TasksMax of a service, pids of a container)")
        return EXIT_INPUT
    return _report_bug(error)


def _out_of_range(error: typer.TyperException) -> str | None:
    """Return the sentence on a number that is outside the range of its option; None for another error."""
    value, is_range, _ = error.message.partition(" is not in the range ")
    option: Any = getattr(error, "param", None)
    if not is_range or option is None:
        return None
    least, most = option.type.min, option.type.max
    is_low = least is not None and float(value) < least
    limit = least if is_low else most
    unit = _UNITS.get(option.metavar)
    text = str(limit) if unit is None else counted(limit, unit)
    return f"{max(option.opts, key=len)} must be at {'least' if is_low else 'most'} {text}"


def _report_bug(error: Exception) -> int:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    versions = f"{PROGRAM} {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    _print_lines(
        f"this is a bug: {type(error).__name__}: {error}{place}",
        versions,
        "run it again with --debug and report what it prints",
    )
    return EXIT_BUG


def _print_lines(what: str, *others: str | None) -> None:
    print_error(f"{PROGRAM}: {what}")
    for line in others:
        if line:
            print_error(f"  {line}")


def _let_go_of_stdout() -> None:
    """Drops output that a full disk rejects (it is already reported): the interpreter would exit with 120."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError:
        forget_stdout()
