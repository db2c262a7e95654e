"""`python -m rmqtool`: the same as the command `rmqtool`."""

from __future__ import annotations

import sys

from rmqtool.cli import main

if __name__ == "__main__":
    sys.exit(main())
