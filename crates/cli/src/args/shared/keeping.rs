//! Options for metadata that is preserved in addition to file contents.

use clap::ValueEnum;

use crate::value::account::{AccountMap, NewOwner};

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Metadata")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct KeepingArgs {
    /// Preserve all metadata except access times
    ///
    /// In addition to the default of --preserve, this preserves owners and groups, 'trusted.*' and 'security.*'
    /// attributes, FIFOs, sockets and devices. The receiver's user must be permitted to set them, and the key's grant
    /// must allow it (--set-owner). It costs about 15 bytes for each entry and two system calls for each entry at the
    /// receiver.
    #[arg(short, long)]
    pub(crate) archive: bool,
    /// Preserve these kinds of metadata too [default: mode, times, links, holes, xattr and acl]
    ///
    /// 'links' costs memory at the sender for each file until all its names have been seen. 'xattr' and 'acl' cost one
    /// system call for each entry, and two more for each attribute. 'holes' costs one or two system calls for each file
    /// that has holes. 'mode' and 'times' cost nothing.
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub(crate) preserve: Vec<KindArg>,
    /// Do not preserve these kinds of metadata
    ///
    /// Without 'xattr' and 'acl', attributes and access control lists at the target stay unchanged. Without 'links',
    /// each name of a file becomes a separate file. Without 'holes', holes become zeros. Without 'mode', existing
    /// entries keep their mode, new entries get the mode that the umask leaves, and access control lists are not
    /// preserved either. Without 'times', files and links get the time of the push, and directories get none. The next
    /// push then sends everything again unless it compares contents (-c).
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub(crate) no_preserve: Vec<KindArg>,
    /// rsync's -A: preserve access control lists (default; --no-A turns it off)
    #[arg(short = 'A', long = "acls")]
    pub(crate) acls: bool,
    /// rsync's -X: preserve extended attributes (default for 'user.*'; --no-X turns it off)
    #[arg(short = 'X', long = "xattrs")]
    pub(crate) xattrs: bool,
    /// rsync's -H: preserve hard links (default; --no-H turns it off)
    #[arg(short = 'H', long = "hard-links")]
    pub(crate) hard_links: bool,
    /// rsync's -o: preserve owners
    #[arg(short = 'o', long = "owner")]
    pub(crate) owner: bool,
    /// rsync's -g: preserve groups
    #[arg(short = 'g', long = "group")]
    pub(crate) group: bool,
    /// rsync's -D: preserve FIFOs, sockets and devices
    #[arg(short = 'D')]
    pub(crate) special_files: bool,
    /// Do not preserve FIFOs, sockets and devices
    #[arg(long = "no-D")]
    pub(crate) no_special_files: bool,
    /// rsync's -S: preserve holes (default; --no-S turns it off); '--sparse zeros' creates more holes
    #[arg(short = 'S')]
    pub(crate) holes: bool,
    /// Do not preserve holes
    #[arg(long = "no-S", alias = "no-sparse")]
    pub(crate) no_holes: bool,
    /// rsync's -p: preserve modes (default; --no-p turns it off)
    #[arg(short = 'p', long = "perms")]
    pub(crate) perms: bool,
    /// rsync's -t: preserve times (default; --no-t turns it off)
    #[arg(short = 't', long = "times")]
    pub(crate) times: bool,
    /// rsync's -O: do not preserve the times of directories
    #[arg(short = 'O', long = "omit-dir-times")]
    pub(crate) omit_dir_times: bool,
    /// rsync's -l: send symbolic links as links (always on)
    #[arg(short = 'l', long = "links")]
    pub(crate) links: bool,
    /// Do not preserve modes or access control lists
    ///
    /// Existing entries keep their mode. New entries get the mode that the umask leaves.
    #[arg(long = "no-p", alias = "no-perms")]
    pub(crate) no_perms: bool,
    /// Do not preserve times; files and links get the time of the push
    ///
    /// A directory gets no time. It keeps the time of its last change at the target.
    #[arg(long = "no-t", alias = "no-times")]
    pub(crate) no_times: bool,
    /// Do not preserve access control lists
    #[arg(long = "no-A", alias = "no-acls")]
    pub(crate) no_acls: bool,
    /// Do not preserve extended attributes
    #[arg(long = "no-X", alias = "no-xattrs")]
    pub(crate) no_xattrs: bool,
    /// Do not preserve hard links; each name becomes a separate file
    #[arg(long = "no-H", alias = "no-hard-links")]
    pub(crate) no_hard_links: bool,
    /// Do not preserve owners
    #[arg(long = "no-o", alias = "no-owner")]
    pub(crate) no_owner: bool,
    /// Do not preserve groups
    #[arg(long = "no-g", alias = "no-group")]
    pub(crate) no_group: bool,
    /// Preserve numeric user and group IDs instead of names
    ///
    /// By default, owners and groups are mapped by name if the receiver knows the name.
    #[arg(long)]
    pub(crate) numeric_ids: bool,
    /// Set the owner and group of all entries at the target: USER, USER:GROUP or :GROUP, by name or number
    #[arg(long, value_name = "USER:GROUP", conflicts_with_all = ["usermap", "groupmap"])]
    pub(crate) chown: Option<NewOwner>,
    /// Map users with FROM:TO,...; the first match applies
    ///
    /// FROM is a name, a number, a range such as 1000-1999, '*' for all users, or empty for users without a name on
    /// this host.
    #[arg(long, value_name = "MAP")]
    pub(crate) usermap: Option<AccountMap>,
    /// Map groups, with the syntax of --usermap
    #[arg(long, value_name = "MAP")]
    pub(crate) groupmap: Option<AccountMap>,
    /// Handling of holes in files
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) sparse: SparseArg,
    /// Exit with code 23 if any requested metadata could not be preserved
    #[arg(long)]
    pub(crate) strict_metadata: bool,
    /// List each entry that failed or whose metadata was not fully preserved
    #[arg(short, long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// Permission bits
    Mode,
    /// Modification times
    #[value(alias = "timestamps")]
    Times,
    /// Access times from before the push reads the files; costs about 20 bytes and, at the receiver, two system calls
    /// for each entry
    Atime,
    /// Owner and group
    #[value(alias = "ownership")]
    Owner,
    /// Extended attributes: 'user.*', and with -a also 'trusted.*' and 'security.*'
    #[value(alias = "xattrs")]
    Xattr,
    /// Access control lists
    #[value(alias = "acls")]
    Acl,
    /// Hard links: several names of one file
    #[value(alias = "hard-links")]
    Links,
    /// FIFOs and sockets
    Specials,
    /// Device files
    Devices,
    /// Holes: ranges of a file that use no storage
    Holes,
    /// All of these except access times
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SparseArg {
    /// Preserve holes without reading, sending or allocating them
    #[default]
    Auto,
    /// Also turn 4 KiB blocks of zeros into holes; reads each file twice
    Zeros,
    /// Send holes as zeros, and allocate storage for them
    Never,
}
