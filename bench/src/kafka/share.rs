//! Measures PRF-3 on Kafka: a thousand keys with slow handlers, on a topic that was filled before.

use std::time::Duration;

use keylane::Settings;

use super::{Cluster, Deck};
use crate::machine::{WORKERS, runtime};
use crate::share::{KEYS, SLEEPS, Sleeper, Sleeps, figure, raw};
use crate::source::Draw;
use crate::{Error, Figure, Options};

/// More messages than can be handled while measuring.
const MESSAGES: u64 = 1_000_000;
const ROUNDS: usize = 3;
/// How many messages were handled when surely all partitions are read: twenty of each key.
const BEGUN: u64 = 20 * KEYS as u64;

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    super::on_cluster(options, |cluster| {
        let topic = cluster.topic("slow")?;
        cluster.fill(&topic, &Deck::new(KEYS, Draw::Uniform), MESSAGES)?;
        for sleep in SLEEPS {
            let (mut raw_rate, mut ours_rate) = (0f64, 0f64);
            for _ in 0..ROUNDS {
                raw_rate = raw_rate.max(raw(sleep)?);
                ours_rate = ours_rate.max(ours(cluster, &topic, sleep)?);
            }
            report(figure("Kafka, 1,000 keys", sleep, ours_rate, raw_rate));
        }
        Ok(())
    })
}

fn ours(cluster: &Cluster, topic: &str, sleep: Duration) -> Result<f64, Error> {
    let sleeper = Sleeper::start(sleep)?;
    let mut settings = Settings::default();
    settings.shards = Some(WORKERS);
    runtime("ours")?.block_on(async {
        let keylane = cluster.open().await?;
        let group = cluster.group();
        let pipeline = keylane.pipeline(topic).group(&group).settings(settings);
        let pipeline = pipeline.handle(Sleeps(std::sync::Arc::clone(&sleeper))).start().await?;
        // Asking for the status of the partitions would cost CPU time on both sides.
        while sleeper.count() < BEGUN {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let rate = sleeper.rate().await;
        pipeline.drain().await?;
        Ok(rate)
    })
}
