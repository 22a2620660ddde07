//! The output for the user: lines on the terminal, the progress bar, the summary, the trace and the daemon's log.

pub(crate) mod dry_run;
pub(crate) mod failures;
pub(crate) mod format;
pub(crate) mod helper_prompt;
pub(crate) mod job;
pub(crate) mod log;
pub(crate) mod nodes;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod prompt;
mod rate_window;
pub(crate) mod summary;
pub(crate) mod terminal;
pub(crate) mod trace;
