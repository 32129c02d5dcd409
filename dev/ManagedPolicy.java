import java.util.Map;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** What some managed clusters refuse: small segments, and a codec of a topic's own. For `dev/kafka run --policy`. */
public class ManagedPolicy implements CreateTopicPolicy, AlterConfigPolicy {
    private static final long SEGMENT_BYTES_MIN = 52428800;

    private static void check(Map<String, String> settings) {
        String segment = settings.get("segment.bytes");
        if (segment != null && Long.parseLong(segment) < SEGMENT_BYTES_MIN) {
            throw new PolicyViolationException("segment.bytes must be at least " + SEGMENT_BYTES_MIN);
        }
        if (settings.containsKey("compression.type")) {
            throw new PolicyViolationException("compression.type cannot be set");
        }
    }

    @Override
    public void validate(CreateTopicPolicy.RequestMetadata asked) {
        check(asked.configs());
    }

    @Override
    public void validate(AlterConfigPolicy.RequestMetadata asked) {
        check(asked.configs());
    }

    @Override
    public void configure(Map<String, ?> settings) {
    }

    @Override
    public void close() {
    }
}
