//! The options for storage on this host.

use clap::ValueEnum;

/// How large files are read and written on this host.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Storage of this host")]
pub(crate) struct StorageArgs {
    /// How large files are read and written on this host
    #[arg(
        long,
        value_enum,
        value_name = "ENGINE",
        default_value_t,
        hide_short_help = true
    )]
    pub(crate) io_engine: EngineArg,
    /// Whether large files are read and written past the page cache on this host (O_DIRECT)
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
    /// What measurement shows to be faster: threads, and io_uring for large files on FUSE
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
