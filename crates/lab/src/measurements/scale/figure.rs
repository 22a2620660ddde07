//! The paper's figure of linear scalability: efficiency over the number of nodes, with a line for each data set.

use clap::ValueEnum;
use zmove_tools::drawing::{Heading, LineStyle};

use super::report::{Entry, Report};
use super::{Method, ScaleArgs};
use crate::measurements::measure::figures;
use crate::measurements::paper::charts::{
    Across, Chart, Curve, Look, Panel, Point, Upwards, as_f64,
};

/// Draws a panel for each method that was measured.
pub(super) fn draw(report: &Report, arguments: &ScaleArgs) -> Chart {
    let mut nodes: Vec<usize> = report.entries.iter().map(|entry| entry.nodes).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let panels: Vec<Panel> = Method::value_variants()
        .iter()
        .filter(|method| **method != Method::Single)
        .map(|&method| Panel {
            title: format!("{}: % of the nodes × one push", method.name()),
            upwards: Upwards::Linear,
            curves: curves(report, method, &nodes),
        })
        .filter(|panel| !panel.curves.is_empty())
        .collect();
    let is_any_void = panels
        .iter()
        .flat_map(|panel| &panel.curves)
        .flat_map(|curve| &curve.points)
        .any(|point| point.is_cut);
    let below = format!(
        "links of {} Mbit/s, {} ms, nodes on one machine{}",
        arguments.rate.0 / 1_000_000,
        arguments.rtt.milliseconds(),
        if arguments.model {
            ", model of a cluster file system"
        } else {
            ""
        }
    );
    Chart {
        heading: Heading {
            title: "Linear scalability efficiency".to_owned(),
            below,
        },
        across: Across::Steps(nodes.iter().map(usize::to_string).collect()),
        title_across: "nodes on either side",
        panels,
        foot: if is_any_void {
            VOID.to_owned()
        } else {
            String::new()
        },
    }
}

fn curves(report: &Report, method: Method, nodes: &[usize]) -> Vec<Curve> {
    let mut names: Vec<&str> = report.entries.iter().map(|entry| entry.data).collect();
    names.dedup();
    let curve = |name: &&str| {
        let of = |nodes: usize| {
            // Each line starts with one push from one node to one node.
            let method = if nodes == 1 { Method::Single } else { method };
            let wanted = move |entry: &&Entry| {
                entry.data == *name && entry.method == method && entry.nodes == nodes
            };
            report.entries.iter().filter(wanted)
        };
        let point = |(step, &nodes): (usize, &usize)| {
            let values: Vec<f64> = of(nodes)
                .filter_map(|entry| report.efficiency(entry))
                .collect();
            let y = figures::median(&values)?;
            Some(Point {
                x: as_f64(step),
                y,
                is_cut: of(nodes).any(Entry::is_void),
            })
        };
        let points: Vec<Point> = nodes.iter().enumerate().filter_map(point).collect();
        let look = LOOKS
            .iter()
            .find(|(known, _)| known == name)
            .map_or(LOOKS[0].1, |(_, look)| *look);
        Curve {
            name: (*name).to_owned(),
            look,
            points,
        }
    };
    names
        .iter()
        .map(curve)
        .filter(|curve| curve.points.len() > 1)
        .collect()
}

const fn look(colour: &'static str, dashes: Option<&'static str>, mark: &'static str) -> Look {
    Look {
        pen: LineStyle {
            colour,
            dashes,
            width: 2.0,
        },
        mark,
    }
}

const LOOKS: [(&str, Look); 5] = [
    ("losf", look("#d55e00", None, "M0,-3.8L3.8,3L-3.8,3z")),
    (
        "losf-flat",
        look("#d55e00", Some("6 3"), "M0,3.8L3.8,-3L-3.8,-3z"),
    ),
    (
        "medium",
        look("#007a5a", None, "M0,-4.2L4.2,0L0,4.2L-4.2,0z"),
    ),
    ("large", look("#0072b2", None, "M-3,-3h6v6h-6z")),
    (
        "huge",
        look(
            "#222222",
            None,
            "M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0z",
        ),
    ),
];
const VOID: &str =
    "Hollow: void, the machine's processors were idle for less than a quarter of the run.";

#[cfg(test)]
mod tests {
    use super::super::report::tests::{entry, typed};
    use super::*;

    #[test]
    fn each_data_set_is_a_line_from_one_node_on_and_void_runs_are_hollow() {
        let mut report = Report::default();
        report.add(entry(1, Method::Single, 4.0));
        report.add(entry(2, Method::OneSender, 2.0));
        let mut busy = entry(4, Method::OneSender, 1.25);
        busy.figures.idle = 0.1;
        report.add(busy);
        let drawing = draw(&report, &typed(&[]));
        assert_eq!(drawing.panels.len(), 1, "nothing else was measured");
        let points = &drawing.panels[0].curves[0].points;
        let found: Vec<_> = points
            .iter()
            .map(|point| (point.x, point.y.round(), point.is_cut))
            .collect();
        assert_eq!(
            found,
            [(0.0, 100.0, false), (1.0, 100.0, false), (2.0, 80.0, true)]
        );
        let drawing = drawing.svg();
        assert!(
            drawing.contains("Hollow") && drawing.contains("links of 400 Mbit/s"),
            "{drawing}"
        );
    }
}
