//! Common parts of all charts: an SVG that is narrow enough for a phone and dark enough for print.
//!
//! The colors are those of Okabe and Ito, some of them darker, which people with color blindness can distinguish. In a
//! print without colors, dashes and markers distinguish the curves.
//!
//! Charts are laid out here and written as SVG by the crate `svg`. A plotting library would save little code: `zmove
//! trace` and `zmove scan` alone need nearly all of this module.

pub mod classes;
mod picture;
pub mod scale;

pub use picture::{
    GAP, GREY, Heading, LEFT, PLOT_WIDTH, Paper, Pen, TOP, WIDTH, bold, document, drawn, grid,
    grid_with_labels, polyline, rounded, stroke, words,
};
pub(crate) use picture::{LETTER_WIDTH, TITLE_LETTERS, fitted, legend};
