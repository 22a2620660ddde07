//! The arguments of the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

mod allow;
mod copy;
mod dial;
mod doctor;
mod journal;
mod keeping;
mod probe;
mod push;
pub(crate) mod selection;
mod serve;
mod storage;
mod sweep;
mod trust;
mod verify;

use crate::value::version::VERSION;
use selection::SelectionArgs;

pub(crate) use allow::{AllowArgs, AllowCommand, GrantArgs};
pub(crate) use copy::{CopyArgs, ResultArgs};
pub(crate) use dial::{DialArgs, TransportArg};
pub(crate) use doctor::DoctorArgs;
pub(crate) use journal::{JournalCleanArgs, JournalCommand};
pub(crate) use keeping::{KeepingArgs, KindArg, SparseArg};
pub(crate) use probe::ProbeArgs;
pub(crate) use push::{CipherArg, DeltaArg, DurabilityArg, PushArgs};
pub(crate) use serve::{ConfineArg, ListenArg, LogFormat, MetricsListen, ServeArgs};
pub(crate) use storage::{DirectArg, EngineArg, StorageArgs};
pub(crate) use sweep::{ReferenceRate, SweepArgs};
pub(crate) use trust::{TrustArgs, TrustCommand, TrustHostArgs};
pub(crate) use verify::VerifyArgs;

/// Moves trees of any shape between data transfer nodes: encrypted, verified, at the speed of the path.
#[derive(Debug, Parser)]
#[command(name = "zmove", version = VERSION.as_str(), max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  zmove push run7 dtn.example.org:/data/    run7 arrives as /data/run7
  zmove push run7/ dtn.example.org:/data/x  what is in run7 arrives in /data/x
  zmove push a b 192.0.2.7:5870:in          two trees into 'in' below your first root there
  zmove push run7 alice@dtn.example.org:in  over ssh, where no daemon runs, below alice's home
  zmove push run7 /mnt/backup               to a local directory, through the same pipeline
  zmove pull dtn.example.org:run7 .         the other way: run7 arrives here
  zmove copy a.example.org:run7 b.example.org:/data   straight from one daemon to the other
  zmove verify run7 dtn.example.org:/data/  whether that is still the same, read from both storages
  zmove trust dtn.example.org               get to know its key before the first push
  zmove scan run7                           how many files of what size
  zmove sweep /data                         what the storage there gives, by file size
  zmove trace t --svg t.svg                 draw what 'zmove push --trace t' wrote
  zmove journal list                        what broken transfers have left here
  zmove doctor dtn.example.org              what would slow a push there, and what mends it
  zmove probe dtn.example.org:x --for run7  how fast the path and both storages are, and what a push takes

On the receiving host, once for each sender:
  zmove allow SHA256:... --name alice --root /data --write
  zmove serve --listen 0.0.0.0:5870
The sender's fingerprint is what 'zmove key show' prints there.

Exit codes: 0 all done and flushed; 1 usage; 2 other protocol version; 3 target refused; 4 'doctor'
found something bad; 5 not authenticated; 6 'verify' found a difference; 10 no connection; 11 file error; 12 connection lost or protocol broken;
20 interrupted; 23 some files failed (each is named), --delete kept some as the source changed, or
--strict-metadata and something was not kept;
25 --max-delete kept some.
ZMOVE_HOME is where keys, known paths and journals are kept (default ~/.config/zmove; for a daemon
run as root /etc/zmove).";

const PULL_USAGE: &str = "zmove pull [OPTIONS] HOST:<SRC>... <DIR>";
const COPY_USAGE: &str = "zmove copy [OPTIONS] <SRC>... <DST>";
const PULL_HELP: &str = "\
A source that starts with '/' must lie in a directory that you may read there; another is below the
first of them. 'HOST:dir' arrives under its name, 'HOST:dir/' means what is in it, and 'HOST:*.h5',
in quotes, what matches there; further sources of the same host may be written ':SRC'. All options
are those of a push, seen from the source: --limit, for example, is kept by the host that sends.";

const COPY_HELP: &str = "\
With one end here this is 'zmove push' or 'zmove pull'. From HOST1:SRC to HOST2:DST the data goes straight
between two daemons, and on when this command has ended, whose first line says how to ask for the result.
HOST1 must let you read, and have files sent to HOST2: 'zmove allow KEY --name NAME --read-root DIR --to
HOST2'; HOST2 must let you write. HOST1 dials HOST2 under the name that you give here. The same command
again goes on where it was, or listens to the copy if it still runs.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send files and directories to a receiver or a local directory
    Push(Box<PushArgs>),
    /// Fetch files and directories from another host into a local directory
    #[command(override_usage = PULL_USAGE, after_help = PULL_HELP)]
    Pull(Box<PushArgs>),
    /// Copy between any two places: a push or a pull, or, where both are on other hosts, straight from one to the other
    #[command(override_usage = COPY_USAGE, after_help = COPY_HELP)]
    Copy(Box<CopyArgs>),
    /// Ask what has become of a copy between two other hosts, for a day after its end
    Result(ResultArgs),
    /// Compare a tree with its copy by hash, as both storages hold them; no contents travel
    Verify(Box<VerifyArgs>),
    /// Receive: listen for senders, in the foreground
    Serve(ServeArgs),
    /// Receive one push; 'push --ssh' starts this over ssh
    #[command(hide = true)]
    Receive,
    /// Show this identity's public fingerprint, or make a new key
    #[command(subcommand)]
    Key(KeyCommand),
    /// Get to know a receiver's key before the first push, or forget one
    Trust(TrustArgs),
    /// Let a sender's key write below some directories, or no more (on the receiving host)
    Allow(AllowArgs),
    /// Count the files of a tree by size
    Scan(ScanArgs),
    /// Measure what a storage gives, by file size, in a hidden directory that is removed at the end
    Sweep(SweepArgs),
    /// Sum up or draw what 'push --trace' wrote
    Trace(TraceArgs),
    /// Show or remove what broken transfers have left here to go on from (on the receiving host)
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Look for what would slow a transfer down or break it, on this host and on the path to a receiver
    Doctor(DoctorArgs),
    /// Measure the path to a receiver from memory to memory, and predict how long a push takes
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

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Print the fingerprint; the key is made at first use
    Show,
    /// Make a new key and print its fingerprint
    New {
        /// Replace the key that is there, which is kept in key.pem.old; whoever has allowed or pinned it does
        /// not know the new one
        #[arg(long)]
        force: bool,
    },
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
