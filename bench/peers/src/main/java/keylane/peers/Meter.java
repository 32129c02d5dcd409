package keylane.peers;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Counts completions and stops the clock. It starts when the warm-up is handled, or some seconds after the first
 * message, so that neither joining the group nor Java's first steps are measured, and stops at the last message or when
 * time is up. Keylane's own is bench/src/kafka/peer.rs.
 */
final class Meter {
    /** Only to fail a hang: joining a group takes seconds. */
    private static final int FIRST_SECONDS = 120;
    /** The key that comes most often, the first of a Zipf distribution. */
    private static final String BUSIEST = String.format("%016d", 0);

    private final OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final AtomicLong done = new AtomicLong();
    private final AtomicLong ofBusiest = new AtomicLong();
    private final AtomicLong outOfOrder = new AtomicLong();
    private final ConcurrentHashMap<String, Long> last = new ConcurrentHashMap<>();
    private final CountDownLatch first = new CountDownLatch(1);
    private final CountDownLatch warm = new CountDownLatch(1);
    private final CountDownLatch ended = new CountDownLatch(1);
    private final long warmUp;
    private final long all;
    private long startNanos;
    private long startCpuNanos;
    private long startDone;
    private long startOfBusiest;
    private long nanos;
    private long cpuNanos;
    private long counted;
    private long countedOfBusiest;

    Meter(long warmUp, long all) {
        this.warmUp = warmUp;
        this.all = all;
    }

    /** To be called when a handler begins: a message that is older than the last of its key is out of order. */
    void begins(String key, byte[] payload) {
        long number = ByteBuffer.wrap(payload).getLong();
        Long before = last.put(key, number);
        if (before != null && before >= number) {
            outOfOrder.incrementAndGet();
        }
    }

    /** To be called when a handler has ended. */
    void ends(String key) {
        if (key.equals(BUSIEST)) {
            ofBusiest.incrementAndGet();
        }
        long count = done.incrementAndGet();
        if (count == 1) {
            first.countDown();
        }
        if (count == warmUp) {
            start();
        } else if (count == all) {
            stop();
        }
    }

    boolean over() {
        return ended.getCount() == 0;
    }

    /** Waits for the end: the last message, or so many seconds after the warm-up. */
    void await(int warmUpSeconds, int seconds) throws InterruptedException {
        if (!first.await(FIRST_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException("nothing was handled");
        }
        warm.await(warmUpSeconds, TimeUnit.SECONDS);
        start();
        ended.await(seconds, TimeUnit.SECONDS);
        stop();
    }

    private synchronized void start() {
        if (warm.getCount() > 0) {
            startDone = done.get();
            startOfBusiest = ofBusiest.get();
            startCpuNanos = system.getProcessCpuTime();
            startNanos = System.nanoTime();
            warm.countDown();
        }
    }

    private synchronized void stop() {
        if (!over()) {
            nanos = System.nanoTime() - startNanos;
            cpuNanos = system.getProcessCpuTime() - startCpuNanos;
            counted = done.get() - startDone;
            countedOfBusiest = ofBusiest.get() - startOfBusiest;
            ended.countDown();
        }
    }

    long counted() {
        return counted;
    }

    /** Whether all was handled before time was up. */
    boolean complete() {
        return startDone + counted >= all;
    }

    /** Of the key that comes most often. */
    long countedOfBusiest() {
        return countedOfBusiest;
    }

    double seconds() {
        return nanos / 1e9;
    }

    double cpuSeconds() {
        return cpuNanos / 1e9;
    }

    long outOfOrder() {
        return outOfOrder.get();
    }
}
