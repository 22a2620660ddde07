//! Draws panels as SVG, one above the other with a common time axis. The image is narrow enough for a phone and dark
//! enough for print.

use svg::node::element::Group;

use super::panels::Panel;
use crate::drawing::scale::{self, Axis, Unit};
use crate::drawing::{
    GAP, Heading, ImageSize, LEFT, PLOT_WIDTH, TOP, WIDTH, bold, document, grid, grid_with_labels,
    legend, polyline, rounded, stroke, styled_group, words,
};

/// Draws the panels with a time axis of `seconds` seconds.
pub(super) fn draw(heading: &Heading, panels: &[Panel], seconds: f64) -> String {
    let time = Time::up_to(seconds);
    let mut body = Group::new();
    let mut top = TOP;
    for panel in panels {
        body = body.add(panel_at(panel, top, &time));
        top += head(panel) + panel.height + GAP;
    }
    let bottom = top - GAP;
    let height = bottom + 44.0;
    let described: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
    document(
        heading,
        &described.join("; "),
        ImageSize {
            width: WIDTH,
            height,
        },
        body.add(time_labels(&time, bottom)),
    )
}

/// The time axis of all panels.
struct Time {
    axis: Axis,
    unit: Unit,
}

impl Time {
    fn up_to(seconds: f64) -> Self {
        let unit = scale::TIMES.fitting(seconds / TIME_UNITS_MIN);
        Self {
            axis: Axis::to_value(seconds / unit.size, 8),
            unit,
        }
    }

    /// Returns the x coordinate of a value on the axis.
    fn place(&self, value: f64) -> f64 {
        rounded(LEFT + PLOT_WIDTH * value / self.axis.most)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        self.axis
            .ticks
            .iter()
            .copied()
            .filter(|tick| *tick <= self.axis.most)
    }
}

/// Returns the height of the title and the legend above a panel's plot.
fn head(panel: &Panel) -> f64 {
    if panel.curves.len() > 1 { 44.0 } else { 24.0 }
}

fn panel_at(panel: &Panel, top: f64, time: &Time) -> Group {
    let plot_top = top + head(panel);
    let bottom = plot_top + panel.height;
    let height_of = |value: f64| rounded(bottom - panel.height * value / panel.axis.most);
    let upright = time
        .ticks()
        .map(|tick| time.place(tick))
        .map(|x| stroke([x, plot_top], [x, bottom]));
    let ticks = panel
        .axis
        .ticks
        .iter()
        .map(|tick| (height_of(*tick), panel.axis.label(*tick)));
    let [grid, labels] = grid_with_labels(upright.fold(grid(), Group::add), ticks);
    let mut group = Group::new()
        .add(bold(&panel.title, LEFT, top + 14.0))
        .add(grid)
        .add(labels);
    if panel.curves.len() > 1 {
        group = group.add(legend(
            panel.curves.iter().map(|curve| (curve.name, curve.pen)),
            top + 34.0,
        ));
    }
    for curve in &panel.curves {
        let points = curve.points.iter();
        let places = points
            .map(|(seconds, value)| (time.place(seconds / time.unit.size), height_of(*value)));
        group = group.add(styled_group(curve.pen).add(polyline(places)));
    }
    group
}

fn time_labels(time: &Time, bottom: f64) -> Group {
    let mut group = Group::new().set("text-anchor", "middle");
    for tick in time.ticks() {
        group = group.add(words(
            &time.axis.label(tick),
            time.place(tick),
            bottom + 17.0,
        ));
    }
    let title = format!("time since the command started, {}", time.unit.name);
    group.add(words(&title, LEFT + PLOT_WIDTH / 2.0, bottom + 35.0))
}

/// The time axis uses the largest unit that fits into the duration at least this many times.
const TIME_UNITS_MIN: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::super::panels::panels;
    use super::super::series::tests::steady;
    use super::*;
    use crate::drawing::LETTER_WIDTH;

    fn drawing(tenths: u32) -> String {
        let heading = Heading {
            title: "a < b & c".to_owned(),
            below: "</text><script>\"'&".to_owned(),
        };
        draw(
            &heading,
            &panels(&steady(tenths, 12_500_000)),
            f64::from(tenths) / 10.0,
        )
    }

    /// Returns the positions of all points of all curves.
    fn places(drawing: &str) -> Vec<(f64, f64)> {
        let lists = drawing
            .split("points=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        let pairs = lists
            .flat_map(|list| list.split(' '))
            .map(|pair| pair.split_once(',').unwrap());
        pairs
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect()
    }

    #[test]
    fn all_curves_lie_on_the_paper() {
        for tenths in [1, 40, 100_000] {
            let drawing = drawing(tenths);
            let height: f64 = drawing
                .split("height=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            let places = places(&drawing);
            assert!(places.len() > 8 && places.len() < 3_000, "{}", places.len());
            let on_paper = |(x, y): &(f64, f64)| {
                (LEFT..=LEFT + PLOT_WIDTH).contains(x) && (60.0..height).contains(y)
            };
            assert!(places.iter().all(on_paper), "{places:?}");
        }
    }

    /// Returns the value of an attribute, if the element has it.
    fn attribute<'t>(element: &'t str, name: &str) -> Option<&'t str> {
        let (_, rest) = element.split_once(&format!(" {name}=\""))?;
        rest.split('"').next()
    }

    #[test]
    fn all_text_lies_on_the_paper() {
        let heading = Heading {
            title: "286 MiB in 1000.85 s: 2.82 Gbit/s, limited by target, 64 % of the time".to_owned(),
            below: "node1.a.long.name.example.org to node2.a.long.name.example.org, 2026-11-29 02:56 UTC, \
                    16 lanes, 123456 segments sent again"
                .to_owned(),
        };
        let mut lines = steady(40, 12_500_000);
        for (number, line) in (0..).zip(&mut lines) {
            line.segments_retransmitted = Some(90_000 * number);
        }
        let drawing = draw(&heading, &panels(&lines), 4.0);
        let mut anchor = "start";
        let mut texts = 0;
        for element in drawing.split('<') {
            if element.starts_with("g ") {
                anchor = attribute(element, "text-anchor").unwrap_or("start");
            }
            let Some((head, text)) = element
                .strip_prefix("text ")
                .and_then(|text| text.split_once('>'))
            else {
                continue;
            };
            let head = format!(" {head}\"");
            let number = |name| attribute(&head, name).map(|value| value.parse::<f64>().unwrap());
            let letter = number("font-size").unwrap_or(13.0) * LETTER_WIDTH / 13.0;
            let width = letter
                * text
                    .trim()
                    .replace("&amp;", "&")
                    .chars()
                    .fold(0.0, |sum, _| sum + 1.0);
            let left = match anchor {
                "end" => number("x").unwrap() - width,
                "middle" => number("x").unwrap() - width / 2.0,
                _ => number("x").unwrap(),
            };
            assert!(
                left >= 0.0 && left + width <= WIDTH,
                "{text}: {left} to {}",
                left + width
            );
            texts += 1;
        }
        assert!(texts > 20, "{texts}");
    }

    #[test]
    fn titles_axes_and_units_are_there() {
        let drawing = drawing(40);
        for part in [
            "Rate, Gbit/s",
            "Stored and verified, MiB",
            "time since the command started, s",
            "for the path",
        ] {
            assert!(drawing.contains(part), "{part}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        let drawing = drawing(1);
        assert!(drawing.contains("a &lt; b &amp; c"));
        assert!(!drawing.contains("<script") && drawing.contains("&lt;/text&gt;&lt;script&gt;"));
    }

    #[test]
    fn a_long_push_is_told_in_minutes() {
        assert!(drawing(36_000).contains("started, min"));
    }
}
