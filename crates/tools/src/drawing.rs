//! Parts that all charts share. A chart is an SVG image that is narrow enough for a phone and dark enough for print.
//!
//! The colors are taken from the palette of Okabe and Ito, which people with color blindness can distinguish. Some of
//! them are darkened. In a print without colors, dashes and markers distinguish the curves.
//!
//! This module lays out the charts, and the crate `svg` writes the SVG elements. A plotting library would save little
//! code: `zmove trace` and `zmove scan` alone need nearly all of this module.

pub mod classes;
mod picture;
pub mod scale;

pub use picture::{
    GAP, GREY, Heading, ImageSize, LEFT, LineStyle, PLOT_WIDTH, TOP, WIDTH, bold, document, grid,
    grid_with_labels, polyline, rounded, stroke, styled_group, words,
};
pub(crate) use picture::{LETTER_WIDTH, TITLE_LETTERS, fitted, legend};
