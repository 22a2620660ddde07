//! Entries that cannot be renamed into place because another transfer of the key has created their names.

use super::*;

const BATCHES: usize = 4;

fn empty_file(number: usize) -> BatchEntry {
    let (name, root) = (name(&format!("{number}")), zmove_chunk::file_root(b""));
    BatchEntry::File(FileEntry {
        name,
        metadata: metadata(0o644),
        bytes: 0,
        root,
        data: None,
    })
}

fn new_directory(number: usize) -> BatchEntry {
    BatchEntry::Directory(name(&format!("{number}")), metadata(0o755))
}

impl Transfer {
    /// Sends entries of one directory in `BATCHES` batches.
    fn send_all(&mut self, directory: &str, entry: impl Fn(usize) -> BatchEntry) {
        for batch in 0..BATCHES {
            let entries = (batch * 2048..(batch + 1) * 2048).map(&entry).collect();
            self.send_batch(DirectoryGroup {
                directory: path(directory),
                entries,
            });
        }
    }

    /// Waits until `batches` batches are published, and returns how many of their entries could not be renamed into
    /// place.
    fn count_lost(&mut self, mut batches: usize) -> usize {
        let mut lost = 0;
        while batches > 0 {
            match self.next_answer() {
                Some(ToSender::Published { items }) => {
                    batches -= items.len();
                    lost += items.iter().map(|item| item.faults.len()).sum::<usize>();
                }
                Some(ToSender::Stored(stored)) => {
                    lost += stored
                        .items
                        .iter()
                        .map(|item| item.faults.len())
                        .sum::<usize>();
                }
                Some(ToSender::Refused(refusal)) => panic!("{}", refusal.text),
                Some(_) => {}
                None => panic!("broken off"),
            }
        }
        lost
    }
}

/// While files wait in new directories deep in the tree, another transfer creates directories with their names.
#[test]
fn the_path_of_entries_without_a_final_name_is_kept_once() {
    let site = Site::limited("memory_per_identity = \"64MiB\"");
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let mut pairs: Vec<_> = (0..2)
        .map(|_| (greedy.open(&open()), greedy.open(&open())))
        .collect();
    std::thread::scope(|scope| {
        for (number, (files, guests)) in pairs.iter_mut().enumerate() {
            scope.spawn(move || {
                let deep = format!("{number}/{}", deep());
                let first = (1_000_000..1_000_008).map(empty_file).collect();
                files.send_batch(DirectoryGroup {
                    directory: path(&deep),
                    entries: first,
                });
                files.wait_for_items(1);
                // Whichever of the remaining requests is first, these names are already taken.
                let taken = (0..2048).map(new_directory).collect();
                guests.send_batch(DirectoryGroup {
                    directory: path(&deep),
                    entries: taken,
                });
                guests.wait_for_items(1);
                std::thread::scope(|scope| {
                    scope.spawn(|| files.send_all(&deep, empty_file));
                    scope.spawn(|| guests.send_all(&deep, new_directory));
                });
            });
        }
    });
    for (files, _) in &mut pairs {
        assert!(files.count_lost(1 + BATCHES) >= 2048);
    }
    let peak = site.the_daemon().peak_memory_kib();
    assert!(
        peak < resting + (80 << 10),
        "{resting} KiB at rest, {peak} KiB at most"
    );
}
