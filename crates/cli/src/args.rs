//! What can be typed.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use zmove_engine::{PortRange, Timeout};
use zmove_transport::TransportChoice;
use zmove_types::RateLimit;

use crate::value::age::Age;
use crate::value::metrics_listen::MetricsListen;

mod allow;
mod confine;
mod doctor;
mod probe;
pub(crate) mod selection;
mod sweep;
mod trust;

pub(crate) use allow::{AllowArgs, AllowCommand, GrantArgs};
pub(crate) use confine::ConfineArg;
pub(crate) use doctor::DoctorArgs;
pub(crate) use probe::ProbeArgs;
pub(crate) use selection::SelectionArgs;
pub(crate) use sweep::{ReferenceRate, SweepArgs};
pub(crate) use trust::{TrustArgs, TrustCommand, TrustHostArgs, TrustListArgs};

/// Moves trees of any shape between data transfer nodes: encrypted, verified, at the speed of the path.
#[derive(Debug, Parser)]
#[command(name = "zmove", version, max_term_width = 100, after_help = EXAMPLES)]
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
found something bad; 5 not authenticated; 10 no connection; 11 file error; 12 connection lost or protocol broken;
20 interrupted; 23 some files failed (each is named), or --delete kept some as the source changed;
25 --max-delete kept some.
ZMOVE_HOME is where keys, known paths and journals are kept (default ~/.config/zmove; for a daemon
run as root /etc/zmove).";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send files and directories to a receiver or a local directory
    Push(PushArgs),
    /// Receive: listen for senders, in the foreground
    Serve(ServeArgs),
    /// Receive one push; 'push --ssh' starts this over ssh
    #[command(hide = true)]
    Receive,
    /// Show this identity's public fingerprint, or make a new key
    Key(KeyArgs),
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
    Journal(JournalArgs),
    /// Look for what would slow a transfer down or break it, on this host and on the path to a receiver
    Doctor(DoctorArgs),
    /// Measure the path to a receiver from memory to memory, and predict how long a push takes
    Probe(ProbeArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = PUSH_HELP, override_usage = "zmove push [OPTIONS] <SRC>... <DST>")]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct PushArgs {
    /// What to send ('dir' arrives under its name, 'dir/' means what is in it), and last where to: HOST:PATH,
    /// HOST:PORT:PATH, zmove://HOST:PORT/PATH, [IPv6]:PORT:PATH, USER@HOST:PATH (over ssh) or a local directory
    #[arg(required = true, num_args = 2.., value_names = ["SRC", "DST"])]
    pub(crate) paths: Vec<OsString>,
    /// Pin the key of a host that is not known yet, without asking
    #[arg(long)]
    pub(crate) accept_new: bool,
    /// Refuse a host whose key is not known, without asking
    #[arg(long, conflicts_with = "accept_new")]
    pub(crate) strict: bool,
    /// Data connections, 1 to 64 [default: by round trip time and cores, then as many as help]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) streams: Option<u16>,
    /// Compare files that are there already by contents, not by size and time
    #[arg(short, long)]
    pub(crate) checksum: bool,
    /// Send of large files that have changed only what the target's version does not have [auto: unless the path is known
    /// to be faster than reading that]
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) delta: DeltaArg,
    /// Leave files that are newer at the target than here
    #[arg(short, long)]
    pub(crate) update: bool,
    /// Leave what is at the target already, but for mode and time of directories
    #[arg(long)]
    pub(crate) ignore_existing: bool,
    /// Change files that are there in their place, so that they keep their inode and need no second copy's room; a
    /// push that breaks off leaves such a file partly changed
    #[arg(long)]
    pub(crate) inplace: bool,
    /// At the end remove what is at the target below the directories sent and not in them; nothing is removed when
    /// any directory or file of the source could not be read, or not be stored at the target, and nothing from
    /// directories that changed at the source meanwhile (exit code 23; the same command removes it)
    #[arg(long)]
    pub(crate) delete: bool,
    /// With --delete: remove also when parts of the source could not be read, but nothing below these, or not be stored
    #[arg(long, requires = "delete")]
    pub(crate) ignore_errors: bool,
    /// With --delete: remove no more than N files and directories; what is over stays (exit code 25)
    #[arg(long, value_name = "N", requires = "delete")]
    pub(crate) max_delete: Option<u64>,
    /// Change nothing, and list what would be done: '+ NEW', '~ CHANGED (WHY)', '- REMOVED'
    #[arg(short = 'n', long, conflicts_with_all = ["manifest", "trace"])]
    pub(crate) dry_run: bool,
    /// What exit code 0 promises: nothing is flushed, all is, or each file is before it gets its name
    #[arg(long, value_enum, default_value_t = DurabilityArg::End)]
    pub(crate) durability: DurabilityArg,
    /// Write the BLAKE3 of each file sent, as 'b3sum --check' reads it in the target directory
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// What carries the connections
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) transport: TransportArg,
    /// Congestion control of the data connections, for example bbr or cubic [default: the system's, and bbr where
    /// loss slows them and the kernel lets users choose it; over QUIC 'tolerant', which is cubic that takes single
    /// lost packets for noise]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// Send no faster than this per second over all data connections, for example 5Gbit, 500Mbit, 100MB or 100MiB
    #[arg(long, value_name = "RATE")]
    pub(crate) limit: Option<RateLimit>,
    /// How long to go on without a connection once it is lost, and to wait for a receiver that is busy, for example 90s, 5min
    /// or 1h; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "5min")]
    pub(crate) timeout: Timeout,
    /// Encryption of the data connections; with 'none' whoever is on the path can read what is sent
    #[arg(long, value_enum, default_value_t)]
    pub(crate) cipher: CipherArg,
    /// Write how far each stage is, ten times a second, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Print events as JSON lines on stdout instead of a bar and a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

const PUSH_HELP: &str = "\
A path on the receiver that starts with '/' must lie in one of your roots there; another is below
the first of them. Missing directories are made. Running the same command again sends only what is
missing or differs. Every byte is hashed when read and again before it is stored; a file gets its
name only when it is whole, but for what --inplace changes.";

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Nothing is flushed
    None,
    /// Everything is on stable storage at exit
    End,
    /// Each file is on stable storage before it gets its name
    File,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CipherArg {
    /// TLS 1.3
    #[default]
    Tls,
    /// Names and contents in clear, still authenticated; the receiver must run with --allow-clear
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeltaArg {
    /// Where it is likely to pay: not for a local target, nor on a path that was faster than storage is read
    #[default]
    Auto,
    /// Wherever there is another version
    Always,
    /// Never: files that have changed are sent as a whole
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// TCP, and QUIC where TCP cannot be connected
    #[default]
    Auto,
    /// TCP alone
    Tcp,
    /// QUIC alone, over UDP at the same port
    Quic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListenArg {
    /// TCP, and UDP for QUIC, at the same port
    #[default]
    Both,
    /// TCP alone
    Tcp,
    /// UDP alone
    Quic,
}

impl ListenArg {
    /// As a listener takes it.
    pub(crate) fn choice(self) -> TransportChoice {
        match self {
            Self::Both => TransportChoice::Auto,
            Self::Tcp => TransportChoice::Tcp,
            Self::Quic => TransportChoice::Quic,
        }
    }
}

/// How ssh starts a receiver on a host that runs no daemon.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SshArgs {
    /// Start the receiver over ssh, as the user there; USER@HOST:PATH means this too, and HOST:PORT:PATH then the port of
    /// ssh. Data takes connections of its own
    #[arg(long)]
    pub(crate) ssh: bool,
    /// The ssh to start, with its options, for example 'ssh -i KEY -J GATE'
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub(crate) ssh_command: String,
    /// Where the receiver that ssh starts may listen, for firewalls, for example 50000-50100 [default: any free port]
    #[arg(long, value_name = "FROM-TO")]
    pub(crate) ssh_ports: Option<PortRange>,
    /// The zmove to start on that host
    #[arg(long, value_name = "PATH", default_value = "zmove")]
    pub(crate) remote_zmove: String,
}

/// How large files are read and written on this host.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct StorageArgs {
    /// How large files are read and written on this host
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t)]
    pub(crate) io_engine: EngineArg,
    /// Whether large files are read and written past the page cache on this host (O_DIRECT)
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) direct: DirectArg,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// What measurement shows to be faster: threads
    #[default]
    Auto,
    /// Plain system calls
    Threads,
    /// io_uring; plain system calls where the kernel refuses it
    Uring,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectArg {
    /// Where it pays
    #[default]
    Auto,
    /// Wherever the file system can
    On,
    /// Never
    Off,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on [default: [::]:5870]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// What to listen for there [default: both]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) transport: Option<ListenArg>,
    /// Let senders that ask for it ('push --cipher none') send names and contents in clear
    #[arg(long)]
    pub(crate) allow_clear: bool,
    /// Remove what a broken transfer has left when nobody has come back for it in so long: 90s, 30min, 12h, 7d, 2w
    /// [default: 7d]
    #[arg(long, value_name = "AGE")]
    pub(crate) journal_age: Option<Age>,
    /// How large files are written on this host [default: auto]
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(crate) io_engine: Option<EngineArg>,
    /// Whether large files are written past the page cache on this host (O_DIRECT) [default: auto]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) direct: Option<DirectArg>,
    /// On SIGTERM let transfers that run go on for so long: 30s, 5min [default: 0]
    #[arg(long, value_name = "TIME")]
    pub(crate) drain: Option<Age>,
    /// How the log on standard error looks [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Where /metrics and /healthz are served, or 'off' [default: 127.0.0.1:5871]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<MetricsListen>,
    /// The file with these settings and the limits [default: ZMOVE_HOME/zmove.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Once the ports are open, become this user, for good: files will be theirs (only root can)
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Have the kernel refuse this process all files but those below the roots that there are now, and its own (Landlock): a
    /// root that is new takes a restart [default: off; --confine alone: on]
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, default_missing_value = "on")]
    pub(crate) confine: Option<ConfineArg>,
    /// Only read the configuration and the keys, and say what is wrong with them
    #[arg(long)]
    pub(crate) check: bool,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A sentence a line
    #[default]
    Text,
    /// A JSON object a line
    Json,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Print the fingerprint; the key is made at first use
    Show,
    /// Make a new key and print its fingerprint
    New(KeyNewArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyNewArgs {
    /// Replace the key that is there, which is kept in key.pem.old; whoever has allowed or pinned it does not know the
    /// new one
    #[arg(long)]
    pub(crate) force: bool,
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

#[derive(Debug, clap::Args)]
pub(crate) struct JournalArgs {
    #[command(subcommand)]
    pub(crate) command: JournalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Show the unfinished transfers: to where, by whom, since when, and how much of each large file is here
    List(JournalListArgs),
    /// Remove unfinished transfers that nobody has come back for, with their part files
    Clean(JournalCleanArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct JournalListArgs {
    /// Print each journal as a JSON object on a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = JOURNAL_CLEAN_HELP)]
pub(crate) struct JournalCleanArgs {
    /// Those that were last written so long ago: 90s, 30min, 12h, 7d, 2w
    #[arg(long, value_name = "AGE", default_value = "7d")]
    pub(crate) older_than: Age,
    /// All that are not in use, of any age, also those whose target cannot be reached now
    #[arg(long, conflicts_with = "older_than")]
    pub(crate) all: bool,
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}

const JOURNAL_CLEAN_HELP: &str = "\
A part file is removed only if it is the one that the journal means: by name, inode and time of
birth, in the target directory that it was made in. Anything else is named and left.";
