//! What journals are called: by transfer, owner and target directory, so that who looks for those of one owner opens no others.
//!
//! `TRANSFER-OWNER-PLACE.journal`: the transfer's id and two hashes, in hexadecimal digits. Journals of earlier releases are called
//! `TRANSFER.journal`; they get their name from here when somebody looks for journals ([`rename_old`]).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::holding::Held;
use super::{Begin, JournalError, reader};

/// What the name of a journal ends with.
pub(super) const SUFFIX: &str = ".journal";
/// The same while a journal is written anew.
pub(super) const SUFFIX_NEW: &str = ".journal.new";

const TRANSFER_DIGITS: usize = 32;
const TAG_DIGITS: usize = 16;

/// Where the journal of a transfer is.
#[must_use]
pub fn path_of(directory: &Path, begin: &Begin) -> PathBuf {
    path_with(directory, begin, SUFFIX)
}

pub(super) fn path_with(directory: &Path, begin: &Begin, suffix: &str) -> PathBuf {
    let (owner, place) = (owner_tag(&begin.owner), place_tag(begin));
    directory.join(format!("{}-{owner}-{place}{suffix}", begin.transfer))
}

/// Whose journals have it in their names.
pub(super) fn owner_tag(owner: &[u8]) -> String {
    digits(blake3::hash(owner))
}

/// The journals of that owner and that target directory have it; devices may be numbered anew when the system starts.
fn place_tag(begin: &Begin) -> String {
    digits(blake3::Hasher::new().update(&begin.inode.to_le_bytes()).update(&begin.owner).finalize())
}

fn digits(hash: blake3::Hash) -> String {
    hash.to_hex()[..TAG_DIGITS].to_owned()
}

/// Which journals are meant.
#[derive(Clone, Debug)]
pub(super) enum Named {
    /// All.
    Any,
    /// Those with names of earlier releases.
    Old,
    /// Those of an owner.
    Of(String),
    /// Those of an owner and a target directory.
    At(String, String),
}

impl Named {
    pub(super) fn of(owner: &[u8]) -> Self {
        Self::Of(owner_tag(owner))
    }

    pub(super) fn at(begin: &Begin) -> Self {
        Self::At(owner_tag(&begin.owner), place_tag(begin))
    }

    fn holds(&self, name: &OsStr, suffix: &str) -> bool {
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(suffix)) else { return false };
        let mut fields = stem.split('-');
        let (transfer, owner, place) = (fields.next().unwrap_or_default(), fields.next(), fields.next());
        let named = is_hex(transfer, TRANSFER_DIGITS)
            && [owner, place].into_iter().flatten().all(|tag| is_hex(tag, TAG_DIGITS))
            && owner.is_some() == place.is_some()
            && fields.next().is_none();
        named
            && match self {
                Self::Any => true,
                Self::Old => owner.is_none(),
                Self::Of(whose) => owner == Some(whose),
                Self::At(whose, where_to) => (owner, place) == (Some(whose), Some(where_to)),
            }
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The paths of the journals in `directory` that are meant, in order.
pub(super) fn journals(directory: &Path, named: &Named, suffix: &str) -> Result<Vec<PathBuf>, JournalError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(JournalError::io("read directory", directory)(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(JournalError::io("read directory", directory))?;
        if named.holds(&entry.file_name(), suffix) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Gives journals of earlier releases that nobody holds the name by which they are found now. One that cannot be read keeps its
/// own, by which `zmove journal` finds it.
pub(super) fn rename_old(directory: &Path) -> Result<(), JournalError> {
    for path in journals(directory, &Named::Old, SUFFIX)? {
        let Some(held) = Held::take(&path)? else { continue };
        if let Ok(begin) = reader::begin(&held.file).map_err(JournalError::io("read", &path))? {
            fs::rename(&path, path_of(directory, &begin)).map_err(JournalError::io("rename", &path))?;
        }
    }
    Ok(())
}
