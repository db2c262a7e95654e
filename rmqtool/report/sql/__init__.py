"""SQL over stores on one machine: DuckDB reads the same tables that the Spark source has.

`session` runs queries, `tables` reads stores for it, `expression` understands the conditions that DuckDB
pushes down.
"""

__all__ = ["session", "tables"]
