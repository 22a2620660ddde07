//! Curves over file sizes, or over a few steps, in panels one above the other.

use svg::node::element::{Group, Path, Polyline};
use zmove_drawing::classes::{NAMES, SizeAxis};
use zmove_drawing::scale::{Axis, LogAxis};
use zmove_drawing::{
    GAP, Heading, LEFT, LETTER_WIDTH, PLOT_WIDTH, Pen, TOP, bold, document, drawn, grid, grid_with_labels,
    rounded, stroke, words,
};

/// A whole picture.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) heading: Heading,
    pub(crate) across: Across,
    /// The title of the horizontal axis.
    pub(crate) title_across: &'static str,
    pub(crate) panels: Vec<Panel>,
    /// A line below everything.
    pub(crate) foot: String,
}

/// The axis that all panels share.
#[derive(Clone, Debug)]
pub(crate) enum Across {
    /// Powers of two of bytes.
    Sizes(SizeAxis),
    /// Steps at equal distances, from 0.
    Steps(Vec<String>),
}

/// One diagram.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) upwards: Upwards,
    pub(crate) curves: Vec<Curve>,
}

/// The scale of a diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upwards {
    /// From zero.
    Linear,
    /// Powers of ten.
    Logarithmic,
}

/// One tool.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) look: Look,
    pub(crate) points: Vec<Point>,
}

/// One figure of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Whether the run was cut.
    pub(crate) is_cut: bool,
}

/// How a tool is told from the others: by colour, by dashes and by its mark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    pub(crate) pen: Pen,
    /// The outline of the mark around the origin, as the data of an SVG path.
    pub(crate) mark: &'static str,
}

impl Chart {
    /// The picture as SVG.
    pub(crate) fn svg(&self) -> String {
        let (legend, mut top) = legend(&self.panels, TOP);
        let mut body = Group::new().add(legend);
        for panel in &self.panels {
            body = body.add(panel.at(top, &self.across));
            top += HEAD + HEIGHT + BELOW + GAP;
        }
        let title =
            words(self.title_across, LEFT + PLOT_WIDTH / 2.0, top - GAP + 14.0).set("text-anchor", "middle");
        body = body.add(title).add(words(&self.foot, LEFT, top + 12.0).set("font-size", 11));
        let described: Vec<&str> = self.panels.iter().map(|panel| panel.title.as_str()).collect();
        document(&self.heading, &described.join("; "), top + 22.0, body)
    }
}

impl Across {
    fn place(&self, x: f64) -> f64 {
        match self {
            Self::Sizes(axis) => axis.place(x),
            Self::Steps(steps) => rounded(LEFT + PLOT_WIDTH * (x + 0.5) / as_f64(steps.len())),
        }
    }

    fn behind(&self, top: f64) -> Group {
        match self {
            Self::Sizes(axis) => axis.bands(top, HEIGHT),
            Self::Steps(_) => Group::new(),
        }
    }

    fn labels(&self, bottom: f64) -> Group {
        let Self::Steps(steps) = self else {
            let Self::Sizes(axis) = self else { return Group::new() };
            return axis.labels(bottom);
        };
        let label = |(step, text): (usize, &String)| words(text, self.place(as_f64(step)), bottom + 17.0);
        steps.iter().enumerate().map(label).fold(Group::new().set("text-anchor", "middle"), Group::add)
    }
}

impl Panel {
    fn at(&self, top: f64, across: &Across) -> Group {
        let plot_top = top + HEAD;
        let bottom = plot_top + HEIGHT;
        let scale =
            Scale::of(self.upwards, self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.y));
        let height_of = |value: f64| rounded(bottom - HEIGHT * scale.place(value).clamp(0.0, 1.0));
        let ticks = scale.ticks().into_iter().map(|(tick, label)| (height_of(tick), label));
        let [grid, labels] = grid_with_labels(grid(), ticks);
        let mut group = Group::new()
            .add(bold(&self.title, LEFT, top + 14.0))
            .add(across.behind(plot_top))
            .add(grid)
            .add(labels)
            .add(across.labels(bottom));
        for curve in &self.curves {
            group = group.add(curve.drawn(&|x| across.place(x), &height_of));
        }
        group
    }
}

impl Curve {
    fn drawn(&self, place: &dyn Fn(f64) -> f64, height_of: &dyn Fn(f64) -> f64) -> Group {
        let places: Vec<(f64, f64, bool)> =
            self.points.iter().map(|point| (place(point.x), height_of(point.y), point.is_cut)).collect();
        let line: Vec<String> = places.iter().map(|(x, y, _)| format!("{x},{y}")).collect();
        let group = drawn(self.look.pen).add(Polyline::new().set("points", line.join(" ")));
        places.iter().fold(group, |group, (x, y, is_cut)| group.add(self.look.mark_at(*x, *y, *is_cut)))
    }
}

impl Look {
    /// The mark of a run that was cut is hollow.
    fn mark_at(&self, x: f64, y: f64, is_cut: bool) -> Path {
        let fill = if is_cut { "#ffffff" } else { self.pen.colour };
        let mark = Path::new().set("d", self.mark).set("transform", format!("translate({x},{y})"));
        mark.set("fill", fill).set("stroke-dasharray", "none").set("stroke-width", 1.6)
    }
}

/// Samples of all curves, in as many rows as they need, and where what stands below them begins.
fn legend(panels: &[Panel], top: f64) -> (Group, f64) {
    let mut group = Group::new();
    let mut told: Vec<&str> = Vec::new();
    let (mut x, mut y) = (LEFT, top + 6.0);
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if told.contains(&curve.name.as_str()) {
            continue;
        }
        told.push(&curve.name);
        let width = curve.name.chars().fold(SAMPLE_WIDTH + 17.0, |width, _| width + LETTER_WIDTH);
        if x + width > LEFT + PLOT_WIDTH + 12.0 {
            (x, y) = (LEFT, y + LEGEND_ROW);
        }
        let sample = stroke((x, y - 4.5), (x + SAMPLE_WIDTH, y - 4.5));
        let mark = curve.look.mark_at(x + SAMPLE_WIDTH / 2.0, y - 4.5, false);
        let name = words(&curve.name, x + SAMPLE_WIDTH + 5.0, y);
        group = group.add(drawn(curve.look.pen).add(sample).add(mark)).add(name);
        x += width;
    }
    (group, y + LEGEND_ROW)
}

/// A scale, which maps values to positions in a diagram from 0 to 1.
enum Scale {
    Linear(Axis),
    Logarithmic(LogAxis),
}

impl Scale {
    fn of(upwards: Upwards, values: impl Iterator<Item = f64>) -> Self {
        match upwards {
            Upwards::Linear => Self::Linear(Axis::to_tick(values.fold(0.0, f64::max), TICKS_MAX)),
            Upwards::Logarithmic => Self::Logarithmic(LogAxis::around(values)),
        }
    }

    fn place(&self, value: f64) -> f64 {
        match self {
            Self::Linear(axis) => value / axis.most,
            Self::Logarithmic(axis) => axis.place(value),
        }
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self {
            Self::Linear(axis) => axis.ticks.iter().map(|tick| (*tick, axis.label(*tick))).collect(),
            Self::Logarithmic(axis) => axis.ticks().map(|tick| (tick, LogAxis::label(tick))).collect(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few steps")]
pub(super) fn as_f64(count: usize) -> f64 {
    count as f64
}

const HEAD: f64 = 22.0 + NAMES;
const HEIGHT: f64 = 210.0;
/// The space below a chart for the labels of the horizontal axis.
const BELOW: f64 = 24.0;
const LEGEND_ROW: f64 = 19.0;
const SAMPLE_WIDTH: f64 = 24.0;
const TICKS_MAX: u32 = 5;

#[cfg(test)]
mod tests {
    use super::super::contender::ALL;
    use super::super::looks;
    use super::*;

    fn chart(curves: usize) -> Chart {
        let curve = |tool: &str| Curve {
            name: looks::name(tool),
            look: looks::look(tool),
            points: vec![Point { x: 0.0, y: 0.5, is_cut: false }, Point { x: 1.0, y: 900.0, is_cut: true }],
        };
        Chart {
            heading: Heading { title: "a < b".to_owned(), below: String::new() },
            across: Across::Steps(vec!["0.2 ms".to_owned(), "90 ms".to_owned()]),
            title_across: "round trip",
            panels: vec![Panel {
                title: "MB/s".to_owned(),
                upwards: Upwards::Logarithmic,
                curves: ALL.split(',').take(curves).map(curve).collect(),
            }],
            foot: String::new(),
        }
    }

    #[test]
    fn every_curve_has_a_name_and_a_mark_for_each_point() {
        let drawing = chart(14).svg();
        for name in ["zmove", "tar | mbuffer", "GridFTP", "qcp", "round trip", "0.2 ms", "a &lt; b"] {
            assert!(drawing.contains(name), "{name}");
        }
        assert_eq!(drawing.matches("<polyline").count(), 14);
        assert_eq!(drawing.matches("translate(").count(), 14 * 3, "two points and a sample");
    }

    #[test]
    fn a_long_legend_moves_the_diagram_down() {
        let height = |curves| {
            let drawing = chart(curves).svg();
            drawing
                .split("viewBox=\"0 0 480 ")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        assert!(height(9) > height(2));
    }
}
