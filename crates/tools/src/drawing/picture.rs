//! The parts of a chart: background, heading, legend, lines and text.

use svg::Document;
use svg::node::element::{
    Description, Group, Line as Stroke, Polyline, Rectangle, Style, Text, Title,
};

/// The heading above the charts.
#[derive(Debug)]
pub struct Heading {
    /// The first line, in bold.
    pub title: String,
    /// The second line, below the title.
    pub below: String,
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineStyle {
    /// The color, as `#rrggbb`.
    pub colour: &'static str,
    /// The lengths of dashes and gaps, in the format of `stroke-dasharray`. `None` for a solid line.
    pub dashes: Option<&'static str>,
    /// The line width, in units of the image, which is [`WIDTH`] wide.
    pub width: f64,
}

/// The size of an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageSize {
    /// The width, usually [`WIDTH`].
    pub width: f64,
    /// The height, in the same units.
    pub height: f64,
}

/// Returns an image as an SVG document. The charts in `body` start at [`TOP`].
pub fn document(heading: &Heading, described: &str, paper: ImageSize, body: Group) -> String {
    let ImageSize { width, height } = paper;
    let title = within(HEADING_WIDTH, &heading.title, 18.0 * BOLDNESS);
    let title = bold(&title.text, LEFT, 26.0).set("font-size", rounded(title.size / BOLDNESS));
    let below = within(HEADING_WIDTH, &heading.below, TEXT_SIZE);
    let below = words(&below.text, LEFT, 46.0).set("font-size", below.size);
    let document = Document::new()
        .set("viewBox", (0.0, 0.0, width, height))
        .set("style", "width:100%;max-width:60rem;height:auto")
        .set("role", "img")
        .set("font-family", "Helvetica, Arial, 'DejaVu Sans', sans-serif")
        .set("font-size", TEXT_SIZE)
        .set("fill", INK)
        .add(Title::new(heading.title.as_str()))
        .add(Description::new().add(svg::node::Text::new(described)))
        .add(Style::new(on_dark()))
        .add(
            Rectangle::new()
                .set("width", width)
                .set("height", height)
                .set("fill", PAPER),
        )
        .add(Group::new().add(title).add(below))
        .add(body);
    format!("{document}\n")
}

/// Returns style rules that replace each color by its dark variant on a dark screen. A viewer that does not support
/// media queries shows the colors of the elements.
fn on_dark() -> String {
    let rules = DARK.iter().fold(String::new(), |rules, (light, dark)| {
        rules + &format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
    });
    format!("@media (prefers-color-scheme:dark){{{rules}}}")
}

/// Draws a legend in one row: a sample of each line, followed by the line's name.
pub(crate) fn legend<'a>(curves: impl Iterator<Item = (&'a str, LineStyle)>, y: f64) -> Group {
    let mut group = Group::new();
    let mut x = LEFT;
    for (name, pen) in curves {
        let sample = stroke([x, y - 4.5], [x + SAMPLE_WIDTH, y - 4.5]);
        group =
            group
                .add(styled_group(pen).add(sample))
                .add(words(name, x + SAMPLE_WIDTH + 5.0, y));
        x += name
            .chars()
            .fold(SAMPLE_WIDTH + 5.0 + 12.0, |width, _| width + LETTER_WIDTH);
    }
    group
}

/// Returns a group whose lines have the style `pen`.
pub fn styled_group(pen: LineStyle) -> Group {
    let group = Group::new()
        .set("fill", "none")
        .set("stroke", pen.colour)
        .set("stroke-width", pen.width)
        .set("stroke-linejoin", "round");
    match pen.dashes {
        Some(dashes) => group.set("stroke-dasharray", dashes),
        None => group,
    }
}

/// Returns a straight line.
pub fn stroke(from: [f64; 2], to: [f64; 2]) -> Stroke {
    Stroke::new()
        .set("x1", from[0])
        .set("y1", from[1])
        .set("x2", to[0])
        .set("y2", to[1])
}

/// Returns a line through all points.
pub fn polyline(points: impl Iterator<Item = (f64, f64)>) -> Polyline {
    let points: Vec<_> = points.map(|(x, y)| format!("{x},{y}")).collect();
    Polyline::new().set("points", points.join(" "))
}

/// Returns an empty group for grid lines.
pub fn grid() -> Group {
    Group::new().set("stroke", GRID).set("stroke-width", 1)
}

/// Adds a horizontal grid line for each tick to a grid. Returns the grid and a group with the labels to the left of the
/// lines.
pub fn grid_with_labels(grid: Group, ticks: impl Iterator<Item = (f64, String)>) -> [Group; 2] {
    ticks.fold(
        [grid, Group::new().set("text-anchor", "end")],
        |[grid, labels], (y, label)| {
            let line = stroke([LEFT, y], [LEFT + PLOT_WIDTH, y]);
            let Fitting { text, size } = within(LEFT - 7.0, &label, TEXT_SIZE);
            let label = words(&text, LEFT - 7.0, y + 4.5).set("font-size", size);
            [grid.add(line), labels.add(label)]
        },
    )
}

/// Returns text that starts at a position. If the group has another text anchor, the position is that anchor.
pub fn words(content: &str, x: f64, y: f64) -> Text {
    Text::new(content).set("x", rounded(x)).set("y", rounded(y))
}

/// Returns text in bold, for titles.
pub fn bold(content: &str, x: f64, y: f64) -> Text {
    words(content, x, y).set("font-weight", "bold")
}

/// A text that was fitted into a width, and its font size.
#[derive(Debug, PartialEq)]
struct Fitting {
    text: String,
    size: f64,
}

/// Reduces the font size of a text that is too long for `width`. A text that would become too small to read is
/// truncated.
fn within(width: f64, text: &str, size: f64) -> Fitting {
    let widths = |letters: usize| (0..letters).map(|_| LETTER_WIDTH / TEXT_SIZE).sum::<f64>();
    let letters = text.chars().count();
    let fitting = (width / widths(letters).max(1.0)).min(size);
    if fitting >= SIZE_MIN {
        let size = (fitting * 10.0).floor() / 10.0;
        return Fitting {
            text: text.to_owned(),
            size,
        };
    }
    let fits = |letters: &usize| widths(*letters) * SIZE_MIN <= width;
    let letters_max = (0..letters).rev().find(fits).unwrap_or(0);
    Fitting {
        text: fitted(text, letters_max),
        size: SIZE_MIN,
    }
}

/// Truncates a text to its last `letters_max` characters. An ellipsis replaces the omitted beginning.
pub(crate) fn fitted(text: &str, letters_max: usize) -> String {
    let letters = text.chars().count();
    if letters <= letters_max {
        return text.to_owned();
    }
    let end = text.chars().skip(letters + 1 - letters_max);
    std::iter::once('…').chain(end).collect()
}

/// Rounds a coordinate to a tenth of a unit, which is finer than a screen can show.
pub fn rounded(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

/// Number of characters of a wide font that fit into the title.
pub(crate) const TITLE_LETTERS: usize = 36;
/// The width of every image, in its own units.
pub const WIDTH: f64 = 480.0;
/// The x coordinate at which plots start.
pub const LEFT: f64 = 48.0;
/// The width of a plot.
pub const PLOT_WIDTH: f64 = WIDTH - LEFT - 16.0;
/// The y coordinate at which the first chart starts.
pub const TOP: f64 = 66.0;
/// The space between two charts.
pub const GAP: f64 = 24.0;
const SAMPLE_WIDTH: f64 = 20.0;
/// The font size.
const TEXT_SIZE: f64 = 13.0;
/// The smallest legible font size.
const SIZE_MIN: f64 = 7.0;
/// The width of bold letters relative to regular ones.
const BOLDNESS: f64 = 1.15;
/// The width available for the heading.
const HEADING_WIDTH: f64 = WIDTH - LEFT - 8.0;
/// The width of a character of a wide font at the standard font size.
pub(crate) const LETTER_WIDTH: f64 = 7.6;
/// The color of the grid lines behind the curves.
const GRID: &str = "#d9d9d9";
const INK: &str = "#222222";
const PAPER: &str = "#ffffff";
/// The color of curves that serve only for comparison, so that they need not be distinguished from each other.
pub const GREY: &str = "#8a8a8a";
/// All colors of the charts, each with its dark variant.
const DARK: [(&str, &str); 15] = [
    (PAPER, "#0d1117"),
    (INK, "#e6edf3"),
    (GRID, "#30363d"),
    (GREY, "#7d8590"),
    // The bands of the size classes, and the names of the classes.
    ("#f3f3f3", "#151b23"),
    ("#e9e9e9", "#1c2430"),
    ("#dedede", "#242e3c"),
    ("#555555", "#9aa4af"),
    // The curves.
    ("#0072b2", "#58a6e8"),
    ("#d55e00", "#ff8a3d"),
    ("#007a5a", "#2fbf94"),
    ("#b87800", "#e0a63a"),
    ("#a6508a", "#d68cbd"),
    ("#857a00", "#c9bd3f"),
    ("#000000", "#ffffff"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dark_screen_gets_light_ink() {
        let heading = Heading {
            title: String::new(),
            below: String::new(),
        };
        let drawing = document(
            &heading,
            "",
            ImageSize {
                width: WIDTH,
                height: 100.0,
            },
            Group::new(),
        );
        let (_, dark) = drawing
            .split_once("@media (prefers-color-scheme:dark)")
            .unwrap();
        assert!(
            dark.contains(&format!("[fill=\"{INK}\"]{{fill:#e6edf3}}")),
            "{drawing}"
        );
        assert!(
            drawing.contains(&format!("fill=\"{INK}\"")),
            "the colour for light paper stands in the element"
        );
    }

    #[test]
    fn a_text_that_is_too_long_becomes_smaller_and_then_loses_its_beginning() {
        let fitting = |text: &str, size| Fitting {
            text: text.to_owned(),
            size,
        };
        assert_eq!(
            within(77.0, "1234567890", 13.0),
            fitting("1234567890", 13.0)
        );
        assert_eq!(
            within(70.0, "1234567890", 13.0),
            fitting("1234567890", 11.9)
        );
        assert_eq!(within(30.0, "1234567890", 13.0), fitting("…567890", 7.0));
        assert_eq!(within(30.0, "", 13.0), fitting("", 13.0));
    }

    #[test]
    fn a_long_name_keeps_its_end() {
        assert_eq!(fitted("/data/run7", 10), "/data/run7");
        assert_eq!(fitted("/data/run7/ü", 6), "…un7/ü");
    }
}
