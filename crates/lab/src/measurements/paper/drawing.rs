//! `zmove-lab figures` draws the figures of the paper with the results of this lab, and additional ones.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use zmove_tools::drawing::Heading;
use zmove_tools::drawing::classes::SizeAxis;
use zmove_tools::drawing::scale::size_label;
use zmove_types::{ByteCount, SizeClass};

use super::cells::{self, Cell, distinct, tools};
use super::charts::{Across, Chart, Curve, Panel, Point, Upwards, as_f64};
use super::contender::WRAPPER;
use super::looks;
use super::plan::{Part, SWEPT_RTT_MS};
use super::study::Study;
use super::tables;

/// The study to draw.
#[derive(Args, Debug)]
pub(crate) struct FiguresArgs {
    /// Directory of the study. The charts and `results.md` are written there.
    directory: PathBuf,
}

/// Draws all charts and writes the tables.
pub(crate) fn figures(arguments: &FiguresArgs) -> Result<ExitCode> {
    let study = Study::read(&arguments.directory)?;
    let pictures = Pictures::of(&study);
    if pictures.cells.is_empty() {
        bail!("{} holds no runs", arguments.directory.display());
    }
    let write = |name: &str, text: &str| {
        let file = arguments.directory.join(name);
        fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
        println!("{}", file.display());
        Ok::<(), anyhow::Error>(())
    };
    for (name, chart) in pictures.all() {
        write(&format!("{name}.svg"), &chart.svg())?;
    }
    write("results.md", &tables::markdown(&study))?;
    Ok(ExitCode::SUCCESS)
}

/// The data of all charts.
struct Pictures {
    cells: Vec<Cell>,
    foot: String,
    below: String,
}

impl Pictures {
    fn of(study: &Study) -> Self {
        let foot = format!(
            "Hollow: cut after {} s; the rate of what had arrived.",
            study.design.cut_seconds
        );
        Self {
            cells: cells::cells(study),
            foot,
            below: "emulated path, two hosts on one machine".to_owned(),
        }
    }

    /// Returns all charts with their file names. A chart that corresponds to a figure of the paper has the number of
    /// that figure.
    fn all(&self) -> Vec<(String, Chart)> {
        let mut all = Vec::new();
        let [near, far] = SWEPT_RTT_MS;
        let daemons = ["zmove", "zmove-quic", "rsync", "rsyncd"];
        let wrapped = ["zmove", "rsync", WRAPPER];
        let numbered = [
            ("fig03-lan-rsync", near, &daemons[..], u64::MAX),
            ("fig04-lan-wrapper", near, &wrapped[..], LOSF_BYTES),
            ("fig11-wan-rsync", far, &daemons[..], u64::MAX),
        ];
        for (name, rtt_ms, tools, bytes_max) in numbered {
            let title = format!("Rate by file size, {rtt_ms} ms");
            // There are few tools, and a linear scale shows the ratio of their rates best.
            all.push((
                name,
                self.by_size(title, tools, Upwards::Linear, rtt_ms, bytes_max),
            ));
        }
        let swept = [
            ("fig08-lan-processes-losf", near, SizeClass::Losf),
            ("fig09-lan-processes-medium", near, SizeClass::Medium),
            ("fig10-lan-processes-large", near, SizeClass::Large),
            ("fig12-wan-processes-losf", far, SizeClass::Losf),
            ("fig13-wan-processes-medium", far, SizeClass::Medium),
            ("fig14-wan-processes-large", far, SizeClass::Large),
        ];
        all.extend(
            swept.into_iter().filter_map(|(name, rtt_ms, class)| {
                Some((name, self.by_processes(rtt_ms, class)?))
            }),
        );
        let every = tools(&self.cells);
        let mut named: Vec<(String, Chart)> = all
            .into_iter()
            .map(|(name, chart)| (name.to_owned(), chart))
            .collect();
        for rtt_ms in self.round_trips() {
            let title = format!("All tools, {rtt_ms} ms");
            let chart = self.by_size(title, &every, Upwards::Logarithmic, rtt_ms, u64::MAX);
            named.push((format!("all-{rtt_ms}ms"), chart));
        }
        named.push(("rate-by-rtt".to_owned(), self.by_round_trip(&every)));
        named.push(("wan-over-lan".to_owned(), self.ratios(&every)));
        named.push(("cpu-per-gib".to_owned(), self.costs(&every)));
        named.retain(|(_, chart)| chart.panels.iter().any(|panel| !panel.curves.is_empty()));
        named
    }

    fn of_sizes(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.part == Part::Sizes)
    }

    fn round_trips(&self) -> Vec<f64> {
        distinct(self.of_sizes().map(|cell| cell.rtt_ms))
    }

    fn sizes(&self) -> Vec<u64> {
        distinct(self.of_sizes().map(|cell| cell.file_bytes))
    }

    fn chart(&self, title: String, across: (Across, &'static str), panels: Vec<Panel>) -> Chart {
        let heading = Heading {
            title,
            below: self.below.clone(),
        };
        let mut points = panels
            .iter()
            .flat_map(|panel| &panel.curves)
            .flat_map(|curve| &curve.points);
        let foot = if points.any(|point| point.is_cut) {
            self.foot.clone()
        } else {
            String::new()
        };
        Chart {
            heading,
            across: across.0,
            title_across: across.1,
            panels,
            foot,
        }
    }

    /// Draws the rates of the tools over file sizes at one round-trip time.
    fn by_size(
        &self,
        title: String,
        tools: &[&str],
        upwards: Upwards,
        rtt_ms: f64,
        bytes_max: u64,
    ) -> Chart {
        let wanted = |cell: &&Cell| {
            cell.rtt_ms.to_bits() == rtt_ms.to_bits() && cell.file_bytes <= bytes_max
        };
        let curves = self.curves(tools, &wanted, |cell| cell.rate.map(|rate| rate / 1e6));
        let panel = Panel {
            title: "MB per second".to_owned(),
            upwards,
            curves,
        };
        self.chart(
            title,
            (self.size_axis(bytes_max), "size of each file"),
            vec![panel],
        )
    }

    /// Returns a curve over file sizes for each tool.
    fn curves(
        &self,
        tools: &[&str],
        wanted: &dyn Fn(&&Cell) -> bool,
        value: impl Fn(&Cell) -> Option<f64>,
    ) -> Vec<Curve> {
        let points = |tool: &str| -> Vec<Point> {
            let of_tool = self
                .of_sizes()
                .filter(|cell| cell.tool == tool)
                .filter(|cell| wanted(cell));
            let point = |cell: &Cell| {
                Some(Point {
                    x: power(cell.file_bytes),
                    y: value(cell)?,
                    is_cut: cell.is_cut,
                })
            };
            of_tool.filter_map(point).collect()
        };
        curves(tools, points)
    }

    fn size_axis(&self, bytes_max: u64) -> Across {
        let sizes: Vec<u64> = self
            .sizes()
            .into_iter()
            .filter(|size| *size <= bytes_max)
            .collect();
        let (first, last) = (
            sizes.first().copied().unwrap_or(1),
            sizes.last().copied().unwrap_or(2),
        );
        Across::Sizes(SizeAxis {
            first: power(first) - 1.0,
            last: power(last) + 1.0,
            lead: 1.0,
        })
    }

    /// Draws the rate of the wrapper over the number of its processes, next to tools without such a number.
    fn by_processes(&self, rtt_ms: f64, class: SizeClass) -> Option<Chart> {
        let here =
            |cell: &&Cell| cell.rtt_ms.to_bits() == rtt_ms.to_bits() && cell.class() == class;
        let swept: Vec<&Cell> = self
            .cells
            .iter()
            .filter(|cell| cell.part == Part::Processes)
            .filter(here)
            .collect();
        let first = *swept.first()?;
        let counts = distinct(swept.iter().filter_map(|cell| cell.processes));
        let megabytes = |cell: &Cell| cell.rate.map(|rate| rate / 1e6);
        let points = |tool: &str| -> Vec<Point> {
            if tool == WRAPPER {
                let step = |cell: &&Cell| {
                    counts
                        .iter()
                        .position(|count| Some(*count) == cell.processes)
                };
                let point = |cell: &&Cell| {
                    Some(Point {
                        x: as_f64(step(cell)?),
                        y: megabytes(cell)?,
                        is_cut: cell.is_cut,
                    })
                };
                return swept.iter().filter_map(point).collect();
            }
            let Some(cell) = cells::find(&self.cells, tool, rtt_ms, first.file_bytes) else {
                return Vec::new();
            };
            let level = |step| {
                Some(Point {
                    x: as_f64(step),
                    y: megabytes(cell)?,
                    is_cut: cell.is_cut,
                })
            };
            (0..counts.len()).filter_map(level).collect()
        };
        let title = format!("Processes of {WRAPPER}, {rtt_ms} ms");
        let panel = Panel {
            title: format!(
                "MB per second, {} × {}",
                first.files,
                size_label(first.file_bytes)
            ),
            upwards: Upwards::Linear,
            curves: curves(&["zmove", WRAPPER, "rsync"], points),
        };
        let steps = Across::Steps(counts.iter().map(u32::to_string).collect());
        Some(self.chart(
            title,
            (steps, "processes; zmove and rsync are run once"),
            vec![panel],
        ))
    }

    /// Draws a panel for each size class.
    fn by_round_trip(&self, tools: &[&str]) -> Chart {
        let rtts = self.round_trips();
        let panel = |(class, name): &(SizeClass, &str)| {
            let points = |tool: &str| -> Vec<Point> {
                let point = |(step, rtt_ms): (usize, &f64)| {
                    let cells = self.of_sizes().filter(|cell| {
                        cell.tool == tool
                            && cell.class() == *class
                            && cell.rtt_ms.to_bits() == rtt_ms.to_bits()
                    });
                    let cells: Vec<&Cell> = cells.filter(|cell| cell.rate.is_some()).collect();
                    let mean = geometric_mean(cells.iter().filter_map(|cell| cell.rate))?;
                    let is_cut = cells.iter().any(|cell| cell.is_cut);
                    Some(Point {
                        x: as_f64(step),
                        y: mean / 1e6,
                        is_cut,
                    })
                };
                rtts.iter().enumerate().filter_map(point).collect()
            };
            let title = format!("MB per second, {name}");
            Panel {
                title,
                upwards: Upwards::Logarithmic,
                curves: curves(tools, points),
            }
        };
        let panels = CLASSES
            .iter()
            .map(panel)
            .filter(|panel| !panel.curves.is_empty())
            .collect();
        let steps = Across::Steps(rtts.iter().map(|rtt_ms| format!("{rtt_ms} ms")).collect());
        self.chart(
            "Rate by round trip".to_owned(),
            (
                steps,
                "round trip; the geometric mean over the sizes of a class",
            ),
            panels,
        )
    }

    /// Draws the ratio of the rate at the long round-trip time to that at the short one.
    fn ratios(&self, tools: &[&str]) -> Chart {
        let [near, far] = SWEPT_RTT_MS;
        let wanted = |cell: &&Cell| cell.rtt_ms.to_bits() == far.to_bits();
        let ratio = |cell: &Cell| {
            let beside = cells::find(&self.cells, &cell.tool, near, cell.file_bytes)?;
            Some(cell.rate? / beside.rate?)
        };
        let panel = Panel {
            title: format!("Rate at {far} ms ÷ rate at {near} ms"),
            upwards: Upwards::Linear,
            curves: self.curves(tools, &wanted, ratio),
        };
        let title = "What distance leaves of the rate".to_owned();
        self.chart(
            title,
            (self.size_axis(u64::MAX), "size of each file"),
            vec![panel],
        )
    }

    fn costs(&self, tools: &[&str]) -> Chart {
        let panel = |rtt_ms: &f64| {
            let wanted = |cell: &&Cell| cell.rtt_ms.to_bits() == rtt_ms.to_bits();
            Panel {
                title: format!("CPU-seconds per GiB, both sides, {rtt_ms} ms"),
                upwards: Upwards::Logarithmic,
                curves: self.curves(tools, &wanted, |cell| cell.cpu_seconds_per_gibibyte),
            }
        };
        let panels = SWEPT_RTT_MS
            .iter()
            .map(panel)
            .filter(|panel| !panel.curves.is_empty())
            .collect();
        self.chart(
            "What a GiB costs".to_owned(),
            (self.size_axis(u64::MAX), "size of each file"),
            panels,
        )
    }
}

/// Returns the curves of the tools that have points. A run that moved no data has no point, so its curve has a gap.
fn curves(tools: &[&str], points: impl Fn(&str) -> Vec<Point>) -> Vec<Curve> {
    let curve = |tool: &&str| {
        let is_emphasised = tools.len() <= FEW || EMPHASISED.contains(tool);
        let points = points(tool)
            .into_iter()
            .filter(|point| point.y > 0.0)
            .collect();
        Curve {
            name: looks::name(tool),
            look: looks::look(tool, is_emphasised),
            points,
        }
    };
    let mut curves: Vec<Curve> = tools
        .iter()
        .map(curve)
        .filter(|curve| !curve.points.is_empty())
        .collect();
    // The emphasized curves are drawn above the others.
    curves.sort_by_key(|curve| curve.look.is_emphasised());
    curves
}

/// Returns the geometric mean of the values of a class.
fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / as_f64(logs.len())).exp())
}

fn power(bytes: u64) -> f64 {
    ByteCount(bytes).as_f64().log2()
}

/// Maximum number of curves that each have their own color.
const FEW: usize = 4;
/// The tools to emphasize if there are more curves: zmove, the most common tool, and the two that come closest to zmove
/// over a long path.
const EMPHASISED: [&str; 4] = ["zmove", "rsync", "tarmbuffer", "gridftp"];
/// The largest size in the class of lots of small files.
const LOSF_BYTES: u64 = (1 << 20) - 1;
pub(crate) const CLASSES: [(SizeClass, &str); 3] = [
    (SizeClass::Losf, "LOSF"),
    (SizeClass::Medium, "medium files"),
    (SizeClass::Large, "large files"),
];

#[cfg(test)]
mod tests {
    use super::super::cells::tests::study;
    use super::*;

    #[test]
    fn every_figure_of_the_paper_is_drawn() {
        let place = tempfile::tempdir().unwrap();
        let study = study(
            place.path(),
            &[
                ("zmove", 1.0),
                ("rsync", 3.0),
                ("rsyncd", 2.0),
                ("fpsync", 2.5),
            ],
            4.0,
        );
        let pictures = Pictures::of(&study).all();
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        for number in ["03", "04", "08", "09", "10", "11", "12", "13", "14"] {
            assert!(
                names
                    .iter()
                    .any(|name| name.starts_with(&format!("fig{number}-"))),
                "{names:?}"
            );
        }
        for name in [
            "all-0.2ms",
            "all-90ms",
            "rate-by-rtt",
            "wan-over-lan",
            "cpu-per-gib",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(
            pictures
                .iter()
                .all(|(_, chart)| chart.svg().contains("<polyline"))
        );
    }

    #[test]
    fn distance_leaves_a_quarter_where_it_takes_four_times_as_long() {
        let place = tempfile::tempdir().unwrap();
        let study = study(place.path(), &[("zmove", 1.0)], 4.0);
        let chart = Pictures::of(&study).ratios(&["zmove"]);
        let points = &chart.panels[0].curves[0].points;
        assert!(points.len() == 11 && points.iter().all(|point| (point.y - 0.25).abs() < 1e-9));
    }

    #[test]
    fn the_mean_of_a_class_is_that_of_its_factors() {
        assert!((geometric_mean([1.0, 100.0].into_iter()).unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(geometric_mean(std::iter::empty()), None);
        assert_eq!(
            geometric_mean([7.0, 0.0].into_iter()),
            Some(0.0),
            "and what is zero is not drawn"
        );
    }
}
