"""The engine's write path: what a broker does between a record and its bytes in log, queues and index.

log_writer.py, flush.py   records -> commit log files; what is on the device
dispatcher.py             commit log -> queue_writer.py, index_writer.py (the broker's reput)
targets.py, topics.py     which queue a message goes to; topics.json
schedule.py               delayed messages that are due
opening.py, last_file.py  the checks before; permission.py: those that only a dry run needs
store_writer.py           all of it behind `Store.open(path, mode="a")` and `Store.create`

How a message becomes a record is in `records`, how tables do in `table`, where rows come from in `inputs`.
"""
