//! `--trace FILE`: one JSON object a line, ten times a second, for whoever wants to draw what a push did.
//!
//! The keys are described in docs/ARCHITECTURE.md, §5. **Invariant:** a trace that cannot be written never fails a push.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use zmove_types::Sample;

use crate::terminal;

/// How often a line is written.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// A file of samples.
pub(crate) struct Trace {
    /// None once a write has failed.
    file: Mutex<Option<File>>,
}

impl Trace {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("sender: create '{}'", path.display()))?;
        Ok(Self { file: Mutex::new(Some(file)) })
    }

    /// Adds a line.
    pub(crate) fn write(&self, sample: &Sample) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{}\n", as_json(sample));
        if let Some(Err(error)) = file.as_mut().map(|file| file.write_all(line.as_bytes())) {
            terminal::warn(format_args!("sender: write the trace: {error}"));
            *file = None;
        }
    }
}

fn as_json(sample: &Sample) -> serde_json::Value {
    json!({
        "seconds": sample.elapsed.as_secs_f64(),
        "bytes_read": sample.bytes_read,
        "bytes_handed_over": sample.bytes_handed_over,
        "bytes_acked": sample.bytes_acked,
        "bytes_stored": sample.bytes_stored,
        "packs_waiting": sample.packs_waiting,
        "frames_waiting": sample.frames_waiting,
        "items_outstanding": sample.items_outstanding,
        "lanes": sample.lanes,
        "segments_retransmitted": sample.segments_retransmitted,
    })
}
