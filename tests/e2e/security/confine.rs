//! A hostile client, and a hostile local user on the receiver's host: nothing outside the roots is read, written,
//! changed or removed, and nothing hangs.
//!
//! The tests inside this process are repeated with `openat2` refused, as in some containers. Paths are then opened
//! component by component.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use zmove_types::{FileId, GROUP_BYTES, ItemId, Timestamp};
use zmove_wire::{
    Answer, BatchEntry, FileHead, FrameHeader, FrameKind, NameRange, Question, Remove, RemoveGroup,
    Reply, Request, ToReceiver, ToSender,
};

use crate::security::intruder::{
    Deed, Intruder, batch, file, frame, message, metadata, name, path, raw_batch,
};
use crate::support::command::Zmove;
use crate::support::harness::{Site, both_ways, has_program, is_root, skip};
use crate::support::tree::{assert_same, names, paint, painted, set_mode, set_old};

/// A root, and a directory next to it that must stay unchanged.
struct Yard(tempfile::TempDir);

impl Yard {
    fn new() -> Self {
        let yard = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(yard.root()).unwrap();
        std::fs::create_dir(yard.outside()).unwrap();
        std::fs::write(yard.precious(), "precious").unwrap();
        set_mode(yard.precious(), 0o600);
        set_old(yard.precious());
        yard
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    fn outside(&self) -> PathBuf {
        self.0.path().join("outside")
    }

    fn precious(&self) -> PathBuf {
        self.outside().join("precious")
    }

    #[track_caller]
    fn assert_outside_is_as_it_was(&self) {
        assert_eq!(names(&self.outside()), ["precious"]);
        assert_eq!(std::fs::read(self.precious()).unwrap(), b"precious");
        assert_eq!(self.precious().metadata().unwrap().mode() & 0o7777, 0o600);
        let beside: Vec<_> = names(self.0.path())
            .into_iter()
            .filter(|name| name != "moved")
            .collect();
        assert_eq!(beside, ["outside", "root"]);
    }
}

/// Invalid names, to be used for a directory and for an entry.
fn hostile_names() -> Vec<Vec<u8>> {
    let names = [
        "..",
        ".",
        "a/../../outside",
        "../outside",
        "/etc",
        "a//b",
        "a/",
        "/",
        "a\0b",
        "a/./b",
        "\0",
    ];
    let mut names: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    names.push(vec![b'n'; 256]);
    names
}

/// Encodes the head of a batch with one directory and one entry, which is also a directory.
fn head_of(directory: &[u8], entry: &[u8]) -> Vec<u8> {
    let one = [1];
    let directory_tag = [1];
    let mode = [0xED, 0x03];
    let mtime = [0, 0];
    let no_extra = [0];
    [
        &one[..],
        &with_length(directory),
        &one,
        &directory_tag,
        &with_length(entry),
        &mode,
        &mtime,
        &no_extra,
    ]
    .concat()
}

/// Encodes bytes with a length prefix.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut left = bytes.len();
    while left > 0x7F {
        encoded.push(0x80 | u8::try_from(left & 0x7F).unwrap());
        left >>= 7;
    }
    encoded.push(u8::try_from(left).unwrap());
    encoded.extend(bytes);
    encoded
}

#[test]
fn invalid_names_in_a_batch_end_the_transfer() {
    for hostile in hostile_names() {
        for head in [head_of(&hostile, b"x"), head_of(b"a", &hostile)] {
            let yard = Yard::new();
            let intruded = Intruder::new(&yard.root()).does(vec![raw_batch(0, head, b"")]);
            assert!(intruded.ended.is_err(), "{hostile:?}");
            yard.assert_outside_is_as_it_was();
            assert!(names(&yard.root()).is_empty(), "{hostile:?}");
        }
    }
    // The same head with valid names is accepted.
    let yard = Yard::new();
    let intruded = Intruder::new(&yard.root()).does(vec![raw_batch(0, head_of(b"a", b"x"), b"")]);
    assert!(intruded.ended.is_ok() && yard.root().join("a/x").is_dir());
}

#[test]
fn invalid_names_of_large_files_end_the_transfer() {
    let declares = |name: &[u8]| {
        let yard = Yard::new();
        let after_path = &large_head("n", 0o644).encode()[with_length(b"n").len()..];
        let head = [&with_length(name), after_path].concat();
        let declared = declaration(FileId::default(), head);
        // Without an item, the transfer might end first.
        let intruded = Intruder::new(&yard.root()).does(vec![declared, batch(0, "", Vec::new())]);
        yard.assert_outside_is_as_it_was();
        intruded.ended
    };
    for hostile in hostile_names() {
        assert!(declares(&hostile).is_err(), "{hostile:?}");
    }
    let taken = declares(b"n");
    assert!(taken.is_ok(), "{taken:?}");
}

#[test]
fn invalid_names_in_messages_end_the_transfer() {
    for (climbing, is_taken) in [
        (b"..", false),
        (b"/x", false),
        (b"x\0", false),
        (b"xx", true),
    ] {
        let names = || vec![name("xx")];
        let removes = Remove {
            remove: 0,
            groups: vec![RemoveGroup {
                directory: path("d"),
                names: names(),
            }],
        };
        let within = Remove {
            remove: 0,
            groups: vec![RemoveGroup {
                directory: path("xx"),
                names: names(),
            }],
        };
        for remove in [removes, within] {
            let yard = Yard::new();
            let mut bytes = zmove_wire::encode_message(&ToReceiver::Remove(remove));
            let at = bytes.windows(2).position(|pair| pair == b"xx").unwrap();
            bytes[at..at + 2].copy_from_slice(climbing);
            // Announcing the end before the answer would already violate the protocol.
            let deeds = vec![Deed::Message(bytes), Deed::Wait];
            let intruded = Intruder::new(&yard.root()).does(deeds);
            assert_eq!(
                intruded.ended.is_ok(),
                is_taken,
                "{climbing:?} {:?}",
                intruded.ended.err()
            );
            yard.assert_outside_is_as_it_was();
        }
    }
}

#[test]
fn targets_outside_the_roots_are_refused() {
    let yard = Yard::new();
    symlink(yard.outside(), yard.root().join("link")).unwrap();
    let outside = yard.outside().into_os_string().into_string().unwrap();
    let climbing = format!("{}/../outside", yard.root().display());
    for target in [
        "..",
        "../outside",
        "/",
        "/etc",
        "link",
        "link/x",
        "a/../../outside",
        "a\0",
        &outside,
        &climbing,
    ] {
        let mut intruder = Intruder::new(&yard.root());
        intruder.open.target = target.as_bytes().to_vec();
        let intruded = intruder.does(vec![batch(0, "", vec![file("f", 0o644)])]);
        assert!(
            matches!(intruded.answers[..], [ToSender::Refused(_)]),
            "{target}: {:?}",
            intruded.answers
        );
    }
    yard.assert_outside_is_as_it_was();
    assert_eq!(names(&yard.root()), ["link"]);
}

/// The tree is too deep for the stack of a function that recurses for each directory.
#[test]
fn ten_thousand_nested_directories_are_stored_and_removed() {
    let yard = Yard::new();
    let deep = vec!["d"; 10_000].join("/");
    let gone = RemoveGroup {
        directory: path(""),
        names: vec![name("d")],
    };
    let remove = message(&ToReceiver::Remove(Remove {
        remove: 0,
        groups: vec![gone],
    }));
    let deeds = vec![
        batch(
            0,
            &deep,
            vec![BatchEntry::Itself(metadata(0o755)), file("f", 0o644)],
        ),
        Deed::Meanwhile(1, Box::new(|| ())),
        remove,
        Deed::Wait,
    ];
    let intruded = Intruder::new(&yard.root()).does(deeds);
    let removed = intruded.answers.iter().find_map(|answer| match answer {
        ToSender::Removed { entries, .. } => Some(*entries),
        _ => None,
    });
    assert_eq!(removed, Some(10_001), "{:?}", intruded.ended);
    yard.assert_outside_is_as_it_was();
}

/// Between two batches a local user moves a directory away and replaces it with a link.
#[test]
fn a_directory_that_becomes_a_link_between_two_batches_leads_nowhere() {
    let yard = Yard::new();
    let (root, outside) = (yard.root(), yard.outside());
    let swap = move || {
        std::fs::rename(root.join("d"), root.join("was")).unwrap();
        symlink(&outside, root.join("d")).unwrap();
    };
    let deeds = vec![
        batch(0, "d", vec![file("precious", 0o644)]),
        Deed::Meanwhile(1, Box::new(swap)),
        batch(1, "d", vec![file("precious", 0o644), file("new", 0o644)]),
        batch(2, "d/e", vec![file("precious", 0o644)]),
        batch(
            3,
            "",
            vec![BatchEntry::Directory(name("d"), metadata(0o777))],
        ),
    ];
    let intruded = Intruder::new(&yard.root()).does(deeds);
    assert!(intruded.ended.is_ok(), "{:?}", intruded.ended);
    yard.assert_outside_is_as_it_was();
}

/// A local user repeatedly exchanges a directory and a link while a transfer creates, replaces and removes entries
/// there.
#[test]
fn a_link_that_is_swapped_in_while_a_transfer_runs_leads_nowhere() {
    let yard = Yard::new();
    let root = yard.root();
    std::fs::create_dir(root.join("d")).unwrap();
    symlink(yard.outside(), root.join("l")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let mut swaps = 0_u32;
            while !over.load(Ordering::Relaxed) {
                // The receiver replaces links, so there may be none at the moment.
                if renameat_with(
                    CWD,
                    root.join("d"),
                    CWD,
                    root.join("l"),
                    RenameFlags::EXCHANGE,
                )
                .is_err()
                {
                    drop(std::fs::remove_file(root.join("l")));
                    drop(symlink(root.join("../outside"), root.join("l")));
                    drop(std::fs::create_dir(root.join("d")));
                }
                swaps += 1;
            }
            swaps
        }
    });
    let deeds = (0..300).map(|item| {
        let entries = vec![
            file("precious", 0o666),
            file("new", 0o666),
            BatchEntry::Retouch(name("precious"), metadata(0o666)),
            BatchEntry::Symlink(name("also"), metadata(0o777), b"precious".as_slice().into()),
            BatchEntry::Itself(metadata(0o777)),
        ];
        batch(item, if item % 2 == 0 { "d" } else { "d/e" }, entries)
    });
    let gone = RemoveGroup {
        directory: path("d"),
        names: vec![name("precious")],
    };
    let removes = (0..4).map(|remove| {
        message(&ToReceiver::Remove(Remove {
            remove,
            groups: vec![gone.clone()],
        }))
    });
    let intruded = Intruder::new(&yard.root()).does(
        deeds
            .chain(removes.flat_map(|remove| [remove, Deed::Wait]))
            .collect(),
    );
    over.store(true, Ordering::Relaxed);
    assert!(swapping.join().unwrap() > 100);
    yard.assert_outside_is_as_it_was();
    assert!(intruded.ended.is_ok(), "{:?}", intruded.ended);
}

/// The transfer continues in the original directory, even if the path of its root now leads elsewhere.
#[test]
fn a_root_that_becomes_a_link_under_a_transfer_leads_nowhere() {
    let yard = Yard::new();
    let (root, outside) = (yard.root(), yard.outside());
    let swap = move || {
        std::fs::rename(&root, root.with_file_name("moved")).unwrap();
        symlink(&outside, &root).unwrap();
    };
    let deeds = vec![
        batch(0, "", vec![file("first", 0o644)]),
        Deed::Meanwhile(1, Box::new(swap)),
        batch(
            1,
            "",
            vec![file("precious", 0o644), BatchEntry::Itself(metadata(0o777))],
        ),
        batch(2, "new/directory", vec![file("f", 0o644)]),
    ];
    assert!(Intruder::new(&yard.root()).does(deeds).ended.is_ok());
    yard.assert_outside_is_as_it_was();
    assert_eq!(
        names(&yard.0.path().join("moved")),
        ["first", "new", "precious"]
    );
}

/// Requests mode changes for entries that are not regular files.
#[test]
fn metadata_of_links_and_special_files_is_not_set() {
    let yard = Yard::new();
    symlink(yard.precious(), yard.root().join("link")).unwrap();
    let specials = specials(&yard.root());
    let entries = specials.iter().map(String::as_str).chain(["link"]);
    let entries: Vec<_> = entries
        .map(|text| BatchEntry::Retouch(name(text), metadata(0o777)))
        .collect();
    let count = entries.len();
    let intruded = Intruder::new(&yard.root()).does(vec![batch(0, "", entries)]);
    assert_eq!(intruded.faults(), count);
    for special in specials {
        let mode = yard
            .root()
            .join(&special)
            .symlink_metadata()
            .unwrap()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{special}");
    }
    yard.assert_outside_is_as_it_was();
}

/// Creates a FIFO, a socket and, if permitted, a device.
fn specials(directory: &Path) -> Vec<String> {
    let node = |name: &str, kind, device| {
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, directory.join(name), kind, mode, device)
            .ok()
            .map(|()| name.to_owned())
    };
    // `/dev/full`: every write to it fails.
    let full = rustix::fs::makedev(1, 7);
    let specials = [
        node("fifo", FileType::Fifo, 0),
        node("socket", FileType::Socket, 0),
        node("device", FileType::CharacterDevice, full),
    ];
    specials.into_iter().flatten().collect()
}

fn large_head(text: &str, mode: u32) -> FileHead {
    let (bytes, ctime) = (GROUP_BYTES + 1, Timestamp::default());
    FileHead {
        path: path(text),
        metadata: metadata(mode),
        bytes,
        ctime,
        inode: 1,
        data: None,
    }
}

/// Declares a large file with these bytes as its head.
fn declaration(file: FileId, head: Vec<u8>) -> Deed {
    let header = FrameHeader {
        kind: FrameKind::Declare,
        head_bytes: u32::try_from(head.len()).unwrap(),
        file,
        ..FrameHeader::default()
    };
    let content = *blake3::hash(&head).as_bytes();
    Deed::Frame(frame(header, head, &content, b""))
}

/// Declares a large file and sends its two groups.
fn large_file(id: u64, item: u64, text: &str, mode: u32) -> Vec<Deed> {
    let file = FileId(id);
    let mut deeds = vec![declaration(file, large_head(text, mode).encode())];
    for (group, bytes) in [(0, usize::try_from(GROUP_BYTES).unwrap()), (1, 1)] {
        let data = vec![b'x'; bytes];
        let (kind, item) = (FrameKind::Chunk, ItemId(item + u64::from(group)));
        let data_bytes = u32::try_from(bytes).unwrap();
        let header = FrameHeader {
            kind,
            group,
            data_bytes,
            item,
            file,
            ..FrameHeader::default()
        };
        let content = zmove_chunk::group_cv(group, &data).0;
        deeds.push(Deed::Frame(frame(header, Vec::new(), &content, &data)));
    }
    deeds
}

/// Owners are not transferred, so these bits would grant the privileges of the daemon's user, possibly root.
#[test]
fn setuid_and_setgid_are_dropped_however_a_file_is_stored() {
    let yard = Yard::new();
    std::fs::write(yard.root().join("there"), "x").unwrap();
    let together = (0..20)
        .map(|number| file(&format!("n{number}"), 0o6755))
        .collect();
    let alone = vec![
        file("alone", 0o6755),
        BatchEntry::Retouch(name("there"), metadata(0o6755)),
    ];
    let mut deeds = vec![batch(0, "new", together), batch(1, "", alone)];
    deeds.extend(large_file(7, 2, "large", 0o6755));
    let intruded = Intruder::new(&yard.root()).does(deeds);
    assert!(
        intruded.ended.is_ok() && intruded.faults() == 0,
        "{:?}",
        intruded.ended
    );
    let mut seen = 0;
    for directory in [yard.root(), yard.root().join("new")] {
        for entry in std::fs::read_dir(directory).unwrap() {
            let found = entry.unwrap().metadata().unwrap();
            if found.is_file() {
                assert_eq!(found.mode() & 0o7777, 0o755);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 23);
}

/// Sends requests to keep and to remove names in a directory that is a link.
#[test]
fn nothing_is_listed_or_removed_through_a_link() {
    let yard = Yard::new();
    symlink(yard.outside(), yard.root().join("link")).unwrap();
    let range = NameRange {
        directory: path("link"),
        after: None,
        names: Vec::new(),
        open: true,
    };
    let list = ToReceiver::Request(Request {
        number: 0,
        question: Question::Extraneous(vec![range]),
    });
    let within = RemoveGroup {
        directory: path("link"),
        names: vec![name("precious")],
    };
    let itself = RemoveGroup {
        directory: path(""),
        names: vec![name("link")],
    };
    let removes = [within, itself].map(|group| {
        message(&ToReceiver::Remove(Remove {
            remove: 0,
            groups: vec![group],
        }))
    });
    let answers = |deeds| Intruder::new(&yard.root()).does(deeds).answers;
    let listed = answers(vec![message(&list), Deed::Wait])
        .into_iter()
        .find_map(|answer| match answer {
            ToSender::Reply(Reply {
                answer: Answer::Extraneous(extra),
                ..
            }) => Some(extra.names),
            _ => None,
        });
    assert_eq!(listed, Some(Vec::new()));
    for (remove, count) in removes.into_iter().zip([0, 1]) {
        let intruded = Intruder::new(&yard.root()).does(vec![remove, Deed::Wait]);
        assert!(intruded.ended.is_ok(), "{:?}", intruded.ended);
        let removed = intruded.answers.iter().find_map(|answer| match answer {
            ToSender::Removed { entries, .. } => Some(*entries),
            _ => None,
        });
        assert_eq!(removed, Some(count));
        yard.assert_outside_is_as_it_was();
    }
    assert!(names(&yard.root()).is_empty(), "the link itself has gone");
}

both_ways!(
    special_files_at_the_target_are_replaced_and_neither_read_nor_written,
    a_hard_link_to_a_file_elsewhere_is_replaced_and_not_written_to,
);

fn special_files_at_the_target_are_replaced_and_neither_read_nor_written(site: &Site) {
    // Larger files take other code paths.
    paint(site.source().join("large"), GROUP_BYTES + 1);
    for options in [
        &["--checksum"][..],
        &["--delta", "always"],
        &["--dry-run"],
        &[],
    ] {
        for name in specials(&site.target()) {
            paint(site.source().join(name), 10);
        }
        drop(std::fs::remove_file(site.target().join("large")));
        mknodat(
            CWD,
            site.target().join("large"),
            FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        site.push(&[options, &["--quiet"]].concat(), site.contents(), "")
            .expect(0);
        if !options.contains(&"--dry-run") {
            assert_same(&site.source(), &site.target());
            std::fs::remove_dir_all(site.target()).unwrap();
            std::fs::create_dir(site.target()).unwrap();
        }
    }
}

fn a_hard_link_to_a_file_elsewhere_is_replaced_and_not_written_to(site: &Site) {
    for (text, bytes) in [("small", 10), ("large", 2 * GROUP_BYTES)] {
        let elsewhere = site.path(&format!("elsewhere-{text}"));
        paint(&elsewhere, bytes);
        std::fs::hard_link(&elsewhere, site.target().join(text)).unwrap();
        std::fs::write(site.source().join(text), painted(bytes, 1)).unwrap();
    }
    site.push(&["--delta", "always", "--checksum"], site.contents(), "")
        .expect(0);
    assert_same(&site.source(), &site.target());
    for (text, bytes) in [("small", 10), ("large", 2 * GROUP_BYTES)] {
        assert!(
            std::fs::read(site.path(&format!("elsewhere-{text}"))).unwrap() == painted(bytes, 0),
            "{text}"
        );
    }
}

/// The owner of the root's parent directory is not root and redirects the daemon.
#[test]
fn a_root_that_a_local_user_has_made_a_link_is_refused() {
    if !is_root() {
        return skip("not root: cannot act for another user");
    }
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    std::fs::create_dir(site.path("elsewhere")).unwrap();
    std::fs::remove_dir(site.target()).unwrap();
    symlink(site.path("elsewhere"), site.target()).unwrap();
    std::os::unix::fs::lchown(site.target(), Some(crate::support::command::NOBODY), None).unwrap();
    for options in [&[][..], &["--dry-run"]] {
        let refused = site.push(options, site.contents(), "");
        assert_ne!(refused.code, Some(0));
        refused.says(&["belongs to user 65534"]);
    }
    assert!(names(&site.path("elsewhere")).is_empty());
}

/// Repeats the tests of this file that need no other programs in a process that may not use `openat2`.
#[test]
fn paths_are_confined_where_openat2_is_refused() {
    if !has_program("strace") {
        return skip("strace is missing: nothing refuses openat2");
    }
    let log = tempfile::NamedTempFile::new().unwrap();
    for errno in ["ENOSYS", "EPERM"] {
        let mut command = Command::new("strace");
        command
            .args(["-f", "--seccomp-bpf", "-qq", "-e", "trace=openat2", "-o"])
            .arg(log.path());
        command
            .arg("-e")
            .arg(format!("inject=openat2:error={errno}"));
        command
            .arg(std::env::current_exe().unwrap())
            .args(["confine::", "--test-threads", "1"]);
        for skipped in [
            "where_openat2_is_refused",
            "local::",
            "daemon::",
            "local_user",
            "ten_thousand",
        ] {
            command.args(["--skip", skipped]);
        }
        let outcome = Zmove(command).outcome();
        assert_eq!(
            outcome.code,
            Some(0),
            "{errno}:\n{}\n{}",
            outcome.stdout,
            outcome.stderr
        );
        let traced = std::fs::read_to_string(log.path()).unwrap();
        assert!(traced.contains("INJECTED"), "openat2 was never called");
    }
}
