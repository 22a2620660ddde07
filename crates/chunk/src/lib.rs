//! Turns a file list into work: divides files into groups, determines their order, and computes roots from their
//! hashes.
//!
//! The sender takes work from a [`Plan`], and both sides hash with [`GroupHasher`]. [`merge_root`] turns a complete
//! list of chaining values into the file's ordinary BLAKE3 hash.
//!
//! ```
//! use zmove_chunk::{file_root, group_cv, merge_root};
//! use zmove_types::GROUP_BYTES;
//! let data: Vec<u8> = (0..GROUP_BYTES + 5).map(|i| (i % 251) as u8).collect();
//! let (first, second) = data.split_at(GROUP_BYTES as usize);
//! let cvs = [group_cv(0, first), group_cv(1, second)];
//! assert_eq!(merge_root(data.len() as u64, &cvs), file_root(&data));
//! ```

mod hash;
mod plan;

pub use hash::{
    FileHasher, GroupHasher, RootMerger, contents_digest, file_root, group_cv, merge_root,
    read_root, seal, sparse_file_root, sparse_group_cv, xattr_digest,
};
pub use plan::{Groups, Plan, Work};
