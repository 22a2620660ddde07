//! A study as text: a line per run, and tables for a terminal and for Markdown.

use std::fmt::Write as _;

use zmove_tools::drawing::scale::size_label;

use super::cells::{self, Cell, distinct, find, tools};
use super::looks;
use super::plan::{Part, SWEPT_RTT_MS};
use super::study::{Record, Study};
use crate::measurements::measure::figures;

/// Returns a line that describes the run.
pub(crate) fn line(record: &Record) -> String {
    let rate = record
        .rate()
        .map_or_else(String::new, |rate| format!(", {:.1} MB/s", rate / 1e6));
    format!(
        "{} × {} at {} ms, run {}, {}: {:.2} s{rate}, {}",
        record.files,
        size_label(record.file_bytes),
        record.rtt_ms,
        record.number,
        record.tool,
        record.run.seconds,
        record.run.verdict
    )
}

/// Returns a table for each round-trip time.
pub(crate) fn text(study: &Study) -> String {
    let cells = cells::cells(study);
    let mut text = String::new();
    for table in Tables::of(&cells).all() {
        let headings: Vec<&str> = table.headings.iter().map(String::as_str).collect();
        let table_text = figures::table(&headings, &table.rows).replace("\\|", "|");
        text.push_str(&format!("{}\n{table_text}\n", table.title));
    }
    text
}

/// Returns all tables, the command lines of the tools, and the remarks on cells.
pub(crate) fn markdown(study: &Study) -> String {
    let cells = cells::cells(study);
    let mut text =
        String::from("# The study's figures\n\nWritten by `zmove-lab figures` from `study.json`. ");
    let cut = study.design.cut_seconds;
    writeln!(
        text,
        "MB/s are 10^6 bytes of files a second, the median of a cell's runs; `>` before a number: cut after {cut} s, the rate of what \
         had arrived.\n"
    )
    .expect(WRITES);
    writeln!(text, "{}\n", runs_line(&cells)).expect(WRITES);
    for table in Tables::of(&cells).all() {
        writeln!(text, "## {}\n", table.title).expect(WRITES);
        writeln!(text, "| {} |", table.headings.join(" | ")).expect(WRITES);
        writeln!(text, "|{}", "---|".repeat(table.headings.len())).expect(WRITES);
        for row in &table.rows {
            writeln!(text, "| {} |", row.join(" | ")).expect(WRITES);
        }
        text.push('\n');
    }
    for (title, lines) in [
        ("Cells in which a tool beats zmove", beaten(&cells)),
        ("Cells without a figure", troubles(&cells)),
    ] {
        writeln!(text, "## {title}\n").expect(WRITES);
        if lines.is_empty() {
            text.push_str("None.\n");
        }
        lines
            .iter()
            .for_each(|line| writeln!(text, "- {line}").expect(WRITES));
        text.push('\n');
    }
    text.push_str("## How the clients were started\n\n");
    for (tool, command) in &study.commands {
        writeln!(text, "- {}: `{command}`", escaped(&looks::name(tool))).expect(WRITES);
    }
    text
}

/// Describes the number of runs per cell and the spread of their rates.
fn runs_line(cells: &[Cell]) -> String {
    let counted: Vec<&Cell> = cells.iter().filter(|cell| cell.runs > 0).collect();
    let repeated: Vec<f64> = counted
        .iter()
        .filter(|cell| cell.runs > 1)
        .filter_map(|cell| {
            cell.rates
                .zip(cell.rate)
                .map(|((least, most), rate)| (most - least) / rate)
        })
        .collect();
    let most = counted.iter().map(|cell| cell.runs).max().unwrap_or(0);
    let apart = figures::median(&repeated).map_or_else(String::new, |apart| {
        format!("; from the slowest to the fastest run of a cell it is {:.0} % of the median, as the median of all cells", apart * 100.0)
    });
    format!(
        "{} cells have one run, {} have up to {most}{apart}.",
        counted.len() - repeated.len(),
        repeated.len()
    )
}

/// One table.
struct Table {
    title: String,
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The data of the tables.
struct Tables<'a> {
    cells: &'a [Cell],
    tools: Vec<&'a str>,
    sizes: Vec<u64>,
}

impl<'a> Tables<'a> {
    fn of(cells: &'a [Cell]) -> Self {
        let sizes = distinct(
            cells
                .iter()
                .filter(|cell| cell.part == Part::Sizes)
                .map(|cell| cell.file_bytes),
        );
        Self {
            cells,
            tools: tools(cells),
            sizes,
        }
    }

    fn all(&self) -> Vec<Table> {
        let rtts = distinct(
            self.cells
                .iter()
                .filter(|cell| cell.part == Part::Sizes)
                .map(|cell| cell.rtt_ms),
        );
        let rate = |cell: &Cell| {
            let mark = if cell.is_cut { ">" } else { "" };
            cell.rate
                .map(|rate| format!("{mark}{}", significant(rate / 1e6)))
        };
        let mut all: Vec<Table> = rtts
            .iter()
            .map(|rtt_ms| self.by_size(format!("MB/s at {rtt_ms} ms"), *rtt_ms, &rate))
            .collect();
        let [near, far] = SWEPT_RTT_MS;
        let ratio = |cell: &Cell| {
            let beside = find(self.cells, &cell.tool, near, cell.file_bytes)?;
            Some(format!("{:.3}", cell.rate? / beside.rate?))
        };
        all.push(self.by_size(format!("Rate at {far} ms ÷ rate at {near} ms"), far, &ratio));
        let cost = |cell: &Cell| Some(significant(cell.cpu_seconds_per_gibibyte?));
        for rtt_ms in SWEPT_RTT_MS {
            all.push(self.by_size(
                format!("CPU-seconds per GiB, both sides, at {rtt_ms} ms"),
                rtt_ms,
                &cost,
            ));
        }
        all.extend(self.by_processes());
        all.retain(|table| {
            table
                .rows
                .iter()
                .flat_map(|row| &row[1..])
                .any(|cell| !cell.is_empty())
        });
        all
    }

    fn by_size(
        &self,
        title: String,
        rtt_ms: f64,
        shown: &dyn Fn(&Cell) -> Option<String>,
    ) -> Table {
        let headings = std::iter::once("file size".to_owned())
            .chain(self.tools.iter().map(|tool| escaped(&looks::name(tool))));
        let row = |size: &u64| {
            let cell = |tool: &&str| match find(self.cells, tool, rtt_ms, *size) {
                Some(cell) => shown(cell).unwrap_or_else(|| "–".to_owned()),
                None => String::new(),
            };
            std::iter::once(size_label(*size))
                .chain(self.tools.iter().map(cell))
                .collect()
        };
        Table {
            title,
            headings: headings.collect(),
            rows: self.sizes.iter().map(row).collect(),
        }
    }

    /// Returns a table with a row for each data set and round-trip time, and a column for each number of processes.
    fn by_processes(&self) -> Option<Table> {
        let swept = || {
            self.cells
                .iter()
                .filter(|cell| cell.part == Part::Processes)
        };
        let counts = distinct(swept().filter_map(|cell| cell.processes));
        swept().next()?;
        let mut rows: Vec<Vec<String>> = Vec::new();
        for rtt_ms in distinct(swept().map(|cell| cell.rtt_ms)) {
            for size in distinct(swept().map(|cell| cell.file_bytes)) {
                let at = |count: &u32| {
                    let mut here = swept().filter(|cell| {
                        cell.file_bytes == size && cell.rtt_ms.to_bits() == rtt_ms.to_bits()
                    });
                    here.find(|cell| cell.processes == Some(*count))
                };
                let shown = |count: &u32| {
                    at(count)
                        .and_then(|cell| cell.rate)
                        .map_or("–".to_owned(), |rate| significant(rate / 1e6))
                };
                let zmove = find(self.cells, "zmove", rtt_ms, size).and_then(|cell| cell.rate);
                let mut row = vec![format!("{} at {rtt_ms} ms", size_label(size))];
                row.extend(counts.iter().map(shown));
                row.push(zmove.map_or("–".to_owned(), |rate| significant(rate / 1e6)));
                rows.push(row);
            }
        }
        let mut headings = vec!["fpsync, MB/s".to_owned()];
        headings.extend(counts.iter().map(|count| format!("-n {count}")));
        headings.push("zmove".to_owned());
        Some(Table {
            title: "Processes of the wrapper".to_owned(),
            headings,
            rows,
        })
    }
}

/// Returns all cells in which another tool is faster than zmove over TCP.
fn beaten(cells: &[Cell]) -> Vec<String> {
    let beats = |cell: &&Cell| {
        let own = find(cells, "zmove", cell.rtt_ms, cell.file_bytes)?;
        let (rate, ours) = (cell.rate?, own.rate?);
        (!cell.tool.starts_with("zmove") && rate > ours).then(|| {
            format!(
                "{} at {} ms: {} {} MB/s, zmove {} MB/s ({:.2} of it)",
                size_label(cell.file_bytes),
                cell.rtt_ms,
                escaped(&looks::name(&cell.tool)),
                significant(rate / 1e6),
                significant(ours / 1e6),
                ours / rate
            )
        })
    };
    cells.iter().filter_map(|cell| beats(&cell)).collect()
}

/// Returns the reasons for cells without figures, one line per tool and reason.
fn troubles(cells: &[Cell]) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for cell in cells {
        let Some(trouble) = &cell.trouble else {
            continue;
        };
        let line = format!("{}: {trouble}", escaped(&looks::name(&cell.tool)));
        match lines.iter_mut().find(|(told, _)| *told == line) {
            Some((_, count)) => *count += 1,
            None => lines.push((line, 1)),
        }
    }
    lines
        .into_iter()
        .map(|(line, count)| format!("{line} ({count} cells)"))
        .collect()
}

/// Formats a number with three significant digits.
fn significant(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Escapes vertical bars, which would end a cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

const WRITES: &str = "writing to a string succeeds";

#[cfg(test)]
mod tests {
    use super::super::cells::tests::study;
    use super::*;

    #[test]
    fn what_beats_zmove_and_what_was_cut_are_told() {
        let place = tempfile::tempdir().unwrap();
        let study = study(
            place.path(),
            &[("zmove", 2.0), ("tarmbuffer", 1.0), ("scp", 6.0)],
            4.0,
        );
        let text = markdown(&study);
        assert!(
            text.contains(
                "- 1 KiB at 90 ms: tar \\| mbuffer 2.56 MB/s, zmove 1.28 MB/s (0.50 of it)"
            ),
            "{text}"
        );
        assert!(text.contains("| 1 GiB | 134 | 268 | >26.8 |"), "{text}");
        assert!(text.contains("| 1 GiB | 0.250 | 0.250 | 0.150 |"), "{text}");
        assert!(
            text.contains("## Cells without a figure\n\nNone."),
            "{text}"
        );
        assert!(
            text.contains("66 cells have one run, 0 have up to 1."),
            "{text}"
        );
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [1234.5, 99.94, 5.678].map(significant),
            ["1234", "99.9", "5.68"]
        );
    }
}
