//! The size classes as an SVG chart: the number of files and of bytes in each class, with advice below.

use svg::node::element::{Group, Rectangle};
use zmove_scan::{Histogram, Share};
use zmove_types::ByteCount;

use crate::drawing::{
    Heading, ImageSize, LEFT, LETTER_WIDTH, PLOT_WIDTH, TITLE_LETTERS, TOP, WIDTH, bold, document,
    fitted, rounded, words,
};
use crate::figures::{Wrapping, counted, percent, share};

/// Draws the size classes as SVG: two bars for each class, and the text of the advice below them.
#[must_use]
pub fn picture(histogram: &Histogram, advice: &str, name: &str) -> String {
    let files = histogram.files;
    let below = format!(
        "{}, {}",
        counted(files.files, "file"),
        ByteCount(files.bytes)
    );
    let heading = Heading {
        title: fitted(name, TITLE_LETTERS),
        below,
    };
    let mut body = Group::new();
    let mut y = TOP + 10.0;
    let classes = [
        ("LOSF: below 1 MiB", histogram.losf),
        ("medium: from 1 MiB to below 1 GiB", histogram.medium),
        ("large: from 1 GiB", histogram.large),
    ];
    for (title, class) in classes {
        body = body
            .add(bold(title, LEFT, y))
            .add(bars(class, files, y + 8.0));
        y += CLASS;
    }
    for line in wrapped(advice).lines() {
        body = body.add(words(line, LEFT, y));
        y += LINE;
    }
    let paper = ImageSize {
        width: WIDTH,
        height: y,
    };
    document(&heading, "files and bytes by size class", paper, body)
}

/// Draws two bars for a class: its fraction of all files, and its fraction of all bytes.
fn bars(class: Share, all: Share, top: f64) -> Group {
    let by_count = share(class.files, all.files);
    let by_size = share(class.bytes, all.bytes);
    let count = format!("{} of the files: {}", percent(by_count), class.files);
    let bytes = ByteCount(class.bytes);
    let size = format!("{} of the bytes: {bytes}", percent(by_size));
    Group::new()
        .add(bar(by_count, "#0072b2", &count, top))
        .add(bar(by_size, "#007a5a", &size, top + ROW))
}

/// Draws a bar whose length is a fraction of the whole, with a label to its right.
fn bar(share: f64, colour: &str, label: &str, top: f64) -> Group {
    // A bar for a positive value is always visible, however small the value is.
    let width = if share <= 0.0 {
        0.0
    } else {
        (BAR_WIDTH * share).max(BAR_MIN)
    };
    let bar = Rectangle::new()
        .set("x", LEFT)
        .set("y", rounded(top))
        .set("height", ROW - 4.0);
    Group::new()
        .add(bar.set("width", rounded(width)).set("fill", colour))
        .add(words(label, LEFT + width + 6.0, top + ROW - 7.0))
}

/// Wraps text at the right edge of the image.
fn wrapped(text: &str) -> String {
    let wrapping = Wrapping {
        first: 0,
        indent: 0,
        columns: LETTERS_MAX,
    };
    text.lines().map(|line| wrapping.of(line) + "\n").collect()
}

/// The maximum length of a bar. The rest of the width is for the label next to it.
const BAR_WIDTH: f64 = PLOT_WIDTH - 220.0;
const BAR_MIN: f64 = 1.5;
const ROW: f64 = 19.0;
/// The height of a class: its name, two bars and some space.
const CLASS: f64 = 72.0;
const LINE: f64 = 18.0;
/// Number of characters that fit into a line.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a few dozen"
)]
const LETTERS_MAX: usize = (PLOT_WIDTH / LETTER_WIDTH) as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share_and_never_unseen() {
        let width = |part, whole| -> f64 {
            let drawing = bar(share(part, whole), "#0072b2", "label", 0.0).to_string();
            drawing
                .split("width=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        };
        assert_eq!(
            [(0, 0), (0, 9), (1, 1_000_000)].map(|(part, whole)| width(part, whole)),
            [0.0, 0.0, BAR_MIN]
        );
        assert!(
            (width(1, 2) - BAR_WIDTH / 2.0).abs() < 0.1 && (width(9, 9) - BAR_WIDTH).abs() < 0.1
        );
    }

    #[test]
    fn no_word_lies_beyond_the_paper() {
        let text =
            wrapped("their number decides: files per second count, at both ends of a path\nand");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.last(), Some(&"and"));
        assert!(
            lines.len() == 3 && lines.iter().all(|line| line.chars().count() <= LETTERS_MAX),
            "{lines:?}"
        );
    }
}
