"""What some options mean: how messages become rows, which pass a filter, local files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.errors import UsageError
from rmqtool.times import parse_zone

if TYPE_CHECKING:
    from rmqtool.message.rows import BodyForm, RowFormat
    from rmqtool.read.filter import Expression
    from rmqtool.read.store import Store


def row_form(
    store: Store,
    fields: Sequence[str] | None,
    body: BodyForm,
    body_limit: int | None,
    tz: str | None,
) -> RowFormat:
    """How messages become rows: `fields` are those of `--fields`, of which only a message's count."""
    from rmqtool.formats.body import BODY_LIMIT
    from rmqtool.message.columns import BY_NAME
    from rmqtool.message.rows import RowFormat
    from rmqtool.read.due_times import due_of

    roots = dict.fromkeys(name.partition(".")[0] for name in fields or ())
    return RowFormat(
        body=body,
        tz=parse_zone(tz),
        # Names that no message has belong to another kind of row; the writer knows them all.
        names=None if fields is None else tuple(name for name in roots if name in BY_NAME),
        body_limit=BODY_LIMIT if body_limit is None else body_limit,
        due_of=due_of(store),
    )


def expression(text: str | None) -> Expression | None:
    """What `--filter` means. Raises FilterError, with the place, for a text that no broker would take."""
    if text is None:
        return None
    from rmqtool.read.filter import parse

    return parse(text)


def local_file(text: str, option: str) -> Path:
    """The path that the value of `option` is. Raises UsageError for a URL of elsewhere, or no name."""
    from rmqtool.storage.remote_url import is_url, local_path

    local = local_path(text)
    if local is None and is_url(text):
        raise UsageError(f"{option}: it must be a local file", hint="only --output may be a URL")
    path = Path(local or text)
    if not path.name:
        raise UsageError(f"{option} names no file")
    return path
