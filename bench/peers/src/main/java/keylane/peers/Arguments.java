package keylane.peers;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/** {@code --name value} pairs of a command line. */
final class Arguments {
    private static final Set<String> KNOWN = Set.of(
            "bootstrap", "topic", "messages", "keys", "distribution", "partitions", "peer", "handler-ms",
            "concurrency", "warm-up", "warm-up-seconds", "seconds");

    private final Map<String, String> given = new HashMap<>();

    Arguments(String[] words, int from) {
        for (int at = from; at < words.length; at += 2) {
            String name = words[at].startsWith("--") ? words[at].substring(2) : "";
            if (!KNOWN.contains(name) || at + 1 == words.length) {
                throw new IllegalArgumentException("not an option with a value: " + words[at]);
            }
            given.put(name, words[at + 1]);
        }
    }

    String text(String name) {
        String value = given.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    int number(String name, int otherwise) {
        return given.containsKey(name) ? number(name) : otherwise;
    }
}
