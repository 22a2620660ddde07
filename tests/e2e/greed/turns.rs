//! What one key has under way shares the cores with other keys as one push would, and ends with its client.

use super::*;

/// Number of threads of the daemon that store or look at the target and are on a core, or could be: the median of
/// many looks.
fn awake(site: &Site) -> usize {
    let is_at_work = |status: &String| {
        let of_key =
            status.starts_with("Name:\tzmove-look") || status.starts_with("Name:\tzmove-write");
        of_key && status.contains("State:\tR")
    };
    let mut counts: Vec<_> = (0..101)
        .map(|_| {
            site.the_daemon()
                .threads()
                .iter()
                .filter(|status| is_at_work(status))
                .count()
        })
        .collect();
    counts.sort_unstable();
    counts[50]
}

/// Two threads for each core, because a thread may be handing its place to another, and one thread that was just woken.
fn awake_max() -> usize {
    2 * std::thread::available_parallelism().unwrap().get() + 1
}

/// Files that are not there, 4,096 in each of as many offers as may be under way, whose answers nobody reads.
#[test]
fn offers_of_many_transfers_keep_no_more_threads_awake_than_two_for_each_core() {
    let _quiet = quiet_machine();
    let site = site();
    let mut greedy = Greedy::new(&site);
    let files: Vec<_> = (0..4096)
        .map(|number| OfferedFile {
            name: name(&format!("{number}")),
            bytes: 1,
            metadata: zmove_types::Metadata::new(
                0o644,
                Timestamp {
                    seconds: 1,
                    nanos: 0,
                },
            ),
            source: None,
            xattrs: None,
        })
        .collect();
    let mut transfers: Vec<_> = (0..12).map(|_| greedy.open(&open())).collect();
    let groups = vec![OfferedGroup {
        directory: path(""),
        files,
    }];
    for transfer in &mut transfers {
        for offer in 0..30 {
            greedy.say(
                transfer,
                &ToReceiver::Offer(Offer {
                    offer,
                    groups: groups.clone(),
                }),
            );
        }
    }
    wait_for_threads(&site, 150);
    let awake = awake(&site);
    assert!(awake <= awake_max(), "{awake} threads");
}

/// About as many batches as sockets hold for a daemon that is slow to take them.
const BATCHES: usize = 48;

/// A client that has gone leaves what is in the sockets of its lanes: each batch makes 2,048 files.
#[test]
fn batches_that_a_client_has_left_in_its_sockets_are_not_stored() {
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
    // nothing of it comes later either
    site.push_contents();
    assert_eq!(stored(), when_broken_off);
}
