//! What pushes and pulls have in common around their run.

use std::ffi::OsStr;

use anyhow::Error;
use zmove_engine::Summary;

use crate::args::PushArgs;
use crate::signals::EndSignals;
use crate::value::exit::{Exit, failure};

/// The error of a transfer, which says of an interrupted one how it goes on.
pub(crate) fn resumable(error: Error, args: &PushArgs) -> Error {
    if Exit::of(&error) == Exit::Interrupted && !args.dry_run {
        return failure(
            Exit::Interrupted,
            "interrupted; run the same command again to go on",
        );
    }
    error
}

/// The exit code for a transfer that came to its end.
pub(crate) fn exit_of(summary: &Summary, args: &PushArgs) -> Exit {
    if args.keeping.strict_metadata && !summary.not_kept.is_empty() {
        return Exit::Partial;
    }
    Exit::of_counters(&summary.counters, args.verify)
}

/// Whether a path is one of another host, `HOST:PATH`.
pub(crate) fn names_other_host(path: &OsStr) -> bool {
    let path = path.to_string_lossy();
    path.split('/')
        .next()
        .is_some_and(|head| head.contains(':'))
}

/// The name of this host.
pub(crate) fn own_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Resolves when the user stops the command, from the call on: also before it is polled.
pub(crate) fn interrupted() -> impl Future<Output = ()> {
    let signals = EndSignals::listen_at_terminal();
    async {
        match signals {
            Ok(mut signals) => signals.next().await,
            // Without a handler a signal ends the process by itself.
            Err(_) => std::future::pending().await,
        }
    }
}
