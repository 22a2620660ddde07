//! Trees of files with a known pattern, and pictures of everything that a copy must preserve.
//!
//! Byte `i` of a painted file is `i % 251`, so that swapped or shifted blocks are detected. Pictures are taken through
//! descriptors, so that no path is too long.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{File, FileTimes};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use zmove_types::GROUP_BYTES;

/// Sizes around the limits at which the program's behavior changes.
pub(crate) const INTERESTING_SIZES: [u64; 17] = [
    0, // an empty file
    1,
    1023, // around BLAKE3's chunk
    1024,
    1025,
    65_535, // around a step of the hash over many chunks
    65_536,
    65_537,
    (1 << 20) - 1, // around the limit of "small" in the scan's classes
    1 << 20,
    GROUP_BYTES - 1, // around a full batch, beyond which a file gets chunks
    GROUP_BYTES,
    GROUP_BYTES + 1,
    2 * GROUP_BYTES - 1, // around a full last group, and with one of one byte
    2 * GROUP_BYTES,
    2 * GROUP_BYTES + 1,
    3 * GROUP_BYTES + 5, // several groups, for several lanes
];

/// Returns the names and the inode number of each entry that is not a directory.
pub(crate) fn name_groups(root: &Path) -> BTreeMap<Vec<PathBuf>, u64> {
    let mut groups = BTreeMap::<u64, Vec<PathBuf>>::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            if !stat.is_dir() {
                groups
                    .entry(stat.ino())
                    .or_default()
                    .push(path.strip_prefix(root).unwrap().to_owned());
            } else if !path.ends_with("lost+found") {
                directories.push(path);
            }
        }
    }
    let sorted = groups.into_iter().map(|(inode, mut names)| {
        names.sort();
        (names, inode)
    });
    sorted.collect()
}

/// Everything about a tree that a copy preserves, by path. The root has the empty path.
pub(crate) type Picture = BTreeMap<Vec<u8>, Node>;

/// One entry of a [`Picture`].
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) mode: u32,
    pub(crate) mtime: (i64, u64),
    pub(crate) content: Content,
}

/// The content of an entry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Content {
    File(Contents),
    Directory,
    Symlink(Vec<u8>),
    Special,
}

/// Identifies the contents of a file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    bytes: u64,
    hash: blake3::Hash,
    /// Offset of the first byte that differs from the painted pattern, if any.
    unpainted_from: Option<u64>,
}

impl Contents {
    pub(crate) fn read(mut file: impl Read) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut unpainted_from = None;
        let mut buffer = vec![0; STEP];
        loop {
            let bytes = file.read(&mut buffer).unwrap();
            let read = &buffer[..bytes];
            if read.is_empty() {
                break;
            }
            let offset = hasher.count();
            let expected = painted_step(offset, bytes);
            if unpainted_from.is_none() && read != expected {
                let place = read.iter().zip(expected).position(|(a, b)| a != b);
                unpainted_from = place.map(|place| offset + place as u64);
            }
            hasher.update(read);
        }
        Self {
            bytes: hasher.count(),
            hash: hasher.finalize(),
            unpainted_from,
        }
    }
}

/// A stretch of painted data for one step of reading or writing. It stays in the processor's cache, so it is cheaper
/// than newly allocated memory.
static LAPS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let lap: Vec<u8> = (0..LAP).collect();
    lap.repeat(STEP / lap.len() + 2)
});

/// Number of bytes after which painted data repeats.
const LAP: u8 = 251;

/// Maximum number of bytes that [`painted_step`] returns.
const STEP: usize = 256 << 10;

/// Returns painted data that begins at this offset.
fn painted_step(offset: u64, bytes: usize) -> &'static [u8] {
    let start = usize::try_from(offset % u64::from(LAP)).unwrap();
    &LAPS[start..start + bytes]
}

/// Returns painted data from `start` to `end` in steps.
fn painted_steps(start: u64, end: u64) -> impl Iterator<Item = &'static [u8]> {
    (start..end).step_by(STEP).map(move |offset| {
        let left = usize::try_from(end - offset).unwrap();
        painted_step(offset, left.min(STEP))
    })
}

/// Returns painted data in which each byte shows its offset plus `shift`.
pub(crate) fn painted(bytes: u64, shift: u64) -> Vec<u8> {
    let steps: Vec<_> = painted_steps(shift, shift + bytes).collect();
    steps.concat()
}

/// Writes a painted file.
pub(crate) fn paint(path: impl AsRef<Path>, bytes: u64) {
    let path = path.as_ref();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = File::create(path).unwrap();
    for step in painted_steps(0, bytes) {
        file.write_all(step).unwrap();
    }
}

/// Writes a painted file for each of the [`INTERESTING_SIZES`].
pub(crate) fn paint_interesting_sizes(directory: &Path) {
    for bytes in INTERESTING_SIZES {
        paint(directory.join(format!("{bytes:09}")), bytes);
    }
}

pub(crate) fn set_mode(path: impl AsRef<Path>, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Sets a modification time far enough in the past to be distinct with any clock resolution.
pub(crate) fn set_old(path: impl AsRef<Path>) {
    set_mtime(path, old());
}

/// The time that [`set_old`] sets.
pub(crate) fn old() -> SystemTime {
    UNIX_EPOCH + Duration::new(1_000_000_000, 987_654_321)
}

pub(crate) fn set_mtime(path: impl AsRef<Path>, mtime: SystemTime) {
    let file = File::open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(mtime))
        .unwrap();
}

/// Sets the timestamps of any entry, without following links.
pub(crate) fn set_own_mtime(path: &Path, seconds: i64, nanos: i64) {
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        },
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Waits until a change of the file would give it a new change time, even with the coarsest clock.
pub(crate) fn wait_for_another_time(path: &Path) {
    let stat = path.symlink_metadata().unwrap();
    let changed = Duration::new(
        stat.ctime().try_into().unwrap(),
        stat.ctime_nsec().try_into().unwrap(),
    );
    let until = UNIX_EPOCH + changed + Duration::from_millis(50);
    while let Ok(left) = until.duration_since(SystemTime::now()) {
        std::thread::sleep(left.max(Duration::from_micros(1)));
    }
}

/// Takes a picture of the tree at `root`.
pub(crate) fn picture(root: &Path) -> Picture {
    let mut picture = Picture::new();
    let fd = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    add_directory(&mut picture, fd, Vec::new());
    picture
}

/// The number of regular files below `root`.
pub(crate) fn count_files(root: &Path) -> u64 {
    let nodes = picture(root).into_values();
    nodes
        .filter(|node| matches!(node.content, Content::File(_)))
        .count() as u64
}

fn add_directory(picture: &mut Picture, fd: OwnedFd, path: Vec<u8>) {
    picture.insert(path.clone(), node(&fd, c"".to_bytes(), Content::Directory));
    for entry in Dir::read_from(&fd).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            let below = if path.is_empty() {
                name.to_vec()
            } else {
                [&path, name].join(&b'/')
            };
            add_entry(picture, &fd, name, below);
        }
    }
}

fn add_entry(picture: &mut Picture, parent: &OwnedFd, name: &[u8], path: Vec<u8>) {
    let os_name = OsStr::from_bytes(name);
    let stat = rustix::fs::statat(parent, os_name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    let open = |flags| rustix::fs::openat(parent, os_name, flags, Mode::empty()).unwrap();
    let content = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            return add_directory(picture, open(OFlags::RDONLY | OFlags::DIRECTORY), path);
        }
        FileType::RegularFile => {
            let file = File::from(open(OFlags::RDONLY));
            Content::File(Contents::read(file))
        }
        FileType::Symlink => Content::Symlink(
            rustix::fs::readlinkat(parent, os_name, Vec::new())
                .unwrap()
                .into_bytes(),
        ),
        _ => Content::Special,
    };
    picture.insert(path, node(parent, name, content));
}

fn node(parent: &impl AsFd, name: &[u8], content: Content) -> Node {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let stat = rustix::fs::statat(parent, OsStr::from_bytes(name), flags).unwrap();
    Node {
        mode: stat.st_mode & 0o7777,
        mtime: (stat.st_mtime, stat.st_mtime_nsec),
        content,
    }
}

/// Returns the names in a directory.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Asserts that `target` equals `source`, including the root.
#[track_caller]
pub(crate) fn assert_same(source: &Path, target: &Path) {
    assert_pictures(&picture(source), &picture(target));
}

#[track_caller]
pub(crate) fn assert_pictures(expected: &Picture, found: &Picture) {
    let paths = expected.keys().chain(found.keys());
    let different: BTreeMap<_, _> = paths
        .filter(|path| expected.get(*path) != found.get(*path))
        .map(|path| {
            (
                String::from_utf8_lossy(path),
                (expected.get(path), found.get(path)),
            )
        })
        .collect();
    assert!(
        different.is_empty(),
        "expected and found differ in:\n{different:#?}"
    );
}

/// Asserts that every file of `target` is a complete file of `source`, and that all other entries are hidden files of
/// zmove.
#[track_caller]
pub(crate) fn assert_part_of(source: &Path, target: &Path) {
    let whole = picture(source);
    let hidden = |path: &[u8]| {
        path.split(|&byte| byte == b'/')
            .any(|name| name.starts_with(b".zmove-"))
    };
    for (path, node) in picture(target)
        .into_iter()
        .filter(|(path, _)| !hidden(path))
    {
        let shown = String::from_utf8_lossy(&path);
        let there = whole
            .get(&path)
            .unwrap_or_else(|| panic!("'{shown}' is not in the source"));
        assert!(
            node.content == there.content,
            "'{shown}' is {node:?} and not {there:?}"
        );
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = self.mtime;
        write!(
            f,
            "{:04o} {seconds}.{nanos:09} {:?}",
            self.mode, self.content
        )
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(contents) => {
                write!(
                    f,
                    "file of {} bytes, not painted at {:?}",
                    contents.bytes, contents.unpainted_from
                )
            }
            Self::Directory => f.write_str("directory"),
            Self::Symlink(target) => write!(f, "link to '{}'", String::from_utf8_lossy(target)),
            Self::Special => f.write_str("special file"),
        }
    }
}

/// Returns the bytes that the files below a directory occupy, including hidden files.
pub(crate) fn stored_bytes(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    let of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => stored_bytes(&entry.path()),
        metadata => metadata.map_or(0, |metadata| metadata.blocks() * 512),
    };
    entries.flatten().map(of_entry).sum()
}
