package keylane.peers;

import java.util.Arrays;
import java.util.SplittableRandom;

/** Which key comes next, and how fast the keys of a distribution could be handled at best. */
enum Keys {
    /** Each as likely as the next. */
    UNIFORM,
    /** The n-th as likely as 1/n. */
    ZIPF,
    /** One after another, so that all are equally often there. */
    IN_TURN;

    static Keys of(String name) {
        return valueOf(name.toUpperCase().replace('-', '_'));
    }

    /** The keys of that many messages, the same in every run. */
    int[] draw(int messages, int keys) {
        SplittableRandom dice = new SplittableRandom(0x5eed);
        int[] drawn = new int[messages];
        double[] below = this == ZIPF ? harmonic(keys) : null;
        for (int at = 0; at < messages; at++) {
            drawn[at] = switch (this) {
                case UNIFORM -> dice.nextInt(keys);
                case IN_TURN -> at % keys;
                case ZIPF -> rank(below, dice.nextDouble() * below[keys - 1]);
            };
        }
        return drawn;
    }

    /**
     * Messages a second if the busiest key never waits: nothing that keeps the order of keys can be faster for long.
     */
    double possible(int keys, double handlerSeconds) {
        double shareOfBusiest = this == ZIPF ? 1 / harmonic(keys)[keys - 1] : 1.0 / keys;
        return 1 / (shareOfBusiest * handlerSeconds);
    }

    private static int rank(double[] below, double at) {
        int found = Arrays.binarySearch(below, at);
        return Math.min(found < 0 ? -found - 1 : found + 1, below.length - 1);
    }

    private static double[] harmonic(int keys) {
        double[] sums = new double[keys];
        double sum = 0;
        for (int rank = 1; rank <= keys; rank++) {
            sum += 1.0 / rank;
            sums[rank - 1] = sum;
        }
        return sums;
    }
}
