//! The nodes of a push, as words of a line, and as an object of the stream of events.

use serde_json::{Value, json};
use zmove_types::{ByteCount, ByteRate, Node, Nodes, Pace, Party};

use crate::display::format::counted;

/// How many nodes there are, and how many of them hold up the others: few words, for the beginning of a line that a
/// terminal cuts off.
fn how_many(
    Nodes {
        party,
        count,
        nodes,
        ..
    }: &Nodes,
) -> String {
    let of = |pace: Pace| {
        let of_it = nodes.iter().filter(|node| node.pace == pace).count();
        (of_it > 0).then(|| format!("{of_it} {}", pace.word()))
    };
    let held_up: Vec<_> = HOLD_UP.into_iter().filter_map(of).collect();
    let held_up = if held_up.is_empty() {
        String::new()
    } else {
        format!(" ({})", held_up.join(", "))
    };
    counted(*count, party.word()) + &held_up
}

/// The rate of a push that is known, and the nodes that it has, for a line that goes on after it.
pub(crate) fn rate_and_nodes(bytes_per_second: Option<f64>, nodes: Option<&Nodes>) -> String {
    let rate = match bytes_per_second {
        Some(rate) => format!(", {}", ByteRate(rate)),
        None if nodes.is_some() => ",".to_owned(),
        None => String::new(),
    };
    let by = nodes.map(|nodes| format!(" by {}", how_many(nodes)));
    rate + &by.unwrap_or_default()
}

/// How much waits for them, and which hold up the others, for the end of that line.
pub(crate) fn which(
    Nodes {
        waiting,
        nodes,
        receivers,
        ..
    }: &Nodes,
) -> String {
    let waiting = waiting.map_or_else(String::new, |waiting| {
        format!("; {} waiting", counted(waiting, "item"))
    });
    let named = |pace: Pace| {
        let of_it = nodes
            .iter()
            .chain(receivers)
            .filter(|node| node.pace == pace)
            .map(name)
            .collect::<Vec<_>>();
        if of_it.is_empty() {
            String::new()
        } else {
            format!("; {}: {}", pace.word(), of_it.join(", "))
        }
    };
    waiting + &HOLD_UP.map(named).concat()
}

/// How nodes are that hold up the others.
const HOLD_UP: [Pace; 2] = [Pace::Silent, Pace::Slow];

#[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
fn name(
    Node {
        name,
        pace,
        percent_of_others,
        ..
    }: &Node,
) -> String {
    match percent_of_others {
        Some(percent) if *pace == Pace::Slow => {
            format!("{name} ({:.1} of the median)", *percent as f64 / 100.0)
        }
        _ => name.clone(),
    }
}

/// The nodes of a job, as its process has told them.
pub(crate) fn of_job(
    zmove_jobs::Nodes {
        kind,
        count,
        items_waiting,
        nodes,
        receivers,
    }: &zmove_jobs::Nodes,
) -> Nodes {
    let node = |node: &zmove_jobs::Node| Node {
        name: node.name.clone(),
        pace: Pace::of(&node.state),
        files: node.files,
        bytes: node.bytes,
        bytes_per_second: node.bytes_per_second,
        percent_of_others: node.percent_of_others,
    };
    Nodes {
        party: Party::of(kind),
        count: *count,
        waiting: *items_waiting,
        nodes: nodes.iter().map(node).collect(),
        receivers: receivers.iter().map(node).collect(),
    }
}

/// What each of them has moved, for the end of a push; `None` where nothing was moved.
pub(crate) fn took_part(
    Nodes {
        party,
        count,
        nodes,
        ..
    }: &Nodes,
) -> Option<String> {
    let have_moved = nodes.iter().filter(|node| node.files > 0 || node.bytes > 0);
    let mut moved: Vec<_> = have_moved
        .map(
            |Node {
                 name, files, bytes, ..
             }| {
                format!(
                    "{name} ({}, {})",
                    counted(*files, "file"),
                    ByteCount(*bytes)
                )
            },
        )
        .collect();
    let untold = count.saturating_sub(nodes.len() as u64);
    let by = counted(moved.len() as u64 + untold, party.word());
    if untold > 0 {
        moved.push(format!("{untold} more"));
    }
    (!moved.is_empty()).then(|| format!("moved by {by}: {}", moved.join(", ")))
}

/// The nodes as programs read them.
pub(crate) fn as_json(
    Nodes {
        party,
        count,
        waiting,
        nodes,
        receivers,
    }: &Nodes,
) -> Value {
    let node = |node: &Node| {
        let Node {
            name,
            pace,
            files,
            bytes,
            bytes_per_second,
            percent_of_others,
        } = node;
        json!({
            "name": name, "state": pace.word(), "files": files, "bytes": bytes,
            "bytes_per_second": bytes_per_second, "percent_of_others": percent_of_others,
        })
    };
    let [nodes, receivers] =
        [nodes, receivers].map(|nodes| nodes.iter().map(node).collect::<Vec<_>>());
    json!({
        "kind": party.word(), "count": count, "items_waiting": waiting, "nodes": nodes, "receivers": receivers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_up_the_others_is_counted_and_named() {
        let node = |name: &str, pace, percent_of_others| Node {
            name: name.to_owned(),
            pace,
            files: 1,
            bytes: 2,
            bytes_per_second: 3,
            percent_of_others,
        };
        let mut nodes = Nodes {
            party: Party::Nodes,
            count: 4,
            waiting: Some(12),
            nodes: vec![node("node3", Pace::Slow, Some(31))],
            receivers: vec![
                node("dtn2", Pace::Slow, Some(40)),
                node("dtn1", Pace::Works, None),
            ],
        };
        assert_eq!(how_many(&nodes), "4 nodes (1 slow)");
        assert_eq!(
            which(&nodes),
            "; 12 items waiting; slow: node3 (0.3 of the median), dtn2 (0.4 of the median)"
        );
        nodes.nodes = vec![
            node("node2", Pace::Silent, None),
            node("node1", Pace::Works, Some(100)),
        ];
        nodes.waiting = None;
        nodes.receivers = Vec::new();
        assert_eq!(
            (how_many(&nodes).as_str(), which(&nodes).as_str()),
            ("4 nodes (1 silent)", "; silent: node2")
        );
        let receivers = Nodes {
            party: Party::Receivers,
            nodes: Vec::new(),
            ..nodes.clone()
        };
        assert_eq!(
            (how_many(&receivers).as_str(), which(&receivers).as_str()),
            ("4 receivers", "")
        );
        assert_eq!(
            took_part(&nodes).unwrap(),
            "moved by 4 nodes: node2 (1 file, 2 B), node1 (1 file, 2 B), 2 more"
        );
        assert_eq!(
            took_part(&Nodes {
                count: 0,
                ..receivers
            }),
            None
        );
        let told = as_json(&nodes);
        let expected = json!({
            "name": "node2", "state": "silent", "files": 1, "bytes": 2, "bytes_per_second": 3, "percent_of_others": null,
        });
        assert_eq!(
            (&told["items_waiting"], &told["nodes"][0]),
            (&Value::Null, &expected)
        );
    }
}
