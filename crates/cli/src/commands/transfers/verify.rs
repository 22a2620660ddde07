//! `zmove verify`: a push, a pull or a copy between two hosts that compares contents and moves nothing. With a
//! manifest, no target exists, and the receiver answers the sender from the manifest.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use zmove_engine::OnInterrupt;
use zmove_receiver::{ListError, ListedFiles, Unlisted};
use zmove_types::Escaped;

use super::copy;
use crate::args::{CopyArgs, PushArgs, VerifyArgs};
use crate::value::exit::{Exit, usage_error};

/// Runs `zmove verify`.
pub(crate) fn run(args: VerifyArgs, started: Instant) -> Result<Exit> {
    let listed = listed(&args)?;
    if listed.is_none() && args.paths.len() < 2 {
        return Err(usage_error(
            "one path is missing: name SRC and DST, or use --manifest",
        ));
    }
    let mut push = PushArgs {
        listed,
        ..args.into()
    };
    if push.listed.is_some() {
        push.paths.push(".".into());
    }
    copy::run(
        CopyArgs {
            push,
            max_bytes: None,
            max_entries: None,
            detach: false,
        },
        started,
        OnInterrupt::Continue,
    )
}

/// Reads the manifest to compare with. Returns `None` if no manifest was given.
fn listed(args: &VerifyArgs) -> Result<Option<Arc<ListedFiles>>> {
    let Some(path) = &args.manifest else {
        return Ok(None);
    };
    if args.selection.files_from.is_some() || args.selection.bounds_sizes() {
        return Err(usage_error(
            "--manifest lists the files itself: it cannot be used with --files-from, --min-size and --max-size",
        ));
    }
    let unlisted = if args.one_way {
        Unlisted::PassedOver
    } else {
        Unlisted::Differs
    };
    let read = open(path)
        .map_err(ListError::from)
        .and_then(|from| ListedFiles::read(from, unlisted));
    let listed = read.with_context(|| format!("read the manifest '{}'", Escaped::path(path)))?;
    Ok(Some(Arc::new(listed)))
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(BufReader::new(File::open(path)?)))
}
