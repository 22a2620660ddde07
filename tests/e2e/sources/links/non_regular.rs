//! Hard links of symbolic links, FIFOs and devices.

use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use zmove_types::{Metadata, MetadataKinds, RelPath, Special};
use zmove_wire::{BatchEntry, NotKept, NotKeptReason, PreserveOptions};

use super::{assert_rsync_changes_nothing, copy_as_links, hard_link, push};
use crate::security::intruder::{Deed, Intruder, batch, metadata, name, path};
use crate::sources::metadata::{grant_owners, not_kept};
use crate::support::harness::{Site, both_ways, is_root};
use crate::support::namespace::Namespace;
use crate::support::tree::{name_groups, names, paint, set_mode, set_own_mtime};

#[track_caller]
fn assert_whole(source: &Path, target: &Path) {
    let [there, here] =
        [target, source].map(|root| name_groups(root).into_keys().collect::<Vec<_>>());
    assert_eq!(there, here);
    assert_rsync_changes_nothing(source, target);
}

/// Creates two links, a FIFO and, as root, two devices and owners. Each has names in several directories.
fn tie(source: &Path) {
    let at = |name: &str| source.join(name);
    for directory in ["a", "b", "c/d"] {
        std::fs::create_dir_all(at(directory)).unwrap();
    }
    symlink("nowhere", at("a/link")).unwrap();
    symlink("../file", at("b/other")).unwrap();
    let make = |name: &str, form, device| {
        mknodat(CWD, at(name), form, Mode::from_raw_mode(0o640), device).unwrap();
    };
    make("a/fifo", FileType::Fifo, 0);
    if is_root() {
        make(
            "b/null",
            FileType::CharacterDevice,
            rustix::fs::makedev(1, 3),
        );
        make("disk", FileType::BlockDevice, rustix::fs::makedev(7, 250));
        lchown(at("a/link"), Some(2000), Some(3000)).unwrap();
        lchown(at("a/fifo"), Some(2001), Some(3001)).unwrap();
        lchown(at("b/null"), Some(2002), Some(3002)).unwrap();
    }
    paint(at("file"), 10);
    let ties = [
        ("a/link", &["link", "b/link", "c/d/link"][..]),
        ("b/other", &["b/same"]),
        ("a/fifo", &["b/fifo", "fifo"]),
        ("b/null", &["null", "a/null"]),
        ("disk", &["c/disk"]),
        ("file", &["c/file"]),
    ];
    for (first, others) in ties
        .into_iter()
        .filter(|(first, _)| at(first).symlink_metadata().is_ok())
    {
        others
            .iter()
            .for_each(|other| hard_link(at(first), at(other)).unwrap());
    }
}

both_ways!(
    linked_names_stay_one_entry,
    a_change_reaches_all_pushed_names_and_no_others,
    links_are_broken_where_the_source_has_none,
    without_hard_links_each_name_is_an_entry,
);

fn lacks(summary: &Value) -> usize {
    summary["not_kept"].as_array().unwrap().len()
}

fn linked_names_stay_one_entry(site: &Site) {
    tie(&site.source());
    grant_owners(site);
    let listed = site.push(&["-a", "-n"], site.contents(), "").done().stdout;
    assert!(
        listed.contains("b/other => b/same\n") || listed.contains("b/same => b/other\n"),
        "{listed}"
    );
    assert_eq!(lacks(&push(site, &["-a"])), 0);
    assert_whole(&site.source(), &site.target());
    let made = name_groups(&site.target());
    for options in [
        &["-a"][..],
        &["-a", "--checksum"],
        &["-a", "--inplace"],
        &["-a", "--delete"],
    ] {
        assert_eq!(lacks(&push(site, options)), 0);
        assert_eq!(
            name_groups(&site.target()),
            made,
            "what is there is not made anew: {options:?}"
        );
    }
    let listed = site.push(&["-a", "-n"], site.contents(), "").done().stdout;
    assert!(listed.contains("0 to add, 0 to change"), "{listed}");
    // One name is missing, and one leads to another entry.
    std::fs::remove_file(site.target().join("b/fifo")).unwrap();
    std::fs::remove_file(site.target().join("c/d/link")).unwrap();
    symlink("nowhere", site.target().join("c/d/link")).unwrap();
    let listed = site.push(&["-a", "-n"], site.contents(), "").done().stdout;
    assert!(
        listed.contains("1 to add") && listed.contains("(hard link)"),
        "{listed}"
    );
    push(site, &["-a"]);
    assert_whole(&site.source(), &site.target());
    // Only names of regular files are counted.
    assert_eq!(push(site, &["-a"])["hard_links"], 0);
}

/// Names at the target that are not pushed keep their metadata, since an entry with such names is not modified.
fn a_change_reaches_all_pushed_names_and_no_others(site: &Site) {
    tie(&site.source());
    grant_owners(site);
    site.push(&["-a"], site.contents(), "today").done();
    let [today, before] = ["today", "before"].map(|name| site.target().join(name));
    copy_as_links(&today, &before);
    let kept = name_groups(&before);
    site.push(&["-a", "--delete"], site.contents(), "today")
        .done();
    assert_eq!(name_groups(&before), kept);
    assert_eq!(name_groups(&today), kept, "nothing was to be done");
    let look = |root: &Path, name: &str| {
        let stat = root.join(name).symlink_metadata().unwrap();
        (stat.uid(), stat.mode(), stat.mtime())
    };
    let names = ["link", "b/link", "fifo"];
    let were = names.map(|name| look(&before, name));
    set_own_mtime(&site.source().join("link"), 1_600_000_000, 7);
    set_mode(site.source().join("fifo"), 0o600);
    if is_root() {
        lchown(site.source().join("b/other"), Some(2100), None).unwrap();
    }
    site.push(&["-a"], site.contents(), "today").done();
    assert_whole(&site.source(), &today);
    assert_eq!(names.map(|name| look(&before, name)), were);
    assert_eq!(look(&before, "b/other"), look(&before, "b/same"));
    if is_root() {
        assert_eq!(
            (look(&today, "b/same").0, look(&before, "b/same").0),
            (2100, 0)
        );
    }
}

fn links_are_broken_where_the_source_has_none(site: &Site) {
    let [source, target] = [site.source(), site.target()];
    for name in ["one", "two"] {
        symlink("nowhere", source.join(name)).unwrap();
        set_own_mtime(&source.join(name), 1_600_000_000, 7);
        mknodat(
            CWD,
            source.join(format!("{name} fifo")),
            FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        set_own_mtime(&source.join(format!("{name} fifo")), 1_600_000_000, 7);
    }
    push(site, &["-a", "--no-preserve", "owner"]);
    for suffix in ["", " fifo"] {
        std::fs::remove_file(target.join(format!("two{suffix}"))).unwrap();
        hard_link(
            target.join(format!("one{suffix}")),
            target.join(format!("two{suffix}")),
        )
        .unwrap();
    }
    push(site, &["-a", "--no-preserve", "owner"]);
    assert_whole(&source, &target);
}

fn without_hard_links_each_name_is_an_entry(site: &Site) {
    tie(&site.source());
    grant_owners(site);
    assert_eq!(lacks(&push(site, &["-a", "--no-H"])), 0);
    assert!(
        name_groups(&site.target())
            .keys()
            .all(|names| names.len() == 1)
    );
    push(site, &["-a"]);
    assert_whole(&site.source(), &site.target());
}

/// A name on another file system becomes a separate entry and is counted.
#[test]
fn names_on_another_file_system_are_counted() {
    let site = Site::within(|target| {
        std::fs::create_dir(target.join("other")).unwrap();
        Namespace::with_small_disk(&target.join("other"), 16 << 20)
    });
    let Some(site) = site else { return };
    std::fs::create_dir(site.source().join("other")).unwrap();
    symlink("nowhere", site.source().join("link")).unwrap();
    hard_link(site.source().join("link"), site.source().join("other/link")).unwrap();
    let summary = push(&site, &[]);
    let lack = &summary["not_kept"][0];
    assert_eq!(
        (&lack["what"], &lack["why"], &lack["entries"]),
        (
            &"hard link".into(),
            &"not supported there".into(),
            &1.into()
        )
    );
    assert_eq!(
        std::fs::read_link(site.target().join("other/link")).unwrap(),
        Path::new("nowhere")
    );
}

fn with_first(text: &str) -> Metadata {
    metadata(0o640).with_first_name(path(text))
}

/// Returns two later names for each first name, but only one for the first of them. Symbolic links and pipes alternate.
fn later_names(firsts: &[&str]) -> Vec<BatchEntry> {
    let entry = |(number, text): (usize, &&str)| {
        let own = name(&format!("l{number}"));
        match number % 2 {
            0 => BatchEntry::Symlink(own, with_first(text), b"nowhere".as_slice().into()),
            _ => BatchEntry::Special(own, with_first(text), Special::Fifo),
        }
    };
    let all = firsts.iter().chain(&firsts[1..]);
    all.enumerate().map(entry).collect()
}

/// A first name of another kind is not linked. Each name becomes a separate entry and is counted.
#[test]
fn a_first_name_of_another_kind_gets_no_further_name() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    let outside = home.path().join("outside");
    std::fs::create_dir_all(root.join("directory")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    symlink("elsewhere", root.join("other")).unwrap();
    symlink("nowhere", outside.join("link")).unwrap();
    symlink(&outside, root.join("out")).unwrap();
    std::fs::write(root.join("file"), "nowhere").unwrap();
    let mut entries = later_names(&[
        "never sent",
        "no/where",
        "other",
        "directory",
        "out/link",
        "file",
    ]);
    // An existing device that the key may not create gets no further name either.
    let device = is_root().then(|| {
        mknodat(
            CWD,
            root.join("null"),
            FileType::CharacterDevice,
            Mode::RUSR,
            rustix::fs::makedev(1, 3),
        )
        .unwrap();
        let special = Special::Character(rustix::fs::makedev(1, 3));
        BatchEntry::Special(name("device"), with_first("null"), special)
    });
    let has_device = device.is_some();
    entries.extend(device);
    let mut intruder = Intruder::new(&root);
    intruder.open.target = root.as_os_str().as_encoded_bytes().to_vec();
    intruder.open.keeping = PreserveOptions {
        kinds: MetadataKinds::ALL,
        ..PreserveOptions::default()
    };
    let intruded = intruder.does(vec![batch(0, "", entries)]);
    assert!(
        intruded.ended.is_ok() && intruded.faults() == 0,
        "{:?}",
        intruded.ended
    );
    let counts = not_kept(intruded.answers);
    let links: u64 = counts
        .iter()
        .filter(|count| count.kind == MetadataKinds::LINKS)
        .map(|count| count.entries)
        .sum();
    assert_eq!(links, 11, "{counts:?}");
    assert_eq!(
        counts.contains(&NotKept::new(
            MetadataKinds::DEVICES,
            NotKeptReason::NotGranted,
            1
        )),
        has_device,
        "{counts:?}"
    );
    for name in names(&root)
        .into_iter()
        .filter(|name| name.starts_with('l'))
    {
        assert_eq!(root.join(name).symlink_metadata().unwrap().nlink(), 1);
    }
    assert!(!root.join("device").exists());
    assert_eq!(outside.join("link").symlink_metadata().unwrap().nlink(), 1);
}

/// `..` and an absolute path cannot be parsed, and the target directory cannot be a first name, so the transfer ends.
#[test]
fn a_first_name_beyond_the_target_ends_the_transfer() {
    assert!(RelPath::from_bytes(b"../secret").is_err() && RelPath::from_bytes(b"/secret").is_err());
    let home = tempfile::tempdir().unwrap();
    let entry = BatchEntry::Symlink(
        name("l"),
        metadata(0o777).with_first_name(RelPath::root()),
        b"x".as_slice().into(),
    );
    let mut intruder = Intruder::new(home.path());
    intruder.open.keeping = PreserveOptions::default();
    let deeds: Vec<Deed> = vec![batch(0, "", vec![entry])];
    assert!(intruder.does(deeds).ended.is_err());
    assert_eq!(names(home.path()), [""; 0]);
}
