//! BLAKE3 over groups. Chaining values can be computed in any order and on any thread. They are merged into the
//! ordinary root.
//!
//! **Invariant:** for every file, the root merged from its groups equals `blake3::hash` of its bytes. A file of at most
//! one group has no chaining values. Its root is its ordinary hash ([`file_root`]).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use zmove_types::{Cv, GROUP_BYTES, GroupSpan, Root, Xattr};

/// A hasher for one group of a file that has several groups. It is fed slice by slice, while the bytes are in the CPU
/// cache.
#[derive(Debug)]
pub struct GroupHasher(blake3::Hasher);

/// A hasher for a whole file of any size, which is read in order.
#[derive(Debug, Default)]
pub struct FileHasher(blake3::Hasher);

impl GroupHasher {
    /// Creates a hasher for group `index`.
    #[must_use]
    pub fn new(index: u32) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(u64::from(index) * GROUP_BYTES);
        Self(hasher)
    }

    /// Adds the next bytes of the group.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds `bytes` zeros, which are the contents of a hole.
    pub fn update_zeros(&mut self, bytes: usize) {
        zeros(bytes).for_each(|zeros| self.update(zeros));
    }

    /// Returns the chaining value of the group.
    ///
    /// # Panics
    /// Panics if no bytes were added, because there is no empty group.
    #[must_use]
    pub fn finish(self) -> Cv {
        Cv(self.0.finalize_non_root())
    }
}

impl FileHasher {
    /// Adds the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the root of the file.
    #[must_use]
    pub fn finish(self) -> Root {
        Root(self.0.finalize().into())
    }
}

/// Returns a digest of all extended attributes, for comparing the attributes of two files. `xattrs` must be sorted by
/// name in ascending order.
#[must_use]
pub fn xattr_digest(xattrs: &[Xattr]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for Xattr { name, value } in xattrs {
        for part in [name, value] {
            hasher
                .update(&(part.len() as u64).to_le_bytes())
                .update(part);
        }
    }
    hasher.finalize().into()
}

/// Returns a seal over the header of a frame and the hash of its content. A change of either changes the seal.
#[must_use]
pub fn seal(prefix: &[u8; 40], content: &[u8; 32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("zmove 1 frame seal");
    hasher.update(prefix).update(content);
    hasher.finalize().into()
}

/// Returns the chaining value of group `index`, which contains `bytes`.
#[must_use]
pub fn group_cv(index: u32, bytes: &[u8]) -> Cv {
    let mut hasher = GroupHasher::new(index);
    hasher.update(bytes);
    hasher.finish()
}

/// Returns the chaining value of a group that contains `data`, split over `ranges` of the group, and zeros elsewhere.
///
/// # Panics
/// Panics if the total length of the ranges differs from that of the data.
#[must_use]
pub fn sparse_group_cv(
    span: GroupSpan,
    ranges: impl Iterator<Item = Range<usize>>,
    data: &[u8],
) -> Cv {
    let mut hasher = GroupHasher::new(span.index);
    fill_holes(span.len as usize, ranges, data, |bytes| {
        hasher.update(bytes)
    });
    hasher.finish()
}

/// Returns the root of a file of `bytes` bytes that contains `data`, split over `ranges` of the file, and zeros
/// elsewhere.
///
/// # Panics
/// Panics if the total length of the ranges differs from that of the data.
#[must_use]
pub fn sparse_file_root(
    bytes: usize,
    ranges: impl Iterator<Item = Range<usize>>,
    data: &[u8],
) -> Root {
    let mut hasher = FileHasher::default();
    fill_holes(bytes, ranges, data, |bytes| hasher.update(bytes));
    hasher.finish()
}

/// Passes `bytes` bytes to `update`: the data in the ranges, and zeros between them.
fn fill_holes(
    bytes: usize,
    ranges: impl Iterator<Item = Range<usize>>,
    data: &[u8],
    mut update: impl FnMut(&[u8]),
) {
    let mut at = 0;
    let mut rest = data;
    for range in ranges {
        zeros(range.start - at).for_each(&mut update);
        let (piece, left) = rest.split_at(range.len());
        update(piece);
        at = range.end;
        rest = left;
    }
    assert!(rest.is_empty(), "{} bytes of data too many", rest.len());
    zeros(bytes - at).for_each(update);
}

/// Returns `bytes` zeros, in slices.
fn zeros(bytes: usize) -> impl Iterator<Item = &'static [u8]> {
    (0..bytes)
        .step_by(ZEROS.len())
        .map(move |at| &ZEROS[..ZEROS.len().min(bytes - at)])
}

/// A block of zeros that is small enough to stay in the first-level CPU cache.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Returns the root of everything that `reader` yields, or `None` if `stop` returned `true` before the end.
///
/// # Errors
/// Returns the error of a failed read.
pub fn read_root(mut reader: impl Read, stop: impl Fn() -> bool) -> io::Result<Option<Root>> {
    let mut room = vec![0; READ_BYTES];
    let mut hasher = FileHasher::default();
    while !stop() {
        match reader.read(&mut room) {
            Ok(0) => return Ok(Some(hasher.finish())),
            Ok(taken) => hasher.update(&room[..taken]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Number of bytes per read. The bytes are hashed while they are in the second-level CPU cache.
const READ_BYTES: usize = 256 << 10;

/// Returns the root of a file whose bytes are all in memory.
#[must_use]
pub fn file_root(bytes: &[u8]) -> Root {
    Root(blake3::hash(bytes).into())
}

/// Returns a digest for comparing the contents of large files that may have holes. The digest covers the length of the
/// file and the values of all groups that contain a nonzero byte. So a hole has the same digest as zeros, and holes
/// that span whole groups are not read. `data_begins` returns the start of the next data at or after an offset. Returns
/// `None` if `stop` returned `true`.
///
/// # Errors
/// Returns the error of a failed read or of `data_begins`.
pub fn contents_digest(
    file: &File,
    data_begins: impl Fn(&File, u64) -> io::Result<Option<u64>>,
    stop: impl Fn() -> bool,
) -> io::Result<Option<Root>> {
    let bytes = file.metadata()?.len();
    let mut hasher = FileHasher::default();
    hasher.update(&bytes.to_le_bytes());
    let mut at = 0;
    while let Some(begin) = data_begins(file, at)? {
        if stop() {
            return Ok(None);
        }
        let index = u32::try_from(begin / GROUP_BYTES).ok();
        let Some(span) = index.and_then(|index| GroupSpan::of(bytes, index)) else {
            break;
        };
        if let Some(cv) = cv_unless_zeros(file, span)? {
            hasher.update(&span.index.to_le_bytes());
            hasher.update(&cv.0);
        }
        at = span.offset() + u64::from(span.len);
    }
    Ok(Some(hasher.finish()))
}

fn cv_unless_zeros(file: &File, span: GroupSpan) -> io::Result<Option<Cv>> {
    let mut room = vec![0; READ_BYTES];
    let mut hasher = GroupHasher::new(span.index);
    let mut is_zeros = true;
    for at in (0..span.len as usize).step_by(READ_BYTES) {
        let piece = &mut room[..READ_BYTES.min(span.len as usize - at)];
        file.read_exact_at(piece, span.offset() + at as u64)?;
        is_zeros = is_zeros && piece.iter().all(|byte| *byte == 0);
        hasher.update(piece);
    }
    Ok((!is_zeros).then(|| hasher.finish()))
}

/// Returns the root of a file of `file_bytes` bytes from the chaining values of all its groups, in order.
///
/// # Panics
/// Panics if the file has fewer than two groups, or if `cvs` does not contain exactly one value per group.
#[must_use]
pub fn merge_root(file_bytes: u64, cvs: &[Cv]) -> Root {
    assert_eq!(
        GroupSpan::count(file_bytes).map(|count| count as usize),
        Some(cvs.len())
    );
    let mut merger = RootMerger::default();
    cvs.iter().for_each(|cv| merger.push(*cv));
    merger.finish()
}

/// Computes the root of a file of several groups from their chaining values, which are added in order. The number of
/// values held is at most the depth of the hash tree.
#[derive(Clone, Debug, Default)]
pub struct RootMerger {
    /// Hashes of complete subtrees, in descending order of size.
    subtrees: Vec<[u8; 32]>,
    groups: u32,
}

impl RootMerger {
    /// Adds the value of the next group.
    pub fn push(&mut self, cv: Cv) {
        // More groups follow, so no subtree is the root of the file yet. They can be merged as inner nodes.
        while self.subtrees.len() > self.groups.count_ones() as usize {
            self.merge(merge_subtrees_non_root);
        }
        self.subtrees.push(cv.0);
        self.groups += 1;
    }

    /// Returns the number of groups added so far.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Returns the root of the file.
    ///
    /// # Panics
    /// Panics if fewer than two groups were added.
    #[must_use]
    pub fn finish(mut self) -> Root {
        assert!(
            self.groups > 1,
            "a file of one group has no chaining values"
        );
        while self.subtrees.len() > 2 {
            self.merge(merge_subtrees_non_root);
        }
        self.merge(|left, right, mode| merge_subtrees_root(left, right, mode).into());
        Root(self.subtrees[0])
    }

    fn merge(&mut self, by: impl Fn(&[u8; 32], &[u8; 32], Mode<'_>) -> [u8; 32]) {
        let right = self.subtrees.pop().expect("two subtrees");
        let left = self.subtrees.pop().expect("two subtrees");
        self.subtrees.push(by(&left, &right, Mode::Hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blake3::hazmat::left_subtree_len;
    use proptest::prelude::{ProptestConfig, any, proptest};

    #[expect(clippy::cast_possible_truncation, reason = "4 MiB")]
    const GROUP: usize = GROUP_BYTES as usize;
    /// Sizes near one and two groups, and sizes with a lopsided tree, a full tree, and a full tree plus one.
    const INTERESTING_SIZES: [usize; 9] = [
        GROUP + 1,
        2 * GROUP - 1,
        2 * GROUP,
        2 * GROUP + 1,
        3 * GROUP + 5,
        8 * GROUP,
        8 * GROUP + 1,
        9 * GROUP + 7777,
        5 * GROUP - 1024,
    ];

    fn painted(len: usize) -> Vec<u8> {
        let lap: Vec<u8> = (0..251).collect();
        let mut data = lap.repeat(len.div_ceil(251));
        data.truncate(len);
        data
    }

    fn root_by_groups(data: &[u8]) -> Root {
        let mut cvs: Vec<_> = data.chunks(GROUP).enumerate().collect();
        cvs.reverse(); // the order does not matter
        let mut cvs: Vec<_> = cvs
            .into_iter()
            .map(|(i, bytes)| (i, group_cv(u32::try_from(i).unwrap(), bytes)))
            .collect();
        cvs.sort_by_key(|(i, _)| *i);
        let cvs: Vec<_> = cvs.into_iter().map(|(_, cv)| cv).collect();
        merge_root(data.len() as u64, &cvs)
    }

    /// Computes the root top-down, following the definition of the tree.
    fn root_by_halves(bytes: u64, cvs: &[Cv]) -> Root {
        let (left, right) = halves(bytes, cvs);
        Root(merge_subtrees_root(&left, &right, Mode::Hash).into())
    }

    fn halves(bytes: u64, cvs: &[Cv]) -> ([u8; 32], [u8; 32]) {
        let left_bytes = left_subtree_len(bytes);
        let middle = usize::try_from(left_bytes / GROUP_BYTES).unwrap();
        let (left, right) = cvs.split_at(middle);
        (
            subtree(left_bytes, left),
            subtree(bytes - left_bytes, right),
        )
    }

    fn subtree(bytes: u64, cvs: &[Cv]) -> [u8; 32] {
        if let [only] = cvs {
            return only.0;
        }
        let (left, right) = halves(bytes, cvs);
        merge_subtrees_non_root(&left, &right, Mode::Hash)
    }

    #[test]
    fn merged_root_is_the_ordinary_hash() {
        for len in INTERESTING_SIZES {
            let data = painted(len);
            assert_eq!(root_by_groups(&data), file_root(&data), "{len} bytes");
        }
    }

    #[test]
    fn a_root_that_is_merged_step_by_step_is_the_same() {
        for groups in 2..70_u32 {
            let cvs: Vec<_> = (0..groups)
                .map(|group| group_cv(group, &group.to_le_bytes()))
                .collect();
            let mut merger = RootMerger::default();
            cvs.iter().for_each(|cv| merger.push(*cv));
            let bytes = u64::from(groups - 1) * GROUP_BYTES + 4;
            assert_eq!(
                (merger.groups(), merger.finish()),
                (groups, root_by_halves(bytes, &cvs))
            );
        }
    }

    /// Holes are hashed as zeros.
    #[test]
    fn a_group_or_a_file_with_holes_has_the_hash_of_its_bytes() {
        let span = GroupSpan::of(3 * GROUP_BYTES, 1).unwrap();
        let cases: [&[Range<usize>]; 4] = [
            &[],
            &[0..1, 9..11],
            &[5..70_000, 70_001..GROUP],
            &[0..4096, 8192..12_288],
        ];
        for ranges in cases {
            let (mut whole, mut data) = (vec![0; GROUP], Vec::new());
            for range in ranges {
                whole[range.clone()].copy_from_slice(&painted(GROUP)[range.clone()]);
                data.extend_from_slice(&whole[range.clone()]);
            }
            assert_eq!(
                sparse_group_cv(span, ranges.iter().cloned(), &data),
                group_cv(1, &whole),
                "{ranges:?}"
            );
            let root = sparse_file_root(GROUP, ranges.iter().cloned(), &data);
            assert_eq!(root, file_root(&whole), "{ranges:?}");
        }
    }

    #[test]
    fn what_is_compared_of_contents_does_not_depend_on_what_is_a_hole() {
        let bytes = 3 * GROUP_BYTES + 5;
        let path = std::env::temp_dir().join(format!("zmove-chunk-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(bytes).unwrap();
        file.write_all_at(b"data", GROUP_BYTES + 9).unwrap();
        let digest = |starts_and_ends: &[u64]| {
            let ranges: Vec<_> = starts_and_ends
                .chunks(2)
                .map(|pair| pair[0]..pair[1])
                .collect();
            let next = |_: &File, at| {
                Ok(ranges
                    .iter()
                    .find(|range| range.end > at)
                    .map(|range| range.start.max(at)))
            };
            contents_digest(&file, next, || false).unwrap().unwrap()
        };
        let start = GROUP_BYTES;
        let sparse = digest(&[start, start + 4096]);
        assert_eq!(digest(&[0, bytes]), sparse);
        assert_eq!(
            digest(&[0, 4096, start + 4096, start + 8192]),
            sparse,
            "all of a group counts that has data"
        );
        assert_ne!(digest(&[]), sparse);
        file.write_all_at(b"a", 3 * GROUP_BYTES).unwrap();
        assert_ne!(digest(&[0, bytes]), sparse);
        assert!(
            contents_digest(&file, |_, at| Ok(Some(at)), || true)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn swapped_groups_change_the_root() {
        let data = painted(2 * GROUP);
        let cvs = [group_cv(0, &data[..GROUP]), group_cv(1, &data[GROUP..])];
        let swapped = [group_cv(0, &data[GROUP..]), group_cv(1, &data[..GROUP])];
        assert_ne!(
            merge_root(data.len() as u64, &cvs),
            merge_root(data.len() as u64, &swapped)
        );
    }

    #[test]
    #[should_panic(expected = "one group")]
    fn one_group_has_no_merge() {
        let _root = merge_root(GROUP_BYTES, &[Cv([0; 32])]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn any_size_merges_to_the_ordinary_hash(extra in 1..4 * GROUP, seed in any::<u8>()) {
            let mut data = painted(GROUP + extra);
            data[0] ^= seed;
            assert_eq!(root_by_groups(&data), file_root(&data));
        }
    }
}
