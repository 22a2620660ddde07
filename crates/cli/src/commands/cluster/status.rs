//! `zmove cluster status`: who reports within a few seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};
use zmove_cluster::jetstream::{JobNotice, NodeNotice, NodePart, NodeState, Notice, Notices};
use zmove_jobs::Nodes;
use zmove_types::{ByteCount, ByteRate, SharedJobId};
use zmove_wire::FileTotal;

use crate::args::ClusterStatusArgs;
use crate::display::format::counted;
use crate::display::terminal;
use crate::settings;
use crate::settings::cluster::Cluster;
use crate::value::exit::{Exit, failure};

/// The notices that were heard.
#[derive(Default)]
struct Heard {
    jobs: BTreeMap<SharedJobId, JobNotice>,
    nodes: BTreeMap<String, NodeNotice>,
}

/// A node or receiver.
struct Row {
    kind: &'static str,
    job: Option<SharedJobId>,
    node: zmove_jobs::Node,
}

/// Shows the status of a cluster.
pub(super) fn status(args: &ClusterStatusArgs) -> Result<Exit> {
    let cluster = Cluster::load(&args.name)?;
    let heard = settings::block_on(1, Heard::by(&cluster))?;
    if args.metrics {
        heard.metrics(&cluster.name).lines().for_each(terminal::say);
    } else if args.json {
        heard.as_json().for_each(terminal::say);
    } else if heard.nodes.is_empty() && heard.jobs.is_empty() {
        terminal::say("no node is there, and no job is under way");
    } else {
        heard
            .as_text()
            .for_each(|line| terminal::print_lines(&line));
    }
    Ok(Exit::Done)
}

impl Heard {
    async fn by(cluster: &Cluster) -> Result<Self> {
        let (access, key) = (cluster.access(), cluster.key()?);
        let notices = match timeout(ANSWERS_WITHIN, Notices::open(&access, &key)).await {
            Ok(opened) => opened.map_err(|error| cluster.no_broker(&error))?,
            Err(_elapsed) => {
                let silent = format!("the broker {} does not answer", cluster.broker);
                return Err(failure(Exit::Connection, silent));
            }
        };
        let mut all = Self::default();
        let until = Instant::now() + LISTEN_FOR;
        while let Ok(heard) = timeout_at(until, notices.hear()).await {
            match heard? {
                Ok(Notice::Job(job)) => drop(all.jobs.insert(job.id(), job)),
                Ok(Notice::Node(node)) => drop(all.nodes.insert(node.node.clone(), node)),
                _ => {}
            }
        }
        Ok(all)
    }

    /// The jobs that nodes report and no head: the push was killed or cannot reach the broker.
    fn unled(&self) -> BTreeSet<SharedJobId> {
        let parts = self.nodes.values().filter_map(|node| node.part.as_ref());
        let at_work = parts
            .filter(|part| part.state == NodeState::Works)
            .map(|part| SharedJobId(part.job));
        at_work.filter(|job| !self.jobs.contains_key(job)).collect()
    }

    /// The jobs that are led, each with all that take part as its head sees them.
    fn led(&self) -> impl Iterator<Item = (SharedJobId, Nodes)> {
        self.jobs
            .iter()
            .map(|(id, job)| (*id, serde_json::from_str(&job.shown).unwrap_or_default()))
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut shown = BTreeSet::new();
        for (
            id,
            Nodes {
                nodes, receivers, ..
            },
        ) in self.led()
        {
            shown.extend(nodes.iter().map(|node| node.name.clone()));
            for (kind, all) in [("node", nodes), ("receiver", receivers)] {
                let job = Some(id);
                rows.extend(all.into_iter().map(|node| Row { kind, job, node }));
            }
        }
        let others = self.nodes.values();
        let others = others.filter(|node| !shown.contains(&node.node));
        rows.extend(others.map(Row::of_node));
        rows
    }

    fn as_text(&self) -> impl Iterator<Item = String> {
        let led = self.led().map(|(id, nodes)| {
            let waiting = nodes
                .items_waiting
                .map(|waiting| counted(waiting, "item") + " waiting");
            let waiting = waiting.unwrap_or_else(|| "the queue does not answer".to_owned());
            format!("job {id}: {}, {waiting}", counted(nodes.count, "node"))
        });
        let unled = self.unled().into_iter().map(|id| {
            format!("job {id}: its push is not heard of; if it was killed, run it again")
        });
        led.chain(unled)
            .chain(self.rows().into_iter().map(|row| row.as_text()))
    }

    fn as_json(&self) -> impl Iterator<Item = String> {
        let led = self.led().map(|(id, nodes)| {
            json!({ "job": id.to_string(), "led": true, "nodes": nodes.count, "items_waiting": nodes.items_waiting })
        });
        let unled = self.unled().into_iter();
        let unled = unled.map(|id| {
            json!({ "job": id.to_string(), "led": false, "nodes": null, "items_waiting": null })
        });
        let rows = self.rows().into_iter().map(|Row { kind, job, node }| {
            json!({
                "kind": kind, "name": node.name, "job": job.map(|job| job.to_string()), "state": node.state,
                "files": node.files, "bytes": node.bytes, "bytes_per_second": node.bytes_per_second,
                "percent_of_others": node.percent_of_others,
            })
        });
        led.chain(unled).chain(rows).map(|line| line.to_string())
    }

    /// The same in the text format of Prometheus.
    fn metrics(&self, cluster: &str) -> String {
        let rows = self.rows();
        let nodes = rows.iter().filter(|row| row.kind == "node").count();
        let mut text = String::new();
        family(
            &mut text,
            "nodes",
            "gauge",
            [(format!("cluster=\"{cluster}\""), nodes as u64)],
        );
        let waiting = self.led().filter_map(|(id, nodes)| {
            Some((
                format!("cluster=\"{cluster}\",job=\"{id}\""),
                nodes.items_waiting?,
            ))
        });
        family(&mut text, "items_waiting", "gauge", waiting);
        type Read = fn(&zmove_jobs::Node) -> u64;
        let families: [(&str, &str, Read); 4] = [
            ("bytes_total", "counter", |node| node.bytes),
            ("files_total", "counter", |node| node.files),
            ("bytes_per_second", "gauge", |node| node.bytes_per_second),
            ("holds_up_others", "gauge", |node| {
                u64::from(matches!(node.state.as_str(), "slow" | "silent"))
            }),
        ];
        for (name, kind, read) in families {
            let values = rows.iter().filter_map(|row| {
                let (kind, job, name) = (row.kind, row.job?, &row.node.name);
                let name = name.replace(['"', '\\', '\n'], "_");
                let labels =
                    format!("cluster=\"{cluster}\",job=\"{job}\",kind=\"{kind}\",name=\"{name}\"");
                Some((labels, read(&row.node)))
            });
            family(&mut text, name, kind, values);
        }
        text
    }
}

impl Row {
    /// A node that is in no job, or in one whose head does not report it.
    fn of_node(NodeNotice { node, part, .. }: &NodeNotice) -> Self {
        let FileTotal { files, bytes } = part
            .as_ref()
            .map(|part| part.moved.stored)
            .unwrap_or_default();
        Self {
            kind: "node",
            job: part.as_ref().map(|part| SharedJobId(part.job)),
            node: zmove_jobs::Node {
                name: node.clone(),
                state: part.as_ref().map_or("idle", state_of).to_owned(),
                files,
                bytes,
                ..zmove_jobs::Node::default()
            },
        }
    }

    fn as_text(&self) -> String {
        let Self { kind, job, node } = self;
        let name = &node.name;
        let Some(job) = job else {
            return format!("{kind} {name}: has no work");
        };
        let of_others = node.percent_of_others.map_or_else(String::new, |percent| {
            format!(", {percent} % of the others")
        });
        format!(
            "{kind} {name}: job {job}, {}, {} moved, {}{of_others}",
            node.state,
            ByteCount(node.bytes),
            ByteRate::new(node.bytes_per_second, Duration::from_secs(1)),
        )
    }
}

fn state_of(part: &NodePart) -> &'static str {
    match part.state {
        NodeState::Offers => "offers",
        NodeState::Works => "works",
        NodeState::HasEnded | NodeState::HasLostSessions => "ended",
        NodeState::Stopped => "stopped",
    }
}

fn family(
    text: &mut String,
    name: &str,
    kind: &str,
    values: impl IntoIterator<Item = (String, u64)>,
) {
    writeln!(text, "# TYPE zmove_cluster_{name} {kind}").expect("a string grows");
    for (labels, value) in values {
        writeln!(text, "zmove_cluster_{name}{{{labels}}} {value}").expect("a string grows");
    }
}

/// How long a broker may take to answer. Another program in its place may say nothing.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long the command listens. All report each second.
const LISTEN_FOR: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use zmove_wire::TransferProgress;

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
            job: [job; 16],
            state,
            moved,
            items: 1,
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
        let heard = Heard {
            jobs: BTreeMap::new(),
            nodes: nodes.into(),
        };
        let lines: Vec<_> = heard.as_text().collect();
        assert!(lines[0].starts_with("job 01010101"), "{lines:?}");
        assert!(lines[0].contains("its push is not heard of"), "{lines:?}");
        assert!(lines[1].contains("node a: job 0101"), "{lines:?}");
        assert!(lines[2].contains(", ended, 2.00 KiB moved"), "{lines:?}");
        assert_eq!(lines[3], "node c: has no work");
        let json: Vec<_> = heard.as_json().collect();
        assert!(
            json[0].contains(r#""led":false"#) && json.len() == 4,
            "{json:?}"
        );
    }

    #[test]
    fn nodes_receivers_and_the_queue_of_a_job_are_shown_as_its_head_sees_them() {
        let of = |name: &str, state: &str, percent| zmove_jobs::Node {
            name: name.to_owned(),
            state: state.to_owned(),
            files: 3,
            bytes: 1 << 20,
            bytes_per_second: 125_000,
            percent_of_others: percent,
        };
        let shown = Nodes {
            kind: "node".to_owned(),
            count: 2,
            items_waiting: Some(12),
            nodes: vec![of("a", "slow", Some(31)), of("head", "works", None)],
            receivers: vec![of("dtn1", "works", None)],
        };
        let job = JobNotice {
            job: [1; 16],
            shown: serde_json::to_string(&shown).unwrap(),
            ..JobNotice::default()
        };
        let heard = Heard {
            jobs: BTreeMap::from([(job.id(), job)]),
            nodes: [node("a", Some((1, NodeState::Works))), node("idle", None)].into(),
        };
        let lines: Vec<_> = heard.as_text().collect();
        assert!(
            lines[0].ends_with(": 2 nodes, 12 items waiting"),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("node a: job 0101"), "{lines:?}");
        assert!(
            lines[1].ends_with(", slow, 1.00 MiB moved, 1.00 Mbit/s, 31 % of the others"),
            "{lines:?}"
        );
        assert!(lines[3].starts_with("receiver dtn1: job 0101"), "{lines:?}");
        assert_eq!(lines[4], "node idle: has no work");
        let metrics = heard.metrics("lab");
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
