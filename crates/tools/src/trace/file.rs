//! The file to which the trace of a running transfer is written.
//!
//! **Invariant:** the first failure is returned to the caller, and nothing is written after it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use zmove_types::{Lock, Sample, unix_now};

use super::line::{About, TraceLine};

/// The time between two lines.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// A trace file that is being written.
#[derive(Debug)]
pub struct TraceFile(Lock<TraceState>);

#[derive(Debug)]
struct TraceState {
    /// The open file. `None` after a write has failed.
    file: Option<File>,
    /// The properties of the transfer that the next line will contain. Empty if they were already written.
    about: About,
    last: Option<TraceLine>,
}

/// A line as written to the file.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    line: &'a TraceLine,
    #[serde(flatten)]
    about: &'a About,
}

impl TraceFile {
    /// Creates the trace file of a transfer between two hosts.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, from: &str, to: &str) -> io::Result<Self> {
        let about = About {
            from: Some(from.to_owned()),
            to: Some(to.to_owned()),
            at: Some(unix_now().as_secs()),
            limited_by: None,
        };
        Ok(Self(Lock::new(TraceState {
            file: Some(File::create(path)?),
            about,
            last: None,
        })))
    }

    /// Writes a line.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn write(&self, sample: &Sample) -> io::Result<()> {
        let mut state = self.0.lock();
        state.write(TraceLine::from(sample))
    }

    /// Repeats the last line with the bottleneck of the transfer, and closes the file.
    ///
    /// # Errors
    /// The file cannot be written or closed.
    pub fn close(&self, limited_by: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Some(last) = state.last {
            state.about.limited_by = Some(limited_by.to_owned());
            state.write(last)?;
        }
        state.file.take().map_or(Ok(()), zmove_disk::close)
    }
}

impl TraceState {
    fn write(&mut self, line: TraceLine) -> io::Result<()> {
        self.last = Some(line);
        let about = std::mem::take(&mut self.about);
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let written = Written {
            line: &line,
            about: &about,
        };
        write_line(file, &written).inspect_err(|_| self.file = None)
    }
}

fn write_line(file: &mut File, written: &Written<'_>) -> io::Result<()> {
    let mut text = serde_json::to_vec(written)?;
    text.push(b'\n');
    file.write_all(&text)
}
