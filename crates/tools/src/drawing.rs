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
    GAP, GREY, Heading, ImageSize, LEFT, LineStyle, PLOT_WIDTH, TOP, WIDTH, bold, document, grid,
    grid_with_labels, polyline, rounded, stroke, styled_group, words,
};
pub(crate) use picture::{LETTER_WIDTH, TITLE_LETTERS, fitted, legend};
