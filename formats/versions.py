"""The lines of broker versions whose stores are known, oldest first.

4.9 stands for all of 4.x, 5.3 for 5.0 to 5.3. `storage.profile` says what each of them writes, and
`broker.rules` what its start does.
"""

from __future__ import annotations

from typing import Literal, get_args

Broker = Literal["4.9", "5.3", "5.4"]
BROKERS: tuple[Broker, ...] = get_args(Broker)
NEWEST: Broker = BROKERS[-1]
METAVAR = "|".join(BROKERS)
"""How an option that takes one of them names its value."""
