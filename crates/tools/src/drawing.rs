//! The common parts of all pictures: an SVG narrow enough for a phone and dark enough for print.
//!
//! The colours are those of Okabe and Ito, some of them darker, which colour-blind people can tell apart; dashes and
//! marks tell the curves apart in a print without colours.
//!
//! Diagrams are laid out here and written as SVG by the crate `svg`. A plotting library would save little: `zmove
//! trace` and `zmove scan` alone need all but a few lines of this module.

pub mod classes;
mod picture;
pub mod scale;

pub use picture::{
    GAP, GREY, Heading, LEFT, PLOT_WIDTH, Paper, Pen, TOP, WIDTH, bold, document, drawn, grid,
    grid_with_labels, polyline, rounded, stroke, words,
};
pub(crate) use picture::{LETTER_WIDTH, TITLE_LETTERS, fitted, legend};
