//! Curves over file sizes, or over a few steps, in panels one above the other.

use svg::node::element::{Group, Path};
use zmove_tools::drawing::classes::{NAMES, SizeAxis};
use zmove_tools::drawing::scale::{Axis, LogAxis};
use zmove_tools::drawing::{
    GAP, GREY, Heading, ImageSize, LEFT, LineStyle, PLOT_WIDTH, TOP, WIDTH, bold, document, grid,
    grid_with_labels, polyline, rounded, stroke, styled_group, words,
};

use super::cells::distinct;

/// An image with several panels.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) heading: Heading,
    pub(crate) across: Across,
    /// The title of the horizontal axis.
    pub(crate) title_across: &'static str,
    pub(crate) panels: Vec<Panel>,
    /// A line below all panels.
    pub(crate) foot: String,
}

/// The horizontal axis of all panels.
#[derive(Clone, Debug)]
pub(crate) enum Across {
    /// File sizes, as powers of two.
    Sizes(SizeAxis),
    /// Labeled steps at equal distances, starting at 0.
    Steps(Vec<String>),
}

/// One panel.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) upwards: Upwards,
    pub(crate) curves: Vec<Curve>,
}

/// The scale of a panel's vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upwards {
    /// A linear scale that starts at zero.
    Linear,
    /// A logarithmic scale with powers of ten.
    Logarithmic,
}

/// The curve of one tool.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) look: Look,
    pub(crate) points: Vec<Point>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Whether the run reached the time limit.
    pub(crate) is_cut: bool,
}

/// The color, dashes and marker that distinguish a tool from the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    pub(crate) pen: LineStyle,
    /// The outline of the marker around the origin, as the data of an SVG path.
    pub(crate) mark: &'static str,
}

impl Chart {
    /// Returns the image as SVG.
    pub(crate) fn svg(&self) -> String {
        let mut body = Group::new();
        let mut top = TOP;
        for panel in &self.panels {
            body = body.add(panel.at(top, &self.across));
            top += HEAD + HEIGHT + BELOW + GAP;
        }
        let title = words(self.title_across, LEFT + PLOT_WIDTH / 2.0, top - GAP + 14.0)
            .set("text-anchor", "middle");
        body = body
            .add(title)
            .add(words(&self.foot, LEFT, top + 12.0).set("font-size", 11));
        let described: Vec<&str> = self
            .panels
            .iter()
            .map(|panel| panel.title.as_str())
            .collect();
        document(
            &self.heading,
            &described.join("; "),
            ImageSize {
                width: WIDTH + NAMES_WIDTH,
                height: top + 22.0,
            },
            body,
        )
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
            let Self::Sizes(axis) = self else {
                return Group::new();
            };
            return axis.labels(bottom);
        };
        let label =
            |(step, text): (usize, &String)| words(text, self.place(as_f64(step)), bottom + 17.0);
        steps
            .iter()
            .enumerate()
            .map(label)
            .fold(Group::new().set("text-anchor", "middle"), Group::add)
    }
}

impl Panel {
    fn at(&self, top: f64, across: &Across) -> Group {
        let plot_top = top + HEAD;
        let bottom = plot_top + HEIGHT;
        let scale = Scale::of(
            self.upwards,
            self.curves
                .iter()
                .flat_map(|curve| &curve.points)
                .map(|point| point.y),
        );
        let height_of = |value: f64| rounded(bottom - HEIGHT * scale.place(value).clamp(0.0, 1.0));
        let ticks = scale
            .ticks()
            .into_iter()
            .map(|(tick, label)| (height_of(tick), label));
        let [grid, labels] = grid_with_labels(grid(), ticks);
        let mut group = Group::new()
            .add(bold(&self.title, LEFT, top + 14.0))
            .add(across.behind(plot_top))
            .add(grid)
            .add(labels)
            .add(across.labels(bottom));
        let measured = distinct(
            self.curves
                .iter()
                .flat_map(|curve| &curve.points)
                .map(|point| point.x),
        );
        for curve in &self.curves {
            group = group.add(curve.styled_group(&measured, &|x| across.place(x), &height_of));
        }
        group.add(self.names(&|x| across.place(x), &height_of, plot_top))
    }

    /// Draws the names of the curves at their ends, with sufficient distance between them. A thin line connects the end
    /// of a curve with a name that was moved.
    fn names(&self, place: &dyn Fn(f64) -> f64, height_of: &dyn Fn(f64) -> f64, top: f64) -> Group {
        let end = |curve: &Curve| {
            curve
                .points
                .last()
                .map(|point| (place(point.x), height_of(point.y)))
        };
        let mut ends: Vec<(&Curve, (f64, f64))> = self
            .curves
            .iter()
            .filter_map(|curve| Some((curve, end(curve)?)))
            .collect();
        ends.sort_by(|(_, (_, one)), (_, (_, other))| one.total_cmp(other));
        let heights: Vec<f64> = ends.iter().map(|(_, (_, height))| *height).collect();
        let x = LEFT + PLOT_WIDTH + 12.0;
        let mut group = Group::new();
        for ((curve, (end_x, end_y)), y) in
            ends.into_iter().zip(spread(&heights, top, top + HEIGHT))
        {
            let colour = curve.look.pen.colour;
            let name = words(&curve.name, x, y + 4.5).set("fill", colour);
            group = group.add(if curve.look.is_emphasised() {
                name
            } else {
                name.set("font-size", 11)
            });
            if (y - end_y).abs() > NAME_HEIGHT / 4.0 || x - end_x > NAME_HEIGHT * 2.0 {
                let leader = stroke([end_x + 6.0, end_y], [x - 3.0, rounded(y)]);
                let pen = LineStyle {
                    colour,
                    dashes: Some("1 2"),
                    width: 0.7,
                };
                group = group.add(styled_group(pen).add(leader));
            }
        }
        group
    }
}

/// Moves sorted heights apart until each has room for a name. They stay within the plot if there is enough room.
fn spread(heights: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::with_capacity(heights.len());
    for height in heights {
        let above = places.last().map_or(top, |above| above + NAME_HEIGHT);
        places.push(height.max(above));
    }
    let mut below = bottom.max(top + NAME_HEIGHT * as_f64(heights.len().saturating_sub(1)));
    for place in places.iter_mut().rev() {
        *place = place.min(below);
        below = *place - NAME_HEIGHT;
    }
    places
}

impl Curve {
    /// Draws the markers of all points, and lines between consecutive points. If this curve lacks a point that another
    /// curve of the panel has, there is no line across the gap.
    fn styled_group(
        &self,
        measured: &[f64],
        place: &dyn Fn(f64) -> f64,
        height_of: &dyn Fn(f64) -> f64,
    ) -> Group {
        let number = |point: &Point| {
            measured
                .iter()
                .position(|x| x.to_bits() == point.x.to_bits())
        };
        let follows =
            |one: &Point, next: &Point| number(one).map(|number| number + 1) == number(next);
        let mut group = styled_group(self.look.pen);
        for run in self.points.chunk_by(follows) {
            group = group.add(polyline(
                run.iter().map(|point| (place(point.x), height_of(point.y))),
            ));
        }
        let mark = |point: &Point| {
            self.look
                .mark_at(place(point.x), height_of(point.y), point.is_cut)
        };
        self.points.iter().map(mark).fold(group, Group::add)
    }
}

impl Look {
    /// Returns whether the tool is emphasized in the image.
    pub(crate) fn is_emphasised(&self) -> bool {
        self.pen.colour != GREY
    }

    /// Draws a marker. It is hollow for a run that reached the time limit.
    fn mark_at(&self, x: f64, y: f64, is_cut: bool) -> Path {
        let fill = if is_cut { "#ffffff" } else { self.pen.colour };
        let mark = Path::new()
            .set("d", self.mark)
            .set("transform", format!("translate({x},{y})"));
        mark.set("fill", fill)
            .set("stroke-dasharray", "none")
            .set("stroke-width", 1.6)
    }
}

/// A scale, which maps values to positions in a panel from 0 to 1.
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
            Self::Linear(axis) => axis
                .ticks
                .iter()
                .map(|tick| (*tick, axis.label(*tick)))
                .collect(),
            Self::Logarithmic(axis) => axis
                .ticks()
                .map(|tick| (tick, LogAxis::label(tick)))
                .collect(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few steps")]
pub(crate) fn as_f64(count: usize) -> f64 {
    count as f64
}

const HEAD: f64 = 22.0 + NAMES;
const HEIGHT: f64 = 210.0;
/// The space below a panel for the labels of the horizontal axis.
const BELOW: f64 = 24.0;
/// The space on the right for the names of the curves.
const NAMES_WIDTH: f64 = 90.0;
/// The height of a name.
const NAME_HEIGHT: f64 = 14.5;
const TICKS_MAX: u32 = 5;

#[cfg(test)]
mod tests {
    use super::super::contender::ALL;
    use super::super::looks;
    use super::*;

    const STEPS: [&str; 3] = ["0.2 ms", "10 ms", "90 ms"];

    fn chart(curves: Vec<Curve>) -> Chart {
        Chart {
            heading: Heading {
                title: "a < b".to_owned(),
                below: String::new(),
            },
            across: Across::Steps(STEPS.map(str::to_owned).to_vec()),
            title_across: "round trip",
            panels: vec![Panel {
                title: "MB/s".to_owned(),
                upwards: Upwards::Logarithmic,
                curves,
            }],
            foot: String::new(),
        }
    }

    fn curve(tool: &str, places: &[f64]) -> Curve {
        let points = places
            .iter()
            .map(|x| Point {
                x: *x,
                y: 0.5 + 900.0 * x,
                is_cut: *x > 0.0,
            })
            .collect();
        Curve {
            name: looks::name(tool),
            look: looks::look(tool, tool != "qcp"),
            points,
        }
    }

    #[test]
    fn every_curve_has_its_name_and_a_mark_for_each_point() {
        let drawing = chart(
            ALL.split(',')
                .map(|tool| curve(tool, &[0.0, 1.0]))
                .collect(),
        )
        .svg();
        for name in [
            "zmove",
            "tar | mbuffer",
            "GridFTP",
            "qcp",
            "round trip",
            "0.2 ms",
            "a &lt; b",
        ] {
            assert!(drawing.contains(name), "{name}");
        }
        let curves = ALL.split(',').count();
        assert_eq!(drawing.matches("<polyline").count(), curves);
        assert_eq!(drawing.matches("translate(").count(), curves * 2);
    }

    #[test]
    fn no_line_is_drawn_over_what_was_not_measured() {
        let whole = curve("zmove", &[0.0, 1.0, 2.0]);
        let drawing = chart(vec![whole, curve("rsync", &[0.0, 2.0])]).svg();
        assert_eq!(
            drawing.matches("<polyline").count(),
            3,
            "one line, and two single points: {drawing}"
        );
    }

    #[test]
    fn names_do_not_lie_on_each_other() {
        let crowd = vec![100.0; 12];
        for heights in [crowd, vec![10.0, 11.0, 12.0], vec![208.0, 209.0, 210.0]] {
            let places = spread(&heights, 10.0, 210.0);
            let apart = places
                .windows(2)
                .all(|pair| pair[1] - pair[0] > NAME_HEIGHT - 1e-9);
            assert!(
                apart && places.iter().all(|place| (9.9..210.1).contains(place)),
                "{places:?}"
            );
        }
        assert_eq!(
            spread(&[50.0, 90.0], 10.0, 210.0),
            [50.0, 90.0],
            "who has room stays"
        );
    }
}
