//! Options for storage on this host.

use clap::ValueEnum;

/// Options for reading and writing large files on this host.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Local storage")]
pub(crate) struct StorageArgs {
    /// I/O engine for large files on this host
    #[arg(
        long,
        value_enum,
        value_name = "ENGINE",
        default_value_t,
        hide_short_help = true
    )]
    pub(crate) io_engine: EngineArg,
    /// Whether large files bypass the page cache on this host (O_DIRECT)
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_short_help = true
    )]
    pub(crate) direct: DirectArg,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// The faster engine in measurements: threads, or io_uring for large files on FUSE
    #[default]
    Auto,
    /// Plain system calls
    Threads,
    /// io_uring, or plain system calls if the kernel refuses it
    Uring,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectArg {
    /// Only if it improves throughput
    #[default]
    Auto,
    /// On every file system that supports it
    On,
    /// Never
    Off,
}
