"""RecordIO, the file format of pyrecordio and ElasticDL: chunks, index, reader, writer.

A file is a sequence of chunks. A chunk is a header of 20 bytes and a payload, which may be compressed. The payload
contains records, each after its length. The CRC-32 of every chunk is checked when it is read.
"""
