//! The results of a sweep as an SVG chart.

use svg::node::element::{Circle, Group};
use zmove_types::ByteCount;

use crate::drawing::classes::{NAMES, SizeAxis};
use crate::drawing::scale::LogAxis;
use crate::drawing::{
    GAP, Heading, ImageSize, LEFT, LineStyle, PLOT_WIDTH, TITLE_LETTERS, TOP, WIDTH, bold,
    document, fitted, grid, grid_with_labels, legend, polyline, rounded, styled_group, words,
};
use crate::sweep::result::{IoDirection, Measured, Sweep, Throughput};

impl Sweep {
    /// Returns the sweep as SVG: bytes and files per second by file size, for reading and writing.
    #[must_use]
    pub fn picture(&self) -> String {
        draw(self)
    }
}

fn draw(sweep: &Sweep) -> String {
    let title = format!(
        "Throughput of {}",
        fitted(&sweep.storage.path, TITLE_LETTERS - 11)
    );
    let below = format!(
        "{} on {}, {} threads, {}",
        sweep.storage.kind,
        fitted(&sweep.storage.source, SOURCE_LETTERS),
        sweep.threads,
        sweep.day()
    );
    let sizes = axis(sweep);
    let mut body = Group::new();
    let mut top = TOP;
    for panel in &PANELS {
        body = body.add(panel.draw(sweep, &sizes, top));
        top += HEAD + HEIGHT + BELOW + GAP;
    }
    let bottom = top - GAP + 12.0;
    body = body.add(
        words("size of each file", LEFT + PLOT_WIDTH / 2.0, bottom).set("text-anchor", "middle"),
    );
    document(
        &Heading { title, below },
        "bytes and files per second by file size",
        ImageSize {
            width: WIDTH,
            height: bottom + 12.0,
        },
        body,
    )
}

/// One chart.
struct Panel {
    title: &'static str,
    /// Returns the value to show.
    value: fn(&Throughput) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "MiB per second",
        value: |moved| moved.bytes_per_second / MIB,
    },
    Panel {
        title: "Files per second",
        value: |moved| moved.files_per_second,
    },
];

impl Panel {
    fn draw(&self, sweep: &Sweep, sizes: &SizeAxis, top: f64) -> Group {
        let plot_top = top + HEAD;
        let bottom = plot_top + HEIGHT;
        let points = |direction| -> Vec<(f64, f64)> {
            let point = |size: &Measured| {
                Some((
                    ByteCount(size.file_bytes).as_f64().log2(),
                    (self.value)(size.moved(direction)?),
                ))
            };
            sweep.sizes.iter().filter_map(point).collect()
        };
        let curves = [
            ("written and flushed", WRITE, points(IoDirection::Write)),
            ("read", READ, points(IoDirection::Read)),
        ];
        let axis = LogAxis::around(
            curves
                .iter()
                .flat_map(|(_, _, points)| points)
                .map(|(_, value)| *value),
        );
        let height_of = |value: f64| rounded(bottom - HEIGHT * axis.place(value));
        let ticks = axis
            .ticks()
            .map(|tick| (height_of(tick), LogAxis::label(tick)));
        let [grid, labels] = grid_with_labels(grid(), ticks);
        let mut group = Group::new()
            .add(bold(self.title, LEFT, top + 14.0))
            .add(legend(
                curves.iter().map(|(name, pen, _)| (*name, *pen)),
                top + 34.0,
            ))
            .add(sizes.bands(plot_top, HEIGHT))
            .add(grid)
            .add(labels)
            .add(sizes.labels(bottom));
        for (_, pen, points) in &curves {
            let places: Vec<_> = points
                .iter()
                .map(|(power, value)| (sizes.place(*power), height_of(*value)))
                .collect();
            group = group.add(styled_group(*pen).add(polyline(places.iter().copied())));
            for (x, y) in places {
                let mark = Circle::new()
                    .set("cx", x)
                    .set("cy", y)
                    .set("r", 3.2)
                    .set("stroke", pen.colour);
                // Filled markers are for writing, hollow ones for reading.
                let fill = if pen.dashes.is_none() {
                    pen.colour
                } else {
                    "#ffffff"
                };
                group = group.add(mark.set("stroke-width", 1.6).set("fill", fill));
            }
        }
        group
    }
}

/// Returns an axis from the smallest to the largest size, with a margin at both ends.
fn axis(sweep: &Sweep) -> SizeAxis {
    let powers = || {
        sweep
            .sizes
            .iter()
            .map(|size| ByteCount(size.file_bytes).as_f64().log2())
    };
    let first = powers().fold(f64::INFINITY, f64::min);
    let last = powers().fold(0.0, f64::max);
    SizeAxis {
        first: first.min(last) - 0.5,
        last: last + 1.0,
        lead: 0.5,
    }
}

const WRITE: LineStyle = LineStyle {
    colour: "#007a5a",
    dashes: None,
    width: 2.4,
};
const READ: LineStyle = LineStyle {
    colour: "#d55e00",
    dashes: Some("7 3"),
    width: 1.8,
};
/// Maximum number of characters to show of the file system's source.
const SOURCE_LETTERS: usize = 24;
const MIB: f64 = 1_048_576.0;
const HEAD: f64 = 44.0 + NAMES;
const HEIGHT: f64 = 170.0;
/// The space below a plot for the labels of sizes.
const BELOW: f64 = 24.0;
