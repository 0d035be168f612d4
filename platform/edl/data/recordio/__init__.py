"""RecordIO, the on-disk format of pyrecordio and ElasticDL: chunks, index, reader, writer.

A file is a plain sequence of chunks. A chunk is a header of 20 bytes and a payload, which holds records, each
behind its length, and may be compressed. Every chunk is checked by CRC-32 when it is read.
"""
