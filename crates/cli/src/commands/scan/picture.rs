//! The histograms as an SVG: the number of files by size, and the bytes in them.

use svg::node::element::{Group, Rectangle};
use zmove_scan::{Histogram, Share};
use zmove_types::ByteCount;

use super::advice::percent;
use zmove_drawing::classes::{NAMES, SizeAxis};
use zmove_drawing::scale::{Axis, BYTES, Unit, unit};
use zmove_drawing::{
    GAP, Heading, LEFT, PLOT_WIDTH, TITLE_LETTERS, TOP, WIDTH, bold, document, fitted, grid,
    grid_with_labels, rounded, words,
};

/// Draws both histograms.
pub(super) fn draw(histogram: &Histogram, name: &str) -> String {
    let files = histogram.files;
    let losf = histogram.losf;
    let below = format!(
        "{} files, {}; LOSF is {} and {} of them",
        files.files,
        ByteCount(files.bytes),
        percent(losf.files, files.files),
        percent(losf.bytes, files.bytes)
    );
    let heading = Heading { title: fitted(name, TITLE_LETTERS), below };
    let buckets: Vec<_> = histogram.buckets().map(|(start, share)| (power(start), share)).collect();
    let sizes = axis(&buckets);
    let counts = |share: &Share| ByteCount(share.files).as_f64();
    let bytes = |share: &Share| ByteCount(share.bytes).as_f64();
    let below = TOP + HEAD + HEIGHT + BELOW + GAP;
    let body = Group::new()
        .add(panel(&buckets, &sizes, ("Files by size", &COUNTS, "#0072b2"), &counts, TOP))
        .add(panel(&buckets, &sizes, ("Bytes by size", &BYTES, "#007a5a"), &bytes, below));
    let bottom = below + HEAD + HEIGHT + BELOW + 12.0;
    let note = match buckets.first() {
        Some((power, _)) if *power < 0.0 => {
            "size of the files, doubling from bar to bar; the first are empty"
        }
        _ => "size of the files, doubling from bar to bar",
    };
    let body = body.add(words(note, LEFT + PLOT_WIDTH / 2.0, bottom).set("text-anchor", "middle"));
    document(&heading, "files and bytes by file size", (WIDTH, bottom + 12.0), body)
}

fn panel(
    buckets: &[(f64, Share)],
    sizes: &SizeAxis,
    (title, units, colour): (&str, &[Unit], &str),
    value: &dyn Fn(&Share) -> f64,
    top: f64,
) -> Group {
    let plot_top = top + HEAD;
    let bottom = plot_top + HEIGHT;
    let most = buckets.iter().map(|(_, share)| value(share)).fold(0.0, f64::max);
    let unit = unit(units, most);
    let axis = Axis::to_tick(most / unit.size, STEPS_MAX);
    let ticks =
        axis.ticks.iter().map(|tick| (rounded(bottom - HEIGHT * tick / axis.most), axis.label(*tick)));
    let [grid, labels] = grid_with_labels(grid(), ticks);
    let mut bars = Group::new().set("fill", colour);
    for (power, share) in buckets.iter().filter(|(_, share)| share.files > 0) {
        // A bar that stands for anything is visible, however little that is.
        let height = rounded((HEIGHT * value(share) / unit.size / axis.most).max(BAR_MIN));
        let x = sizes.place(*power);
        let end = sizes.place(power + 1.0);
        let bar = Rectangle::new().set("x", x).set("y", rounded(bottom - height)).set("height", height);
        bars = bars.add(bar.set("width", rounded((end - x - 1.0).max(1.0))));
    }
    let title = if unit.name.is_empty() { title.to_owned() } else { format!("{title}, {}", unit.name) };
    let group = Group::new().add(bold(&title, LEFT, top + 14.0)).add(sizes.bands(plot_top, HEIGHT));
    group.add(grid).add(labels).add(bars).add(sizes.labels(bottom))
}

/// The range of the buckets, at least a few bars wide, so that one bar does not fill the plot.
fn axis(buckets: &[(f64, Share)]) -> SizeAxis {
    let first = buckets.first().map_or(0.0, |(power, _)| *power);
    let last = buckets.last().map_or(0.0, |(power, _)| power + 1.0);
    SizeAxis { first, last: last.max(first + BARS_MIN), lead: 0.0 }
}

/// The power of two of a bucket; the bucket of empty files lies before that of one byte.
fn power(start: u64) -> f64 {
    start.checked_ilog2().map_or(-1.0, f64::from)
}

/// Units of counts.
const COUNTS: [Unit; 3] = [
    Unit { name: "", size: 1.0 },
    Unit { name: "thousands", size: 1e3 },
    Unit { name: "millions", size: 1e6 },
];
const HEAD: f64 = 24.0 + NAMES;
const HEIGHT: f64 = 150.0;
/// The space below a plot for the labels of sizes.
const BELOW: f64 = 24.0;
const STEPS_MAX: u32 = 5;
const BAR_MIN: f64 = 1.5;
const BARS_MIN: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(drawing: &str, name: &str) -> Vec<f64> {
        let opening = format!(" {name}=\"");
        let values = drawing.split(&opening).skip(1).filter_map(|rest| rest.split('"').next());
        values.filter_map(|value| value.parse().ok()).collect()
    }

    fn bars(buckets: &[(f64, Share)]) -> String {
        panel(
            buckets,
            &axis(buckets),
            ("Files by size", &COUNTS, "#0072b2"),
            &|share| ByteCount(share.files).as_f64(),
            0.0,
        )
        .to_string()
    }

    #[test]
    fn each_bucket_that_holds_something_has_a_bar_on_the_paper() {
        let share = |files| Share { files, bytes: files };
        for powers in [vec![-1.0], vec![10.0], (0..64).map(f64::from).collect()] {
            let mut buckets: Vec<_> = powers.iter().map(|power| (*power, share(1))).collect();
            buckets[0].1 = share(1_000_000);
            let drawing = bars(&buckets);
            let bars = drawing.rsplit("fill=\"#0072b2\"").next().unwrap();
            assert!(drawing.contains("millions"));
            let drawn = bars.matches("<rect").count();
            assert_eq!(drawn, buckets.len(), "{drawing}");
            let (left, right) = (LEFT - 0.1, LEFT + PLOT_WIDTH + 0.1);
            assert!(attributes(&drawing, "x").iter().all(|x| *x >= 0.0 && *x <= right), "{drawing}");
            assert!(attributes(bars, "height").iter().all(|height| (BAR_MIN..=HEIGHT).contains(height)));
            assert!(attributes(bars, "x").iter().take(drawn).all(|x| *x >= left));
        }
    }

    #[test]
    fn empty_buckets_have_no_bar_and_classes_their_band() {
        let buckets = [
            (9.0, Share { files: 4, bytes: 9 }),
            (25.0, Share::default()),
            (31.0, Share { files: 1, bytes: 1 }),
        ];
        let drawing = bars(&buckets);
        assert_eq!(drawing.rsplit("fill=\"#0072b2\"").next().unwrap().matches("<rect").count(), 2);
        for name in ["LOSF", "medium", "1 MiB"] {
            assert!(drawing.contains(name), "{name}: {drawing}");
        }
    }
}
