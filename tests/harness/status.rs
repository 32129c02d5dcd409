//! Reads `/admin/pipelines` of a server.

use serde_json::Value;

use crate::server::Server;
use crate::sink::Sink;

/// A pipeline, as the admin API shows it.
#[derive(Debug, Clone)]
pub struct PipelineView {
    /// Messages handled since its process started.
    pub handled: u64,
    /// Messages that became dead letters since its process started.
    pub dead: u64,
    /// Messages read and not settled.
    pub buffered: u64,
    /// The bytes of these messages.
    pub buffered_bytes: u64,
    /// Messages not settled.
    pub lag: u64,
    /// The pipeline's partitions.
    pub partitions: Vec<PartitionView>,
}

/// A partition of a pipeline.
#[derive(Debug, Clone)]
pub struct PartitionView {
    /// Its number.
    pub partition: u32,
    /// Running, paused, stopped …
    pub state: String,
    /// The epoch under which it is owned.
    pub epoch: u64,
    /// The lowest unsettled position.
    pub committed: u64,
    /// The position that the next message gets.
    pub end: u64,
    /// Why the partition is paused or has stopped.
    pub why: Option<String>,
}

/// Commits, and when they were seen, in the sink's count.
#[derive(Debug, Clone)]
pub struct Committed {
    /// Everything that the sink records from now on has a higher count.
    pub at: u64,
    /// Partition and commit.
    pub partitions: Vec<(u32, u64)>,
}

impl PipelineView {
    /// The pipeline `t` of a server. None if the server does not answer, or has not started the pipeline yet.
    pub async fn of(server: &Server) -> Option<PipelineView> {
        let (status, body) = server.get("/admin/pipelines").await?;
        // The server listens before it has opened its broker.
        if status == 503 && body["code"] == "KL-1221" {
            return None;
        }
        assert_eq!(status, 200, "{body}");
        let all = body["pipelines"].as_array();
        let all = all.unwrap_or_else(|| panic!("not a list of pipelines: {body}"));
        all.iter().find(|pipeline| pipeline["name"] == "t").map(read)
    }

    /// The commits now, for [`crate::check_committed`].
    pub async fn committed(server: &Server, sink: &Sink) -> Option<Committed> {
        let view = PipelineView::of(server).await?;
        // A server does not know the commits of partitions that it does not own yet.
        let owned = view.partitions.iter().filter(|partition| partition.epoch > 0);
        Some(Committed {
            at: sink.count(),
            partitions: owned.map(|partition| (partition.partition, partition.committed)).collect(),
        })
    }

    /// True if every partition is settled to its end.
    pub fn is_settled(&self) -> bool {
        self.partitions.iter().all(|partition| partition.committed == partition.end)
    }
}

fn read(pipeline: &Value) -> PipelineView {
    let number = |name: &str| pipeline[name].as_u64().unwrap_or_else(|| panic!("no {name} in {pipeline}"));
    PipelineView {
        handled: number("handled"),
        dead: number("dead"),
        buffered: number("buffered"),
        buffered_bytes: number("buffered_bytes"),
        lag: pipeline["lag"]["messages"].as_u64().expect("a lag in messages"),
        partitions: pipeline["partitions"]
            .as_array()
            .expect("a list of partitions")
            .iter()
            .map(read_partition)
            .collect(),
    }
}

fn read_partition(partition: &Value) -> PartitionView {
    let number = |name: &str| partition[name].as_u64().unwrap_or_else(|| panic!("no {name} in {partition}"));
    let text = |name: &str| partition[name].as_str().map(str::to_owned);
    PartitionView {
        partition: number("partition") as u32,
        state: text("state").expect("a state"),
        epoch: number("epoch"),
        committed: number("committed"),
        end: number("end"),
        why: text("why"),
    }
}
