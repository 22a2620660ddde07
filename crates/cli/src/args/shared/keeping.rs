//! The options for what is kept of entries beside their contents.

use clap::ValueEnum;

use crate::value::account::{AccountMap, NewOwner};

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "What is kept of files beside their contents")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct KeepingArgs {
    /// Keep all of LIST below: beside what is kept anyway owners and groups, 'trusted.*' and 'security.*' attributes,
    /// FIFOs, sockets and devices, as far as the receiver's user may and the key's grant allows (--set-owner); costs
    /// some 15 bytes for each entry and two system calls at the receiver
    #[arg(short, long)]
    pub(crate) archive: bool,
    /// Keep these too [default: mode, times, links, holes, xattr and acl; links cost memory at the sender for each file
    /// of which it has not seen all names, xattr and acl a system call for each entry and two more for each attribute,
    /// holes one or two for each file that has any, the others nothing]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub(crate) preserve: Vec<KindArg>,
    /// Do not keep these: attributes and access control lists at the target then stay as they are, each name of a file
    /// becomes a file, holes become zeros, existing entries keep their mode and new ones get what the umask leaves (and
    /// no access control lists are kept), times are that of the push, so that the next one sends all again unless it
    /// compares contents (-c)
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub(crate) no_preserve: Vec<KindArg>,
    /// rsync's letter: keep access control lists (they are kept unless --no-A is given)
    #[arg(short = 'A', long = "acls")]
    pub(crate) acls: bool,
    /// rsync's letter: keep extended attributes (those of users are kept unless --no-X is given)
    #[arg(short = 'X', long = "xattrs")]
    pub(crate) xattrs: bool,
    /// rsync's letter: keep hard links (they are kept unless --no-H is given)
    #[arg(short = 'H', long = "hard-links")]
    pub(crate) hard_links: bool,
    /// rsync's letter: keep owners
    #[arg(short = 'o', long = "owner")]
    pub(crate) owner: bool,
    /// rsync's letter: keep groups
    #[arg(short = 'g', long = "group")]
    pub(crate) group: bool,
    /// rsync's letter: keep FIFOs, sockets and devices
    #[arg(short = 'D')]
    pub(crate) special_files: bool,
    /// Do not keep FIFOs, sockets and devices
    #[arg(long = "no-D")]
    pub(crate) no_special_files: bool,
    /// rsync's letter: keep holes (they are kept unless --no-S is given; --sparse zeros makes more)
    #[arg(short = 'S')]
    pub(crate) holes: bool,
    /// Do not keep holes
    #[arg(long = "no-S", alias = "no-sparse")]
    pub(crate) no_holes: bool,
    /// rsync's letter: keep modes (they are kept unless --no-p is given)
    #[arg(short = 'p', long = "perms")]
    pub(crate) perms: bool,
    /// rsync's letter: keep times (they are kept unless --no-t is given)
    #[arg(short = 't', long = "times")]
    pub(crate) times: bool,
    /// rsync's letter: leave out the times of directories
    #[arg(short = 'O', long = "omit-dir-times")]
    pub(crate) omit_dir_times: bool,
    /// rsync's letter: symbolic links are sent as links anyway
    #[arg(short = 'l', long = "links")]
    pub(crate) links: bool,
    /// Do not keep modes, and no access control lists: existing entries keep their mode, new ones get what the umask
    /// leaves
    #[arg(long = "no-p", alias = "no-perms")]
    pub(crate) no_perms: bool,
    /// Do not keep times, but set that of the push
    #[arg(long = "no-t", alias = "no-times")]
    pub(crate) no_times: bool,
    /// Do not keep access control lists
    #[arg(long = "no-A", alias = "no-acls")]
    pub(crate) no_acls: bool,
    /// Do not keep extended attributes
    #[arg(long = "no-X", alias = "no-xattrs")]
    pub(crate) no_xattrs: bool,
    /// Do not keep hard links: each name becomes a file
    #[arg(long = "no-H", alias = "no-hard-links")]
    pub(crate) no_hard_links: bool,
    /// Do not keep owners
    #[arg(long = "no-o", alias = "no-owner")]
    pub(crate) no_owner: bool,
    /// Do not keep groups
    #[arg(long = "no-g", alias = "no-group")]
    pub(crate) no_group: bool,
    /// Keep numbers of owners and groups, whatever their names are; otherwise names count where the receiver knows them
    #[arg(long)]
    pub(crate) numeric_ids: bool,
    /// Have everything belong to this user and group at the target: USER, USER:GROUP or :GROUP, by name or number
    #[arg(long, value_name = "USER:GROUP", conflicts_with_all = ["usermap", "groupmap"])]
    pub(crate) chown: Option<NewOwner>,
    /// Map users: FROM:TO,..., the first that applies; FROM is a name, a number, a range 1000-1999, '*' for all or
    /// nothing for those without a name here
    #[arg(long, value_name = "MAP")]
    pub(crate) usermap: Option<AccountMap>,
    /// Map groups, as --usermap does
    #[arg(long, value_name = "MAP")]
    pub(crate) groupmap: Option<AccountMap>,
    /// What becomes of holes
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) sparse: SparseArg,
    /// End with exit code 23 when anything that was to be kept is not
    #[arg(long)]
    pub(crate) strict_metadata: bool,
    /// Name each entry that failed, or of which something is not kept
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
    /// Times of access, as they are before the push reads; some 20 bytes for each entry and two system calls at the
    /// receiver
    Atime,
    /// Owner and group
    #[value(alias = "ownership")]
    Owner,
    /// Extended attributes: 'user.*', and with -a 'trusted.*' and 'security.*'
    #[value(alias = "xattrs")]
    Xattr,
    /// Access control lists
    #[value(alias = "acls")]
    Acl,
    /// Hard links: names of one file
    #[value(alias = "hard-links")]
    Links,
    /// FIFOs and sockets
    Specials,
    /// Device files
    Devices,
    /// Holes: what is one here takes no storage there
    Holes,
    /// All of these but times of access
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SparseArg {
    /// Holes are kept: not read, not sent and not allocated
    #[default]
    Auto,
    /// Beside holes, blocks of 4 KiB of zeros become holes; each file is read twice for that
    Zeros,
    /// Holes are sent as the zeros that they read as, and allocated
    Never,
}
