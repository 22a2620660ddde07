//! Paths of nearly maximum length. Each is kept longer than the message or batch in which it arrived.

use super::*;

fn site_of_little_memory() -> Site {
    let site = Site::limited("memory_per_identity = \"64MiB\"");
    paint(site.source().join("f"), 100_000);
    site
}

/// Sends one directory in many batches, each with a separate copy of its path.
#[test]
fn the_paths_of_remembered_directories_are_charged() {
    let site = site_of_little_memory();
    let mut greedy = Greedy::new(&site);
    let resting = site.the_daemon().memory_kib();
    let mut transfer = greedy.open(&open());
    let group = || DirectoryGroup {
        directory: path(&deep()),
        entries: vec![BatchEntry::Itself(metadata(0o755))],
    };
    let mut why = String::new();
    for _ in 0..40 {
        (0..128).for_each(|_| transfer.send_batch(group()));
        // The memory for the batch itself is released.
        if let Some(end) = transfer.wait_until_published(128) {
            why = end;
            break;
        }
    }
    assert!(why.contains("limits.memory_per_identity"), "{why}");
    assert_well(&site, resting);
}

/// Waits until all groups of a file are stored.
fn wait_for_stored_file(transfer: &mut Transfer) {
    loop {
        match transfer.next_answer() {
            Some(ToSender::Stored(stored)) if !stored.files.is_empty() => return,
            Some(_) => {}
            None => panic!("broken off"),
        }
    }
}

/// Offers one changed file as many times as an offer allows. The entries would need 500 MB if each kept its path.
#[test]
fn the_path_of_changed_files_is_kept_once() {
    let site = site_of_little_memory();
    let mut greedy = Greedy::new(&site);
    let mut transfer = greedy.open(&Open {
        delta: true,
        ..open()
    });
    let entries = vec![BatchEntry::Directory(name("there"), metadata(0o755))];
    transfer.send_batch(DirectoryGroup {
        directory: path(&deep()),
        entries,
    });
    transfer.wait_for_items(1);
    transfer.begin_file(1, &format!("{}/large", deep()), 1);
    transfer.wait_for_items(1);
    let bytes = vec![0; usize::try_from(GROUP_BYTES).unwrap()];
    let header = FrameHeader {
        kind: FrameKind::Chunk,
        file: FileId(1),
        group: 0,
        item: transfer.next_item(),
        ..FrameHeader::default()
    };
    transfer.send(
        header,
        Vec::new(),
        &zmove_chunk::group_cv(0, &bytes).0,
        &bytes,
    );
    wait_for_stored_file(&mut transfer);
    let resting = site.the_daemon().memory_kib();
    let mark = Some(old_mark());
    let file = SourceEntry {
        name: name("large"),
        kind: SourceKind::File {
            bytes: GROUP_BYTES + 2,
            mark,
        },
        metadata: SourceMetadata {
            metadata: metadata(0o644),
            xattrs: None,
        },
    };
    let groups = vec![EntryGroup {
        directory: path(&deep()),
        itself: None,
        entries: vec![file; 4096],
    }];
    for number in 0..2 {
        let question = Question::Send(groups.clone());
        let request = Request { number, question };
        greedy.say(&mut transfer, &ToReceiver::Request(request));
    }
    let mut told = 0;
    while told < 2 {
        match transfer.next_answer() {
            Some(ToSender::Reply(_)) => told += 1,
            Some(_) => {}
            None => panic!("broken off"),
        }
    }
    assert_well(&site, resting);
}
