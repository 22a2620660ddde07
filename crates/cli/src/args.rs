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
pub(crate) use shared::dial::{DialArgs, TransportArg};
pub(crate) use shared::keeping::{KeepingArgs, KindArg, SparseArg};
pub(crate) use shared::storage::{DirectArg, EngineArg, StorageArgs};
pub(crate) use sweep::SweepArgs;
pub(crate) use transfers::clean::CleanArgs;
pub(crate) use transfers::copy::{CopyArgs, ResultArgs};
pub(crate) use transfers::push::{CipherArg, DeltaArg, DurabilityArg, ProofArg, PushArgs};
pub(crate) use transfers::verify::VerifyArgs;

/// Moves trees between hosts: encrypted, verified, at the speed of the path.
#[derive(Debug, Parser)]
#[command(name = "zmove", version = VERSION.as_str(), max_term_width = 100, help_template = help::TEMPLATE)]
#[command(after_help = help::SHORT, after_long_help = help::LONG)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Reads the words of a command line, of which the first is the program.
    ///
    /// # Errors
    /// They are none of zmove, or ask for help.
    pub(crate) fn read(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let words = habits::without_human_readable(&command, words);
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
    /// Push or pull, or have one other host send straight to another
    #[command(override_usage = help::COPY_USAGE)]
    #[command(after_help = help::COPY_SHORT, after_long_help = help::COPY_LONG)]
    Copy(Box<CopyArgs>),
    /// Ask what has become of a copy between two other hosts, for a day after its end
    Result(ResultArgs),
    /// Compare a tree with its copy by hash, as both storages hold them
    Verify(Box<VerifyArgs>),
    /// Remove the leftovers of killed transfers from a tree, here or on another host
    Clean(CleanArgs),
    /// Receive: listen for senders, in the foreground
    Serve(ServeArgs),
    /// Show what the daemon of this host is doing
    Status(StatusArgs),
    /// End a transfer of this host's daemon; the same command of its user goes on with it
    Stop(StopArgs),
    /// Have this host's daemon take no new transfers, and end with the last
    Drain(DrainArgs),
    /// Have many nodes send one job to receivers that share a storage
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Have a push, a pull or a copy done in the background, and print its number at once
    #[command(override_usage = help::SUBMIT_USAGE)]
    #[command(after_help = help::SUBMIT_SHORT, after_long_help = help::SUBMIT_LONG)]
    Submit(Box<SubmitArgs>),
    /// List what was submitted and is not done, or was a day ago
    Jobs(JobsArgs),
    /// Show a job, wait for it, hold it or end it
    #[command(after_long_help = help::JOB_LONG)]
    Job(JobArgs),
    /// Do what was submitted, in the foreground; 'submit' starts one where there is none
    #[command(after_long_help = help::RUNNER_LONG)]
    Runner(RunnerArgs),
    /// Do one job; the runner starts this
    #[command(hide = true)]
    RunJob(Box<SubmitArgs>),
    /// Do a command as another user; root starts this where that user controls the directory
    #[command(hide = true)]
    AsUser(AsUserArgs),
    /// Pass a request from standard input to a daemon's socket; root starts this as the daemon's user
    #[command(hide = true)]
    AskDaemon {
        /// The socket
        socket: PathBuf,
    },
    /// Receive one push; 'push --ssh' starts this over ssh
    #[command(hide = true)]
    Receive,
    /// Show this identity's public fingerprint, or make a new key
    #[command(subcommand)]
    Key(KeyCommand),
    /// Get to know a receiver's key before the first push, or forget one
    Trust(TrustArgs),
    /// Let a key write or read below some directories here, or no more
    Allow(AllowArgs),
    /// Count the files of a tree by size
    Scan(ScanArgs),
    /// Measure what a storage gives, by file size
    Sweep(SweepArgs),
    /// Sum up or draw what 'push --trace' wrote
    Trace(TraceArgs),
    /// Show or remove what broken transfers have left here to go on from
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Look for what would slow a transfer down or break it
    Doctor(DoctorArgs),
    /// Measure the path to a receiver, and predict how long a push takes
    Probe(ProbeArgs),
    /// Print what has a shell complete zmove's words; 'source <(zmove completions bash)' tries it
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual, a page for each command; packages are made with this
    #[command(hide = true)]
    Man {
        /// Where to; must be there
        directory: PathBuf,
    },
}

/// Whether words that cannot be parsed ask for the events of a transfer.
pub(crate) fn asks_for_events(words: &[OsString]) -> bool {
    let commands = ["push", "pull", "copy", "verify", "clean"];
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    let is_transfer = words
        .next()
        .is_some_and(|word| commands.iter().any(|command| word == command));
    is_transfer && words.any(|word| word == "--json")
}

impl Command {
    /// Whether the command tells a transfer as events in JSON, the last of which has its exit code.
    pub(crate) fn tells_events(&self) -> bool {
        match self {
            Self::Push(args) | Self::Pull(args) => args.json,
            // of a job nothing but its number
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
    /// Print the fingerprint; the key is made at first use
    Show {
        /// The key of this host's daemon
        #[arg(long)]
        daemon: bool,
    },
    /// Make a new key and print its fingerprint
    New {
        /// Replace the key that is there, which is kept in key.pem.old; whoever has allowed or pinned it does
        /// not know the new one
        #[arg(long)]
        force: bool,
    },
}

impl KeyCommand {
    /// Whether the key is that of the daemon.
    pub(crate) const fn is_of_daemon(&self) -> bool {
        matches!(self, Self::Show { daemon: true })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct AsUserArgs {
    /// The number of the user
    pub(crate) user: u32,
    /// The command of zmove
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) words: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScanArgs {
    /// The tree
    pub(crate) path: PathBuf,
    /// Print the histogram as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw it: files and bytes by size
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// What 'zmove push --trace FILE' wrote
    pub(crate) file: PathBuf,
    /// Draw it: progress, rates and queues of the stages, and lanes, over time
    #[arg(long, value_name = "OUT")]
    pub(crate) svg: Option<PathBuf>,
}
