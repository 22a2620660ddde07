//! `--confine`.

use clap::ValueEnum;

/// Whether the kernel is to keep a daemon to its roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfineArg {
    /// Where the kernel can (Landlock, in Linux 6.2 or later)
    Auto,
    /// Or do not start
    On,
    /// Never
    #[default]
    Off,
}
