import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a mixed consumer group, as Kafka's own client, for suite-mixed.
 *
 * It says on standard output what it owns and does (see mixed/judge.py), and leaves in order when its standard input
 * ends.
 *
 * Arguments: BOOTSTRAP GROUP TOPIC ASSIGNOR SESSION_MS
 */
public class MixedMember implements ConsumerRebalanceListener {
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final TreeSet<Integer> owned = new TreeSet<>();
    private final Map<TopicPartition, OffsetAndMetadata> pending = new HashMap<>();

    private MixedMember(Properties config) {
        consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static synchronized void say(String kind, String rest) {
        java.time.Instant now = java.time.Instant.now();
        System.out.println(kind + " " + (now.getEpochSecond() * 1_000_000 + now.getNano() / 1000) + " " + rest);
        System.out.flush();
    }

    private int generation() {
        return consumer.groupMetadata().generationId();
    }

    private String mine() {
        return owned.isEmpty() ? "-" : owned.stream().map(String::valueOf).collect(Collectors.joining(","));
    }

    private void commit() {
        if (pending.isEmpty()) return;
        int before = generation();
        try {
            consumer.commitSync(new HashMap<>(pending), Duration.ofSeconds(5));
            say("commit", before + " " + pending.entrySet().stream()
                .map(e -> e.getKey().partition() + ":" + e.getValue().offset()).collect(Collectors.joining(",")));
            pending.clear();
        } catch (KafkaException e) {
            say("refused", before + " " + e.getClass().getSimpleName());
        }
    }

    private void drop(String kind, Collection<TopicPartition> partitions) {
        partitions.forEach(p -> owned.remove(p.partition()));
        pending.keySet().removeAll(partitions);
        say(kind, generation() + " " + mine());
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(p -> owned.add(p.partition()));
        say("own", generation() + " " + mine() + " " + consumer.groupMetadata().memberId());
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        commit();
        drop("own", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        drop("lost", partitions);
    }

    private void run(String topic, AtomicBoolean over) {
        consumer.subscribe(List.of(topic), this);
        while (!over.get()) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(300));
            for (TopicPartition p : records.partitions()) {
                List<ConsumerRecord<byte[], byte[]>> run = records.records(p);
                long first = run.get(0).offset(), last = run.get(run.size() - 1).offset();
                say("got", p.partition() + " " + first + " " + last + " " + run.size());
                pending.put(p, new OffsetAndMetadata(last + 1));
            }
            commit();
        }
        consumer.close();
        say("bye", "");
    }

    public static void main(String[] args) {
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("group.id", args[1]);
        p.put("client.id", "mixed-java");
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        p.put("fetch.max.wait.ms", "250");
        p.put("max.poll.records", "200");
        String assignor = args[3];
        if (assignor.startsWith("848:")) {
            p.put("group.protocol", "consumer");
            p.put("group.remote.assignor", assignor.substring(4));
        } else {
            String prefix = "org.apache.kafka.clients.consumer.";
            p.put("partition.assignment.strategy", prefix + Map.of("range", "RangeAssignor", "roundrobin",
                "RoundRobinAssignor", "sticky", "StickyAssignor", "cooperative-sticky", "CooperativeStickyAssignor")
                .get(assignor));
            p.put("session.timeout.ms", args[4]);
            p.put("heartbeat.interval.ms", "1000");
        }
        AtomicBoolean over = new AtomicBoolean();
        Thread leave = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException e) {
                say("refused", "-1 standard input: " + e);
            }
            over.set(true);
        });
        leave.setDaemon(true);
        leave.start();
        new MixedMember(p).run(args[2], over);
    }
}
