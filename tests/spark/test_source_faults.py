"""What the source says of stores, offsets and names that are not there, and of sizes that make no sense."""

from __future__ import annotations

import json

import pytest

from rmqtool.errors import InputError
from tests.spark.frames import read
from tests.stores import Library

SMALL = {"columns": "topic,queueId,queueOffset,physicalOffset"}


def test_a_log_that_is_gone_is_damage(cases: Library) -> None:
    """Queues without a commit log are no empty store."""
    given = {"path": str(cases.path("gap_cl26_log_missing"))}
    for chosen in ({}, {"subscribe": "pubRetry"}, {"columns": "topic,status,file,_corrupt_record"}):
        (row,) = read({**given, **chosen})
        assert (row["status"], row["file"], row["topic"]) == (["CL26"], "commitlog", None)
    assert json.loads(row["_corrupt_record"])["problem"] == "CL26"
    assert read({**given, "mode": "DROPMALFORMED"}) == []
    with pytest.raises(InputError, match="CL26"):
        read({**given, **SMALL, "mode": "FAILFAST"})
