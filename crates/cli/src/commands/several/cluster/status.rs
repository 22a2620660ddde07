//! `zmove cluster status`: listens for a few seconds, and shows the nodes and jobs that have sent a report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tokio::time::{Instant, timeout, timeout_at};
use zmove_cluster::jetstream::{JobNotice, NodeNotice, NodeState, Notice};
use zmove_jobs::{Node, Nodes, Pace};
use zmove_types::SharedJobId;

use crate::args::ClusterStatusArgs;
use crate::display::job::taking_part;
use crate::display::terminal;
use crate::settings;
use crate::settings::cluster::Cluster;
use crate::value::exit::{Exit, failure};

/// The notices received during this command.
#[derive(Default)]
struct HeardNotices {
    jobs: BTreeMap<SharedJobId, JobNotice>,
    nodes: BTreeMap<String, NodeNotice>,
}

/// A job, with all nodes and receivers that take part in it.
#[derive(Default, Serialize)]
struct JobStatus {
    /// ID of the job, or `None` for the group of nodes without work.
    job: Option<String>,
    /// Whether a push reports the job. If not, the push was killed or cannot reach the broker.
    led: bool,
    #[serde(flatten)]
    nodes: Nodes,
}

/// Shows the status of a cluster.
pub(super) fn status(args: &ClusterStatusArgs) -> Result<Exit> {
    let cluster = Cluster::load(&args.name)?;
    let heard = settings::block_on(1, HeardNotices::by(&cluster))?;
    let jobs = heard.by_job();
    if args.metrics {
        terminal::print(metrics(&jobs, &cluster.name));
    } else if args.json {
        for job in &jobs {
            terminal::say(serde_json::to_string(job)?);
        }
    } else if jobs.is_empty() {
        terminal::say("no nodes are connected, and no jobs are running");
    } else {
        let lines = jobs.iter().flat_map(JobStatus::lines);
        lines.for_each(|line| terminal::print_lines(&line));
    }
    Ok(Exit::Done)
}

impl HeardNotices {
    async fn by(cluster: &Cluster) -> Result<Self> {
        let notices = match timeout(ANSWERS_WITHIN, cluster.notices()).await {
            Ok(opened) => opened.map_err(|error| cluster.no_broker(error))?,
            Err(_elapsed) => {
                let silent = format!("the broker {} does not answer", cluster.broker);
                return Err(failure(Exit::Connection, silent));
            }
        };
        let mut all = Self::default();
        let until = Instant::now() + LISTEN_FOR;
        while let Ok(heard) = timeout_at(until, notices.hear()).await {
            match heard {
                Ok(Notice::Job(job)) => drop(all.jobs.insert(job.job, job)),
                Ok(Notice::Node(node)) => drop(all.nodes.insert(node.node.clone(), *node)),
                _ => {}
            }
        }
        Ok(all)
    }

    /// Returns the jobs as their heads report them, and the nodes that no head reports.
    fn by_job(&self) -> Vec<JobStatus> {
        let led = self.jobs.iter().map(|(id, job)| {
            let nodes: Nodes = serde_json::from_str(&job.shown).unwrap_or_default();
            (Some(*id), nodes)
        });
        let mut jobs: BTreeMap<_, _> = led.collect();
        let shown = jobs.values().flat_map(|nodes| &nodes.nodes);
        let shown: BTreeSet<_> = shown.map(|node| node.name.clone()).collect();
        let others = self.nodes.values();
        for report in others.filter(|report| !shown.contains(&report.node)) {
            let part = report.part.as_ref();
            let part = part.filter(|part| part.state == NodeState::Works);
            let stored = part.map(|part| part.moved.stored).unwrap_or_default();
            let job = part.map(|part| part.job);
            let nodes = jobs.entry(job).or_default();
            nodes.nodes.push(Node {
                name: report.node.clone(),
                files: stored.files,
                bytes: stored.bytes,
                ..Node::default()
            });
            nodes.count = nodes.count.max(nodes.nodes.len() as u64);
        }
        let status = |(job, nodes): (Option<SharedJobId>, _)| JobStatus {
            led: job.is_some_and(|job| self.jobs.contains_key(&job)),
            job: job.map(|job| job.to_string()),
            nodes,
        };
        jobs.into_iter().map(status).collect()
    }
}

impl JobStatus {
    fn lines(&self) -> Vec<String> {
        let mut lines = taking_part(&self.nodes);
        match &self.job {
            Some(job) if self.led => lines[0] = format!("job {job}: {}", lines[0]),
            Some(job) => {
                lines[0] = format!(
                    "job {job}: no report from its push; if the push was killed, run it again"
                );
            }
            None => {
                let names = self.nodes.nodes.iter();
                lines = names
                    .map(|node| format!("{} has no work", node.name))
                    .collect();
            }
        }
        lines
    }
}

/// Returns the metrics of the jobs in the Prometheus text format.
fn metrics(jobs: &[JobStatus], cluster: &str) -> String {
    let mut families: BTreeMap<_, String> = BTreeMap::new();
    let mut add = |name, kind, labels: &str, value: u64| {
        let family = families.entry(name);
        *family.or_insert_with(|| format!("# TYPE zmove_cluster_{name} {kind}\n")) +=
            &format!("zmove_cluster_{name}{{cluster=\"{cluster}\"{labels}}} {value}\n");
    };
    let nodes = jobs.iter().map(|job| job.nodes.nodes.len() as u64);
    add("nodes", "gauge", "", nodes.sum());
    for JobStatus { job, nodes, .. } in jobs {
        let Some(job) = job else { continue };
        if let Some(items) = nodes.items_waiting {
            add("items_waiting", "gauge", &format!(",job=\"{job}\""), items);
        }
        for (kind, of_kind) in [("node", &nodes.nodes), ("receiver", &nodes.receivers)] {
            for node in of_kind {
                let name = node.name.replace(['"', '\\', '\n'], "_");
                let labels = format!(",job=\"{job}\",kind=\"{kind}\",name=\"{name}\"");
                let holds_up = matches!(node.state, Pace::Slow | Pace::Silent);
                add("bytes_total", "counter", &labels, node.bytes);
                add("files_total", "counter", &labels, node.files);
                add("bytes_per_second", "gauge", &labels, node.bytes_per_second);
                add("holds_up_others", "gauge", &labels, holds_up.into());
            }
        }
    }
    families.into_values().collect()
}

/// Maximum time for a broker to answer. If another program listens on the broker's port, it may never answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Time for which the command listens. All nodes and heads report every second.
const LISTEN_FOR: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use zmove_cluster::jetstream::NodePart;
    use zmove_jobs::Party;
    use zmove_wire::{FileTotal, TransferProgress};

    use super::*;

    fn node(name: &str, part: Option<(u8, NodeState)>) -> (String, NodeNotice) {
        let stored = FileTotal {
            files: 1,
            bytes: 2048,
        };
        let moved = TransferProgress {
            stored,
            ..TransferProgress::default()
        };
        let part = part.map(|(job, state)| NodePart {
            job: SharedJobId([job; 16]),
            state,
            moved,
            tally: zmove_cluster::Tally::default(),
            granted_until: None,
            ping: 0,
            receivers: BTreeMap::new(),
        });
        let node = name.to_owned();
        let key = [0; 32];
        let stored = 0;
        let notice = NodeNotice {
            node,
            key,
            part,
            stored,
        };
        (name.to_owned(), notice)
    }

    #[test]
    fn a_job_whose_push_is_gone_is_told_as_such() {
        let nodes = [
            node("a", Some((1, NodeState::Works))),
            node("b", Some((2, NodeState::HasEnded))),
            node("c", None),
        ];
        let heard = HeardNotices {
            jobs: BTreeMap::new(),
            nodes: nodes.into(),
        };
        let jobs = heard.by_job();
        let lines: Vec<_> = jobs.iter().flat_map(JobStatus::lines).collect();
        assert_eq!(lines[0], "b has no work");
        assert_eq!(lines[1], "c has no work");
        assert!(lines[2].starts_with("job 01010101"), "{lines:?}");
        assert!(lines[2].contains("no report from its push"), "{lines:?}");
        assert!(lines[3].contains("a  works: 1 file, 2.00 KiB"), "{lines:?}");
        let json = serde_json::to_value(&jobs).unwrap();
        assert_eq!(json[0]["job"], serde_json::Value::Null);
        assert_eq!(
            (&json[1]["led"], &json[1]["nodes"][0]["bytes"]),
            (&false.into(), &2048.into())
        );
    }

    #[test]
    fn nodes_receivers_and_the_queue_of_a_job_are_shown_as_its_head_sees_them() {
        let of = |name: &str, state, percent| Node {
            name: name.to_owned(),
            state,
            files: 3,
            bytes: 1 << 20,
            bytes_per_second: 125_000,
            percent_of_others: percent,
        };
        let shown = Nodes {
            kind: Party::Node,
            count: 2,
            items_waiting: Some(12),
            nodes: vec![of("a", Pace::Slow, Some(31)), of("head", Pace::Works, None)],
            receivers: vec![of("dtn1", Pace::Works, None)],
        };
        let job = JobNotice {
            job: SharedJobId([1; 16]),
            shown: serde_json::to_string(&shown).unwrap(),
            ..JobNotice::default()
        };
        let heard = HeardNotices {
            jobs: BTreeMap::from([(job.job, job)]),
            nodes: [node("a", Some((1, NodeState::Works))), node("idle", None)].into(),
        };
        let jobs = heard.by_job();
        let lines: Vec<_> = jobs.iter().flat_map(JobStatus::lines).collect();
        assert_eq!(lines[0], "idle has no work");
        assert!(
            lines[1].starts_with("job 0101") && lines[1].ends_with(": 2 nodes, 12 items waiting:"),
            "{lines:?}"
        );
        assert!(
            lines[2].ends_with("a     slow: 3 files, 1.00 MiB, 1.00 Mbit/s, 31 % of the median"),
            "{lines:?}"
        );
        assert!(lines[5].starts_with("  dtn1  works: "), "{lines:?}");
        let metrics = metrics(&jobs, "lab");
        for expected in [
            "zmove_cluster_nodes{cluster=\"lab\"} 3\n",
            "# TYPE zmove_cluster_bytes_total counter\n",
            "kind=\"receiver\",name=\"dtn1\"} 1048576\n",
        ] {
            assert!(metrics.contains(expected), "{expected}: {metrics}");
        }
        let held_up = metrics.lines().filter(|line| {
            line.starts_with("zmove_cluster_holds_up_others{") && line.ends_with(" 1")
        });
        assert!(
            held_up.eq(metrics
                .lines()
                .filter(|line| line.contains("holds_up_others{") && line.contains("name=\"a\"")))
        );
    }
}
