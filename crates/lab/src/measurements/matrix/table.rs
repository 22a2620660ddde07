//! The results of a matrix of copies: raw runs, a cell for each tool, data set and direction, and tables of rates. The
//! columns of a table are source sites, and its rows are target sites.

use anyhow::{Context, Result};
use serde::Serialize;

use super::sites::{Assumptions, Site, Stretch};
use crate::data::datasets::DataSet;
use crate::measurements::measure::figures::{self, median, shown};
use crate::measurements::measure::race::{Run, Verdict};
use crate::measurements::measure::report::Header;

/// All results of a matrix.
#[derive(Debug, Serialize)]
pub(crate) struct Matrix {
    pub(crate) header: Header,
    pub(crate) assumptions: String,
    pub(crate) paths: Vec<Stretch>,
    pub(crate) data: Vec<Class>,
    pub(crate) tools: Vec<String>,
    pub(crate) runs: Vec<Entry>,
}

/// A data set and the name of the published data set that it represents.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Class {
    pub(crate) name: &'static str,
    #[serde(flatten)]
    pub(crate) set: DataSet,
}

/// One run, with its cell.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) from: Site,
    pub(crate) to: Site,
    pub(crate) data: &'static str,
    pub(crate) tool: String,
    /// The number of the run, starting at 1.
    pub(crate) number: u32,
    pub(crate) bytes: u64,
    #[serde(flatten)]
    pub(crate) run: Run,
}

impl Entry {
    /// Returns the rate in megabytes per second, including the flush. `None` if the run failed.
    #[expect(
        clippy::cast_precision_loss,
        reason = "data sets are far below 2^52 bytes"
    )]
    fn rate(&self) -> Option<f64> {
        (self.run.verdict == Verdict::Right).then(|| self.bytes as f64 * 1e-6 / self.run.seconds)
    }

    /// Returns a line that describes the run.
    pub(crate) fn line(&self) -> String {
        let outcome = match &self.run.verdict {
            Verdict::Right => format!("{:.2} s, {} MB/s", self.run.seconds, shown(self.rate(), 1)),
            Verdict::Wrong(why) => format!("WRONG: {why}"),
            Verdict::Failed(why) => format!("FAILED: {why}"),
            Verdict::TimedOut => "TIMED OUT".to_owned(),
            Verdict::Missing(programs) => format!("not installed: {programs}"),
        };
        let (from, to) = (self.from.name(), self.to.name());
        format!(
            "{} from {from} to {to}, run {}, {}: {outcome}",
            self.data, self.number, self.tool
        )
    }
}

/// The position of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    from: Site,
    to: Site,
    data: &'a str,
    tool: &'a str,
}

/// All runs of one tool with one data set in one direction.
#[derive(Debug, Serialize)]
struct Cell<'a> {
    from: Site,
    to: Site,
    data: &'a str,
    tool: &'a str,
    runs_right: usize,
    /// Median of the successful runs.
    megabytes_per_second: Option<f64>,
    seconds: Option<f64>,
    /// The failure of the last unsuccessful run.
    fault: Option<&'static str>,
}

impl Cell<'_> {
    /// Returns the text in the table. A `!` next to the rate marks failures of other runs.
    fn shown(&self) -> String {
        match (self.megabytes_per_second, self.fault) {
            (Some(_), None) => shown(self.megabytes_per_second, 1),
            (Some(_), Some(_)) => format!("{}!", shown(self.megabytes_per_second, 1)),
            (None, fault) => fault.unwrap_or("–").to_owned(),
        }
    }
}

impl Matrix {
    /// Returns the raw runs and the cells as JSON.
    pub(crate) fn json(&self) -> Result<String> {
        let mut whole = serde_json::to_value(self).context("failed to write JSON")?;
        whole["cells"] = serde_json::to_value(self.cells()).context("failed to write JSON")?;
        serde_json::to_string_pretty(&whole).context("failed to write JSON")
    }

    /// Returns the tables and the failures as text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}assumed: {}\n\n{}",
            self.header.text(),
            self.assumptions,
            self.path_table()
        );
        for class in &self.data {
            let (name, set) = (class.name, &class.set);
            for tool in &self.tools {
                text.push_str(&format!(
                    "\n{tool}, {name} data set ({} files, {:.1} MB), MB/s, from columns to rows\n{}",
                    set.files,
                    bytes_as_megabytes(set.bytes),
                    self.table(&|from, to| self.cell(Place { from, to, data: name, tool }).shown()),
                ));
            }
            if let [first, second, ..] = &self.tools[..] {
                text.push_str(&format!(
                    "\n{second} ÷ {first}, {name} data set\n{}",
                    self.table(&|from, to| {
                        let rate = |tool| {
                            self.cell(Place {
                                from,
                                to,
                                data: name,
                                tool,
                            })
                            .megabytes_per_second
                        };
                        shown(ratio(rate(second), rate(first)), 2)
                    }),
                ));
            }
        }
        let wrong = self
            .runs
            .iter()
            .filter(|entry| entry.run.verdict != Verdict::Right);
        wrong.for_each(|entry| text.push_str(&format!("! {}\n", entry.line())));
        text
    }

    /// Returns whether every run of an installed tool succeeded.
    pub(crate) fn all_right(&self) -> bool {
        let mut verdicts = self.runs.iter().map(|entry| &entry.run.verdict);
        verdicts.all(|verdict| *verdict == Verdict::Right || verdict.is_missing())
    }

    fn path_table(&self) -> String {
        let rows: Vec<Vec<String>> = self.paths.iter().map(path_row).collect();
        figures::table(&["path", "km", "RTT ms", "Gbit/s"], &rows)
    }

    fn table(&self, cell: &dyn Fn(Site, Site) -> String) -> String {
        let (all_from, all_to) = (self.sites(|entry| entry.from), self.sites(|entry| entry.to));
        let headings: Vec<&str> = std::iter::once("")
            .chain(all_from.iter().map(|site| site.name()))
            .collect();
        let row = |&to: &Site| {
            let cells = all_from.iter().map(|&from| {
                if from == to {
                    "–".to_owned()
                } else {
                    cell(from, to)
                }
            });
            std::iter::once(to.name().to_owned()).chain(cells).collect()
        };
        figures::table(&headings, &all_to.iter().map(row).collect::<Vec<_>>())
    }

    /// Returns the sites with runs, in their order.
    fn sites(&self, end: impl Fn(&Entry) -> Site) -> Vec<Site> {
        let seen: Vec<Site> = self.runs.iter().map(end).collect();
        Site::ALL
            .into_iter()
            .filter(|site| seen.contains(site))
            .collect()
    }

    fn cells(&self) -> Vec<Cell<'_>> {
        let mut places = Vec::new();
        for entry in &self.runs {
            let place = Place {
                from: entry.from,
                to: entry.to,
                data: entry.data,
                tool: &entry.tool,
            };
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places.into_iter().map(|place| self.cell(place)).collect()
    }

    fn cell<'a>(&self, place: Place<'a>) -> Cell<'a> {
        let Place {
            from,
            to,
            data,
            tool,
        } = place;
        let entries = self.runs.iter().filter(|entry| {
            (entry.from, entry.to, entry.data, entry.tool.as_str()) == (from, to, data, tool)
        });
        let (right, wrong): (Vec<&Entry>, Vec<&Entry>) =
            entries.partition(|entry| entry.run.verdict == Verdict::Right);
        Cell {
            from,
            to,
            data,
            tool,
            runs_right: right.len(),
            megabytes_per_second: median(
                &right
                    .iter()
                    .filter_map(|entry| entry.rate())
                    .collect::<Vec<_>>(),
            ),
            seconds: median(
                &right
                    .iter()
                    .map(|entry| entry.run.seconds)
                    .collect::<Vec<_>>(),
            ),
            fault: wrong.last().and_then(|entry| fault(&entry.run.verdict)),
        }
    }
}

/// Describes the assumptions.
pub(crate) fn assumed(assumptions: Assumptions, told: bool) -> String {
    let Assumptions { detour, scale } = assumptions;
    let rates = if told {
        "rates as asked for".to_owned()
    } else {
        format!(
            "rates {scale} of the slower site's link (Durham 40 Gbit/s, which is told; Cambridge 20, Edinburgh 10, RAL 10)"
        )
    };
    format!("round trips of {detour} times the great circle at 2/3 of the speed of light; {rates}")
}

fn fault(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Right => None,
        Verdict::Wrong(_) => Some("wrong"),
        Verdict::Failed(_) => Some("failed"),
        Verdict::TimedOut => Some("timed out"),
        Verdict::Missing(_) => Some("missing"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^52")]
fn path_row(path: &Stretch) -> Vec<String> {
    let [one, other] = path.sites.map(Site::name);
    vec![
        format!("{one} – {other}"),
        format!("{:.0}", path.kilometres),
        format!("{:.1}", path.rtt_ms.milliseconds()),
        format!("{:.2}", path.bits_per_second.0 as f64 * 1e-9),
    ]
}

#[expect(
    clippy::cast_precision_loss,
    reason = "data sets are far below 2^52 bytes"
)]
fn bytes_as_megabytes(bytes: u64) -> f64 {
    bytes as f64 * 1e-6
}

fn ratio(value: Option<f64>, reference: Option<f64>) -> Option<f64> {
    Some(value? / reference?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurements::measure::race::Usage;

    const ASSUMPTIONS: Assumptions = Assumptions {
        detour: 2.0,
        scale: 0.2,
    };

    fn matrix(runs: Vec<Entry>) -> Matrix {
        let set = DataSet {
            name: "n9x1".to_owned(),
            root: "n9x1".into(),
            files: 9,
            bytes: 90_000_000,
        };
        Matrix {
            header: Header::without_machine(),
            assumptions: assumed(ASSUMPTIONS, false),
            paths: Stretch::all(ASSUMPTIONS, None),
            data: vec![Class { name: "small", set }],
            tools: vec!["rsync-av".to_owned(), "zmove".to_owned()],
            runs,
        }
    }

    fn entry(from: Site, to: Site, tool: &str, run: Run) -> Entry {
        Entry {
            from,
            to,
            data: "small",
            tool: tool.to_owned(),
            number: 1,
            bytes: 90_000_000,
            run,
        }
    }

    fn right(seconds: f64) -> Run {
        let (source, target) = (Usage::default(), Usage::default());
        Run {
            verdict: Verdict::Right,
            seconds,
            first_byte_seconds: None,
            wire_bytes: 0,
            source,
            target,
        }
    }

    fn failed() -> Run {
        Run::not_started(&anyhow::anyhow!("no route"))
    }

    /// Returns the lines of a table, from below its heading to the next empty line.
    fn table(text: &str, heading: &str) -> Vec<String> {
        let lines = text
            .lines()
            .skip_while(|line| !line.starts_with(heading))
            .skip(1);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        lines
            .take_while(|line| !line.is_empty() && !line.starts_with('!'))
            .map(words)
            .collect()
    }

    #[test]
    fn data_comes_from_columns_and_goes_to_rows() {
        use Site::{Durham, Ral};
        let matrix = matrix(vec![
            entry(Durham, Ral, "rsync-av", right(3.0)),
            entry(Durham, Ral, "zmove", right(1.0)),
            entry(Ral, Durham, "rsync-av", right(1.5)),
            entry(Ral, Durham, "zmove", right(1.0)),
        ]);
        let text = matrix.text();
        assert_eq!(
            table(&text, "rsync-av, small"),
            ["Durham RAL", "Durham – 60.0", "RAL 30.0 –"]
        );
        assert_eq!(
            table(&text, "zmove, small"),
            ["Durham RAL", "Durham – 90.0", "RAL 90.0 –"]
        );
        assert_eq!(
            table(&text, "zmove ÷ rsync-av"),
            ["Durham RAL", "Durham – 1.50", "RAL 3.00 –"]
        );
        assert!(matrix.all_right());
    }

    #[test]
    fn a_rate_is_the_median_of_the_runs_that_went_right() {
        let (from, to) = (Site::Durham, Site::Cambridge);
        let runs = [right(1.0), right(9.0), right(3.0), failed()];
        let matrix = matrix(
            runs.into_iter()
                .map(|run| entry(from, to, "zmove", run))
                .collect(),
        );
        let cells = matrix.cells();
        assert_eq!(cells.len(), 1);
        assert_eq!(
            (cells[0].runs_right, cells[0].megabytes_per_second),
            (3, Some(30.0))
        );
        assert_eq!(
            table(&matrix.text(), "zmove, small"),
            ["Durham", "Cambridge 30.0!"]
        );
        assert!(!matrix.all_right());
    }

    #[test]
    fn a_tool_that_fails_or_is_missing_is_a_cell_that_says_so() {
        let (from, to) = (Site::Ral, Site::Edinburgh);
        let missing = Run::missing("no rsync".to_owned());
        let matrix = matrix(vec![
            entry(from, to, "rsync-av", missing),
            entry(from, to, "zmove", failed()),
        ]);
        let text = matrix.text();
        assert_eq!(
            table(&text, "rsync-av, small"),
            ["RAL", "Edinburgh missing"]
        );
        assert_eq!(table(&text, "zmove, small"), ["RAL", "Edinburgh failed"]);
        assert_eq!(table(&text, "zmove ÷ rsync-av"), ["RAL", "Edinburgh –"]);
        assert!(
            text.contains(
                "! small from RAL to Edinburgh, run 1, rsync-av: not installed: no rsync"
            )
        );
        assert!(text.contains("! small from RAL to Edinburgh, run 1, zmove: FAILED: no route"));
    }

    #[test]
    fn what_is_assumed_is_said() {
        let text = matrix(Vec::new()).text();
        let said = "assumed: round trips of 2 times the great circle at 2/3 of the speed of light; rates 0.2 of";
        assert!(text.contains(said), "{text}");
        assert!(!assumed(ASSUMPTIONS, true).contains("0.2"));
    }

    #[test]
    fn json_has_paths_runs_and_cells() {
        let matrix = matrix(vec![entry(Site::Ral, Site::Durham, "zmove", right(1.0))]);
        let json: serde_json::Value = serde_json::from_str(&matrix.json().unwrap()).unwrap();
        assert_eq!(json["paths"].as_array().unwrap().len(), 6);
        assert_eq!(json["runs"][0]["from"], "RAL");
        assert_eq!(json["cells"][0]["megabytes_per_second"], 90.0);
        assert_eq!(json["data"][0]["files"], 9);
    }
}
