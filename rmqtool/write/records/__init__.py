"""A message becomes a record without its place: checks, properties, batches, transactions, by version."""

__all__ = [
    "deferred_offsets",
    "message",
    "prepare",
    "prepared",
    "property_map",
    "record_parts",
    "tables",
    "transactions",
    "unique_id",
    "wrong_values",
]
