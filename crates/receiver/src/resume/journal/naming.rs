//! The names of journals. A name identifies the transfer, the owner and the target directory, so a search for the
//! journals of one owner need not open the journals of others.
//!
//! A name has the form `TRANSFER-OWNER-PLACE.journal`: the ID of the transfer, a hash of the owner, and a hash of the
//! owner and the target directory, all in hexadecimal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Begin, JournalError};

/// The suffix of a journal's name.
pub(super) const SUFFIX: &str = ".journal";
/// The suffix while a journal is being created or rewritten.
pub(super) const SUFFIX_NEW: &str = ".journal.new";

const TRANSFER_DIGITS: usize = 32;
const TAG_DIGITS: usize = 16;

/// Returns the path of a transfer's journal.
pub(super) fn path_with(directory: &Path, begin: &Begin, suffix: &str) -> PathBuf {
    let NameHashes { owner, place } = NameHashes::of(begin);
    directory.join(format!("{}-{owner}-{place}{suffix}", begin.transfer))
}

/// The hashes in the name of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameHashes {
    /// The hash of the owner.
    pub(super) owner: String,
    /// The hash of the owner and the target directory's inode. It omits the device number, which may change at a
    /// reboot.
    place: String,
}

impl NameHashes {
    pub(super) fn of(begin: &Begin) -> Self {
        let place = blake3::Hasher::new()
            .update(&begin.inode.to_le_bytes())
            .update(&begin.owner)
            .finalize();
        let [owner, place] =
            [blake3::hash(&begin.owner), place].map(|hash| hash.to_hex()[..TAG_DIGITS].to_owned());
        Self { owner, place }
    }
}

/// A journal in its directory.
#[derive(Debug)]
pub(super) struct NamedJournal {
    pub(super) path: PathBuf,
    pub(super) tags: NameHashes,
    /// Whether the journal is being created or rewritten.
    pub(super) is_new: bool,
}

impl NamedJournal {
    fn parse(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let is_new = name.ends_with(SUFFIX_NEW);
        let stem = name.strip_suffix(if is_new { SUFFIX_NEW } else { SUFFIX })?;
        let [transfer, owner, place] = stem.split('-').collect::<Vec<_>>()[..] else {
            return None;
        };
        if !is_hex(transfer, TRANSFER_DIGITS)
            || !is_hex(owner, TAG_DIGITS)
            || !is_hex(place, TAG_DIGITS)
        {
            return None;
        }
        let tags = NameHashes {
            owner: owner.to_owned(),
            place: place.to_owned(),
        };
        Some(Self { path, tags, is_new })
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns all journals in `directory`, sorted by path, including those that are being created or rewritten.
pub(super) fn entries(directory: &Path) -> Result<Vec<NamedJournal>, JournalError> {
    let cannot = |error: io::Error| JournalError::io("read directory", directory)(error);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(error)),
    };
    let paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>();
    let mut named: Vec<_> = paths
        .map_err(cannot)?
        .into_iter()
        .filter_map(NamedJournal::parse)
        .collect();
    named.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(named)
}

/// Returns the journals in `directory`, except those that are being created or rewritten.
pub(super) fn journals(
    directory: &Path,
) -> Result<impl Iterator<Item = NamedJournal>, JournalError> {
    Ok(entries(directory)?
        .into_iter()
        .filter(|named| !named.is_new))
}
