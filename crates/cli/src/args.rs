//! The arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod cluster;
mod daemon;
mod doctor;
pub(crate) mod habits;
pub(crate) mod help;
mod job;
mod probe;
pub(crate) mod shared;
mod sweep;
mod transfers;

use crate::value::version::VERSION;
use shared::selection::SelectionArgs;

pub(crate) use cluster::{ClusterCommand, ClusterInitArgs, ClusterStatusArgs};
pub(crate) use daemon::allow::{AllowArgs, AllowCommand, GrantArgs};
pub(crate) use daemon::journal::{JournalCleanArgs, JournalCommand};
pub(crate) use daemon::operate::{ControlArgs, DrainArgs, StatusArgs, StopArgs};
pub(crate) use daemon::serve::{ConfineArg, ListenArg, LogFormat, MetricsListen, ServeArgs};
pub(crate) use daemon::trust::{TrustArgs, TrustCommand, TrustHostArgs};
pub(crate) use doctor::DoctorArgs;
pub(crate) use job::{
    JOB, JobAction, JobArgs, JobOptions, JobsArgs, JobsCommand, RunnerArgs, RunnerCommand,
    SubmitArgs,
};
pub(crate) use probe::ProbeArgs;
pub(crate) use shared::dial::{DialArgs, TransportArg, ViaArg};
pub(crate) use shared::keeping::{KeepingArgs, KindArg, SparseArg};
pub(crate) use shared::storage::{DirectArg, EngineArg, StorageArgs};
pub(crate) use sweep::SweepArgs;
pub(crate) use transfers::clean::CleanArgs;
pub(crate) use transfers::copy::{CopyArgs, ResultArgs};
pub(crate) use transfers::push::{CipherArg, DeltaArg, DurabilityArg, ProofArg, PushArgs};
pub(crate) use transfers::verify::VerifyArgs;

/// Copies files and directories between hosts: fast, encrypted and verified.
#[derive(Debug, Parser)]
#[command(name = "zmove", version = VERSION.as_str(), max_term_width = 100, help_template = help::TEMPLATE)]
#[command(after_help = help::SHORT, after_long_help = help::LONG)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Parses a command line. The first word is the program.
    ///
    /// # Errors
    /// Returns an error if the words are not a valid command line, or if they ask for the help or the version.
    pub(crate) fn read(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let words = habits::strip_human_readable(&command, words);
        let read = Self::from_arg_matches(&command.try_get_matches_from_mut(words)?)?;
        let (name, paths) = match &read.command {
            Command::Push(args) => ("push", &args.paths),
            Command::Pull(args) => ("pull", &args.paths),
            Command::Copy(args) => ("copy", &args.push.paths),
            Command::Submit(args) | Command::RunJob(args) => ("submit", &args.copy.push.paths),
            _ => return Ok(read),
        };
        if paths.len() < 2 {
            let command = command.find_subcommand_mut(name).expect("it was read");
            let text = "there is one path: the sources come first, and the target last";
            return Err(command.error(ErrorKind::TooFewValues, text));
        }
        Ok(read)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send files and directories to a receiver or a local directory
    Push(Box<PushArgs>),
    /// Fetch files and directories from another host into a local directory
    #[command(override_usage = help::PULL_USAGE)]
    #[command(after_help = help::PULL_SHORT, after_long_help = help::PULL_LONG)]
    Pull(Box<PushArgs>),
    /// Copy in either direction, or directly from one remote host to another
    #[command(override_usage = help::COPY_USAGE)]
    #[command(after_help = help::COPY_SHORT, after_long_help = help::COPY_LONG)]
    Copy(Box<CopyArgs>),
    /// Show the result of a copy between two other hosts, for a day after its end
    Result(ResultArgs),
    /// Compare a tree with its copy by hash, reading both from storage
    Verify(Box<VerifyArgs>),
    /// Remove the leftovers of killed transfers from a local or remote tree
    Clean(CleanArgs),
    /// Run the daemon in the foreground: listen for pushes and pulls
    Serve(ServeArgs),
    /// Show the current activity of this host's daemon
    Status(StatusArgs),
    /// Stop a transfer of this host's daemon
    ///
    /// Its user can resume the transfer by running the same command again.
    Stop(StopArgs),
    /// Shut down this host's daemon after its last transfer
    ///
    /// The daemon refuses new transfers from now on.
    Drain(DrainArgs),
    /// Send one job from many nodes to receivers with shared storage
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Run a push, pull or copy in the background, and print its job number
    #[command(override_usage = help::SUBMIT_USAGE)]
    #[command(after_help = help::SUBMIT_SHORT, after_long_help = help::SUBMIT_LONG)]
    Submit(Box<SubmitArgs>),
    /// List unfinished jobs and jobs that ended in the last 24 hours
    Jobs(JobsArgs),
    /// Show, wait for, pause, resume or cancel a job
    #[command(after_long_help = help::JOB_LONG)]
    Job(JobArgs),
    /// Run submitted jobs in the foreground
    ///
    /// 'zmove submit' starts a runner in the background if none is running.
    #[command(after_long_help = help::RUNNER_LONG)]
    Runner(RunnerArgs),
    /// Run one job; the runner starts this
    #[command(hide = true)]
    RunJob(Box<SubmitArgs>),
    /// Run a command as another user; root starts this if that user controls the directory
    #[command(hide = true)]
    AsUser(AsUserArgs),
    /// Forward a request from standard input to a daemon's socket; root starts this as the daemon's user
    #[command(hide = true)]
    AskDaemon {
        /// Path of the socket
        socket: PathBuf,
    },
    /// Access paths that may never answer; other commands start this
    #[command(hide = true)]
    Look {
        /// Paths to access
        paths: Vec<PathBuf>,
    },
    /// Connect standard input and output to a port of this host; a push starts this over ssh
    #[command(hide = true)]
    Lane {
        /// Port on the loopback interface
        port: u16,
    },
    /// Receive one push; 'push --ssh' starts this over ssh
    #[command(hide = true)]
    Receive,
    /// Show the fingerprint of your key, or create a new key
    #[command(subcommand)]
    Key(KeyCommand),
    /// Fetch and pin a host's key before the first push, or forget it
    Trust(TrustArgs),
    /// Grant a key access to directories on this host, or revoke it
    Allow(AllowArgs),
    /// Count the files of a tree by size
    Scan(ScanArgs),
    /// Measure storage throughput by file size
    Sweep(SweepArgs),
    /// Summarize or plot a trace written by 'push --trace'
    Trace(TraceArgs),
    /// Show or remove the partial transfers kept on this host for resuming
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Check for problems that slow down or break transfers
    Doctor(DoctorArgs),
    /// Measure the path to a receiver, and predict the duration of a push
    Probe(ProbeArgs),
    /// Print the completion script of a shell; try 'source <(zmove completions bash)'
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
    /// Write the manual, one page per command; used to build packages
    #[command(hide = true)]
    Man {
        /// Output directory, which must exist
        directory: PathBuf,
    },
}

/// Returns whether an invalid command line requests the JSON events of a transfer.
pub(crate) fn asks_for_events(words: &[OsString]) -> bool {
    let commands = ["push", "pull", "copy", "verify", "clean"];
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    let is_transfer = words
        .next()
        .is_some_and(|word| commands.iter().any(|command| word == command));
    is_transfer && words.any(|word| word == "--json")
}

impl Command {
    /// Returns the sources and the target of a transfer, as typed.
    pub(crate) fn paths(&self) -> &[OsString] {
        match self {
            Self::Push(args) | Self::Pull(args) => &args.paths,
            Self::Copy(args) => &args.push.paths,
            Self::Submit(args) => &args.copy.push.paths,
            Self::Verify(args) => &args.paths,
            _ => &[],
        }
    }

    /// Returns whether the command prints a transfer as JSON events. The last event has the exit code.
    pub(crate) fn prints_events(&self) -> bool {
        match self {
            Self::Push(args) | Self::Pull(args) => args.json,
            // With `--detach`, a copy prints only the number of the job.
            Self::Copy(args) => args.push.json && !args.detach,
            Self::RunJob(_) => true,
            Self::Verify(args) => args.json,
            Self::Clean(args) => args.json,
            _ => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Print the fingerprint; the key is created on first use
    Show {
        /// Show the key of this host's daemon
        #[arg(long)]
        daemon: bool,
    },
    /// Create a new key and print its fingerprint
    New {
        /// Replace the existing key and keep it as key.pem.old
        ///
        /// Hosts that allowed or pinned the old key do not know the new one.
        #[arg(long)]
        force: bool,
    },
}

impl KeyCommand {
    /// Returns whether the command refers to the daemon's key.
    pub(crate) const fn is_of_daemon(&self) -> bool {
        matches!(self, Self::Show { daemon: true })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct AsUserArgs {
    /// Numeric user ID
    pub(crate) user: u32,
    /// The zmove command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) words: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScanArgs {
    /// Tree to count
    pub(crate) path: PathBuf,
    /// Print the histogram as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Plot files and bytes by size into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Trace file written by 'zmove push --trace FILE'
    pub(crate) file: PathBuf,
    /// Plot progress, stage rates, stage queues and lanes over time into an SVG file
    #[arg(long, value_name = "OUT")]
    pub(crate) svg: Option<PathBuf>,
}
