// Kafka Streams beside ottla-streams: one stateful topology, exactly once, RocksDB. Driven by `cargo xtask bench
// --parts streams` and by compat/streams-crashes.
//   load  BOOTSTRAP RECORDS KEYS VALUE_BYTES        make the topics (4 partitions) and fill "bench-in"
//   more  BOOTSTRAP RECORDS KEYS VALUE_BYTES        add to "bench-in"
//   run   BOOTSTRAP STATE_DIR TRANSACTIONAL_STORES  process, print one line per event, stay until killed (SIGTERM: close)
//   check BOOTSTRAP RECORDS                         the committed output: are the counts of each key 1, 2, 3, ..., RECORDS in all?
// The state of a key is its count and its last value, so a store of KEYS x VALUE_BYTES stays on disk.
// Event lines: "<millis since start> EVENT details". Environment of `run`:
//   APP=ID          another application: its own group, state and output topic, the same input
//   INSTANCE=ID     static membership
//   FAULT=POINT:N   once N records were processed: before-offsets, after-offsets, before-commit, after-commit halt the process
//                   (no shutdown hook, as SIGKILL); poison throws in the topology, once
//   BLOCK_MS=N      max.block.ms of the producers: a commit without an answer for so long times out
//   STANDSTILL=1    the application's time-outs are short: 6 s sessions, 10 s transactions
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.internals.DefaultKafkaClientSupplier;
import org.apache.kafka.streams.state.KeyValueStore;

public class StreamsBench {
    static final String IN = "bench-in", APP = System.getenv().getOrDefault("APP", "bench-streams");
    static final String OUT = System.getenv("APP") == null ? "bench-out" : APP + "-out";
    static final int PARTITIONS = 4;
    static final long START = System.currentTimeMillis();
    static final String[] FAULT = System.getenv().getOrDefault("FAULT", "none:0").split(":");
    static final AtomicLong PROCESSED = new AtomicLong();
    static final AtomicBoolean FAILED = new AtomicBoolean();

    static synchronized void event(String what) {
        System.out.println((System.currentTimeMillis() - START) + " " + what);
        System.out.flush();
    }

    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "load" -> { topic(a[1], IN); topic(a[1], OUT); fill(a[1], Long.parseLong(a[2]), Integer.parseInt(a[3]), Integer.parseInt(a[4])); }
            case "more" -> fill(a[1], Long.parseLong(a[2]), Integer.parseInt(a[3]), Integer.parseInt(a[4]));
            case "run" -> run(a[1], a[2], a[3]);
            case "out" -> topic(a[1], OUT);
            case "check" -> check(a[1], Long.parseLong(a[2]));
            default -> throw new IllegalArgumentException("load, more, run, out or check");
        }
    }

    static void topic(String bootstrap, String name) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) bootstrap))) {
            admin.createTopics(List.of(new NewTopic(name, PARTITIONS, (short) 1))).all().get();
        }
    }

    static void check(String bootstrap, long records) {
        Map<String, Object> c = new HashMap<>(consumerConfig(bootstrap));
        List<TopicPartition> all = partitions(OUT);
        Map<String, Long> counts = new HashMap<>();
        long found = 0, twice = 0, gaps = 0;
        try (var consumer = new KafkaConsumer<>(c, new StringDeserializer(), new LongDeserializer())) {
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    long before = counts.getOrDefault(record.key(), 0L);
                    found++;
                    if (record.value() <= before) twice++;
                    else if (record.value() > before + 1) gaps++;
                    counts.put(record.key(), record.value());
                }
            }
        }
        long sum = counts.values().stream().mapToLong(x -> x).sum();
        boolean exact = found == records && sum == records && twice == 0 && gaps == 0;
        event("CHECK " + (exact ? "exact" : "WRONG") + " outputs " + found + " sum " + sum + " of " + records + " not_higher " + twice + " gaps " + gaps);
    }

    static void fill(String bootstrap, long records, int keys, int bytes) {
        Map<String, Object> p = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "acks", "all"));
        p.put("linger.ms", 5);
        p.put("batch.size", 131072);
        byte[] value = new byte[bytes];
        try (var producer = new KafkaProducer<>(p, new StringSerializer(), new ByteArraySerializer())) {
            Random random = new Random(1);
            for (long i = 0; i < records; i++) {
                random.nextBytes(value);
                // Every key is written once before any repeats, then keys are drawn at random.
                long key = i < keys ? i : random.nextInt(keys);
                producer.send(new ProducerRecord<>(IN, "key-" + key, value.clone()));
            }
        }
        event("LOADED " + records);
    }

    static byte[] bump(byte[] old, byte[] value) {
        long count = old == null ? 1 : new LongDeserializer().deserialize("", Arrays.copyOf(old, 8)) + 1;
        byte[] next = Arrays.copyOf(new LongSerializer().serialize("", count), 8 + value.length);
        System.arraycopy(value, 0, next, 8, value.length);
        return next;
    }

    /** Whether the process is to fail at this point now. */
    static boolean due(String point) {
        return FAULT[0].equals(point) && PROCESSED.get() >= Long.parseLong(FAULT[1]) && FAILED.compareAndSet(false, true);
    }

    static void haltIfDue(String point) {
        if (due(point)) {
            event("HALT " + point);
            Runtime.getRuntime().halt(137);
        }
    }

    /** A producer that fails where it is told to. */
    static class Faulty extends KafkaProducer<byte[], byte[]> {
        Faulty(Map<String, Object> config) {
            super(config, new ByteArraySerializer(), new ByteArraySerializer());
        }

        @Override public void sendOffsetsToTransaction(Map<TopicPartition, OffsetAndMetadata> offsets, ConsumerGroupMetadata group) {
            haltIfDue("before-offsets");
            super.sendOffsetsToTransaction(offsets, group);
            haltIfDue("after-offsets");
        }

        @Override public void commitTransaction() {
            haltIfDue("before-commit");
            super.commitTransaction();
            haltIfDue("after-commit");
        }
    }

    static void run(String bootstrap, String dir, String transactional) throws Exception {
        AtomicLong restored = new AtomicLong();
        AtomicBoolean first = new AtomicBoolean();
        StreamsBuilder b = new StreamsBuilder();
        b.stream(IN, Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .peek((k, v) -> {
                PROCESSED.incrementAndGet();
                if (first.compareAndSet(false, true)) event("FIRST_RECORD");
                if (due("poison")) throw new IllegalStateException("a record that cannot be processed, for a test");
            })
            .groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
            .aggregate(() -> null, (k, v, old) -> bump(old, v),
                Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as("state")
                    .withKeySerde(Serdes.String()).withValueSerde(Serdes.ByteArray()).withCachingDisabled())
            .toStream().mapValues(v -> Arrays.copyOf(v, 8)).to(OUT, Produced.with(Serdes.String(), Serdes.ByteArray()));
        KafkaStreams streams = new KafkaStreams(b.build(), config(bootstrap, dir, transactional), new DefaultKafkaClientSupplier() {
            @Override public Producer<byte[], byte[]> getProducer(Map<String, Object> config) { return new Faulty(config); }
        });
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            public void onRestoreStart(TopicPartition tp, String s, long from, long to) { event("RESTORE_START " + tp + " " + from + " " + to); }
            public void onBatchRestored(TopicPartition tp, String s, long end, long n) { }
            public void onRestoreEnd(TopicPartition tp, String s, long n) { event("RESTORE_END " + tp + " " + restored.addAndGet(n)); }
        });
        streams.setStateListener((now, old) -> event("STATE " + now));
        streams.setUncaughtExceptionHandler(error -> {
            event("UNCAUGHT " + String.valueOf(error).replaceAll("\\s+", " "));
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> { streams.close(Duration.ofSeconds(20)); event("CLOSED"); }));
        streams.start();
        long total = end(bootstrap), last = -1;
        for (boolean done = false; ; Thread.sleep(200)) {
            long committed = committed(bootstrap);
            if (committed != last) event("COMMITTED " + committed + " of " + total + " processed " + PROCESSED.get());
            last = committed;
            if (!done && committed >= total) {
                latency(streams);
                event("CAUGHT_UP processed " + PROCESSED.get());
                done = true;
            }
        }
    }

    static Properties config(String bootstrap, String dir, String transactional) {
        Properties c = new Properties();
        c.put("application.id", APP);
        c.put("bootstrap.servers", bootstrap);
        c.put("state.dir", dir);
        c.put("processing.guarantee", "exactly_once_v2");
        c.put("commit.interval.ms", 100);
        c.put("num.stream.threads", 2);
        c.put("auto.offset.reset", "earliest");
        c.put("enable.transactional.statestores", transactional);
        if (System.getenv("INSTANCE") != null) c.put("group.instance.id", System.getenv("INSTANCE"));
        if (System.getenv("BLOCK_MS") != null) c.put("producer.max.block.ms", System.getenv("BLOCK_MS"));
        if (System.getenv("STANDSTILL") != null) {
            c.put("session.timeout.ms", 6000);
            c.put("heartbeat.interval.ms", 1000);
            c.put("producer.transaction.timeout.ms", 10000);
        }
        return c;
    }

    /** Means and maxima are over the metrics' own window (two times 30 s) and per thread; here the worst of the threads. */
    static void latency(KafkaStreams streams) {
        Map<String, Double> found = new TreeMap<>();
        streams.metrics().forEach((name, metric) -> {
            if (name.group().equals("stream-thread-metrics") && name.name().startsWith("commit-") && metric.metricValue() instanceof Double value)
                found.merge(name.name(), value, name.name().equals("commit-total") ? Double::sum : Math::max);
        });
        event("COMMIT_LATENCY commits " + found.getOrDefault("commit-total", 0.0) + " mean_ms " + found.get("commit-latency-avg") + " max_ms " + found.get("commit-latency-max"));
    }

    static Map<String, Object> consumerConfig(String bootstrap) {
        return Map.of("bootstrap.servers", bootstrap, "group.id", APP, "isolation.level", "read_committed",
            "key.deserializer", ByteArrayDeserializer.class, "value.deserializer", ByteArrayDeserializer.class);
    }

    static List<TopicPartition> partitions(String topic) {
        List<TopicPartition> l = new ArrayList<>();
        for (int i = 0; i < PARTITIONS; i++) l.add(new TopicPartition(topic, i));
        return l;
    }

    static long end(String bootstrap) {
        try (var consumer = new KafkaConsumer<byte[], byte[]>(consumerConfig(bootstrap))) {
            return consumer.endOffsets(partitions(IN), Duration.ofSeconds(30)).values().stream().mapToLong(x -> x).sum();
        }
    }

    static KafkaConsumer<byte[], byte[]> offsets;

    static long committed(String bootstrap) {
        if (offsets == null) offsets = new KafkaConsumer<>(consumerConfig(bootstrap));
        return offsets.committed(new HashSet<>(partitions(IN)), Duration.ofSeconds(30)).values().stream()
            .filter(Objects::nonNull).mapToLong(OffsetAndMetadata::offset).sum();
    }
}
