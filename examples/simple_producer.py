#!/usr/bin/env python3
"""An idempotent Kafka producer in one file: Python's standard library, no coordinator, one broker connection.

    seq 1000 | python3 simple_producer.py --bootstrap 127.0.0.1:9092 --topic numbers

Every line of standard input becomes one record, once and in order, however often the connection is lost or the
broker is killed in between. It needs four requests: ApiVersions, Metadata, InitProducerId, Produce. How it works,
byte by byte, is told in docs/guide/small-clients.md.

The idea (KIP-98): the broker gives out a producer id; every batch carries it and the number of its first record
(the sequence). A batch whose answer was lost is sent again with the same id and sequence, and the broker recognizes
it. So the one rule is: a batch that may have arrived is repeated as it was, byte for byte, until it is answered.

Exit status: 0 all lines are stored, 1 given up (what is stored is a beginning of the lines), 2 wrong arguments.
"""

import argparse
import os
import socket
import struct
import sys
import time

CLIENT_ID = b"simple-producer"
# API key: (name, version). The highest versions without "flexible" encoding: fixed-width lengths only.
PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22
VERSIONS = {PRODUCE: ("Produce", 8), METADATA: ("Metadata", 8), API_VERSIONS: ("ApiVersions", 0),
            INIT_PRODUCER_ID: ("InitProducerId", 1)}
DUPLICATE_SEQUENCE_NUMBER = 46
# "Not now" or "not here": look for the leader again, then send the same batch again.
RETRIABLE = {2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 51, 56, 74, 75, 89, 100}
NAMES = {3: "UNKNOWN_TOPIC_OR_PARTITION", 10: "MESSAGE_TOO_LARGE", 17: "INVALID_TOPIC_EXCEPTION",
         29: "TOPIC_AUTHORIZATION_FAILED", 45: "OUT_OF_ORDER_SEQUENCE_NUMBER", 47: "INVALID_PRODUCER_EPOCH",
         59: "UNKNOWN_PRODUCER_ID", 87: "INVALID_RECORD"}


class Refused(Exception):
    """The broker said no, and the same again will not help."""


class Lost(Exception):
    """No answer: the request may or may not have been carried out."""


CRC32C = list(range(256))
for _ in range(8):
    CRC32C = [byte >> 1 ^ 0x82F63B78 if byte & 1 else byte >> 1 for byte in CRC32C]


def crc32c(data):
    """CRC-32C (Castagnoli), which zlib.crc32 is not."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(number):
    """A zigzag varint, as records use it: 0, -1, 1, -2 become 0, 1, 2, 3; seven bits per byte, low ones first."""
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def string(text):
    """A length of 16 bits, then the text."""
    return struct.pack(">h", len(text)) + text


def record(delta, value):
    """One record of a batch: no attributes, the batch's timestamp, its place in it, no key, value, no headers."""
    body = b"\x00" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(values, producer_id, producer_epoch, sequence):
    """A record batch, version 2. Everything behind the checksum is covered by it."""
    now = int(time.time() * 1000)
    count = len(values)
    tail = struct.pack(">hiqqqhii", 0, count - 1, now, now, producer_id, producer_epoch, sequence, count)
    tail += b"".join(record(delta, value) for delta, value in enumerate(values))
    # base offset (the broker's to set), length from here on, leader epoch (unknown), magic, checksum
    return struct.pack(">qiibI", 0, len(tail) + 9, -1, 2, crc32c(tail)) + tail


class Answer:
    """Reads an answer's fields."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        try:
            (value,) = struct.unpack_from(">" + form, self.data, self.at)
        except struct.error:
            raise Lost("an answer ends too early")
        self.at += struct.calcsize(">" + form)
        return value

    def string(self):
        length = max(self.take("h"), 0)  # -1 is "none"
        self.at += length
        return self.data[self.at - length:self.at]

    def each(self):
        return range(self.take("i"))


class Connection:
    """One connection, one request at a time. Whatever goes wrong on it ends it."""

    def __init__(self, address, timeout):
        self.correlation_id = 0
        try:
            self.socket = socket.create_connection(address, timeout)
        except OSError as error:
            raise Lost("cannot connect to %s:%d: %s" % (*address, error))
        self.check_versions()

    def call(self, api, body):
        """Sends a request and waits for its answer."""
        self.correlation_id += 1
        header = struct.pack(">hhi", api, VERSIONS[api][1], self.correlation_id) + string(CLIENT_ID)
        request = header + body
        try:
            self.socket.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", self.read(4))
            answer = Answer(self.read(length))
        except OSError as error:
            raise Lost("connection lost: %s" % error)
        if answer.take("i") != self.correlation_id:
            raise Lost("an answer to another request")
        return answer

    def read(self, length):
        if not 0 <= length <= 64 << 20:
            raise Lost("not Kafka's protocol")
        data = bytearray()
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise Lost("the broker closed the connection")
            data += piece
        return bytes(data)

    def check_versions(self):
        """ApiVersions: does the broker serve what we speak?"""
        answer = self.call(API_VERSIONS, b"")
        answer.take("h")
        offered = {}
        for _ in answer.each():
            key, low, high = (answer.take("h") for _ in range(3))
            offered[key] = (low, high)
        for api, (name, version) in VERSIONS.items():
            low, high = offered.get(api, (0, -1))
            if not low <= version <= high:
                raise Refused("the broker does not serve %s in version %d" % (name, version))


class Producer:
    """Writes to one partition. One batch is under way at a time, so that order needs no thought."""

    def __init__(self, bootstrap, topic, partition, timeout, patience):
        self.bootstrap, self.topic, self.partition = bootstrap, topic.encode(), partition
        self.timeout, self.patience = timeout, patience
        self.connection = None
        self.producer_id, self.producer_epoch, self.sequence = -1, -1, 0

    def leader(self):
        """Metadata: the address of the partition's leader, asked at the bootstrap address."""
        first = Connection(self.bootstrap, self.timeout)
        try:
            body = struct.pack(">i", 1) + string(self.topic) + b"\x01\x00\x00"  # may create it; no operations
            answer = first.call(METADATA, body)
        finally:
            first.socket.close()
        answer.take("i")  # throttled for
        brokers = {}
        for _ in answer.each():
            node, host, port = answer.take("i"), answer.string(), answer.take("i")
            answer.string()  # rack
            brokers[node] = (host.decode(), port)
        answer.string(), answer.take("i")  # cluster, controller
        for _ in answer.each():
            error, name, _internal = answer.take("h"), answer.string(), answer.take("b")
            self.check(error, "topic")
            for _ in answer.each():
                error, index, leader = answer.take("h"), answer.take("i"), answer.take("i")
                answer.take("i")  # leader's epoch
                for _ in range(3):  # replicas, those in sync, those away
                    for _ in answer.each():
                        answer.take("i")
                if name == self.topic and index == self.partition:
                    self.check(error, "partition")
                    if leader in brokers:
                        return brokers[leader]
            answer.take("i")  # operations
        raise Lost("nobody leads partition %d" % self.partition)

    def check(self, error, what):
        """Nothing for no error; else whether the same again may help."""
        if error in RETRIABLE:
            raise Lost("%s: error %s" % (what, NAMES.get(error, error)))
        if error != 0:
            raise Refused("%s: error %s" % (what, NAMES.get(error, error)))

    def connected(self):
        if self.connection is None:
            self.connection = Connection(self.leader(), self.timeout)
        return self.connection

    def initialise(self):
        """InitProducerId without a transactional id: any broker answers it, no coordinator is looked for."""
        answer = self.connected().call(INIT_PRODUCER_ID, struct.pack(">hi", -1, 60000))
        answer.take("i")
        self.check(answer.take("h"), "InitProducerId")
        self.producer_id, self.producer_epoch = answer.take("q"), answer.take("h")

    def produce(self, data):
        """Produce: one batch, acknowledged by all replicas (acks=-1). Returns its offset, -1 for a duplicate."""
        body = struct.pack(">hhi", -1, -1, int(self.timeout * 1000))  # no transactional id, acks, timeout
        body += struct.pack(">i", 1) + string(self.topic) + struct.pack(">ii", 1, self.partition)
        body += struct.pack(">i", len(data)) + data
        answer = self.connected().call(PRODUCE, body)
        answer.take("i"), answer.string(), answer.take("i"), answer.take("i")  # one topic, one partition
        error, offset = answer.take("h"), answer.take("q")
        if error == DUPLICATE_SEQUENCE_NUMBER:
            return -1  # it has been stored long ago: success, only the offset is forgotten
        self.check(error, "Produce")
        return offset

    def persist(self, what):
        """Tries until it works, each time on a new connection, or until patience is at its end."""
        give_up, pause = time.monotonic() + self.patience, 0.02
        while True:
            try:
                return what()
            except Lost as error:
                if self.connection is not None:
                    self.connection.socket.close()
                    self.connection = None
                if time.monotonic() + pause > give_up:
                    raise
                print("again: %s" % error, file=sys.stderr)
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def send(self, values):
        """Stores these records behind all before them, once. Returns the first one's offset."""
        if self.producer_id < 0:
            self.persist(self.initialise)
        # made once, sent as often as it takes
        data = batch(values, self.producer_id, self.producer_epoch, self.sequence)
        offset = self.persist(lambda: self.produce(data))
        self.sequence = (self.sequence + len(values)) % 2**31
        return offset


def lines(batch_records):
    """Standard input as lists of lines: as many as are there, at most `batch_records`."""
    rest = b""
    while True:
        piece = os.read(0, 1 << 16)
        *whole, rest = (rest + piece).split(b"\n")
        if not piece and rest:
            whole.append(rest)
        for at in range(0, len(whole), batch_records):
            yield whole[at:at + batch_records]
        if not piece:
            return


def main():
    parser = argparse.ArgumentParser(description="Stores every line of standard input once, as one record.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="a broker, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partition", type=int, default=0, help="the one that is written to")
    parser.add_argument("--batch", type=int, default=500, help="most records in a batch")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for an answer")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to go on trying to store a batch")
    options = parser.parse_args()
    host, _, port = options.bootstrap.rpartition(":")
    stored, producer = 0, Producer((host, int(port)), options.topic, options.partition, options.timeout, options.patience)
    try:
        for values in lines(options.batch):
            producer.send(values)
            stored += len(values)
    except (Lost, Refused) as error:
        print("given up behind %d records: %s" % (stored, error), file=sys.stderr)
        return 1
    print("stored %d records as producer %d" % (stored, producer.producer_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
