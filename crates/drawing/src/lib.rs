//! What all pictures have in common: an SVG narrow enough for a phone and dark enough for print.
//!
//! The colours are those of Okabe and Ito, some of them darker, which people who do not see all colours tell
//! apart; dashes and marks tell the curves apart in print without any.
//!
//! Diagrams are laid out here and written as SVG by the crate `svg`. A plotting library would add little: all
//! but a few lines of this are needed for `zmove trace` and `zmove scan` alone.

pub mod classes;
mod picture;
pub mod scale;

pub use picture::{
    GAP, Heading, LEFT, LETTER_WIDTH, PLOT_WIDTH, Pen, TITLE_LETTERS, TOP, WIDTH, bold, document, drawn,
    fitted, grid, grid_with_labels, legend, polyline, rounded, stroke, words,
};
