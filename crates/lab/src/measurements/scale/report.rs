//! All runs and their efficiency: the rate of all nodes, divided by the number of nodes and by the rate of one push
//! from one node to one node.

use anyhow::{Context, Result};
use serde::Serialize;

use super::Method;
use super::run::Figures;
use crate::measurements::late::shared::Costs;
use crate::measurements::measure::figures;
use crate::measurements::measure::race::Verdict;

/// All runs so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) entries: Vec<Entry>,
    /// The costs of the model of a cluster file system, if it is used.
    costs: Option<Costs>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Entry {
    pub(super) data: &'static str,
    /// Number of nodes on each side.
    pub(super) nodes: usize,
    pub(super) method: Method,
    pub(super) number: u32,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// An entry and its derived figures.
#[derive(Serialize)]
struct Judged<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    bits_per_second: Option<f64>,
    efficiency: Option<f64>,
    is_void: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extent_handovers_per_gibibyte: Option<f64>,
}

impl Entry {
    /// Returns the rate of all nodes together in bits per second. `None` if the copy is not correct.
    #[expect(clippy::cast_precision_loss, reason = "byte counts are far below 2^52")]
    fn rate(&self) -> Option<f64> {
        let Figures {
            verdict,
            bytes,
            seconds,
            ..
        } = &self.figures;
        (*verdict == Verdict::Right).then(|| *bytes as f64 * 8.0 / seconds)
    }

    /// Returns whether the machine rather than the links may have been the bottleneck.
    pub(super) fn is_void(&self) -> bool {
        self.figures.idle < IDLE_MIN
    }

    #[expect(clippy::cast_precision_loss, reason = "byte counts are far below 2^52")]
    fn gibibytes(&self) -> f64 {
        self.figures.bytes as f64 / f64::from(1 << 30)
    }

    fn cpu_seconds_per_gibibyte(&self) -> f64 {
        self.figures.cpu_seconds / self.gibibytes()
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn extent_handovers_per_gibibyte(&self) -> Option<f64> {
        Some(self.figures.charges?.extent_handovers as f64 / self.gibibytes())
    }
}

impl Report {
    /// Returns an empty report. `costs` are the costs of the model, if the model is used.
    pub(super) fn of(costs: Option<Costs>) -> Self {
        Self {
            entries: Vec::new(),
            costs,
        }
    }

    pub(super) fn add(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Returns the rate of one push of a data set from one node to one node.
    pub(super) fn single(&self, data: &str) -> Option<f64> {
        let singles = self
            .entries
            .iter()
            .filter(|entry| entry.data == data && entry.method == Method::Single);
        figures::median(&singles.filter_map(Entry::rate).collect::<Vec<_>>())
    }

    /// Returns the efficiency in percent.
    #[expect(clippy::cast_precision_loss, reason = "a few nodes")]
    pub(super) fn efficiency(&self, entry: &Entry) -> Option<f64> {
        Some(entry.rate()? / entry.nodes as f64 / self.single(entry.data)? * 100.0)
    }

    pub(super) fn all_right(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| entry.figures.verdict == Verdict::Right)
    }

    /// Returns a line that describes the run.
    pub(super) fn line(&self, entry: &Entry) -> String {
        self.row(entry).join("  ")
    }

    pub(super) fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self.entries.iter().map(|entry| self.row(entry)).collect();
        let mut headings = vec![
            "data",
            "nodes",
            "run",
            "s",
            "Mbit/s",
            "E %",
            "idle %",
            "first byte s",
            "CPU-s/GiB",
            "wire",
        ];
        if self.costs.is_some() {
            headings.extend(["entries", "of them handed over", "extents handed over/GiB"]);
        }
        headings.push("");
        let table = figures::table(&headings, &rows);
        self.headline()
            .map_or(table.clone(), |headline| format!("{headline}\n\n{table}"))
    }

    /// Returns the headline above figures of the model.
    fn headline(&self) -> Option<String> {
        self.costs
            .map(|costs| format!("Model of a cluster file system: {costs}."))
    }

    #[expect(clippy::cast_precision_loss, reason = "byte counts are far below 2^52")]
    fn row(&self, entry: &Entry) -> Vec<String> {
        let figures = &entry.figures;
        let verdict = match &figures.verdict {
            Verdict::Right if entry.is_void() => "VOID".to_owned(),
            verdict => verdict.to_string(),
        };
        let mut row = vec![
            entry.data.to_owned(),
            entry.nodes.to_string(),
            entry.method.name().to_owned(),
            format!("{:.2}", figures.seconds),
            figures::shown(entry.rate().map(|rate| rate / 1e6), 0),
            figures::shown(self.efficiency(entry), 1),
            format!("{:.0}", figures.idle * 100.0),
            figures::shown(figures.first_byte_seconds, 2),
            format!("{:.2}", entry.cpu_seconds_per_gibibyte()),
            format!("{:.3}", figures.wire_bytes as f64 / figures.bytes as f64),
        ];
        if let Some(charges) = figures.charges {
            row.extend([
                charges.entries.to_string(),
                charges.entry_handovers.to_string(),
            ]);
            row.push(figures::shown(entry.extent_handovers_per_gibibyte(), 1));
        }
        row.push(verdict);
        row
    }

    pub(super) fn json(&self) -> Result<String> {
        let judged: Vec<Judged<'_>> = self
            .entries
            .iter()
            .map(|entry| Judged {
                entry,
                bits_per_second: entry.rate(),
                efficiency: self.efficiency(entry),
                is_void: entry.is_void(),
                model: self.headline(),
                extent_handovers_per_gibibyte: entry.extent_handovers_per_gibibyte(),
            })
            .collect();
        serde_json::to_string_pretty(&judged).context("failed to write JSON")
    }
}

/// Minimum fraction of idle processors for which the links are certain to be the bottleneck.
pub(super) const IDLE_MIN: f64 = 0.25;

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::super::ScaleArgs;
    use super::*;
    use crate::measurements::late::shared::Charges;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        scale: ScaleArgs,
    }

    /// Parses arguments after the name of the command.
    pub(in super::super) fn typed(words: &[&str]) -> ScaleArgs {
        Typed::parse_from([&["scale"], words].concat()).scale
    }

    /// Returns a run of `seconds` seconds that moves one gigabit of data.
    pub(in super::super) fn entry(nodes: usize, method: Method, seconds: f64) -> Entry {
        let figures = Figures {
            verdict: Verdict::Right,
            bytes: 125_000_000,
            seconds,
            first_byte_seconds: Some(0.1),
            idle: 0.6,
            cpu_seconds: 1.0,
            wire_bytes: 130_000_000,
            charges: None,
        };
        Entry {
            data: "large",
            nodes,
            method,
            number: 1,
            figures,
        }
    }

    #[test]
    fn efficiency_is_the_rate_of_a_node_beside_that_of_one_alone() {
        let mut report = Report::default();
        assert_eq!(
            report.efficiency(&entry(2, Method::Cluster, 1.0)),
            None,
            "there is nothing to compare with"
        );
        for seconds in [2.0, 4.0, 9.0] {
            report.add(entry(1, Method::Single, seconds));
        }
        let efficiency = report.efficiency(&entry(4, Method::Cluster, 1.25)).unwrap();
        assert!((efficiency - 80.0).abs() < 1e-9, "{efficiency}");
    }

    #[test]
    fn figures_of_a_model_stand_below_what_it_charges_and_beside_what_it_has_charged() {
        let typed = typed(&["--model", "--model-entry", "0.3"]);
        let mut report = Report::of(Some(typed.costs));
        let mut entry = entry(2, Method::Cluster, 2.0);
        let charges = Charges {
            entries: 90,
            entry_handovers: 7,
            extent_handovers: 2,
        };
        entry.figures.charges = Some(charges);
        // Two extent handovers in 125 MB of data are 17.2 per GiB.
        assert!(
            report.line(&entry).contains("90  7  17.2"),
            "{}",
            report.line(&entry)
        );
        report.add(entry);
        let text = report.text();
        assert!(
            text.starts_with("Model of a cluster file system: 0.3 ms for an entry"),
            "{text}"
        );
        assert!(text.contains("extents handed over/GiB"), "{text}");
        assert!(!Report::default().text().contains("odel"), "there is none");
    }

    #[test]
    fn a_busy_machine_makes_a_run_void_and_a_wrong_copy_has_no_rate() {
        let mut report = Report::default();
        report.add(entry(1, Method::Single, 2.0));
        let mut busy = entry(2, Method::Shares, 1.0);
        busy.figures.idle = 0.249;
        assert!(
            busy.is_void() && report.line(&busy).ends_with("VOID"),
            "{}",
            report.line(&busy)
        );
        let mut wrong = entry(2, Method::Shares, 1.0);
        wrong.figures.verdict = Verdict::Wrong("f: content differs".to_owned());
        assert_eq!(report.efficiency(&wrong), None);
        report.add(wrong);
        assert!(!report.all_right());
    }
}
