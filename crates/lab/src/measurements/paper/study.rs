//! The file that contains a study, `study.json`, and the same data as `study.csv`.
//!
//! **Invariant:** a result is on disk before the next run starts. The files are replaced atomically, never overwritten.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::contender::Contender;
use super::plan::{Block, Design, Part};
use crate::measurements::measure::calibrate::Calibration;
use crate::measurements::measure::race::{Run, Verdict};
use crate::measurements::measure::report::Header;

/// A study with its runs so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Study {
    version: u32,
    pub(crate) design: Design,
    pub(crate) sittings: Vec<Sitting>,
    /// The command line of each tool's client.
    pub(crate) commands: BTreeMap<String, String>,
    pub(crate) runs: Vec<Record>,
    #[serde(skip)]
    directory: PathBuf,
}

/// One invocation of the command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sitting {
    unix_seconds: u64,
    pub(crate) header: Value,
    /// The measurements of the paths themselves.
    pub(crate) calibrations: Vec<Value>,
}

/// One run of one tool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The index of the sitting, starting at 0.
    pub(crate) sitting: usize,
    pub(crate) part: Part,
    pub(crate) rtt_ms: f64,
    pub(crate) file_bytes: u64,
    pub(crate) files: u64,
    pub(crate) tool: String,
    pub(crate) processes: Option<u32>,
    pub(crate) number: u32,
    /// Bytes at the target when a run reached the time limit.
    pub(crate) arrived_bytes: Option<u64>,
    #[serde(flatten)]
    pub(crate) run: Run,
}

impl Sitting {
    pub(crate) fn new(header: &Header) -> Result<Self> {
        let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(Self {
            unix_seconds,
            header: serde_json::to_value(header)?,
            calibrations: Vec::new(),
        })
    }
}

impl Record {
    pub(crate) fn new(
        block: &Block,
        tool: &Contender,
        number: u32,
        run: Run,
        arrived_bytes: Option<u64>,
    ) -> Self {
        Self {
            sitting: 0,
            part: block.part,
            rtt_ms: block.rtt_ms,
            file_bytes: block.file_bytes,
            files: block.files,
            tool: tool.name.clone(),
            processes: tool.processes,
            number,
            arrived_bytes,
            run,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.file_bytes * self.files
    }

    /// Returns the rate in bytes per second. If the run reached the time limit, the rate is computed from the data that
    /// had arrived. `None` if the run failed.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn rate(&self) -> Option<f64> {
        let bytes = match self.run.verdict {
            Verdict::Right => self.bytes(),
            Verdict::TimedOut => self.arrived_bytes?,
            _ => return None,
        };
        Some(bytes as f64 / self.run.seconds)
    }

    /// Returns the CPU time of both sides per GiB that arrived, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn cpu_seconds_per_gibibyte(&self) -> Option<f64> {
        let bytes = if self.is_cut() {
            self.arrived_bytes?
        } else {
            self.bytes()
        };
        let seconds = self.run.source.cpu_seconds + self.run.target.cpu_seconds;
        (bytes > 0).then(|| seconds * f64::from(1 << 30) / bytes as f64)
    }

    /// Returns whether another run belongs to the same cell.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.part, self.file_bytes, self.rtt_ms.to_bits())
            == (other.part, other.file_bytes, other.rtt_ms.to_bits())
            && self.tool == other.tool
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.run.verdict == Verdict::TimedOut
    }

    fn is_in(&self, block: &Block, tool: &str) -> bool {
        self.part == block.part
            && self.rtt_ms.to_bits() == block.rtt_ms.to_bits()
            && self.file_bytes == block.file_bytes
            && self.tool == tool
    }
}

impl Study {
    /// Opens the study in a directory, or creates a new one.
    pub(crate) fn open(directory: &Path, design: &Design) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("failed to create {}", directory.display()))?;
        if !directory.join(FILE).exists() {
            return Ok(Self {
                version: VERSION,
                design: design.clone(),
                sittings: Vec::new(),
                commands: BTreeMap::new(),
                runs: Vec::new(),
                directory: directory.to_owned(),
            });
        }
        let study = Self::read(directory)?;
        if study.design != *design {
            bail!(
                "{} holds a study of another design, {}; name another directory or the same settings",
                directory.display(),
                serde_json::to_string(&study.design)?
            );
        }
        Ok(study)
    }

    /// Reads the study that is stored in `directory`.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let file = directory.join(FILE);
        let text = fs::read_to_string(&file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        let study: Self = serde_json::from_str(&text)
            .with_context(|| format!("failed to understand {}", file.display()))?;
        if study.version != VERSION {
            bail!(
                "{} is of version {}, this program knows {VERSION}",
                file.display(),
                study.version
            );
        }
        Ok(Self {
            directory: directory.to_owned(),
            ..study
        })
    }

    /// Starts a sitting, to which all further runs belong.
    pub(crate) fn sit_down(&mut self, sitting: Sitting) {
        self.sittings.push(sitting);
    }

    /// Removes the records of tools that were not installed, because they may be installed now.
    pub(crate) fn forget_missing(&mut self) {
        self.runs.retain(|record| !record.run.verdict.is_missing());
    }

    /// Adds the measurement of a path.
    pub(crate) fn calibrated(&mut self, calibration: &Calibration) -> Result<()> {
        let sitting = self.sittings.last_mut().context("a sitting has begun")?;
        sitting
            .calibrations
            .push(serde_json::to_value(calibration)?);
        Ok(())
    }

    /// Records the command line of a tool, unless it is recorded already.
    pub(crate) fn note_command(
        &mut self,
        tool: &str,
        command: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        if !self.commands.contains_key(tool) {
            self.commands.insert(tool.to_owned(), command()?);
        }
        Ok(())
    }

    /// Adds a run and saves the study.
    pub(crate) fn add(&mut self, record: Record) -> Result<()> {
        let sitting = self.sittings.len().saturating_sub(1);
        self.runs.push(Record { sitting, ..record });
        self.replace(FILE, &serde_json::to_string_pretty(self)?)?;
        self.replace(TABLE, &self.csv())
    }

    /// Returns whether the tool's run with this number is missing in the block. A tool is not run again if its first
    /// run reached the time limit, failed, was impossible, or took longer than `repeat_below` seconds.
    pub(crate) fn is_missing(
        &self,
        block: &Block,
        tool: &str,
        number: u32,
        repeat_below: f64,
    ) -> bool {
        let mut before = self.runs.iter().filter(|record| record.is_in(block, tool));
        before.all(|record| {
            let repeats = record.run.verdict == Verdict::Right && record.run.seconds < repeat_below;
            record.number != number && repeats
        })
    }

    fn replace(&self, name: &str, text: &str) -> Result<()> {
        let (file, temporary) = (
            self.directory.join(name),
            self.directory.join(format!(".{name}.new")),
        );
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &file))
            .with_context(|| format!("failed to write {}", file.display()))
    }

    fn csv(&self) -> String {
        let mut text = format!("{}\n", CSV_COLUMNS.join(","));
        for record in &self.runs {
            let some =
                |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
            let count =
                |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
            let run = &record.run;
            let part = if record.part == Part::Sizes {
                "sizes"
            } else {
                "processes"
            };
            let cells = [
                part.to_owned(),
                record.rtt_ms.to_string(),
                record.file_bytes.to_string(),
                record.files.to_string(),
                record.tool.clone(),
                count(record.processes.map(u64::from)),
                record.number.to_string(),
                run.verdict.word().to_owned(),
                format!("{:.3}", run.seconds),
                count(record.arrived_bytes),
                some(record.rate().map(|rate| rate / 1e6)),
                some(run.first_byte_seconds),
                run.wire_bytes.to_string(),
                format!("{:.3}", run.source.cpu_seconds),
                format!("{:.3}", run.target.cpu_seconds),
                run.source.peak_bytes.to_string(),
                run.target.peak_bytes.to_string(),
            ];
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }
}

const CSV_COLUMNS: [&str; 17] = [
    "part",
    "rtt_ms",
    "file_bytes",
    "files",
    "tool",
    "processes",
    "run",
    "verdict",
    "seconds",
    "arrived_bytes",
    "megabytes_per_second",
    "first_byte_seconds",
    "wire_bytes",
    "source_cpu_seconds",
    "target_cpu_seconds",
    "source_peak_bytes",
    "target_peak_bytes",
];
const FILE: &str = "study.json";
const TABLE: &str = "study.csv";
const VERSION: u32 = 1;

#[cfg(test)]
pub(crate) mod tests {
    use super::super::plan::tests::design;
    use super::*;
    use crate::measurements::measure::race::Usage;

    pub(crate) fn run(verdict: Verdict, seconds: f64) -> Run {
        let usage = Usage {
            cpu_seconds: 0.5,
            peak_bytes: 0,
        };
        let (source, target) = (usage, usage);
        Run {
            verdict,
            seconds,
            first_byte_seconds: Some(0.1),
            wire_bytes: 7,
            source,
            target,
        }
    }

    #[test]
    fn a_study_is_gone_on_with_where_it_was_ended() {
        let place = tempfile::tempdir().unwrap();
        let tools = [Contender::wrapper(2), "rsync".parse().unwrap()];
        let block = design().blocks(90.0, &tools).remove(0);
        let mut study = Study::open(place.path(), &design()).unwrap();
        let wrong = run(Verdict::Wrong("a, \"b\"".to_owned()), 1.0);
        study
            .add(Record::new(
                &block,
                &tools[0],
                1,
                run(Verdict::Right, 2.0),
                None,
            ))
            .unwrap();
        study
            .add(Record::new(&block, &tools[1], 1, wrong, None))
            .unwrap();
        let again = Study::open(place.path(), &design()).unwrap();
        assert_eq!(again.runs.len(), 2);
        let missing = |tool: &str, number| again.is_missing(&block, tool, number, 10.0);
        assert!(
            !missing("fpsync -n 2", 1) && missing("fpsync -n 2", 2),
            "a fast one has further runs"
        );
        assert!(
            !again.is_missing(&block, "fpsync -n 2", 2, 1.5),
            "a slow one has none"
        );
        assert!(!missing("rsync", 1) && !missing("rsync", 2) && missing("zmove", 1));
        let other = Design {
            files_max: 3,
            ..design()
        };
        assert!(
            Study::open(place.path(), &other)
                .unwrap_err()
                .to_string()
                .contains("another design")
        );
        let table = fs::read_to_string(place.path().join(TABLE)).unwrap();
        assert!(
            table
                .lines()
                .all(|line| line.split(',').count() == CSV_COLUMNS.len()),
            "{table}"
        );
    }

    #[test]
    fn a_cut_run_has_the_rate_of_what_arrived_and_a_failed_one_has_none() {
        let tool: Contender = "scp".parse().unwrap();
        let block = design().blocks(90.0, std::slice::from_ref(&tool)).remove(0);
        let cut = Record::new(&block, &tool, 1, run(Verdict::TimedOut, 20.0), Some(1_000));
        assert_eq!(cut.rate(), Some(50.0));
        assert_eq!(
            Record::new(
                &block,
                &tool,
                1,
                run(Verdict::Failed("no".into()), 1.0),
                None
            )
            .rate(),
            None
        );
        let right = Record::new(&block, &tool, 1, run(Verdict::Right, 10.0), None);
        assert_eq!(right.rate(), Some(1_024_000.0));
    }

    #[test]
    fn what_was_not_installed_may_be_now() {
        let place = tempfile::tempdir().unwrap();
        let tool: Contender = "syq".parse().unwrap();
        let block = design().blocks(90.0, std::slice::from_ref(&tool)).remove(0);
        let mut study = Study::open(place.path(), &design()).unwrap();
        study
            .add(Record::new(
                &block,
                &tool,
                1,
                Run::missing("no syq".into()),
                None,
            ))
            .unwrap();
        assert!(!study.is_missing(&block, "syq", 1, 10.0));
        study.forget_missing();
        assert!(study.is_missing(&block, "syq", 1, 10.0));
    }
}
