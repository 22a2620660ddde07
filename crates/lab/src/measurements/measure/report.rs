//! The results of a comparison: raw runs and medians per cell, as text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::data::datasets::DataSet;
use crate::measurements::measure::calibrate::{self, Calibration};
use crate::measurements::measure::figures::{self, median, shown, spread};
use crate::measurements::measure::race::{Run, Verdict};
use crate::measurements::peers::{Kind, Local, Tool};
use crate::network::hosts::LinkArgs;
use crate::units::RoundTrip;

/// All results of a comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    header: Header,
    pub(crate) calibrations: Vec<Calibration>,
    pub(crate) entries: Vec<Entry>,
}

/// The conditions of the measurements.
#[derive(Debug, Serialize)]
pub(crate) struct Header {
    kernel: String,
    processor: String,
    cores: usize,
    load_average: String,
    path: String,
    payload_bits_per_second: Option<f64>,
    source: &'static str,
    target: String,
    versions: BTreeMap<String, String>,
}

impl Header {
    /// Collects the properties of this machine.
    pub(crate) fn collect(
        link: &LinkArgs,
        target: String,
        versions: BTreeMap<String, String>,
    ) -> Result<Self> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("failed to read the release")?;
        let processors =
            fs::read_to_string("/proc/cpuinfo").context("failed to read the processors")?;
        let model = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let load = fs::read_to_string("/proc/loadavg").context("failed to read the load")?;
        Ok(Self {
            load_average: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            kernel: kernel.trim().to_owned(),
            processor: model
                .unwrap_or("unknown")
                .trim_start_matches(['\t', ' ', ':'])
                .to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            path: link.describe(),
            payload_bits_per_second: link.payload_rate(),
            source: "page cache, read before each run",
            target,
            versions,
        })
    }

    /// Returns a header with empty fields, for tests.
    #[cfg(test)]
    pub(crate) fn without_machine() -> Self {
        Self {
            kernel: String::new(),
            processor: String::new(),
            cores: 2,
            load_average: String::new(),
            path: String::new(),
            payload_bits_per_second: None,
            source: "",
            target: String::new(),
            versions: BTreeMap::new(),
        }
    }

    /// Replaces the description of the path, for a path of several links.
    pub(crate) fn over(self, path: String) -> Self {
        Self {
            path,
            payload_bits_per_second: None,
            ..self
        }
    }

    /// Returns the conditions as text, one topic per line.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "kernel {}, {} × {}, load before {}\n",
            self.kernel, self.cores, self.processor, self.load_average
        );
        for (name, value) in [
            ("path", self.path.as_str()),
            ("source", self.source),
            ("target", &self.target),
        ] {
            text.push_str(&format!("{name}: {value}\n"));
        }
        for (tool, version) in &self.versions {
            text.push_str(&format!("{tool}: {version}\n"));
        }
        text
    }
}

/// One run, with its cell.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    rtt_ms: f64,
    data: String,
    tool: String,
    #[serde(skip)]
    kind: Kind,
    number: u32,
    files: u64,
    bytes: u64,
    #[serde(flatten)]
    pub(crate) run: Run,
}

impl Entry {
    pub(crate) fn new(rtt: RoundTrip, set: &DataSet, tool: &Tool, run: Run) -> Self {
        Self {
            rtt_ms: rtt.milliseconds(),
            data: set.name.clone(),
            tool: tool.label.clone(),
            kind: tool.kind,
            number: 1,
            files: set.files,
            bytes: set.bytes,
            run,
        }
    }

    /// Sets the number of the run, starting at 1.
    pub(crate) fn numbered(self, number: u32) -> Self {
        Self { number, ..self }
    }
}

/// The medians of one tool's successful runs with one data set and round-trip time.
#[derive(Debug, Serialize)]
struct Cell {
    rtt_ms: f64,
    data: String,
    tool: String,
    #[serde(skip)]
    kind: Kind,
    runs: usize,
    runs_right: usize,
    seconds: Option<f64>,
    seconds_min: Option<f64>,
    seconds_max: Option<f64>,
    gigabits_per_second: Option<f64>,
    /// The fraction of the path's payload rate, if the path has a rate limit.
    path_share: Option<f64>,
    files_per_second: Option<f64>,
    first_byte_seconds: Option<f64>,
    cpu_seconds_per_gibibyte: Option<f64>,
    source_peak_mebibytes: Option<f64>,
    target_peak_mebibytes: Option<f64>,
    /// The traffic in both directions.
    wire_mebibytes: Option<f64>,
    times_rsync: Option<f64>,
    times_zmove: Option<f64>,
}

impl Cell {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn new(entries: &[&Entry], payload_bits_per_second: Option<f64>) -> Self {
        let first = entries[0];
        let right: Vec<&Run> = entries
            .iter()
            .map(|entry| &entry.run)
            .filter(|run| run.verdict == Verdict::Right)
            .collect();
        let middle = |value: &dyn Fn(&Run) -> f64| {
            median(&right.iter().map(|run| value(run)).collect::<Vec<f64>>())
        };
        let times: Vec<f64> = right.iter().map(|run| run.seconds).collect();
        let first_bytes: Vec<f64> = right
            .iter()
            .filter_map(|run| run.first_byte_seconds)
            .collect();
        let seconds = median(&times);
        let bits_per_second = seconds.map(|seconds| first.bytes as f64 * 8.0 / seconds);
        let gibibytes = first.bytes as f64 / f64::from(1 << 30);
        Self {
            rtt_ms: first.rtt_ms,
            data: first.data.clone(),
            tool: first.tool.clone(),
            kind: first.kind,
            runs: entries
                .iter()
                .filter(|entry| !entry.run.verdict.is_missing())
                .count(),
            runs_right: right.len(),
            seconds,
            seconds_min: spread(&times).map(|(least, _)| least),
            seconds_max: spread(&times).map(|(_, greatest)| greatest),
            gigabits_per_second: bits_per_second.map(|rate| rate * 1e-9),
            path_share: ratio(bits_per_second, payload_bits_per_second),
            files_per_second: seconds.map(|seconds| first.files as f64 / seconds),
            first_byte_seconds: median(&first_bytes),
            cpu_seconds_per_gibibyte: middle(&|run| {
                (run.source.cpu_seconds + run.target.cpu_seconds) / gibibytes
            }),
            source_peak_mebibytes: middle(&|run| run.source.peak_bytes as f64 / MEBIBYTE),
            target_peak_mebibytes: middle(&|run| run.target.peak_bytes as f64 / MEBIBYTE),
            wire_mebibytes: middle(&|run| run.wire_bytes as f64 / MEBIBYTE),
            times_rsync: None,
            times_zmove: None,
        }
    }

    fn row(&self) -> Vec<String> {
        let range = match (self.seconds_min, self.seconds_max) {
            (Some(least), Some(greatest)) => format!("{least:.2}–{greatest:.2}"),
            _ => "–".to_owned(),
        };
        let right = match self.runs {
            0 => "missing".to_owned(),
            runs => format!("{}/{runs}", self.runs_right),
        };
        vec![
            self.tool.clone(),
            right,
            shown(self.seconds, 2),
            range,
            shown(self.gigabits_per_second, 2),
            shown(self.path_share, 3),
            shown(self.files_per_second, 0),
            shown(self.first_byte_seconds, 2),
            shown(self.cpu_seconds_per_gibibyte, 2),
            shown(self.source_peak_mebibytes, 0),
            shown(self.target_peak_mebibytes, 0),
            shown(self.wire_mebibytes, 1),
            shown(self.times_rsync, 2),
            shown(self.times_zmove, 2),
        ]
    }
}

impl Report {
    pub(crate) fn new(header: Header) -> Self {
        Self {
            header,
            calibrations: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Returns the raw runs and the medians as JSON.
    pub(crate) fn json(&self) -> Result<String> {
        let blocks = self.blocks();
        let cells: Vec<&Cell> = blocks.iter().flatten().collect();
        let whole = serde_json::json!({
            "header": self.header,
            "calibrations": self.calibrations,
            "runs": self.entries,
            "cells": cells,
        });
        serde_json::to_string_pretty(&whole).context("failed to write JSON")
    }

    /// Returns a table per round-trip time and data set, and the failures.
    pub(crate) fn text(&self) -> String {
        let mut text = self.header.text();
        if !self.calibrations.is_empty() {
            let table = calibrate::table(&self.calibrations);
            text.push_str(&format!("\nthe bare path\n{table}"));
        }
        for block in self.blocks() {
            let rows: Vec<Vec<String>> = block.iter().map(Cell::row).collect();
            let (rtt, data) = (block[0].rtt_ms, &block[0].data);
            text.push_str(&format!(
                "\n{data} at {rtt} ms\n{}",
                figures::table(&HEADINGS, &rows)
            ));
        }
        let wrong = self
            .entries
            .iter()
            .filter(|entry| entry.run.verdict != Verdict::Right);
        for entry in wrong {
            writeln!(text, "! {}", line(entry)).expect("writing to a string succeeds");
        }
        text
    }

    /// Returns whether every run of an installed tool succeeded.
    pub(crate) fn all_right(&self) -> bool {
        let mut verdicts = self.entries.iter().map(|entry| &entry.run.verdict);
        verdicts.all(|verdict| *verdict == Verdict::Right || verdict.is_missing())
    }

    /// Returns the cells in the order of the runs, in one block per round-trip time and data set.
    fn blocks(&self) -> Vec<Vec<Cell>> {
        let mut groups: Vec<Vec<&Entry>> = Vec::new();
        for entry in &self.entries {
            let same_block = |group: &&mut Vec<&Entry>| {
                group[0].data == entry.data && group[0].rtt_ms.to_bits() == entry.rtt_ms.to_bits()
            };
            match groups.iter_mut().find(same_block) {
                Some(group) => group.push(entry),
                None => groups.push(vec![entry]),
            }
        }
        groups
            .iter()
            .map(|entries| block(entries, self.header.payload_bits_per_second))
            .collect()
    }
}

/// Returns the cells of one round-trip time and data set, with the ratios between them.
fn block(entries: &[&Entry], payload_bits_per_second: Option<f64>) -> Vec<Cell> {
    let mut tools: Vec<&str> = Vec::new();
    for entry in entries {
        if !tools.contains(&entry.tool.as_str()) {
            tools.push(&entry.tool);
        }
    }
    let of_tool = |tool: &str| -> Vec<&Entry> {
        entries
            .iter()
            .copied()
            .filter(|entry| entry.tool == tool)
            .collect()
    };
    let mut cells: Vec<Cell> = tools
        .iter()
        .map(|tool| Cell::new(&of_tool(tool), payload_bits_per_second))
        .collect();
    let reference = |kinds: [Kind; 2]| {
        let cell = cells.iter().find(|cell| kinds.contains(&cell.kind));
        cell.and_then(|cell| cell.seconds)
    };
    let rsync = reference([Kind::Rsync, Kind::Local(Local::Rsync)]);
    let zmove = reference([Kind::Zmove, Kind::Local(Local::Zmove)]);
    for cell in &mut cells {
        cell.times_rsync = ratio(cell.seconds, rsync);
        cell.times_zmove = ratio(cell.seconds, zmove);
    }
    cells
}

fn ratio(value: Option<f64>, reference: Option<f64>) -> Option<f64> {
    Some(value? / reference?)
}

/// Returns a line that describes the run.
pub(crate) fn line(entry: &Entry) -> String {
    let outcome = match &entry.run.verdict {
        Verdict::Right => "right".to_owned(),
        Verdict::Wrong(why) => format!("WRONG: {why}"),
        Verdict::Failed(why) => format!("FAILED: {why}"),
        Verdict::TimedOut => "TIMED OUT".to_owned(),
        Verdict::Missing(programs) => {
            return format!(
                "{} at {} ms, {}: not installed: {programs}",
                entry.data, entry.rtt_ms, entry.tool
            );
        }
    };
    let cpu_seconds = entry.run.source.cpu_seconds + entry.run.target.cpu_seconds;
    format!(
        "{} at {} ms, run {}, {}: {:.2} s, {cpu_seconds:.2} CPU-s, {outcome}",
        entry.data, entry.rtt_ms, entry.number, entry.tool, entry.run.seconds
    )
}

const HEADINGS: [&str; 14] = [
    "tool",
    "right",
    "median s",
    "min–max",
    "Gbit/s",
    "of path",
    "files/s",
    "first B s",
    "CPU-s/GiB",
    "src MiB",
    "dst MiB",
    "wire MiB",
    "÷rsync",
    "÷zmove",
];
const MEBIBYTE: f64 = 1_048_576.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurements::measure::race::Usage;

    fn report(payload_bits_per_second: Option<f64>, runs: Vec<(&str, Run)>) -> Report {
        let header = Header {
            payload_bits_per_second,
            ..Header::without_machine()
        };
        let mut report = Report::new(header);
        let set = DataSet {
            name: "g2".to_owned(),
            root: "g2".into(),
            files: 1,
            bytes: 100_000_000,
        };
        for (name, run) in runs {
            let tool: Tool = name.parse().unwrap();
            report
                .entries
                .push(Entry::new("90".parse().unwrap(), &set, &tool, run));
        }
        report
    }

    fn right(seconds: f64) -> Run {
        let usage = Usage {
            cpu_seconds: 1.0,
            peak_bytes: 0,
        };
        let (source, target) = (usage, usage);
        Run {
            verdict: Verdict::Right,
            seconds,
            first_byte_seconds: None,
            wire_bytes: 0,
            source,
            target,
        }
    }

    #[test]
    fn a_rate_is_set_against_what_the_path_can_carry() {
        let report = report(
            Some(1e9),
            vec![("zmove", right(1.0)), ("rsync", right(2.0))],
        );
        let cells = report.blocks().remove(0);
        assert_eq!(
            cells.iter().map(|cell| cell.path_share).collect::<Vec<_>>(),
            [Some(0.8), Some(0.4)]
        );
        assert_eq!(cells[1].times_zmove, Some(2.0));
    }

    #[test]
    fn a_tool_that_is_not_there_is_a_row_that_says_so() {
        let report = report(
            None,
            vec![
                ("syq", Run::missing("no syq".to_owned())),
                ("zmove", right(1.0)),
            ],
        );
        let text = report.text();
        assert!(text.contains("syq    missing "), "{text}");
        assert!(
            text.contains("! g2 at 90 ms, syq: not installed: no syq"),
            "{text}"
        );
        assert!(report.all_right());
    }

    #[test]
    fn a_run_that_failed_is_not_right() {
        let failed = Run::not_started(&anyhow::anyhow!("no route"));
        let report = report(None, vec![("zmove", right(1.0)), ("zmove", failed)]);
        assert!(report.text().contains("1/2"));
        assert!(!report.all_right());
    }
}
