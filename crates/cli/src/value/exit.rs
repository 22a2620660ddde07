//! Exit codes, which resemble the exit codes of rsync.

use zmove_engine::{
    ConnectError, ConnectFault, LocationError, OverlapError, PullError, PushError, SourcesError,
};
use zmove_jobs::{AttemptVerdict, StoreError};
use zmove_receiver::SessionError as ReceiverError;
use zmove_sender::SessionError;
use zmove_transport::{ControlError, DialError, LaneError};
use zmove_types::{Counters, ExitEffect};
use zmove_wire::{Refusal, RefusalCode};

use crate::args::habits;
use crate::display::output;

/// The exit code of a command. The tables in `docs/REFERENCE.md` and `zmove --help` list the same codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(i32)]
pub(crate) enum Exit {
    /// The command has done everything. For a push, all files are verified, renamed into place and flushed.
    Done = 0,
    /// The command line cannot be parsed, has contradictory options, or names an object that does not exist.
    Usage = 1,
    /// The two sides have no protocol version in common.
    Incompatible = 2,
    /// The receiver refuses this target.
    Target = 3,
    /// `zmove doctor` found a problem that breaks transfers.
    DoctorFoundProblem = 4,
    /// One side does not know the key of the other side.
    Authentication = 5,
    /// `zmove verify` found a difference.
    Differs = 6,
    /// No connection could be established, because the host does not answer or refuses the connection.
    Connection = 10,
    /// A file on this host could not be read or written.
    File = 11,
    /// The connection was lost, or the peer broke the protocol.
    Broken = 12,
    /// The other host did not have a free slot in time. The code is also used if that host is shutting down and accepts
    /// no new transfers.
    Busy = 13,
    /// The user stopped the command.
    Interrupted = 20,
    /// Some files failed. All other files are done.
    Partial = 23,
    /// Some directories of the source changed each time they were read. Everything else is done.
    InDoubt = 24,
    /// `--max-delete` prevented the removal of some entries. Everything else is done.
    MaxDelete = 25,
    /// `zmove job ID wait`: the job failed.
    JobFailed = 30,
    /// `zmove job ID wait`: a user cancelled the job.
    JobCancelled = 31,
    /// `zmove job ID wait`: the job passed its deadline.
    JobExpired = 32,
    /// `zmove job ID wait --timeout`: the job is still running.
    StillGoing = 33,
}

impl Exit {
    /// Returns the exit code of an error that ended a command.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        if let Some(InTransfer { error, .. }) = error.downcast_ref() {
            return Self::of(error);
        }
        let known = [
            error.downcast_ref().map(|Failure(exit, _)| *exit),
            (error.is::<LocationError>() || error.is::<OverlapError>()).then_some(Self::Usage),
            error.downcast_ref().map(Self::of_sources),
            error.downcast_ref().map(Self::of_dial),
            error.downcast_ref().map(Self::of_session),
            error.downcast_ref().map(Self::of_pull),
            error.downcast_ref().map(Self::of_connect),
            error.downcast_ref().map(Self::of_push),
            error.downcast_ref().map(Self::of_store),
        ];
        known.into_iter().flatten().next().unwrap_or(Self::File)
    }

    /// Returns the exit code of a transfer with these counters. In a comparison, differences also lead to a nonzero
    /// code.
    pub(crate) fn of_counters(counters: &Counters, is_comparison: bool) -> Self {
        if counters.has(ExitEffect::Partial) {
            Self::Partial
        } else if counters.has(ExitEffect::InDoubt) {
            Self::InDoubt
        } else if counters.has(ExitEffect::MaxDelete) {
            Self::MaxDelete
        } else if is_comparison && counters.has(ExitEffect::Difference) {
            Self::Differs
        } else {
            Self::Done
        }
    }

    /// Converts the exit code of another zmove process. An unknown code becomes `Exit::File`.
    pub(crate) fn from_code(code: i32) -> Self {
        Self::from_repr(code).unwrap_or(Self::File)
    }

    fn of_sources(error: &SourcesError) -> Self {
        match error {
            SourcesError::Nothing => Self::Partial,
            SourcesError::OnAnotherHost { .. } | SourcesError::SameName { .. } => Self::Usage,
            _ => Self::File,
        }
    }

    fn of_push(error: &PushError) -> Self {
        match error {
            PushError::Connect(error) => Self::of_connect(error),
            PushError::Session(error) => Self::of_session(error),
            PushError::Pull(error) => Self::of_pull(error),
            PushError::GivenUp { .. } | PushError::InVain { .. } | PushError::BlackHole(_) => {
                Self::Broken
            }
            PushError::StillBusy { .. } => Self::Busy,
            _ => Self::File,
        }
    }

    fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::NoJob(_)
            | StoreError::Illegal { .. }
            | StoreError::NotEnded(_)
            | StoreError::OtherSubmission { .. } => Self::Usage,
            _ => Self::File,
        }
    }

    fn of_connect(error: &ConnectError) -> Self {
        if let Some(error) = error.dial() {
            return Self::of_dial(error);
        }
        match error.fault() {
            ConnectFault::Local => Self::File,
            ConnectFault::Unconfirmed => Self::Authentication,
            ConnectFault::Unreached => Self::Connection,
            ConnectFault::OtherVersion => Self::Incompatible,
        }
    }

    fn of_dial(error: &DialError) -> Self {
        match error {
            DialError::UnknownHost { .. }
            | DialError::HostKeyChanged { .. }
            | DialError::HostKeyUnproven { .. }
            | DialError::HostCertificate { .. } => Self::Authentication,
            DialError::OtherVersion { .. } => Self::Incompatible,
            _ => Self::Connection,
        }
    }

    fn of_refusal(refusal: &Refusal) -> Self {
        match refusal.code {
            RefusalCode::UnknownKey => Self::Authentication,
            RefusalCode::Denied | RefusalCode::Target | RefusalCode::NotUnderWay => Self::Target,
            // `Busy` is also sent by a receiver that cannot read its own files.
            RefusalCode::Busy => Self::Connection,
            RefusalCode::Full | RefusalCode::Stopping => Self::Busy,
            RefusalCode::Protocol | RefusalCode::Broken => Self::Broken,
            RefusalCode::Failed => Self::File,
        }
    }

    fn of_pull(error: &PullError) -> Self {
        match error {
            PullError::Refused(refusal)
            | PullError::Ended(refusal)
            | PullError::Target(refusal) => Self::of_refusal(refusal),
            // A push also returns this code if none of its sources exist.
            PullError::Sources(_) => Self::Partial,
            PullError::Control(ControlError::Greeting(_)) => Self::Incompatible,
            PullError::StillInLine { .. } => Self::Busy,
            PullError::Silent | PullError::Control(ControlError::NoGreeting) => Self::Connection,
            PullError::Left { .. } | PullError::NotEnded { .. } => Self::Interrupted,
            PullError::Receipt
            | PullError::Misbehaved(_)
            | PullError::Control(_)
            | PullError::Lane(_) => Self::Broken,
            PullError::Receiver(ReceiverError::PeerMisbehaved(_) | ReceiverError::Lane(_)) => {
                Self::Broken
            }
            _ => Self::File,
        }
    }

    fn of_session(error: &SessionError) -> Self {
        match error {
            SessionError::Refused(refusal) => Self::of_refusal(refusal),
            SessionError::Control(ControlError::Greeting(_)) => Self::Incompatible,
            SessionError::NoLane
            | SessionError::Lane(LaneError::Io { .. })
            | SessionError::Control(ControlError::NoGreeting) => Self::Connection,
            SessionError::StillInLine { .. } => Self::Busy,
            SessionError::NothingAsked(error) => Self::of_session(error),
            SessionError::Interrupted => Self::Interrupted,
            SessionError::Manifest(_) | SessionError::Thread(_) => Self::File,
            _ => Self::Broken,
        }
    }
}

/// Classifies the exit code of a job's process. The job is retried if the error concerns the other host or the path to
/// it, because such an error may be temporary. The job is also started again if its process was interrupted.
pub(crate) fn verdict(exit: i32) -> AttemptVerdict {
    const PASSING: [Exit; 4] = [
        Exit::Connection,
        Exit::Broken,
        Exit::Busy,
        Exit::Interrupted,
    ];
    match exit {
        0 => AttemptVerdict::Done,
        _ if PASSING.into_iter().any(|passing| passing as i32 == exit) => AttemptVerdict::Passing,
        _ => AttemptVerdict::Fatal,
    }
}

impl From<Exit> for u8 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the codes are small"
    )]
    fn from(exit: Exit) -> Self {
        exit as i32 as Self
    }
}

/// An error with its exit code.
#[derive(Debug)]
struct Failure(Exit, String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Failure {}

/// The error of a transfer that had an ID. It displays only the inner error.
#[derive(Debug)]
pub(crate) struct InTransfer {
    /// ID of the transfer. The other host uses the same ID.
    pub(crate) transfer: String,
    error: anyhow::Error,
}

impl std::fmt::Display for InTransfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for InTransfer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Adds the ID of the transfer to the error that ended it. Without an ID, returns the error unchanged.
pub(crate) fn in_transfer(error: anyhow::Error, transfer: Option<String>) -> anyhow::Error {
    match transfer {
        Some(transfer) => InTransfer { transfer, error }.into(),
        None => error,
    }
}

/// Creates an error with this exit code.
pub(crate) fn failure(exit: Exit, text: impl Into<String>) -> anyhow::Error {
    Failure(exit, text.into()).into()
}

/// Creates a usage error.
pub(crate) fn usage_error(text: impl Into<String>) -> anyhow::Error {
    failure(Exit::Usage, text)
}

/// Returns a usage error with the text of the first contradiction that applies.
pub(crate) fn refuse(contradictions: &[(bool, &str)]) -> anyhow::Result<()> {
    first(contradictions).map_or(Ok(()), |text| Err(usage_error(text)))
}

/// Returns the first text whose condition is true.
pub(crate) fn first<'a>(texts: &[(bool, &'a str)]) -> Option<&'a str> {
    let mut applying = texts.iter().filter(|(applies, _)| *applies);
    applying.next().map(|(_, text)| *text)
}

/// Converts the first line of clap's message to an error that can be printed as JSON.
pub(crate) fn parse_error(error: &clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    usage_error(line.strip_prefix("error: ").unwrap_or(line))
}

/// Prints clap's message. Returns success for help and version texts, and a usage error for any other message.
pub(crate) fn usage(mut error: clap::Error) -> Exit {
    habits::hint(&mut error);
    let printed = error.print();
    if error.use_stderr() {
        // A closed terminal is not a failure, so the error is ignored.
        let _terminal_gone = printed;
        Exit::Usage
    } else {
        output::note(printed);
        Exit::Done
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::args::help::LONG;

    fn codes() -> BTreeSet<i32> {
        let known = (0..=255).filter_map(Exit::from_repr);
        known.map(|exit| exit as i32).collect()
    }

    #[test]
    fn the_table_of_the_reference_has_each_code_once() {
        let reference = include_str!("../../../../docs/REFERENCE.md");
        let table = reference.split("## Exit codes\n").nth(1).unwrap();
        let table = table.split("\n## ").next().unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
        let listed: Vec<i32> = rows
            .filter_map(|row| row.split(" |").next())
            .flat_map(|codes| codes.split(", "))
            .filter_map(|code| code.parse().ok())
            .collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), codes());
        assert_eq!(listed.len(), codes().len(), "{listed:?}");
    }

    /// `zmove job --help` lists the codes from 30 on.
    #[test]
    fn the_table_of_the_help_has_the_same_codes() {
        let table = LONG.split("Exit codes:\n").nth(1).unwrap();
        let table = table.split("\n\n").next().unwrap();
        let listed: BTreeSet<i32> = table
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let of_transfers = codes().into_iter().filter(|code| *code < 30);
        assert_eq!(listed, of_transfers.collect());
    }

    #[test]
    fn the_code_of_another_process_is_told_as_it_is() {
        for code in codes() {
            assert_eq!(Exit::from_code(code) as i32, code);
        }
        assert_eq!(Exit::from_code(101), Exit::File);
    }
}
