//! The daemon's metrics in the Prometheus format, and its health check: `/metrics` and `/healthz`.
//!
//! **Invariant:** no data transfer ever waits for a reader of the page. The meters are read only when the page is
//! requested.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric as _, MetricEncoder, text::encode,
};
use prometheus_client::metrics::MetricType::{self, Gauge};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use zmove_daemon::{DaemonEvent, EndedTransfer, Transfers};
use zmove_receiver::{Failures, MeterReading};
use zmove_types::StageTimes;

use crate::value::cause::cause_of;
use crate::value::version::VERSION;

/// A family of counters, with one counter for each set of labels.
type Labelled = Family<Vec<(&'static str, String)>, Counter>;

/// The counters that are incremented by events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    transfers: Labelled,
    probes: Labelled,
    errors: Labelled,
    failures: Labelled,
    by_name: Labelled,
}

impl Counts {
    /// Counts an event of a daemon.
    pub(crate) fn count(&self, event: &DaemonEvent) {
        match event {
            DaemonEvent::Rejected { kind, .. } => add(&self.errors, "kind", kind.name()),
            DaemonEvent::Accept { .. } => add(&self.errors, "kind", "accept"),
            DaemonEvent::Ended(ended) => self.count_end(ended),
            _ => {}
        }
    }

    fn count_end(&self, EndedTransfer { who, moved, end }: &EndedTransfer) {
        let result = end.result();
        let errors = end.error_kind();
        errors
            .iter()
            .for_each(|kind| add(&self.errors, "kind", kind));
        if moved.probed.is_some() {
            return add(&self.probes, "result", result);
        }
        add(&self.transfers, "result", result);
        let labels = vec![("name", who.name.clone()), ("result", result.to_owned())];
        self.by_name.get_or_create(&labels).inc();
        for Failures {
            operation,
            code,
            count,
            ..
        } in &moved.failures
        {
            let labels = vec![
                ("operation", operation.to_string()),
                ("cause", cause_of(*code)),
            ];
            self.failures.get_or_create(&labels).inc_by(*count);
        }
    }
}

fn add(counts: &Labelled, label: &'static str, value: &str) {
    counts.get_or_create(&vec![(label, value.to_owned())]).inc();
}

/// The page with all metrics.
pub(crate) struct Page(Registry);

impl Page {
    /// Creates a page that shows the counters, the meters, and the journals in the given directory.
    pub(crate) fn new(counts: &Counts, transfers: Arc<Transfers>, journals: PathBuf) -> Self {
        // Each counter is created with the value 0. Otherwise Prometheus could not compute a rate for the first
        // increment.
        let begin = |counts: &Labelled, result: &str| {
            drop(counts.get_or_create(&vec![("result", result.to_owned())]));
        };
        ["complete", "partial", "broken"]
            .iter()
            .for_each(|result| begin(&counts.transfers, result));
        ["complete", "broken"]
            .iter()
            .for_each(|result| begin(&counts.probes, result));
        let mut registry = Registry::with_prefix("zmove");
        for (name, help, counts) in [
            (
                "transfers",
                "Finished transfers, by result",
                &counts.transfers,
            ),
            (
                "probes",
                "Finished probes of the path, by result",
                &counts.probes,
            ),
            (
                "errors",
                "Rejected connections and aborted transfers, by kind",
                &counts.errors,
            ),
            (
                "failures",
                "Failed entries of finished transfers, by operation and cause",
                &counts.failures,
            ),
            (
                "key_transfers",
                "Finished transfers, by the name of their key and result",
                &counts.by_name,
            ),
        ] {
            registry.register(name, help, counts.clone());
        }
        let version = vec![
            ("version", env!("CARGO_PKG_VERSION")),
            ("build", VERSION.as_str()),
        ];
        registry.register(
            "build",
            "Version of the running program",
            Info::new(version),
        );
        registry.register_collector(Box::new(MetersCollector {
            transfers,
            journals,
        }));
        Self(registry)
    }

    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// The metrics whose values are read when the page is requested.
#[derive(Debug)]
struct MetersCollector {
    transfers: Arc<Transfers>,
    journals: PathBuf,
}

impl Collector for MetersCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = self.transfers.read();
        let by_key = self.transfers.read_by_name();
        let to = &mut encoder;
        for (name, help, kind, read) in METERS_BY_KEY {
            single(to, name, help, kind, read(&now))?;
            let help = format!("{name} by the name of the key");
            let name = format!("key_{name}");
            let mut family = to.encode_descriptor(&name, &help, None, kind)?;
            for (key, now) in &by_key {
                let labels = [("name", key.as_str())];
                put(family.encode_family(&labels)?, kind, read(now))?;
            }
        }
        for (name, help, kind, read) in METERS {
            single(to, name, help, kind, read(&now))?;
        }
        stages(to, &[("receive", now.receive), ("store", now.store)])?;
        let journals = journal_bytes(&self.journals);
        let help = "Journals of incomplete transfers";
        single(to, "journals", help, Gauge, journals.len() as u64)?;
        let help = "Bytes of these journals";
        single(to, "journal_bytes", help, Gauge, journals.iter().sum())
    }
}

/// A metric that is read from the meters: its name, help text, type, and a function that reads its value.
type Meter = (
    &'static str,
    &'static str,
    MetricType,
    fn(&MeterReading) -> u64,
);

/// Metrics that also exist for each key, under names that start with `key_`.
const METERS_BY_KEY: [Meter; 5] = [
    (
        "bytes_received",
        "Bytes of file contents received over lanes",
        MetricType::Counter,
        |now| now.bytes,
    ),
    (
        "files_received",
        "Regular files renamed into place",
        MetricType::Counter,
        |now| now.files,
    ),
    (
        "bytes_sent",
        "Bytes of file contents sent and stored at the target",
        MetricType::Counter,
        |now| now.sent_bytes,
    ),
    (
        "files_sent",
        "Regular files sent and renamed into place at the target",
        MetricType::Counter,
        |now| now.sent_files,
    ),
    ("transfers_running", "Running transfers", Gauge, |now| {
        now.transfers as u64
    }),
];

/// Metrics of all transfers together.
const METERS: [Meter; 3] = [
    (
        "probe_bytes_received",
        "Bytes of filler received by probes",
        MetricType::Counter,
        |now| now.probed,
    ),
    ("lanes", "Lanes of the running transfers", Gauge, |now| {
        now.lanes as u64
    }),
    (
        "write_queue_items",
        "Batches and groups waiting for a writer",
        Gauge,
        |now| now.queued as u64,
    ),
];

/// Adds a metric without labels.
fn single(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    value: u64,
) -> fmt::Result {
    put(to.encode_descriptor(name, help, None, kind)?, kind, value)
}

fn put(to: MetricEncoder<'_>, kind: MetricType, value: u64) -> fmt::Result {
    if matches!(kind, Gauge) {
        ConstGauge::new(value).encode(to)
    } else {
        ConstCounter::new(value).encode(to)
    }
}

/// Adds the time that the threads of each stage spent in each state, in seconds.
fn stages(to: &mut DescriptorEncoder<'_>, stages: &[(&'static str, StageTimes)]) -> fmt::Result {
    let help = "Seconds of the threads of a stage, by activity";
    let mut family = to.encode_descriptor("stage_seconds", help, None, MetricType::Counter)?;
    for (stage, times) in stages {
        let states = [
            ("busy", times.busy),
            ("starved", times.starved),
            ("blocked", times.blocked),
            ("paced", times.paced),
        ];
        for (state, time) in states {
            let labels = [("stage", *stage), ("state", state)];
            ConstCounter::new(time.as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Returns the size of each journal in a directory, in bytes. If the directory does not exist, returns no sizes.
fn journal_bytes(directory: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(Metadata::is_file);
    files.map(|file| file.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_what_is_counted() {
        let counts = Counts::default();
        add(&counts.errors, "kind", "unknown_key");
        let page = Page::new(&counts, Arc::default(), PathBuf::from("/nonexistent"));
        let text = page.text().unwrap();
        for line in [
            "# TYPE zmove_bytes_received counter",
            "zmove_bytes_received_total 0",
            "zmove_files_received_total 0",
            "zmove_bytes_sent_total 0",
            "zmove_files_sent_total 0",
            "zmove_transfers_total{result=\"complete\"} 0",
            "zmove_probes_total{result=\"complete\"} 0",
            "zmove_probe_bytes_received_total 0",
            "zmove_transfers_running 0",
            "zmove_errors_total{kind=\"unknown_key\"} 1",
            concat!(
                "zmove_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\",build=\""
            ),
            "# TYPE zmove_key_bytes_received counter",
            "# TYPE zmove_key_transfers_running gauge",
            "zmove_lanes 0",
            "zmove_write_queue_items 0",
            "zmove_stage_seconds_total{stage=\"receive\",state=\"busy\"} 0.0",
            "zmove_journals 0",
            "zmove_journal_bytes 0",
            "# EOF",
        ] {
            let is_it = |found: &str| {
                found == line || line.ends_with("build=\"") && found.starts_with(line)
            };
            assert!(text.lines().any(is_it), "no {line:?} in:\n{text}");
        }
    }

    /// The page has every metric that the Grafana dashboard uses.
    #[test]
    fn the_board_asks_for_what_there_is() {
        let counts = Counts::default();
        add(&counts.errors, "kind", "unknown_key");
        // A metric with labels appears on the page only after a label set was created.
        drop(
            counts
                .by_name
                .get_or_create(&vec![("name", "ann".to_owned())]),
        );
        drop(
            counts
                .failures
                .get_or_create(&vec![("cause", "ENOSPC".to_owned())]),
        );
        let page = Page::new(&counts, Arc::default(), PathBuf::from("/nonexistent"))
            .text()
            .unwrap();
        let board = include_str!("../../../../../../docs/grafana.json");
        let _whole: serde_json::Value = serde_json::from_str(board).unwrap();
        let words = board.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let asked: Vec<_> = words.filter(|word| word.starts_with("zmove_")).collect();
        assert!(asked.len() > 10);
        for name in asked {
            let described = name
                .strip_suffix("_total")
                .or(name.strip_suffix("_info"))
                .unwrap_or(name);
            assert!(
                page.contains(&format!("# TYPE {described} ")),
                "{name} is not in:\n{page}"
            );
        }
    }

    #[test]
    fn files_are_counted_with_their_bytes() {
        let directory = tempfile::tempdir().unwrap();
        assert!(journal_bytes(&directory.path().join("none")).is_empty());
        std::fs::write(directory.path().join("a.journal"), [0; 7]).unwrap();
        std::fs::write(directory.path().join("b.journal"), [0; 5]).unwrap();
        std::fs::create_dir(directory.path().join("c")).unwrap();
        let mut bytes = journal_bytes(directory.path());
        bytes.sort_unstable();
        assert_eq!(bytes, [5, 7]);
    }
}
