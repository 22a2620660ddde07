//! The nodes of a push, as words at the end of a line, and as an object of the stream of events.

use serde_json::{Value, json};
use zmove_types::{Node, Nodes, Pace};

use crate::display::format::counted;

/// The nodes in one line, those named that hold up the others.
pub(crate) fn in_a_line(Nodes { party, count, waiting, nodes }: &Nodes) -> String {
    let waiting =
        waiting.map_or_else(String::new, |waiting| format!(", {} waiting", counted(waiting, "item")));
    let named = |pace: Pace| {
        let of_it = nodes.iter().filter(|node| node.pace == pace).map(name).collect::<Vec<_>>();
        if of_it.is_empty() { String::new() } else { format!("; {}: {}", pace.word(), of_it.join(", ")) }
    };
    format!("{}{waiting}{}{}", counted(*count, party.word()), named(Pace::Silent), named(Pace::Slow))
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
fn name(Node { name, pace, percent_of_others, .. }: &Node) -> String {
    match percent_of_others {
        Some(percent) if *pace == Pace::Slow => {
            format!("{name} ({:.1} of the median)", *percent as f64 / 100.0)
        }
        _ => name.clone(),
    }
}

/// The nodes as programs read them.
pub(crate) fn as_json(Nodes { count, waiting, nodes, .. }: &Nodes) -> Value {
    let node = |node: &Node| {
        let Node { name, pace, files, bytes, bytes_per_second, percent_of_others } = node;
        json!({
            "name": name, "state": pace.word(), "files": files, "bytes": bytes,
            "bytes_per_second": bytes_per_second, "percent_of_others": percent_of_others,
        })
    };
    json!({ "count": count, "items_waiting": waiting, "nodes": nodes.iter().map(node).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::Party;

    #[test]
    fn who_holds_up_the_others_is_named_in_one_line() {
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
        };
        assert_eq!(in_a_line(&nodes), "4 nodes, 12 items waiting; slow: node3 (0.3 of the median)");
        nodes.nodes = vec![node("node2", Pace::Silent, None), node("node1", Pace::Works, Some(100))];
        nodes.waiting = None;
        assert_eq!(in_a_line(&nodes), "4 nodes; silent: node2");
        let receivers = Nodes { party: Party::Receivers, ..nodes.clone() };
        assert_eq!(in_a_line(&receivers), "4 receivers; silent: node2");
        let told = as_json(&nodes);
        let expected = json!({
            "name": "node2", "state": "silent", "files": 1, "bytes": 2, "bytes_per_second": 3, "percent_of_others": null,
        });
        assert_eq!((&told["items_waiting"], &told["nodes"][0]), (&Value::Null, &expected));
    }
}
