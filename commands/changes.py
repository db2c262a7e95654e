"""Functions of the commands with a plan: they show it, and name the command that applies it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rmqtool.commands import options
from rmqtool.commands.groups import Given
from rmqtool.errors import UsageError
from rmqtool.output import Output

if TYPE_CHECKING:
    from pathlib import Path

    from rmqtool.read.store import Store
    from rmqtool.repair.plan import PlanFile, Refusal
    from rmqtool.repair.plan.harness import Planned
    from rmqtool.write.store_writer import StoreWriter

P = TypeVar("P", bound="Planned")
R = TypeVar("R")


def check_options(change: options.PlanOptions) -> None:
    """Raise UsageError for a plan that is to be written and read or carried out at once."""
    if change.plan is not None and change.write_plan is not None:
        raise UsageError("--write-plan cannot be used with --plan")
    if change.apply and change.write_plan is not None:
        raise UsageError("--write-plan and --apply exclude each other", hint="write the plan first")


def wanted(
    change: options.PlanOptions,
    command: str,
    request: R | None,
    of_options: Callable[[Mapping[str, Any]], R],
) -> tuple[PlanFile | None, R]:
    """Return the file of --plan, if there is one, and what is wanted: `request`, else what the file says.

    Args:
        change: the plan options.
        command: the one that has written the file.
        request: what the other options say; None with --plan.
        of_options: makes a request of the options that a plan file holds.

    Raises:
        InputError: the file cannot be read, or is not a plan of this command.
    """
    from rmqtool.repair.plan import read_plan

    file = None if change.plan is None else read_plan(change.plan, command)
    return file, request or of_options(file.options if file is not None else {})


def show(
    store: options.ProfiledStoreOptions,
    change: options.PlanOptions,
    output: Output,
    make: Callable[[Store], P],
    file: PlanFile | None = None,
) -> tuple[Store, P]:
    """Plan for a store at rest, and write the plan to the file of --write-plan; raises as `show_plan`."""
    from rmqtool.repair.plan import show_plan, write_plan

    opened, planned = show_plan(store.open, make, file=file)
    if planned.is_needed:
        options.note_assumed_version(output, opened.written_by, "--profile")
    if opened.live:
        output.note("rmqtool: a broker is using the store; the plan is valid once it has stopped")
    if change.write_plan is not None:
        write_plan(planned.plan, opened.layout, change.write_plan)
    return opened, planned


def needs(refusals: Iterable[Refusal]) -> list[str]:
    """Return the options that override refusals."""
    return sorted({f"--{refusal.needs}" for refusal in refusals if refusal.needs})


def conf_words(folders: Sequence[str]) -> list[str]:
    """Return the option that gives the sizes of files in these folders, if there are any."""
    return ["--broker-conf", "FILE"] if folders else []


def note_next(
    output: Output,
    given: Given,
    change: options.PlanOptions,
    refusals: Iterable[Refusal],
    *words: str,
    in_plan: Collection[str],
    without: Collection[str] = (),
    first: str = "",
) -> None:
    """Print the command line that applies the plan; or why --apply refuses it.

    Args:
        output: the output of the command.
        given: the options of the command. The line has all of them.
        change: the plan options among them.
        refusals: the reasons against the plan.
        words: further words of the line; with --broker-conf it lacks the one that was given.
        in_plan: options that a plan file holds, and that the line lacks if it names one.
        without: further options that the line lacks: `words` give their values.
        first: what to do before, as a part of a sentence that ends with a semicolon; empty if nothing.
    """
    from rmqtool.repair.plan import not_overridden

    refusal = not_overridden(refusals, yes=change.yes, force=change.force)
    if refusal is not None:
        unless = f" without --{refusal.needs}" if refusal.needs else ""
        hint = f"; {refusal.hint}" if refusal.hint else ""
        output.note(f"rmqtool: nothing was changed; --apply is refused{unless}: {refusal.reason}{hint}")
        return
    plan = change.plan or change.write_plan
    if plan is not None and words:  # with other sizes the plan would be another one
        first, words = f"{first} with {' '.join(words)} the plan has to be made again;".lstrip(), ()
    given_conf = ["broker_conf"] if "--broker-conf" in words else []
    left_out = {"plan", "write_plan", *given_conf, *without, *(in_plan if plan is not None else ())}
    of_file = ["--plan", str(plan)] if plan is not None else []
    line = given.line(*of_file, *words, "--apply", without=left_out)
    output.note(f"rmqtool: nothing was changed; {f'{first} ' if first else ''}to apply the plan: {line}")


def undo_command(store: options.ProfiledStoreOptions, backup: Path) -> str:
    """Return the command line that restores what a plan replaced."""
    return store.command("recover", "--undo", str(backup))


def end_of_undo(output: Output, root: Path) -> Callable[[StoreWriter], AbstractContextManager[None]]:
    """Return a block around a writer: after it, a note that the last repair can no longer be undone.

    Only if messages were added. Whether the repair can be undone is found out at once, before a writer
    changes the checkpoint. `root` is the store root, or where one will be made.
    """
    from rmqtool.repair.plan import undoable

    found = undoable(root)

    @contextmanager
    def noting(writer: StoreWriter) -> Iterator[None]:
        end = writer.log.end
        try:
            yield
        finally:
            if found is not None and writer.log.end > end:
                command, backup = found
                text = f"the last {command} of this store can no longer be undone; its backup: {backup}"
                output.note(f"rmqtool: {text}")

    return noting


def note_undo_command(output: Output, store: options.ProfiledStoreOptions, backup: Path) -> None:
    """Print the command line that restores what the plan replaced."""
    output.note(f"rmqtool: to undo: {undo_command(store, backup)}")
