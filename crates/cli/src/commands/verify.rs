//! `zmove verify`: a push, a pull or a copy between two hosts that compares contents and moves nothing.

use std::time::Instant;

use anyhow::Result;

use super::copy;
use crate::args::{CopyArgs, VerifyArgs};
use crate::value::exit::Exit;

/// Runs `zmove verify`.
pub(crate) fn run(args: VerifyArgs, started: Instant) -> Result<Exit> {
    copy::run(CopyArgs { push: args.into(), max_bytes: None, max_entries: None }, started)
}
