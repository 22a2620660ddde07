//! The trace of a transfer: written by `push --trace` while it runs, and summed up or drawn by `zmove trace`.

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

/// A whole trace, with at least one line.
#[derive(Debug, PartialEq)]
pub struct Trace {
    pub(crate) lines: Vec<TraceLine>,
    about: About,
}

impl Trace {
    /// The trace as a few lines of text.
    #[must_use]
    pub fn summary(&self) -> String {
        table::summary(&self.lines, &self.about)
    }

    /// The trace as an SVG.
    #[must_use]
    pub fn picture(&self) -> String {
        let seconds = self.lines.last().map_or(0.0, |line| line.seconds);
        let heading = table::heading(&self.lines, &self.about);
        picture::draw(&heading, &panels::panels(&self.lines), seconds)
    }
}
