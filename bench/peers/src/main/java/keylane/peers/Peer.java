package keylane.peers;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import io.confluent.parallelconsumer.vertx.VertxParallelEoSStreamProcessor;
import io.vertx.core.Future;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import io.vertx.ext.web.client.WebClient;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The ways to consume that are measured. Each handles messages until the meter is over. */
enum Peer {
    /** Kafka's own consumer, one thread, handlers one after another, a commit after each poll. */
    PLAIN {
        @Override
        void consume(Job job, Meter meter) throws Exception {
            Thread loop = new Thread(() -> {
                try (var consumer = consumer(job)) {
                    consumer.subscribe(List.of(job.topic()));
                    while (!meter.over()) {
                        for (var message : consumer.poll(Duration.ofMillis(100))) {
                            meter.begins(message.key(), message.value());
                            pause(job.handlerMs());
                            meter.ends(message.key());
                            if (meter.over()) {
                                break;
                            }
                        }
                        consumer.commitAsync();
                    }
                }
            });
            loop.start();
            meter.await(job.warmUpSeconds(), job.seconds());
            loop.join();
        }
    },

    /** Confluent Parallel Consumer, a thread for each handler that runs. */
    PARALLEL_CONSUMER {
        @Override
        void consume(Job job, Meter meter) throws Exception {
            var processor = ParallelStreamProcessor.createEosStreamProcessor(options(job));
            processor.subscribe(List.of(job.topic()));
            processor.poll(context -> {
                meter.begins(context.key(), context.value());
                pause(job.handlerMs());
                meter.ends(context.key());
            });
            meter.await(job.warmUpSeconds(), job.seconds());
            processor.closeDontDrainFirst(Duration.ofSeconds(10));
        }
    },

    /** Confluent Parallel Consumer with its Vert.x engine: handlers that wait hold no thread. */
    PARALLEL_CONSUMER_VERTX {
        @Override
        void consume(Job job, Meter meter) throws Exception {
            Vertx vertx = Vertx.vertx();
            var processor = new VertxParallelEoSStreamProcessor<String, byte[]>(
                    vertx, WebClient.create(vertx), options(job));
            processor.subscribe(List.of(job.topic()));
            processor.vertxFuture(context -> {
                meter.begins(context.key(), context.value());
                if (job.handlerMs() == 0) {
                    meter.ends(context.key());
                    return Future.succeededFuture();
                }
                Promise<Void> ended = Promise.promise();
                vertx.setTimer(job.handlerMs(), timer -> {
                    meter.ends(context.key());
                    ended.complete();
                });
                return ended.future();
            });
            meter.await(job.warmUpSeconds(), job.seconds());
            processor.closeDontDrainFirst(Duration.ofSeconds(10));
            vertx.close();
        }
    };

    abstract void consume(Job job, Meter meter) throws Exception;

    static Peer of(String name) {
        return valueOf(name.toUpperCase().replace('-', '_'));
    }

    String shown() {
        return name().toLowerCase().replace('_', '-');
    }

    /**
     * How many handlers may run at once. A waiting handler needs no core, so each key may have one, up to what threads
     * allow; a handler that does not wait gains nothing from more threads than the library's own choice.
     */
    int concurrency(int handlerMs, int keys) {
        return switch (this) {
            case PLAIN -> 1;
            case PARALLEL_CONSUMER -> handlerMs == 0 ? 16 : Math.min(keys, 1_000);
            case PARALLEL_CONSUMER_VERTX -> handlerMs == 0 ? 16 : Math.min(keys, 10_000);
        };
    }

    private static ParallelConsumerOptions<String, byte[]> options(Job job) {
        return ParallelConsumerOptions.<String, byte[]>builder()
                .consumer(consumer(job))
                .ordering(ProcessingOrder.KEY)
                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                .maxConcurrency(job.concurrency())
                // Its check looks for a field that newer Kafka clients do not have; automatic commits are off below.
                .ignoreReflectiveAccessExceptionsForAutoCommitDisabledCheck(true)
                .build();
    }

    /** Keys are text: Parallel Consumer compares keys with equals(), and two equal arrays of bytes are not. */
    private static KafkaConsumer<String, byte[]> consumer(Job job) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", job.bootstrap(),
                "group.id", "peers-" + UUID.randomUUID(),
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer());
    }

    private static void pause(int milliseconds) {
        if (milliseconds == 0) {
            return;
        }
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
