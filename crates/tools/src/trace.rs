//! The trace of a transfer. `push --trace` writes it during the transfer, and `zmove trace` summarizes or draws it.

mod file;
mod line;
mod panels;
mod picture;
mod read;
mod series;
mod table;

pub use file::{INTERVAL, TraceFile};
pub use read::{LineFault, ReadTraceError};

use line::{About, TraceLine};

/// A complete trace with at least one line.
#[derive(Debug, PartialEq)]
pub struct Trace {
    pub(crate) lines: Vec<TraceLine>,
    about: About,
}

impl Trace {
    /// Returns a summary of the trace as text.
    #[must_use]
    pub fn summary(&self) -> String {
        table::summary(&self.lines, &self.about)
    }

    /// Returns the trace as an SVG chart.
    #[must_use]
    pub fn picture(&self) -> String {
        let seconds = self.lines.last().map_or(0.0, |line| line.seconds);
        let heading = table::heading(&self.lines, &self.about);
        picture::draw(&heading, &panels::panels(&self.lines), seconds)
    }
}
