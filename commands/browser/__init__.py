"""The terminal browser of `rmqtool browse`: widgets and screens. Only these modules load Textual.

    app.py       the application: its store, the thread that reads it, the screens at the bottom of the stack
    grid.py      a list of any length, of which only the lines on the screen are read
    view.py      what every screen has: a line with the place, a list, a line of messages, the keys
    lists.py     topics, queues, messages, groups
    log.py       the files of the commit log, the records of one file
    detail.py    one record: fields, body, bytes
    checks.py    findings: names of files, doctor, verify
    dialogs.py   the line for input, the help

Nothing here reads a file: `rmqtool.report.browse` does, in the thread of the application.
"""

__all__ = ["app"]
