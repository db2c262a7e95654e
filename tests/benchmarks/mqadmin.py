"""The broker's own command line, mqadmin: it asks a broker, over a copy of the store that rmqtool reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rmqtool.formats import index
from rmqtool.read.store import Store
from rmqtool.storage.layout import DEFAULT_CONSUME_QUEUE_FILE_SIZE
from tests.benchmarks import messages
from tests.benchmarks.harness import Program, Row, rmqtool
from tests.benchmarks.java import VERSION, is_ready
from tests.benchmarks.machine import remove_store
from tests.benchmarks.scale import Bench
from tests.interop.brokers import Broker, wait_for_topic
from tests.interop.processes import command_line, write_logback
from tests.support.trees import copy_tree

MESSAGES = 20_000
LOG_FILE_BYTES = 32 << 20
_MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


def mqadmin_rows(bench: Bench) -> Iterator[Row]:
    """Questions that both answer: a message by key and by queue offset, the offsets of all queues."""
    if not is_ready():
        return
    store, folder = bench.folder / "asked", bench.folder / "broker"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (topic,) = messages.topic_names(1)
    messages.make_store(store, MESSAGES, log_file_bytes=LOG_FILE_BYTES)
    copy_tree(store, folder / "store")
    key = messages.key(MESSAGES // 2)
    with Store.open(store) as opened:
        last = opened.max_offset(topic, 0) - 1
    sizes = {
        "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
        "mappedFileSizeConsumeQueue": str(DEFAULT_CONSUME_QUEUE_FILE_SIZE),
        "maxHashSlotNum": str(index.DEFAULT_SHAPE.slots),
        "maxIndexNum": str(index.DEFAULT_SHAPE.entries),
    }
    asked = {
        "one message by its key": (
            ("lookup", store, "--topic", topic, "--key", key),
            ("queryMsgByKey", "-t", topic, "-k", key),
            key,
        ),
        "one message by its queue offset": (
            ("lookup", store, "--topic", topic, "--queue", 0, "--queue-offset", last),
            ("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", 0, "-o", last),
            topic,
        ),
        "the offsets of all queues": (
            ("info", store, "--queues"),
            ("topicStatus", "-t", topic),
            str(last + 1),
        ),
    }
    try:
        with Broker(VERSION, folder, folder / "store", sizes) as broker:
            broker.start()
            with broker.client() as client:
                wait_for_topic(client, [topic])
            for name, (ours, theirs, answer) in asked.items():
                right = partial(_says, answer)
                yield Row(
                    name=name,
                    contenders=[
                        rmqtool(*ours, shown=f"rmqtool {ours[0]} STORE", answer=right),
                        _mqadmin(folder, broker, theirs, right),
                    ],
                )  # fmt: skip
    finally:
        shutil.rmtree(folder)
        remove_store(store)


def _says(answer: str, text: str) -> bool:
    return answer in text


def _mqadmin(
    folder: Path, broker: Broker, asked: tuple[object, ...], right: Callable[[str], bool]
) -> Program:
    home = folder / "mqadmin"
    home.mkdir(exist_ok=True)
    words = [_MAIN, str(asked[0]), "-n", broker.name_server, *map(str, asked[1:])]
    line = command_line(VERSION, words, home=home, heap_mb=256, properties=write_logback(home))
    return Program(
        name=f"mqadmin {VERSION}", kind="java", line=line, answer=right,
        shown="the command line of RocketMQ, which asks a running broker",
    )  # fmt: skip
