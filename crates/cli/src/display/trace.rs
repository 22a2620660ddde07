//! The trace of `push --trace FILE`: one JSON object a line, ten times a second from when the receiver lets the
//! transfer begin, and one at the end. `zmove trace` reads it again.
//!
//! - `seconds`: since the command started.
//! - `bytes_read`, `bytes_handed_over`, `bytes_stored`: payload from the start that was read and hashed;
//!   given to lanes; stored and verified, as far as receipts are here.
//! - `bytes_acked`, `segments_retransmitted`: the kernel's counts over all lanes, with TLS and heads; null within one
//!   process.
//! - `packs_waiting`, `frames_waiting`, `items_outstanding`: batches before the readers, frames before the
//!   lanes, batches and groups without a receipt.
//! - `lanes`: lanes that are up.
//! - `from`, `to`, `at`, in the first line alone: the hosts, and when it was written, in seconds since 1970.
//! - `limited_by`, in the last line alone, which repeats the one before: what limited the transfer that has ended well.
//!
//! **Invariant:** a trace that cannot be written never fails a push.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use zmove_types::{Escaped, Sample};

use crate::display::terminal;

/// The time between two lines.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// A file of samples.
pub(crate) struct Trace {
    state: Mutex<State>,
}

struct State {
    /// The open file; `None` once a write has failed.
    file: Option<File>,
    /// What the next line says of the whole transfer.
    about: About,
    last: Option<Line>,
}

/// What a trace says of the whole transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limited_by: Option<String>,
}

/// A line as it is written.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    line: &'a Line,
    #[serde(flatten)]
    about: &'a About,
}

impl Trace {
    /// A trace of a transfer between these two hosts.
    pub(crate) fn create(path: &Path, from: &str, to: &str) -> Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("sender: create '{}'", Escaped::path(&path)))?;
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .ok()
            .map(|since| since.as_secs());
        let about = About {
            from: Some(from.to_owned()),
            to: Some(to.to_owned()),
            at,
            limited_by: None,
        };
        Ok(Self {
            state: Mutex::new(State {
                file: Some(file),
                about,
                last: None,
            }),
        })
    }

    /// Adds a line.
    pub(crate) fn write(&self, sample: &Sample) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(Line::from(sample));
    }

    /// Adds the last line again, with what limited the transfer.
    pub(crate) fn close(&self, limited_by: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = state.last {
            state.about.limited_by = Some(limited_by.to_owned());
            state.write(last);
        }
        let closed = state.file.take().map_or(Ok(()), zmove_disk::close);
        state.report(closed);
    }
}

impl State {
    fn write(&mut self, line: Line) {
        let about = std::mem::take(&mut self.about);
        let written = self.file.as_mut().map(|file| {
            write_line(
                file,
                &Written {
                    line: &line,
                    about: &about,
                },
            )
        });
        self.last = Some(line);
        self.report(written.unwrap_or(Ok(())));
    }

    /// Reports a failed write, after which nothing more is written.
    fn report(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            terminal::warn(format_args!("sender: write the trace: {error}"));
            self.file = None;
        }
    }
}

fn write_line(file: &mut File, written: &Written<'_>) -> io::Result<()> {
    let mut text = serde_json::to_vec(written)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// The progress of each stage at one moment. The keys are described at the head of this module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) seconds: f64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_handed_over: u64,
    pub(crate) bytes_acked: Option<u64>,
    pub(crate) bytes_stored: u64,
    pub(crate) packs_waiting: usize,
    pub(crate) frames_waiting: usize,
    pub(crate) items_outstanding: usize,
    pub(crate) lanes: usize,
    pub(crate) segments_retransmitted: Option<u64>,
}

impl From<&Sample> for Line {
    fn from(sample: &Sample) -> Self {
        Self {
            seconds: sample.elapsed.as_secs_f64(),
            bytes_read: sample.bytes_read,
            bytes_handed_over: sample.bytes_handed_over,
            bytes_acked: sample.bytes_acked,
            bytes_stored: sample.bytes_stored,
            packs_waiting: sample.packs_waiting,
            frames_waiting: sample.frames_waiting,
            items_outstanding: sample.items_outstanding,
            lanes: sample.lanes,
            segments_retransmitted: sample.segments_retransmitted,
        }
    }
}
