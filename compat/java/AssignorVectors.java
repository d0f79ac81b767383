// Writes what Kafka's own assignors and codec do to seeded random groups, for the fixture
// crates/ottla-client/src/consumer/assignor/tests/java.txt:
//   java -cp "$COMPAT_DIR/kafka-4.4.0/libs/*" compat/java/AssignorVectors.java >java.txt
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.*;

public class AssignorVectors {
    static final class Member {
        String id, instance, rack;
        List<String> topics;
        List<TopicPartition> owned = new ArrayList<>();
        int generation = -1;
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return "-";
        ByteBuffer copy = buffer.duplicate();
        StringBuilder text = new StringBuilder("x");
        while (copy.hasRemaining()) text.append(String.format("%02x", copy.get()));
        return text.toString();
    }

    static String list(List<TopicPartition> partitions) {
        return "=" + partitions.stream().map(p -> p.topic() + ":" + p.partition()).collect(Collectors.joining(","));
    }

    static ConsumerPartitionAssignor make(int kind) {
        switch (kind) {
            case 0: return new RangeAssignor();
            case 1: return new RoundRobinAssignor();
            case 2: return new StickyAssignor();
            default: return new CooperativeStickyAssignor();
        }
    }

    public static void main(String[] arguments) {
        System.out.println("# Made by compat/java/AssignorVectors.java with the kafka-clients jar of Apache Kafka 4.4.0.");
        for (int kind = 0; kind < 4; kind++)
            for (int seed = 0; seed < (kind < 2 ? 8 : 15); seed++) chain(kind, new Random(1000L * kind + seed), seed);
    }

    static void chain(int kind, Random random, int seed) {
        boolean racks = seed % 3 == 2, equal = seed % 2 == 0, twisted = seed % 4 == 3;
        Map<String, Integer> topics = new TreeMap<>();
        for (int i = 0; i < 1 + random.nextInt(4); i++) topics.put("topic-" + (char) ('a' + random.nextInt(20)), 1 + random.nextInt(7));
        List<Member> members = new ArrayList<>();
        for (int generation = 1; generation <= 4; generation++) {
            if (generation > 1) churn(random, topics, members, kind);
            for (int i = 0; i < (generation == 1 ? 1 + random.nextInt(5) : random.nextInt(3)); i++) members.add(member(random, racks));
            if (members.isEmpty()) members.add(member(random, racks));
            for (Member member : members) {
                if (equal) member.topics = new ArrayList<>(topics.keySet());
                else if (member.topics == null || random.nextInt(4) == 0) {
                    member.topics = topics.keySet().stream().filter(t -> random.nextInt(3) > 0).collect(Collectors.toCollection(ArrayList::new));
                    if (member.topics.isEmpty()) member.topics.add(topics.keySet().iterator().next());
                } else member.topics.removeIf(t -> !topics.containsKey(t) && random.nextBoolean());
            }
            Collections.shuffle(members, random);
            round(kind, random, topics, members, generation, racks, twisted);
        }
    }

    static Member member(Random random, boolean racks) {
        Member member = new Member();
        member.id = "consumer-" + random.nextInt(9) + "-" + new UUID(random.nextLong(), random.nextLong());
        if (random.nextInt(5) == 0) member.instance = "static-" + random.nextInt(1000);
        if (racks && random.nextInt(6) > 0) member.rack = "rack-" + random.nextInt(3);
        return member;
    }

    static void churn(Random random, Map<String, Integer> topics, List<Member> members, int kind) {
        if (random.nextInt(3) == 0) topics.put("topic-" + (char) ('a' + random.nextInt(20)), 1 + random.nextInt(7));
        if (random.nextInt(3) == 0) topics.merge(topics.keySet().iterator().next(), 2, Integer::sum);
        if (topics.size() > 1 && random.nextInt(4) == 0) topics.remove(topics.keySet().iterator().next());
        members.removeIf(m -> random.nextInt(4) == 0);
    }

    static void round(int kind, Random random, Map<String, Integer> topics, List<Member> members, int generation, boolean racks, boolean twisted) {
        ConsumerPartitionAssignor assignor = make(kind);
        StringBuilder out = new StringBuilder();
        Node[] nodes = new Node[3];
        for (int i = 0; i < 3; i++) nodes[i] = new Node(i, "h", 1, racks ? "rack-" + i : null);
        List<PartitionInfo> infos = new ArrayList<>();
        out.append("case " + assignor.name()).append("\n");
        for (Map.Entry<String, Integer> topic : topics.entrySet()) {
            StringBuilder line = new StringBuilder("topic " + topic.getKey() + " " + topic.getValue() + " ");
            for (int p = 0; p < topic.getValue(); p++) {
                int first = random.nextInt(3), second = (first + 1 + random.nextInt(2)) % 3;
                Node[] replicas = {nodes[first], nodes[second]};
                infos.add(new PartitionInfo(topic.getKey(), p, replicas[0], replicas, replicas));
                line.append(p == 0 ? "" : ";").append(racks ? "rack-" + first + ",rack-" + second : "");
            }
            out.append(line.append(".")).append("\n");
        }
        Cluster cluster = new Cluster("c", Arrays.asList(nodes), infos, Set.of(), Set.of());
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (Member member : members) {
            boolean stale = twisted && member.generation > 0 && random.nextInt(4) == 0;
            int told = stale ? member.generation - 1 : member.generation;
            List<TopicPartition> owned = new ArrayList<>(member.owned);
            if (twisted && random.nextInt(4) == 0 && !owned.isEmpty() && members.get(0) != member) owned.addAll(members.get(0).owned);
            ConsumerPartitionAssignor own = make(kind);
            if (member.generation >= 0 && kind >= 2)
                own.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("g", told, member.id, Optional.ofNullable(member.instance)));
            ByteBuffer data = own.subscriptionUserData(new HashSet<>(member.topics));
            List<TopicPartition> named = kind == 3 ? owned : List.of();
            Subscription subscription = new Subscription(member.topics, data, named, told, Optional.ofNullable(member.rack));
            subscription.setGroupInstanceId(Optional.ofNullable(member.instance));
            subscriptions.put(member.id, subscription);
            ByteBuffer wire = ConsumerProtocol.serializeSubscription(subscription);
            out.append("member " + member.id + " " + (member.instance == null ? "-" : member.instance) + " " + told + " "
                + (member.rack == null ? "-" : member.rack) + " " + String.join(",", member.topics) + " " + list(owned) + " " + hex(data) + " " + hex(wire)).append("\n");
        }
        Map<String, Assignment> result;
        try {
            result = assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
        } catch (RuntimeException e) {
            return;   // a state of its own that its assertions refuse: nothing to be equal to
        }
        for (Member member : members) {
            List<TopicPartition> given = new ArrayList<>(result.get(member.id).partitions());
            out.append("given " + member.id + " " + list(given) + " " + hex(ConsumerProtocol.serializeAssignment(result.get(member.id)))).append("\n");
            if (!(twisted && random.nextInt(5) == 0)) {   // else it missed this generation
                member.owned = given;
                member.generation = generation;
            }
        }
        System.out.print(out.append("end\n"));
    }
}
