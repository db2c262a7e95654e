"""`rmqtool browse`: the store in a terminal browser."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

from rmqtool.commands import options
from rmqtool.commands.doctor import command_line
from rmqtool.commands.groups import Only, with_groups
from rmqtool.errors import EXIT_OK, InputError, UsageError
from rmqtool.terminal import waiting_line


@with_groups
def browse(*, store: options.StoreOptions, shown: Annotated[options.ObjectOutput, Only("tz")]) -> int:
    """Browse a store in the terminal: topics, queues, messages, groups, findings.

    Opens a list of the topics. Enter opens what is under the cursor: the queues of a topic, the messages of
    a queue, the fields, the body and the bytes of a message. Escape goes back. The last line shows the keys,
    and ? explains all of them.

    \b
      1 2 3   topics, consumer groups with their lag, findings
      4       the commit log by its files, even in a store without queues
      /       filter the list; in messages: find a key
      f       find a message by message id, unique key or key
      t       go to a time
      g       go to a queue offset
      F       follow a queue of a running broker
      q       quit

    Reads only what is on the screen, so a large store opens as fast as a small one. Damaged records are
    shown with the code of their damage; rmqtool problems explains the codes. The checks of doctor and verify
    start on request, and can be stopped. In the column damage, a question mark means that the topic, queue
    or file was not checked, or that the log is damaged and the topic may have lost messages. verify (3, then
    v) replaces it by what it finds. Nothing is changed, and
    a broker may be using the store. Set NO_COLOR to browse without colours.

    Exits with 0 when it is closed; 2 for a usage error, such as standard output that is not a terminal; 3
    when the store cannot be read, or Textual is missing (pip install 'rmqtool[tui]').
    """  # noqa: D301  a backspace character keeps the lines as they are
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        raise UsageError("browse needs a terminal", hint="info, dump and stats write to a pipe or a file")
    with waiting_line(f"opening {store.store}"):
        try:
            import textual  # noqa: F401
        except ImportError:
            raise InputError("browse needs Textual", hint="pip install 'rmqtool[tui]'") from None
        from rmqtool.commands.browser.app import run

        opened = store.open()
    with opened:
        run(opened, shown.zone, partial(command_line, store=store))
    return EXIT_OK
