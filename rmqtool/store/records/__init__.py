"""A message becomes a record without its place: checks, properties, batches, transactions, by version."""
