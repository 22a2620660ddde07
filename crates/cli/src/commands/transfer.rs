//! What pushes, pulls and other commands that reach a host have in common around their run.

use std::ffi::OsStr;

use anyhow::{Error, Result};
use zmove_engine::{Connector, DialSettings, Reached, Remote, Summary};
use zmove_sender::SessionError;

use crate::args::PushArgs;
use crate::display::terminal;
use crate::settings::{self, Role};
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

/// Connects to a host, unless the user stops the command before.
pub(crate) async fn reach(
    remote: &Remote,
    dial: &DialSettings,
    stop: impl Future<Output = ()>,
) -> Result<Reached> {
    let home = settings::home(Role::Client)?;
    let connector = Connector {
        home: &home,
        remote,
        settings: dial,
        listener: &terminal::Notices,
    };
    tokio::select! {
        reached = connector.connect(None) => Ok(reached?),
        () = stop => Err(SessionError::Interrupted.into()),
    }
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
