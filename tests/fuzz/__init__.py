"""A seeded fuzzer: of decoders, of commands over mutated stores, and of every file that comes from outside.

    python -m tests.fuzz 100                 100 stores, 400 files, 6,400 inputs of decoders
    python -m tests.fuzz 100 --seed 7        other ones
    python -m tests.fuzz --case FILE         one that failed: of build/fuzz/, or of corpus/

A case that fails is written to build/fuzz/ with all that it takes to do it again. When it is fixed, its
file goes to `corpus/`, with which every run begins.

| file | content |
|---|---|
| `mutate.py` | what is done to bytes and to JSON documents |
| `decoders.py` | every decoder of `formats/`, every compiled kernel, with a guard page after the input |
| `stores.py` | stores, and the commands that are run over them |
| `outside.py` | Arrow, Parquet, CSV, JSON lines, tars, plans, backups, journals, cursors, configuration |
| `case.py` | a case as JSON, and what every command has to keep |
"""
