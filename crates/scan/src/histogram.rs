//! A histogram of the file sizes in a tree, which helps to choose how to transfer it.
//!
//! A scan fills the histogram, and `zmove scan` prints it as a table or as JSON. **Invariant:** the buckets, the size
//! classes and the totals count the same files, so their sums are equal.

use serde::{Serialize, Serializer};
use zmove_types::SizeClass;

use crate::directory::Directory;
use crate::entry::{Entry, EntryBatch, EntryKind, ScanItem};
use crate::error::ScanError;
use crate::scan::Scan;

/// File counts of a tree, by powers of two and by size class. A file with several hard links counts once per name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// All regular files.
    pub files: Share,
    /// Files below 1 MiB.
    pub losf: Share,
    /// Files from 1 MiB to below 1 GiB.
    pub medium: Share,
    /// Files of 1 GiB or more.
    pub large: Share,
    /// Directories, including the roots.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// FIFOs, sockets and devices.
    pub specials: u64,
    /// Entries that could not be read, except those that vanished.
    pub errors: u64,
    /// Entries that were listed but no longer existed when they were looked up.
    pub vanished: u64,
    /// The largest file. The value is its size in bytes.
    pub largest_file: Option<Extreme>,
    /// The deepest entry. The value is its depth below its root in path components.
    pub deepest_path: Option<Extreme>,
    /// The directory with the most entries. The value is their number.
    pub largest_directory: Option<Extreme>,
    /// Bucket 0 counts empty files, and bucket n + 1 counts files from 2ⁿ to below 2ⁿ⁺¹ bytes. The last bucket is not
    /// empty.
    #[serde(serialize_with = "serialize_occupied")]
    buckets: Vec<Share>,
}

/// The number and total size of the files of one class or bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The number of files.
    pub files: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
}

/// The entry with the largest value of a property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Extreme {
    /// The value, in the unit stated at the field of [`Histogram`].
    pub value: u64,
    /// The entry's path at the source. Bytes that are not UTF-8 are replaced.
    pub path: String,
}

/// Consumes a scan. Each error is counted and passed to `on_error`.
pub fn histogram(scan: Scan, mut on_error: impl FnMut(ScanError)) -> Histogram {
    let mut histogram = Histogram::default();
    for item in scan {
        histogram.add(&item);
        if let ScanItem::Error(error) = item {
            on_error(error);
        }
    }
    histogram
}

impl Histogram {
    /// Counts one item of a scan.
    pub fn add(&mut self, item: &ScanItem) {
        match item {
            ScanItem::Root { directory, .. } => self.add_root(directory),
            ScanItem::Batch(batch) => self.add_batch(batch),
            ScanItem::Error(ScanError::Vanished { .. }) => self.vanished += 1,
            ScanItem::Error(_) => self.errors += 1,
        }
    }

    /// Returns the buckets from the first non-empty one, each with its minimum size and its files. Bucket `0` contains
    /// the empty files, bucket `n` the files from `n` to below `2 × n` bytes.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, Share)> {
        let shares = self
            .buckets
            .iter()
            .enumerate()
            .skip_while(|(_, share)| share.files == 0);
        shares.map(|(index, share)| (bucket_start(index), *share))
    }

    fn add_root(&mut self, directory: &Directory) {
        self.directories += 1;
        raise_extreme(&mut self.deepest_path, 0, || display(directory, None));
    }

    fn add_batch(&mut self, batch: &EntryBatch) {
        let directory = &*batch.directory;
        for entry in &batch.entries {
            self.add_entry(directory, entry);
        }
        raise_extreme(
            &mut self.largest_directory,
            directory.entries_found(),
            || display(directory, None),
        );
        let depth = directory.source_path().depth() as u64 + 1;
        raise_extreme(&mut self.deepest_path, depth, || {
            display(directory, batch.entries.first())
        });
    }

    fn add_entry(&mut self, directory: &Directory, entry: &Entry) {
        match entry.kind {
            EntryKind::File => {
                self.add_size(entry.size);
                raise_extreme(&mut self.largest_file, entry.size, || {
                    display(directory, Some(entry))
                });
            }
            EntryKind::Directory => self.directories += 1,
            EntryKind::Symlink(_) => self.symlinks += 1,
            EntryKind::Special(_) => self.specials += 1,
        }
    }

    /// Counts a file of this size.
    pub fn add_size(&mut self, bytes: u64) {
        let class = match SizeClass::of(bytes) {
            SizeClass::Losf => &mut self.losf,
            SizeClass::Medium => &mut self.medium,
            SizeClass::Large => &mut self.large,
        };
        let bucket = bucket_of(bytes);
        self.buckets
            .resize(self.buckets.len().max(bucket + 1), Share::default());
        for share in [class, &mut self.files, &mut self.buckets[bucket]] {
            share.files += 1;
            share.bytes += bytes;
        }
    }
}

fn bucket_of(bytes: u64) -> usize {
    bytes.checked_ilog2().map_or(0, |power| power as usize + 1)
}

fn bucket_start(index: usize) -> u64 {
    index.checked_sub(1).map_or(0, |power| 1 << power)
}

/// Replaces an [`Extreme`] if `value` exceeds its value. The path is only computed in that case.
fn raise_extreme(extreme: &mut Option<Extreme>, value: u64, path: impl FnOnce() -> String) {
    if extreme.as_ref().is_none_or(|extreme| value > extreme.value) {
        *extreme = Some(Extreme {
            value,
            path: path(),
        });
    }
}

fn display(directory: &Directory, entry: Option<&Entry>) -> String {
    let path = entry.map_or_else(
        || directory.full_path(),
        |entry| directory.display_path(&entry.name),
    );
    path.to_string_lossy().into_owned()
}

#[derive(Serialize)]
struct Bucket {
    from_bytes: u64,
    #[serde(flatten)]
    share: Share,
}

fn serialize_occupied<S: Serializer>(buckets: &[Share], serializer: S) -> Result<S::Ok, S::Error> {
    let occupied = buckets
        .iter()
        .enumerate()
        .filter(|(_, share)| share.files > 0);
    serializer.collect_seq(occupied.map(|(index, &share)| Bucket {
        from_bytes: bucket_start(index),
        share,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        sizes.iter().for_each(|&bytes| histogram.add_size(bytes));
        histogram
    }

    #[test]
    fn a_bucket_starts_at_its_power_of_two() {
        for (bytes, start) in [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 2),
            (4, 4),
            (4095, 2048),
            (4096, 4096),
        ] {
            assert_eq!(bucket_start(bucket_of(bytes)), start, "{bytes}");
        }
        assert_eq!(bucket_start(bucket_of(u64::MAX)), 1 << 63);
    }

    #[test]
    fn classes_and_buckets_sum_to_the_total() {
        let histogram = of(&[0, 1, 100, 1 << 20, (1 << 20) - 1, 1 << 30, 5 << 40]);
        let classes = [histogram.losf, histogram.medium, histogram.large];
        assert_eq!(
            classes.iter().map(|share| share.files).collect::<Vec<_>>(),
            [4, 1, 2]
        );
        assert_eq!(
            classes.iter().map(|share| share.bytes).sum::<u64>(),
            histogram.files.bytes
        );
        assert_eq!(
            histogram
                .buckets()
                .map(|(_, share)| share.bytes)
                .sum::<u64>(),
            histogram.files.bytes
        );
        assert_eq!(histogram.files.files, 7);
    }

    #[test]
    fn json_lists_the_occupied_buckets() {
        let json = serde_json::to_value(of(&[0, 5, 6])).unwrap();
        assert_eq!(
            json["files"],
            serde_json::json!({ "files": 3, "bytes": 11 })
        );
        assert_eq!(
            json["buckets"],
            serde_json::json!([
                { "from_bytes": 0, "files": 1, "bytes": 0 },
                { "from_bytes": 4, "files": 2, "bytes": 11 },
            ])
        );
    }
}
