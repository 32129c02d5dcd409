package keylane.peers;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Properties;

/** The commands that bench/peers/run calls: {@code fill} and {@code measure}. Each prints one JSON object. */
public final class Main {
    private Main() {}

    public static void main(String[] words) throws Exception {
        Locale.setDefault(Locale.ROOT);
        String command = words.length == 0 ? "" : words[0];
        try {
            Arguments arguments = new Arguments(words, 1);
            switch (command) {
                case "fill" -> Fill.run(arguments);
                case "measure" -> measure(arguments);
                default -> throw new IllegalArgumentException("fill or measure, not: " + command);
            }
        } catch (IllegalArgumentException mistake) {
            System.err.println("bench/peers: " + mistake.getMessage());
            System.exit(2);
        }
        // Parallel Consumer may leave threads behind that would keep the process.
        System.exit(0);
    }

    private static void measure(Arguments arguments) throws Exception {
        Peer peer = Peer.of(arguments.text("peer"));
        Keys distribution = Keys.of(arguments.text("distribution"));
        int messages = arguments.number("messages");
        int keys = arguments.number("keys");
        int handlerMs = arguments.number("handler-ms");
        int warmUp = arguments.number("warm-up", Math.max(1, messages / 10));
        int concurrency = arguments.number("concurrency", peer.concurrency(handlerMs, keys));
        if (warmUp < 1 || warmUp >= messages) {
            throw new IllegalArgumentException("--warm-up must be at least 1 and less than --messages");
        }

        Job job = new Job(arguments.text("bootstrap"), arguments.text("topic"), handlerMs, concurrency,
                arguments.number("warm-up-seconds", 5), arguments.number("seconds", 20));
        Meter meter = new Meter(warmUp, messages);
        peer.consume(job, meter);

        double rate = meter.counted() / meter.seconds();
        String possible = "null";
        String share = "null";
        if (handlerMs > 0) {
            double most = distribution.possible(keys, handlerMs / 1e3);
            possible = String.format("%.0f", most);
            // Cut short, unequal keys tell nothing together: the rare ones were done first. But the busiest can always
            // be handled without a pause.
            double reached = distribution == Keys.ZIPF
                    ? meter.countedOfBusiest() * (handlerMs / 1e3) / meter.seconds()
                    : rate / most;
            share = String.format("%.4f", reached);
        }
        System.out.printf("{\"peer\":\"%s\",\"version\":\"%s\",\"kafka_clients\":\"%s\",\"messages\":%d,"
                        + "\"complete\":%b,\"keys\":%d,"
                        + "\"distribution\":\"%s\",\"handler_ms\":%d,\"concurrency\":%d,\"seconds\":%.3f,"
                        + "\"messages_per_second\":%.0f,\"cpu_seconds\":%.3f,\"possible_per_second\":%s,"
                        + "\"share_of_possible\":%s,\"out_of_order\":%d,\"max_rss_bytes\":%d}%n",
                peer.shown(), version(peer == Peer.PLAIN ? "kafka" : "parallel-consumer"), version("kafka"),
                meter.counted(), meter.complete(), keys, arguments.text("distribution"), handlerMs, concurrency,
                meter.seconds(), rate, meter.cpuSeconds(), possible, share, meter.outOfOrder(), maxRss());
    }

    /** The most memory that ever was resident. */
    private static long maxRss() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
            }
        }
        return 0;
    }

    private static String version(String of) throws IOException {
        Properties versions = new Properties();
        try (var file = Main.class.getResourceAsStream("/versions.properties")) {
            versions.load(file);
        }
        return versions.getProperty(of);
    }
}
