//! What all pictures have in common: an SVG narrow enough for a phone and dark enough for print.
//!
//! The colours are those of Okabe and Ito, some of them darker, which people who do not see all colours tell apart; dashes
//! and marks tell the curves apart in print without any.

pub mod classes;
mod picture;
pub mod scale;

pub use picture::{
    GAP, Heading, LEFT, LETTER_WIDTH, PLOT_WIDTH, Pen, TITLE_LETTERS, TOP, WIDTH, bold, document, drawn,
    fitted, grid, grid_with_labels, legend, polyline, rounded, stroke, words,
};
