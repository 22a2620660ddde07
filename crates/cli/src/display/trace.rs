//! `push --trace FILE` writes one JSON object a line (`line.rs`), ten times a second from the receiver's
//! leave on, and one at the end. `zmove trace FILE` sums that up or draws it.
//!
//! **Invariant:** a trace that cannot be written never fails a push.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod line;
mod panels;
mod picture;
mod series;
mod table;

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use zmove_types::{Escaped, Sample};

use self::line::Line;
use crate::args::TraceArgs;
use crate::display::terminal;
use crate::value::exit::{Exit, usage_error};
use zmove_drawing::Heading;

/// How often a line is written.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// A file of samples.
pub(crate) struct Trace {
    /// None once a write has failed.
    file: Mutex<Option<File>>,
}

impl Trace {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("sender: create '{}'", Escaped::path(&path)))?;
        Ok(Self { file: Mutex::new(Some(file)) })
    }

    /// Adds a line.
    pub(crate) fn write(&self, sample: &Sample) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.as_mut().map(|file| write_line(file, sample));
        if let Some(Err(error)) = written {
            terminal::warn(format_args!("sender: write the trace: {error}"));
            *file = None;
        }
    }
}

fn write_line(file: &mut File, sample: &Sample) -> io::Result<()> {
    let mut text = serde_json::to_vec(&Line::from(sample))?;
    text.push(b'\n');
    file.write_all(&text)
}

/// Runs `zmove trace`.
pub(crate) fn run(args: &TraceArgs) -> Result<Exit> {
    let shown = Escaped::path(&args.file);
    let file = File::open(&args.file).with_context(|| format!("open the trace '{shown}'"))?;
    let lines = line::read(BufReader::new(file)).with_context(|| format!("read the trace '{shown}'"))?;
    let Some(picture) = &args.svg else {
        terminal::print(table::summary(&lines));
        return Ok(Exit::Done);
    };
    if is_same(&args.file, picture) {
        return Err(usage_error("the picture would replace the trace"));
    }
    let (title, below) = table::heading(&lines);
    let seconds = lines.last().map_or(0.0, |line| line.seconds);
    let svg = picture::draw(&Heading { title, below }, &panels::panels(&lines), seconds);
    fs::write(picture, svg).with_context(|| format!("write '{}'", Escaped::path(&picture)))?;
    Ok(Exit::Done)
}

fn is_same(trace: &Path, picture: &Path) -> bool {
    trace.canonicalize().ok() == picture.canonicalize().ok() && picture.exists()
}
