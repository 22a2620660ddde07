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
//!
//! **Invariant:** a trace that cannot be written never fails a push.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use zmove_types::{Escaped, Sample};

use crate::display::terminal;

/// The time between two lines.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// A file of samples.
pub(crate) struct Trace {
    /// The open file; `None` once a write has failed.
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
