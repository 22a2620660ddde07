//! The medians of a study's runs, one per cell.

use zmove_types::SizeClass;

use super::plan::Part;
use super::study::{Record, Study};
use crate::measurements::measure::figures::{median, spread};

/// One tool with one data set and round-trip time.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) part: Part,
    pub(crate) rtt_ms: f64,
    pub(crate) file_bytes: u64,
    pub(crate) files: u64,
    pub(crate) tool: String,
    pub(crate) processes: Option<u32>,
    /// The rate in bytes per second. `None` if no run succeeded or reached the time limit.
    pub(crate) rate: Option<f64>,
    pub(crate) rates: Option<(f64, f64)>,
    pub(crate) runs: usize,
    /// Whether the rate was computed from the data that had arrived at the time limit.
    pub(crate) is_cut: bool,
    /// CPU time of both sides per GiB, in seconds.
    pub(crate) cpu_seconds_per_gibibyte: Option<f64>,
    /// The failure, if the cell has no rate.
    pub(crate) trouble: Option<String>,
}

/// Returns all cells, in the order of their first runs.
pub(crate) fn cells(study: &Study) -> Vec<Cell> {
    let mut groups: Vec<Vec<&Record>> = Vec::new();
    for record in &study.runs {
        let of_cell = |group: &&mut Vec<&Record>| group[0].is_beside(record);
        match groups.iter_mut().find(of_cell) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    groups.iter().map(|records| Cell::of(records)).collect()
}

impl Cell {
    fn of(records: &[&Record]) -> Self {
        let first = records[0];
        let counted: Vec<&&Record> = records
            .iter()
            .filter(|record| record.rate().is_some())
            .collect();
        let rates: Vec<f64> = counted.iter().filter_map(|record| record.rate()).collect();
        let costs: Vec<f64> = counted
            .iter()
            .filter_map(|record| record.cpu_seconds_per_gibibyte())
            .collect();
        Self {
            part: first.part,
            rtt_ms: first.rtt_ms,
            file_bytes: first.file_bytes,
            files: first.files,
            tool: first.tool.clone(),
            processes: first.processes,
            rate: median(&rates),
            rates: spread(&rates),
            runs: counted.len(),
            is_cut: counted.iter().any(|record| record.is_cut()),
            cpu_seconds_per_gibibyte: median(&costs),
            trouble: if rates.is_empty() {
                Some(first.run.verdict.to_string())
            } else {
                None
            },
        }
    }

    pub(crate) fn class(&self) -> SizeClass {
        SizeClass::of(self.file_bytes)
    }
}

/// Returns the cell of a tool, size and round-trip time in the part of the study that varies the file size.
pub(crate) fn find<'a>(
    cells: &'a [Cell],
    tool: &str,
    rtt_ms: f64,
    file_bytes: u64,
) -> Option<&'a Cell> {
    cells.iter().find(|cell| {
        cell.part == Part::Sizes
            && cell.tool == tool
            && cell.file_bytes == file_bytes
            && cell.rtt_ms.to_bits() == rtt_ms.to_bits()
    })
}

/// Returns the distinct values in ascending order.
pub(crate) fn distinct<T: PartialOrd + Copy>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        let place = distinct
            .iter()
            .position(|other| *other >= value)
            .unwrap_or(distinct.len());
        if distinct.get(place) != Some(&value) {
            distinct.insert(place, value);
        }
    }
    distinct
}

/// Returns the tools in the part of the study that varies the file size, in the order in which they ran.
pub(crate) fn tools(cells: &[Cell]) -> Vec<&str> {
    let mut tools: Vec<&str> = Vec::new();
    for cell in cells.iter().filter(|cell| cell.part == Part::Sizes) {
        if !tools.contains(&cell.tool.as_str()) {
            tools.push(&cell.tool);
        }
    }
    tools
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::contender::Contender;
    use super::super::plan::tests::design;
    use super::super::study::tests::run;
    use super::*;
    use crate::measurements::measure::race::Verdict;

    /// Returns a study in which each tool takes the time in `tools`, in seconds, at 0.2 ms, and `far` times as long at
    /// 90 ms.
    pub(crate) fn study(directory: &std::path::Path, tools: &[(&str, f64)], far: f64) -> Study {
        let mut study = Study::open(directory, &design()).unwrap();
        for (rtt_ms, times) in [(0.2, 1.0), (90.0, far)] {
            let contenders: Vec<Contender> = tools
                .iter()
                .map(|(tool, _)| tool.parse().unwrap())
                .collect();
            for block in design().blocks(rtt_ms, &contenders) {
                for tool in &block.tools {
                    let of_tool = |(name, _): &&(&str, f64)| tool.name.starts_with(name);
                    let seconds = tools
                        .iter()
                        .find(of_tool)
                        .map_or(1.0, |(_, seconds)| *seconds)
                        * times;
                    let (verdict, arrived) = match seconds {
                        ..20.0 => (Verdict::Right, None),
                        _ => (Verdict::TimedOut, Some(block.file_bytes * block.files / 2)),
                    };
                    study
                        .add(Record::new(
                            &block,
                            tool,
                            1,
                            run(verdict, seconds.min(20.0)),
                            arrived,
                        ))
                        .unwrap();
                }
            }
        }
        study
    }

    #[test]
    fn a_cell_has_the_median_of_its_runs() {
        let place = tempfile::tempdir().unwrap();
        let mut study = study(place.path(), &[("zmove", 2.0), ("scp", 5.0)], 10.0);
        let first = study.runs[0].clone();
        for seconds in [4.0, 5.0] {
            let mut record = first.clone();
            record.run.seconds = seconds;
            study.add(record).unwrap();
        }
        let cells = cells(&study);
        let cell = find(&cells, "zmove", 0.2, 1 << 10).unwrap();
        assert_eq!(
            (cell.rate, cell.runs, cell.is_cut),
            (Some(10_240_000.0 / 4.0), 3, false)
        );
        let cut = find(&cells, "scp", 90.0, 1 << 30).unwrap();
        assert!(cut.is_cut && cut.trouble.is_none());
        assert_eq!(tools(&cells), ["zmove", "scp"]);
    }

    #[test]
    fn values_come_in_order_and_once() {
        assert_eq!(distinct([3.0, 1.0, 3.0, 2.0].into_iter()), [1.0, 2.0, 3.0]);
    }
}
