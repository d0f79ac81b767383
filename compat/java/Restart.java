import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The Java clients of suite-restart: they run until standard input ends, then say what they wrote and saw. */
public final class Restart {
    private static volatile boolean stop;
    private static final AtomicInteger assigned = new AtomicInteger();

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private interface Body {
        void run() throws Exception;
    }

    private static Thread start(String name, Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (Throwable error) {
                say("wrong " + name + ": " + error);
            }
        });
        thread.start();
        return thread;
    }

    private static KafkaProducer<String, String> producer(String bootstrap, Map<String, Object> more) {
        Map<String, Object> settings = new java.util.HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static void member(String bootstrap, String group, Map<String, Object> more) {
        Map<String, Object> settings = new java.util.HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of("spread"), new ConsumerRebalanceListener() {
                @Override public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    if (!stop && !partitions.isEmpty()) say("rebalanced " + group + " revoked " + partitions);
                }

                @Override public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    say("rebalanced " + group + " assigned " + partitions);
                    if (!partitions.isEmpty()) assigned.incrementAndGet();
                }

                @Override public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    say("wrong " + group + ": partitions lost");
                }
            });
            while (!stop) consumer.poll(Duration.ofMillis(100));
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        AtomicInteger written = new AtomicInteger();
        AtomicInteger committed = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        threads.add(start("producer", () -> {
            try (KafkaProducer<String, String> producer = producer(bootstrap, Map.of())) {
                while (!stop) {
                    producer.send(new ProducerRecord<>("java", 0, null, Integer.toString(written.getAndIncrement())),
                            (metadata, error) -> { if (error != null) say("wrong producer: delivery " + error); });
                    Thread.sleep(5);
                }
            }
        }));
        threads.add(start("transactions", () -> {
            try (KafkaProducer<String, String> producer = producer(bootstrap, Map.of("transactional.id", "java-restart"))) {
                producer.initTransactions();
                while (!stop) {
                    producer.beginTransaction();
                    for (int n = 0; n < 5; n++)
                        producer.send(new ProducerRecord<>("java-transactions", 0, null,
                                Integer.toString(committed.get() + n)));
                    producer.commitTransaction();
                    committed.addAndGet(5);
                    Thread.sleep(5);
                }
            }
        }));
        // With the default "rebootstrap" (KIP-899) the classic consumer forgets all metadata while its only broker is away.
        // If it finds its coordinator before its next look at the metadata, it takes that for a change of its topics and
        // joins again, the member and its partitions being the same. It finds Ottla's at once; Apache Kafka's takes longer.
        Map<String, Object> classic = Map.of("session.timeout.ms", 20000, "heartbeat.interval.ms", 1000,
                "metadata.recovery.strategy", System.getProperty("recovery", "none"));
        for (int n = 0; n < 2; n++) {
            threads.add(start("classic", () -> member(bootstrap, "java-classic", classic)));
            threads.add(start("consumer", () -> member(bootstrap, "java-consumer", Map.of("group.protocol", "consumer"))));
        }
        while (assigned.get() < 4 || written.get() < 20 || committed.get() < 20) Thread.sleep(100);
        say("ready");
        while (System.in.read() >= 0) { }
        stop = true;
        for (Thread thread : threads) thread.join(90_000);
        say("written " + written.get() + " " + committed.get());
        System.exit(threads.stream().anyMatch(Thread::isAlive) ? 1 : 0);
    }
}
