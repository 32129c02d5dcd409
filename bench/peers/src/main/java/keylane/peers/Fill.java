package keylane.peers;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Makes a topic and fills it: 16 bytes of key, 200 of payload, whose first 8 are the message's number. */
final class Fill {
    private static final int PAYLOAD_BYTES = 200;
    /** Only to fail a hang. */
    private static final int READY_SECONDS = 60;

    private Fill() {}

    static void run(Arguments arguments) throws Exception {
        String bootstrap = arguments.text("bootstrap");
        String topic = arguments.text("topic");
        int messages = arguments.number("messages");
        int keys = arguments.number("keys");
        int[] drawn = Keys.of(arguments.text("distribution")).draw(messages, keys);

        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            make(admin, topic, arguments.number("partitions", 32));
        }

        AtomicReference<Exception> failure = new AtomicReference<>();
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 20, "batch.size", 256 << 10);
        long start = System.nanoTime();
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer())) {
            for (int at = 0; at < messages && failure.get() == null; at++) {
                byte[] payload = new byte[PAYLOAD_BYTES];
                Arrays.fill(payload, (byte) 'x');
                ByteBuffer.wrap(payload).putLong(at);
                var message = new ProducerRecord<>(topic, String.format("%016d", drawn[at]), payload);
                producer.send(message, (where, error) -> {
                    if (error != null) {
                        failure.compareAndSet(null, error);
                    }
                });
            }
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        System.out.printf("{\"filled\":\"%s\",\"messages\":%d,\"seconds\":%.3f}%n", topic, messages, seconds);
    }

    /**
     * Makes the topic and waits until each partition is led. A first batch that finds no leader is sent again, after
     * the second; the broker has then taken the second for the first, and refuses the first for ever.
     */
    private static void make(Admin admin, String topic, int partitions) throws Exception {
        // Replicas as the cluster thinks right.
        NewTopic wanted = new NewTopic(topic, Optional.of(partitions), Optional.empty());
        admin.createTopics(List.of(wanted)).all().get();
        Map<TopicPartition, OffsetSpec> ends = new HashMap<>();
        for (int partition = 0; partition < partitions; partition++) {
            ends.put(new TopicPartition(topic, partition), OffsetSpec.latest());
        }
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(READY_SECONDS);
        while (true) {
            try {
                admin.listOffsets(ends).all().get();
                return;
            } catch (ExecutionException notYet) {
                // The broker that was asked has not heard of the topic.
                boolean unknown = notYet.getCause() instanceof UnknownTopicOrPartitionException;
                if (!unknown || System.nanoTime() > until) {
                    throw notYet;
                }
                Thread.sleep(20);
            }
        }
    }
}
