//! The paper, its heading, lines and words.

use svg::Document;
use svg::node::element::{Description, Group, Line as Stroke, Polyline, Rectangle, Text, Title};

/// The heading above the diagrams.
#[derive(Debug)]
pub struct Heading {
    /// The first line, in bold.
    pub title: String,
    /// The line below the title.
    pub below: String,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pen {
    /// The colour, as `#rrggbb`.
    pub colour: &'static str,
    /// Lengths of dashes and gaps; none for a whole line.
    pub dashes: Option<&'static str>,
    /// In units of the picture, which is [`WIDTH`] wide.
    pub width: f64,
}

/// A picture of that height whose diagrams begin at [`TOP`].
pub fn document(heading: &Heading, described: &str, height: f64, body: Group) -> String {
    let title = bold(&heading.title, LEFT, 26.0).set("font-size", 18);
    let document = Document::new()
        .set("viewBox", (0.0, 0.0, WIDTH, height))
        .set("style", "width:100%;max-width:60rem;height:auto")
        .set("role", "img")
        .set("font-family", "Helvetica, Arial, 'DejaVu Sans', sans-serif")
        .set("font-size", 13)
        .set("fill", INK)
        .add(Title::new(heading.title.as_str()))
        .add(Description::new().add(svg::node::Text::new(described)))
        .add(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", PAPER))
        .add(Group::new().add(title).add(words(&heading.below, LEFT, 46.0)))
        .add(body);
    format!("{document}\n")
}

/// Samples of the lines with their names, in one row.
pub fn legend<'a>(curves: impl Iterator<Item = (&'a str, Pen)>, y: f64) -> Group {
    let mut group = Group::new();
    let mut x = LEFT;
    for (name, pen) in curves {
        let sample = stroke((x, y - 4.5), (x + SAMPLE_WIDTH, y - 4.5));
        group = group.add(drawn(pen).add(sample)).add(words(name, x + SAMPLE_WIDTH + 5.0, y));
        x += name.chars().fold(SAMPLE_WIDTH + 5.0 + 12.0, |width, _| width + LETTER_WIDTH);
    }
    group
}

/// A group whose lines are drawn with `pen`.
pub fn drawn(pen: Pen) -> Group {
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

/// A straight line.
pub fn stroke(from: (f64, f64), to: (f64, f64)) -> Stroke {
    Stroke::new().set("x1", from.0).set("y1", from.1).set("x2", to.0).set("y2", to.1)
}

/// A line through all points.
pub fn polyline(points: impl Iterator<Item = (f64, f64)>) -> Polyline {
    let points: Vec<_> = points.map(|(x, y)| format!("{x},{y}")).collect();
    Polyline::new().set("points", points.join(" "))
}

/// The lines of a grid.
pub fn grid() -> Group {
    Group::new().set("stroke", GRID).set("stroke-width", 1)
}

/// Adds a line across the plot to a grid for each height, and beside the grid the label of each.
pub fn grid_with_labels(grid: Group, ticks: impl Iterator<Item = (f64, String)>) -> [Group; 2] {
    ticks.fold([grid, Group::new().set("text-anchor", "end")], |[grid, labels], (y, label)| {
        let line = stroke((LEFT, y), (LEFT + PLOT_WIDTH, y));
        [grid.add(line), labels.add(words(&label, LEFT - 7.0, y + 4.5))]
    })
}

/// Text that begins, or is anchored, at a place.
pub fn words(content: &str, x: f64, y: f64) -> Text {
    Text::new(content).set("x", rounded(x)).set("y", rounded(y))
}

/// A title: text in bold.
pub fn bold(content: &str, x: f64, y: f64) -> Text {
    words(content, x, y).set("font-weight", "bold")
}

/// As much of the end of a text as fits into so many letters.
pub fn fitted(text: &str, letters_max: usize) -> String {
    let letters = text.chars().count();
    if letters <= letters_max {
        return text.to_owned();
    }
    let end = text.chars().skip(letters + 1 - letters_max);
    std::iter::once('…').chain(end).collect()
}

/// A tenth of a unit is less than a screen shows.
pub fn rounded(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

/// How many letters a title holds in a wide font.
pub const TITLE_LETTERS: usize = 36;
/// The width of every picture, in its own units.
pub const WIDTH: f64 = 480.0;
/// Where plots begin,
pub const LEFT: f64 = 48.0;
/// and how wide they are.
pub const PLOT_WIDTH: f64 = WIDTH - LEFT - 16.0;
/// Where the first diagram begins.
pub const TOP: f64 = 66.0;
/// Between two diagrams.
pub const GAP: f64 = 24.0;
const SAMPLE_WIDTH: f64 = 20.0;
/// The width of a letter of a wide font, at the size of the text.
pub const LETTER_WIDTH: f64 = 7.6;
/// The colour of the grid lines behind the curves.
const GRID: &str = "#d9d9d9";
const INK: &str = "#222222";
const PAPER: &str = "#ffffff";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_end() {
        assert_eq!(fitted("/data/run7", 10), "/data/run7");
        assert_eq!(fitted("/data/run7/ü", 6), "…un7/ü");
    }
}
