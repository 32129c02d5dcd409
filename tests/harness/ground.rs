//! The grounds on which the promises are shown: the suite is the same on every broker, and this file has what differs.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::Cluster;
use crate::server::Setup;

/// A broker on which the suite of promises runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// The embedded broker, in a folder of each test's own.
    Embedded,
    /// One Kafka broker that all tests of a binary share.
    Kafka,
}

impl Ground {
    /// A server's setup on this broker, with a topic that no other test of the binary has.
    pub fn setup(self) -> Setup {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let setup = Setup::default().topic(&format!("promise-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        match self {
            Ground::Embedded => setup,
            // A process that comes back under its name has its partitions back at once.
            Ground::Kafka => setup.on_kafka(&Cluster::shared(), "group.instance.id: one"),
        }
    }

    /// A setup as [`Ground::setup`], with these settings of the pipeline, a line each.
    pub fn pipeline(self, lines: &[&str]) -> Setup {
        Setup { pipeline: lines.join("\n"), ..self.setup() }
    }

    /// How often a test does something that restarts the server: `often` where a start takes milliseconds, less often
    /// where it takes seconds.
    pub fn times(self, often: u64) -> u64 {
        match self {
            Ground::Embedded => often,
            Ground::Kafka => often.div_ceil(8).max(3),
        }
    }
}

/// Brings the suite of promises into a test binary, on the broker that is named: `promises!(Embedded);`. The binary's
/// file lies in a folder beside `suite/`.
#[macro_export]
macro_rules! promises {
    ($broker:ident) => {
        /// The broker that the promises are shown on here.
        const ON: $crate::Ground = $crate::Ground::$broker;

        #[path = "../suite/p1_no_loss.rs"]
        mod p1_no_loss;
        #[path = "../suite/p2_order.rs"]
        mod p2_order;
        #[path = "../suite/p3_isolation.rs"]
        mod p3_isolation;
        #[path = "../suite/p4_safe_commit.rs"]
        mod p4_safe_commit;
        #[path = "../suite/p5_bounded.rs"]
        mod p5_bounded;
        #[path = "../suite/p9_fenced.rs"]
        mod p9_fenced;
    };
}
