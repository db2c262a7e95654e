"""The content of a message: columns, rows, bodies, system topics, and its text as JSON and CSV."""

__all__ = [
    "arrow_rows",
    "cells",
    "column_arrays",
    "columns",
    "explain",
    "format_string",
    "json_text",
    "result_values",
    "rows",
    "schema",
    "string_table",
    "system_topics",
]
