"""The engine's write path: what a broker does between a message and its bytes in log, queues and index.

message.py, prepare.py    a message and the broker's rules -> a record without its place
log_writer.py, flush.py   records -> commit log files; what is on the device
dispatcher.py             commit log -> queue_writer.py, index_writer.py (the broker's reput)
store_writer.py           all of it behind `Store.open(path, mode="a")` and `Store.create`
"""
