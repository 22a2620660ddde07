//! An axis of file sizes in powers of two. The size classes are drawn as bands behind the plot.

use svg::node::element::{Group, Rectangle};

use super::picture::{LEFT, LETTER_WIDTH, PLOT_WIDTH, rounded, words};
use super::scale::{power_label, powers_apart};

/// A horizontal axis of file sizes. A position on the axis is an exponent of two.
#[derive(Clone, Copy, Debug)]
pub struct SizeAxis {
    /// The exponent of two at the start of the axis.
    pub first: f64,
    /// The exponent of two at the end of the axis.
    pub last: f64,
    /// How far the band of a class starts before the first exponent of the class, in exponents.
    pub lead: f64,
}

impl SizeAxis {
    /// Returns the x coordinate of an exponent of two.
    pub fn place(&self, power: f64) -> f64 {
        rounded(LEFT + PLOT_WIDTH * (power - self.first) / (self.last - self.first))
    }

    /// Returns the distance between two successive exponents, in units of the image.
    pub fn step(&self) -> f64 {
        PLOT_WIDTH / (self.last - self.first)
    }

    /// Draws the bands of the classes behind a plot. The name of a class is drawn above its band if the band is wide
    /// enough.
    pub fn bands(&self, top: f64, height: f64) -> Group {
        let mut group = Group::new();
        for (name, from, to, colour) in CLASSES {
            let from = (from - self.lead).max(self.first);
            let to = (to - self.lead).min(self.last);
            if from >= to {
                continue;
            }
            let x = self.place(from);
            let end = self.place(to);
            let band = Rectangle::new()
                .set("x", x)
                .set("y", rounded(top - NAMES))
                .set("width", rounded(end - x));
            group = group.add(band.set("height", height + NAMES).set("fill", colour));
            if end - x >= name.chars().fold(8.0, |width, _| width + LETTER_WIDTH) {
                group = group.add(words(name, x + 4.0, top - 5.0).set("fill", "#555555"));
            }
        }
        group
    }

    /// Draws the labels of the sizes below a plot.
    pub fn labels(&self, bottom: f64) -> Group {
        let mut group = Group::new().set("text-anchor", "middle");
        let apart = powers_apart(self.step());
        for power in (0..64).step_by(apart as usize) {
            let place = f64::from(power);
            if (self.first..=self.last).contains(&place) {
                // At both ends of the axis, there must be room for half of the longest label.
                let x = self
                    .place(place)
                    .clamp(LEFT + 4.0, LEFT + PLOT_WIDTH - 12.0);
                group = group.add(words(&power_label(power), x, bottom + 17.0));
            }
        }
        group
    }
}

/// The size classes of "When to use rsync": name, first and last exponent of two, color.
const CLASSES: [(&str, f64, f64, &str); 3] = [
    ("LOSF", -2.0, 20.0, "#f3f3f3"),
    ("medium", 20.0, 30.0, "#e9e9e9"),
    ("large", 30.0, 64.0, "#dedede"),
];
/// The height of the strip above a plot for the names of the classes.
pub const NAMES: f64 = 18.0;
