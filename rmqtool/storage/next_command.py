"""Command lines that run a command of rmqtool on a store as it was opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.command_line import on_store, typed
from rmqtool.storage.broker_conf import BrokerConf

if TYPE_CHECKING:
    from rmqtool.storage.layout import StoreLayout


def command_on(layout: StoreLayout, name: str, *words: str) -> str:
    """The command line, for a shell, that runs the command `name`; the command takes where parts are."""
    return on_store(layout.root, name, *layout.options, *words)


def out_of_ledger(layout: StoreLayout) -> str:
    """The command line that leads out of a DLedger log, and what it does."""
    line = command_on(layout, "copy", "--output", "NEW")
    return f"{line} writes the sound messages as a store without DLedger"


def options_of(
    commitlog_paths: Sequence[Path | str], read_only_paths: Sequence[Path | str], conf: BrokerConf | None
) -> Iterator[str]:
    """The options that name parts of a store that its folder does not show, as words."""
    for option, paths in (("--commitlog", commitlog_paths), ("--read-only-commitlog", read_only_paths)):
        for path in paths:
            yield from (option, typed(path))
    if conf is not None:
        yield from ("--broker-conf", typed(conf.path))
