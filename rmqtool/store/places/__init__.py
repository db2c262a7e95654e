"""Where a store is: in a folder of this machine, behind a URL, in an archive, or compressed file by file.

locate.py      what a person typed -> a path; an archive -> the path of the store in it
location.py    Location: what opens the same store again in another process
tar.py         the files of a tar, read where they lie
unpacked.py    files that are compressed one by one
decompress.py  gzip and zstd, piece by piece
spool.py       the one temporary file that holds what had to be unpacked, and has no name
parts.py       a file that is a part of another one
"""

from __future__ import annotations
