"""Bytes to columns: windows of files, the walk over records, queue and index files as arrays."""
