//! The work of one key gets the same share of the processors as a single push, and ends with its client.

use super::*;

/// Number of batches: about as many as the socket buffers hold for a daemon that reads slowly.
const BATCHES: usize = 48;

/// A client that has disconnected leaves data in the socket buffers of its lanes. Each batch creates 2,048 files.
#[test]
fn batches_that_a_client_has_left_in_its_sockets_are_not_stored() {
    let _quiet = quiet_machine();
    let site = site();
    let mut greedy = Greedy::new(&site);
    let mut transfers: Vec<_> = (0..4).map(|_| greedy.open(&open())).collect();
    let root = zmove_chunk::file_root(b"");
    for (number, transfer) in transfers.iter_mut().enumerate() {
        for batch in 0..BATCHES {
            let entries = (0..2048).map(|file| {
                let name = name(&format!("{file:060}"));
                BatchEntry::File(FileEntry {
                    name,
                    metadata: metadata(0o644),
                    bytes: 0,
                    root,
                    data: None,
                })
            });
            let directory = path(&format!("{number}/{batch}"));
            transfer.send_batch(DirectoryGroup {
                directory,
                entries: entries.collect(),
            });
        }
    }
    drop(transfers);
    let stored = || {
        let batches = (0..4).flat_map(|number| {
            std::fs::read_dir(greedy.root().join(format!("{number}")))
                .into_iter()
                .flatten()
        });
        batches
            .map(|batch| std::fs::read_dir(batch.unwrap().path()).unwrap().count())
            .sum::<usize>()
    };
    site.the_daemon().wait_for_logs("broken off by greedy", 4);
    let when_broken_off = stored();
    assert!(
        when_broken_off < 4 * BATCHES * 2048 * 3 / 4,
        "{when_broken_off} files"
    );
    // No more of them are stored later either.
    site.push_contents();
    assert_eq!(stored(), when_broken_off);
}
