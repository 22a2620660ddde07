//! `zmove cluster status`: who tells something within a few seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};
use zmove_cluster::jetstream::{JobNotice, NodeNotice, NodePart, NodeState, Notice, Notices};
use zmove_types::{ByteCount, SharedJobId};
use zmove_wire::{FileTotal, TransferProgress};

use crate::args::ClusterStatusArgs;
use crate::display::terminal;
use crate::settings;
use crate::settings::cluster::Cluster;
use crate::value::exit::{Exit, failure};

/// What has been heard.
#[derive(Default)]
struct Told {
    jobs: BTreeMap<SharedJobId, JobNotice>,
    nodes: BTreeMap<String, NodeNotice>,
}

/// Shows it.
pub(super) fn status(args: &ClusterStatusArgs) -> Result<Exit> {
    let told = settings::block_on(1, Told::by(&Cluster::load(&args.name)?))?;
    if args.json {
        told.as_json().for_each(terminal::say);
    } else if told.nodes.is_empty() && told.jobs.is_empty() {
        terminal::say("no node is there, and no job is under way");
    } else {
        told.as_text().for_each(|line| terminal::print_lines(&line));
    }
    Ok(Exit::Done)
}

impl Told {
    async fn by(cluster: &Cluster) -> Result<Self> {
        let (access, key) = (cluster.access(), cluster.key()?);
        let notices = match timeout(ANSWERS_WITHIN, Notices::open(&access, &key)).await {
            Ok(opened) => opened.map_err(|error| cluster.no_broker(&error))?,
            Err(_elapsed) => {
                let silent = format!("the broker {} does not answer", cluster.broker);
                return Err(failure(Exit::Connection, silent));
            }
        };
        let mut told = Self::default();
        let until = Instant::now() + LISTEN_FOR;
        while let Ok(heard) = timeout_at(until, notices.hear()).await {
            match heard? {
                Ok(Notice::Job(job)) => drop(told.jobs.insert(job.id(), job)),
                Ok(Notice::Node(node)) => drop(told.nodes.insert(node.node.clone(), node)),
                _ => {}
            }
        }
        Ok(told)
    }

    /// Jobs of which nodes tell, and no push: it has been killed, or cannot reach the broker.
    fn unled(&self) -> BTreeSet<SharedJobId> {
        let parts = self.nodes.values().filter_map(|node| node.part.as_ref());
        let at_work = parts
            .filter(|part| part.state == NodeState::Works)
            .map(|part| SharedJobId(part.job));
        at_work.filter(|job| !self.jobs.contains_key(job)).collect()
    }

    fn as_text(&self) -> impl Iterator<Item = String> {
        let led = self.jobs.iter().map(|(id, job)| {
            let nodes: Vec<_> = job.nodes.keys().cloned().collect();
            format!("job {id}: {}", nodes.join(", "))
        });
        let unled = self.unled().into_iter().map(|id| {
            format!("job {id}: its push is not heard of, and if it was killed is to be run again; nodes wait for it")
        });
        let heads = self.heads().map(|(id, head, moved)| {
            let moved = ByteCount(moved.stored.bytes);
            format!("node {head}: leads job {id}, {moved} moved")
        });
        let nodes = self.nodes.values().map(|node| {
            let what = node.part.as_ref().map_or("has no work".to_owned(), text_of);
            format!("node {}: {what}", node.node)
        });
        led.chain(unled).chain(heads).chain(nodes)
    }

    /// The nodes that lead, each with its job and what it has moved itself.
    fn heads(&self) -> impl Iterator<Item = (SharedJobId, &str, TransferProgress)> {
        self.jobs
            .iter()
            .filter_map(|(id, job)| Some((*id, job.head()?, job.moved)))
    }

    fn as_json(&self) -> impl Iterator<Item = String> {
        let led = self.jobs.iter().map(|(id, job)| {
            let nodes: Vec<_> = job.nodes.keys().collect();
            json!({ "job": id.to_string(), "nodes": nodes, "led": true }).to_string()
        });
        let unled = self.unled().into_iter();
        let unled =
            unled.map(|id| json!({ "job": id.to_string(), "nodes": [], "led": false }).to_string());
        let line = |node: &str, job: Option<SharedJobId>, moved: TransferProgress| {
            let FileTotal { files, bytes } = moved.stored;
            let job = job.map(|job| job.to_string());
            json!({ "node": node, "job": job, "files": files, "bytes": bytes }).to_string()
        };
        let heads = self
            .heads()
            .map(move |(id, head, moved)| line(head, Some(id), moved));
        let nodes = self
            .nodes
            .values()
            .map(move |NodeNotice { node, part, .. }| {
                let job = part.as_ref().map(|part| SharedJobId(part.job));
                line(
                    node,
                    job,
                    part.as_ref().map(|part| part.moved).unwrap_or_default(),
                )
            });
        led.chain(unled).chain(heads).chain(nodes)
    }
}

fn text_of(part: &NodePart) -> String {
    let (id, bytes) = (SharedJobId(part.job), ByteCount(part.moved.stored.bytes));
    match part.state {
        NodeState::Offers => format!("is about to take part in job {id}"),
        NodeState::Works => format!("job {id}, {bytes} moved"),
        NodeState::HasEnded | NodeState::HasLostSessions => {
            format!("job {id} has ended, {bytes} moved")
        }
        NodeState::Stopped => format!("was stopped in job {id}, {bytes} moved"),
    }
}

/// How long it may take to find whether a broker answers, or another program is in its place, which may say nothing.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long it is listened: all tell each second what there is, and nothing is kept that could be asked for.
const LISTEN_FOR: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, part: Option<(u8, NodeState)>) -> (String, NodeNotice) {
        let moved = TransferProgress {
            stored: FileTotal {
                files: 1,
                bytes: 2048,
            },
            ..TransferProgress::default()
        };
        let part_of = |(job, state)| NodePart {
            job: [job; 16],
            state,
            moved,
            items: 1,
            tally: zmove_cluster::Tally::default(),
            granted_until: None,
            ping: 0,
        };
        let part = part.map(part_of);
        (
            name.to_owned(),
            NodeNotice {
                node: name.to_owned(),
                key: [0; 32],
                part,
            },
        )
    }

    #[test]
    fn a_job_whose_push_is_gone_is_told_as_such() {
        let nodes = [
            node("a", Some((1, NodeState::Works))),
            node("b", Some((2, NodeState::HasEnded))),
            node("c", None),
        ];
        let told = Told {
            jobs: BTreeMap::new(),
            nodes: nodes.into(),
        };
        let lines: Vec<_> = told.as_text().collect();
        assert!(lines[0].starts_with("job 01010101"), "{lines:?}");
        assert!(lines[0].contains("its push is not heard of"), "{lines:?}");
        assert!(
            lines[1].contains("node a: job 0101") && lines[1].ends_with(" moved"),
            "{lines:?}"
        );
        assert!(lines[2].contains("has ended"), "{lines:?}");
        assert_eq!(lines[3], "node c: has no work");
        let json: Vec<_> = told.as_json().collect();
        assert!(
            json[0].contains(r#""led":false"#) && json.len() == 4,
            "{json:?}"
        );
    }

    #[test]
    fn the_node_that_leads_is_told_with_what_it_has_moved() {
        let nodes = BTreeMap::from([("a".to_owned(), 1), ("head".to_owned(), 0)]);
        let moved = TransferProgress {
            stored: FileTotal {
                files: 3,
                bytes: 1 << 20,
            },
            ..TransferProgress::default()
        };
        let job = JobNotice {
            job: [1; 16],
            nodes,
            moved,
            ..JobNotice::default()
        };
        let jobs = BTreeMap::from([(job.id(), job)]);
        let told = Told {
            jobs,
            nodes: [node("a", Some((1, NodeState::Works)))].into(),
        };
        let lines: Vec<_> = told.as_text().collect();
        assert!(lines[0].ends_with(": a, head"), "{lines:?}");
        assert!(
            lines[1].starts_with("node head: leads job 0101"),
            "{lines:?}"
        );
        assert!(
            lines[1].ends_with(", 1.00 MiB moved") && lines[1].len() <= 80,
            "{lines:?}"
        );
        let json: Vec<_> = told.as_json().collect();
        assert!(
            json[1].contains(r#""bytes":1048576"#) && json[1].contains(r#""node":"head""#),
            "{json:?}"
        );
    }
}
