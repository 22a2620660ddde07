//! Shared code for pushes, pulls and other commands that connect to a host.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Error, Result};
use zmove_engine::{
    ConnectedHost, Connector, DialSettings, Notice, ReceiverConfig, Remote, Summary, Transferred,
};
use zmove_receiver::ListedFiles;
use zmove_scan::PathKind;
use zmove_tools::sweep::{MovedSizes, Shares};
use zmove_types::{Change, ChangeKind, EntryForm, Event, RelPath};

use crate::args::PushArgs;
use crate::display::progress::Display;
use crate::display::summary::{self, Ending, SessionCount};
use crate::display::terminal;
use crate::display::trace;
use crate::settings::{self, Role, Storage};
use crate::value::account::SystemAccounts;
use crate::value::exit::{Exit, failure, in_transfer};
use zmove_far::EndSignals;

/// Replaces the error of an interrupted transfer with a message that explains how to resume the transfer.
pub(crate) fn resumable(error: Error, args: &PushArgs) -> Error {
    if Exit::of(&error) == Exit::Interrupted && !args.dry_run {
        return failure(
            Exit::Interrupted,
            "interrupted; run the same command again to resume",
        );
    }
    error
}

/// A transfer that has ended. Its display has also ended.
pub(crate) struct TransferEnd {
    pub(crate) result: Transferred,
    pub(crate) moved: Arc<MovedSizes>,
    transfer: Option<String>,
}

impl TransferEnd {
    /// Ends the display of a transfer.
    ///
    /// # Errors
    /// Returns the error with which the transfer ended.
    pub(crate) fn of(
        display: Display,
        args: &PushArgs,
        ended: Result<Transferred>,
    ) -> Result<Self> {
        let moved = display.moved();
        let ended = ended.and_then(|mut result| {
            add_missing(&mut result.summary, args, &display)?;
            Ok(result)
        });
        let transfer = display.transfer();
        if let Ok(Transferred { summary, .. }) = &ended {
            display.close_trace(&summary::bottleneck(summary));
        }
        display.end();
        let result = ended.map_err(|error| in_transfer(error, transfer.clone()))?;
        Ok(Self {
            result,
            moved,
            transfer,
        })
    }

    /// Prints the summary and returns the exit code.
    pub(crate) fn print(self, args: &PushArgs, shares: &Shares, exit: Exit) -> Exit {
        let ending = Ending {
            exit,
            transfer: self.transfer,
            sessions: SessionCount::One,
            is_inexact: false,
        };
        let Transferred {
            summary,
            transport_use,
            ..
        } = self.result;
        summary::print(&summary, args, transport_use, shares, &ending);
        exit
    }
}

/// Creates the display of a transfer from host `from` to host `to`. Creates the trace file if the user requested one.
pub(crate) fn display(args: &PushArgs, from: &str, to: &str) -> Result<Display> {
    let trace = args.trace.as_deref();
    let trace = trace.map(|path| trace::create(path, from, to));
    Ok(Display::new(args, trace.transpose()?))
}

/// Returns the settings of a receiver that runs as this user.
pub(crate) fn receiver() -> ReceiverConfig {
    let home = settings::home(Role::Client).ok();
    ReceiverConfig {
        storage: settings::thread_counts(),
        journals: home.as_deref().map(settings::journals),
        accounts: Arc::new(SystemAccounts),
        ..ReceiverConfig::default()
    }
}

/// Returns the settings of the receiver of a push or a pull in this process.
pub(crate) fn local_receiver(storage: Storage, listed: Option<Arc<ListedFiles>>) -> ReceiverConfig {
    ReceiverConfig {
        file_io: storage.file_io,
        direct: storage.direct,
        listed,
        ..receiver()
    }
}

/// Adds files that the manifest lists but the verification did not find to the summary of the verification.
fn add_missing(summary: &mut Summary, args: &PushArgs, display: &Display) -> Result<()> {
    let Some(listed) = &args.listed else {
        return Ok(());
    };
    let selection = args.selection.selection()?;
    let is_selected = |path: &RelPath| {
        selection
            .as_ref()
            .is_none_or(|selection| selection.admits(path, PathKind::Other))
    };
    let missing = listed.missing(is_selected);
    let counters = &mut summary.counters;
    counters.removed += missing.len() as u64;
    counters.skipped = counters.skipped.saturating_sub(listed.passed_over());
    let change = |path| Change {
        kind: ChangeKind::Removed,
        path,
        form: EntryForm::File,
    };
    display.observer().on(&Event::Listed {
        changes: missing.into_iter().map(change).collect(),
    });
    Ok(())
}

/// Returns the exit code of a transfer that was not interrupted.
pub(crate) fn exit_of(summary: &Summary, args: &PushArgs) -> Exit {
    if args.keeping.strict_metadata && !summary.not_kept.is_empty() {
        return Exit::Partial;
    }
    Exit::of_counters(&summary.counters, args.verify)
}

/// Returns whether a path is on another host, as in `HOST:PATH`.
pub(crate) fn names_other_host(path: &OsStr) -> bool {
    let path = path.to_string_lossy();
    path.split('/')
        .next()
        .is_some_and(|head| head.contains(':'))
}

/// Returns whether a source is missing, and reports it like a push.
pub(crate) fn warn_if_missing(source: &OsStr) -> bool {
    let path = Path::new(source);
    let missing = path.symlink_metadata().err();
    if let Some(source) = missing {
        terminal::warn(Notice::SourceMissing { path, source });
        return true;
    }
    false
}

/// Connects to a host. Returns an error if the user stops the command during the attempt.
pub(crate) async fn reach(
    remote: &Remote,
    dial: &DialSettings,
    stop: impl Future<Output = ()>,
) -> Result<ConnectedHost> {
    let home = settings::home(Role::Client)?;
    let connector = Connector {
        home: &home,
        remote,
        settings: dial,
        listener: &terminal::NoticeLines,
    };
    Ok(connector.open(None, stop).await?)
}

/// Resolves when the user stops the command. Signals are caught from the call on, even before the future is polled.
pub(crate) fn interrupted() -> impl Future<Output = ()> {
    let signals = EndSignals::listen_at_terminal();
    async {
        match signals {
            Ok(mut signals) => signals.next().await,
            // If no handler can be installed, a signal ends the process by default.
            Err(_) => std::future::pending().await,
        }
    }
}
