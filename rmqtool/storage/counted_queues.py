"""Which folder counts where a topic has plain and batch queues.

A broker has queues of one type for a topic. Where folders of both types are there, the batch queues count,
because only a broker that has seen BatchCQ makes files of them. Folders without files show nothing: they do
not stand before plain queues that have files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqtool.storage.layout import Queues, StoreLayout


def counted_queues(layout: StoreLayout) -> Queues:
    """The queue that counts of every topic and queue id."""
    topics = topics_of_batches(layout)
    return layout.consume_queues | {
        key: queue for key, queue in layout.batch_queues.items() if key[0] in topics
    }


def topics_of_batches(layout: StoreLayout) -> frozenset[str]:
    """The topics whose batch queues count."""
    has_plain = {topic for (topic, _), queue in layout.consume_queues.items() if queue.files}
    return frozenset(
        topic for (topic, _), queue in layout.batch_queues.items() if queue.files or topic not in has_plain
    )
