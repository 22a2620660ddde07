//! The options for storage on this host.

use clap::ValueEnum;

/// How large files are read and written on this host.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct StorageArgs {
    /// How large files are read and written on this host
    #[arg(long, help_heading = HEADING, value_enum, value_name = "ENGINE", default_value_t, hide_short_help = true)]
    pub(crate) io_engine: EngineArg,
    /// Whether large files are read and written past the page cache on this host (O_DIRECT)
    #[arg(long, help_heading = HEADING, value_enum, value_name = "WHEN", default_value_t, hide_short_help = true)]
    pub(crate) direct: DirectArg,
}

const HEADING: &str = "Storage of this host";

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
