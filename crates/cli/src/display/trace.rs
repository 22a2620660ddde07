//! The trace of a running transfer.
//!
//! **Invariant:** a trace that cannot be written never makes the transfer fail.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
pub(crate) use zmove_tools::trace::{INTERVAL, TraceFile};
use zmove_types::Escaped;

use crate::display::terminal;

/// Creates the trace file of a transfer from host `from` to host `to`.
pub(crate) fn create(path: &Path, from: &str, to: &str) -> Result<TraceFile> {
    TraceFile::create(path, from, to)
        .with_context(|| format!("sender: create '{}'", Escaped::path(&path)))
}

/// Reports a failed write. Nothing more is written after it.
pub(crate) fn report(written: io::Result<()>) {
    if let Err(error) = written {
        terminal::warn(format_args!("sender: write the trace: {error}"));
    }
}
