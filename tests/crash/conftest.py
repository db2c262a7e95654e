"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import Runner


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """A process that runs commands under faults; it takes seconds to start."""
    with Runner() as started:
        yield started
