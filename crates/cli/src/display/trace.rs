//! The trace of a running transfer.
//!
//! **Invariant:** a trace that cannot be written never fails a transfer.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
pub(crate) use zmove_tools::trace::{INTERVAL, TraceFile};
use zmove_types::Escaped;

use crate::display::terminal;

/// The trace of a transfer between these two hosts.
pub(crate) fn create(path: &Path, from: &str, to: &str) -> Result<TraceFile> {
    TraceFile::create(path, from, to)
        .with_context(|| format!("sender: create '{}'", Escaped::path(&path)))
}

/// Reports a failed write, after which nothing more is written.
pub(crate) fn report(written: io::Result<()>) {
    if let Err(error) = written {
        terminal::warn(format_args!("sender: write the trace: {error}"));
    }
}
