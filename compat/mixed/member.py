"""A member of a mixed consumer group, as librdkafka (confluent-kafka), for suite-mixed.

usage: member.py BOOTSTRAP GROUP TOPIC ASSIGNOR SESSION_MS

It says on standard output what it owns and does (see judge.py), and leaves in order when its standard input ends.
"""
import struct
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

bootstrap, group, topic, assignor, session = sys.argv[1:]
over = threading.Event()
owned, pending, runs = set(), {}, {}   # runs: what was read and not told yet, by partition: first, last, count


def say(kind, *rest):
    print(kind, int(time.time() * 1e6), *rest, flush=True)


def generation():
    """By the group metadata as librdkafka writes it: "CGMDv2:", the generation in 4 bytes, names."""
    data = consumer.consumer_group_metadata()
    return struct.unpack_from("<i", data, 7)[0] if data and data[:7] == b"CGMDv2:" else -1


def mine():
    return ",".join(map(str, sorted(owned))) or "-"


def tell():
    for partition, (first, last, count) in runs.items():
        say("got", partition, first, last, count)
        pending[partition] = last + 1
    runs.clear()


def commit():
    if not pending:
        return
    before = generation()
    try:
        for done in consumer.commit(offsets=[TopicPartition(topic, p, n) for p, n in pending.items()], asynchronous=False):
            if done.error:
                say("refused", before, done.error.name())
            else:
                say("commit", before, "%d:%d" % (done.partition, pending.pop(done.partition)))
    except KafkaException as e:
        say("refused", before, e.args[0].name())


def assigned(c, partitions):
    owned.update(p.partition for p in partitions)
    say("own", generation(), mine(), c.memberid() or "-")


def revoked(c, partitions):
    tell()
    commit()
    drop("own", partitions)


def drop(kind, partitions):
    tell()
    for p in partitions:
        owned.discard(p.partition)
        pending.pop(p.partition, None)
    say(kind, generation(), mine())


config = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": "mixed-librdkafka",
          "auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 250}
if assignor.startswith("848:"):
    config.update({"group.protocol": "consumer", "group.remote.assignor": assignor[4:]})
else:
    config.update({"partition.assignment.strategy": assignor, "session.timeout.ms": int(session),
                   "heartbeat.interval.ms": 1000})
consumer = Consumer(config)
consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=lambda c, partitions: drop("lost", partitions))
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.is_set():
    wait = 0.3
    for _ in range(200):
        m = consumer.poll(wait)        # may run the callbacks
        if m is None:
            break
        wait = 0
        if m.error():
            say("refused", -1, m.error().name())
            continue
        run = runs.setdefault(m.partition(), [m.offset(), m.offset() - 1, 0])
        run[1], run[2] = m.offset(), run[2] + 1
    tell()
    commit()
consumer.close()
say("bye")
