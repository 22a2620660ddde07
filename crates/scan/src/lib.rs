//! Walks source trees in parallel and streams their entries in bounded batches.
//!
//! The sender plans a transfer from the stream while the walk is running, and `zmove scan` turns the stream into a
//! [`Histogram`]. **Invariant:** below a root, the walk opens no entry through a symbolic link or `..`. So it cannot
//! leave its tree, even if entries are renamed while it runs.
//!
//! ```
//! use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};
//! use zmove_types::RelPath;
//!
//! let root = ScanRoot::new("src/", RelPath::root());
//! for item in scan(vec![root], &ScanConfig::default()) {
//!     match item {
//!         ScanItem::Root { directory, .. } => println!("walking {}", directory.full_path().display()),
//!         ScanItem::Batch(batch) => {
//!             for entry in &batch.entries {
//!                 let target = batch.directory.target_of(&entry.name).expect("the scan emits only paths that fit");
//!                 println!("{} bytes go to {target}", entry.size);
//!             }
//!         }
//!         ScanItem::Error(error) => eprintln!("failed to {error}"),
//!     }
//! }
//! ```

mod config;
mod directory;
mod entry;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod generated;
mod histogram;
mod listing;
mod scan;
mod selection;
mod sources;
mod walk;

pub use config::{ScanConfig, ScanRoot, SkipFilter, Unfinished, means_contents, unfinished};
pub use directory::{Directory, FileSystems, SourceRoot, is_mount_at};
pub use entry::{
    Entry, EntryBatch, EntryKind, EntryProperties, HardLinkedFile, HardLinkedFileId, ScanItem,
    XattrMark,
};
pub use error::{Difference, ListFault, Operation, ScanError};
pub use generated::GeneratedFiles;
pub use histogram::{Extreme, Histogram, Share, histogram};
pub use scan::{Scan, scan, scan_list};
pub use selection::{Effect, PathKind, PatternError, Rule, Selection};
pub use sources::name_glob::{glob_matches, is_glob};
pub use sources::path_list::{PathList, Separator};
pub use sources::source_names::{DirectoryNames, SourceNames};
pub use sources::walk_record::WalkRecord;
pub use walk::{
    DirectoryMark, MarkedPath, Portion, PortionEntries, PortionSize, UnfinishedParts, WalkTally,
    WalkTotals, look_up_portion, mark_root, walk_portion,
};
