//! Metadata that is preserved: extended attributes, access control lists, and owners.
//!
//! rsync checks the result if it is installed: `rsync -naHAX --numeric-ids -i --checksum --delete` must find no
//! differences.

mod whole;

use std::fs::File;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags, chownat};
use serde_json::Value;
use zmove_types::{Account, ExtraMetadata, Metadata, MetadataKinds, Xattr};
use zmove_wire::{BatchEntry, FileEntry, NotKept, NotKeptReason, PreserveOptions, ToSender};

use crate::security::intruder::{Intruder, batch, metadata, name};
use crate::support::harness::{Site, both_ways, has_program, is_root, skip};
use crate::support::namespace::Image;
use crate::support::tree::{paint, set_mode, set_mtime, wait_for_another_time};

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let length = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

fn set_acl(path: &Path, entries: &str) {
    let mut setfacl = Command::new("setfacl");
    assert!(
        setfacl
            .args(["-m", entries])
            .arg(path)
            .status()
            .unwrap()
            .success()
    );
}

/// Whether setfacl and rsync are installed and the file system supports extended attributes.
fn can_compare(site: &Site) -> bool {
    if !["setfacl", "rsync"].into_iter().all(has_program) {
        skip("setfacl or rsync is missing: nothing to compare with");
        return false;
    }
    let probe = File::create(site.path("probe")).unwrap();
    let can = rustix::fs::fsetxattr(&probe, "user.a", b"", XattrFlags::empty()).is_ok();
    if !can {
        skip("no extended attributes on this file system");
    }
    can
}

/// Asserts that rsync finds no differences.
#[track_caller]
fn assert_rsync_is_content(site: &Site) {
    let options = ["-naHAX", "--numeric-ids", "-i", "--checksum", "--delete"];
    let mut rsync = Command::new("rsync");
    rsync
        .args(options)
        .arg(site.source().join(""))
        .arg(site.target().join(""));
    assert_eq!(rsync_output(rsync), "");
}

/// Runs rsync and returns the changes that it would make.
#[track_caller]
pub(crate) fn rsync_output(mut rsync: Command) -> String {
    let left = rsync.output().unwrap();
    assert!(
        left.status.success(),
        "{}",
        String::from_utf8_lossy(&left.stderr)
    );
    String::from_utf8_lossy(&left.stdout).into_owned()
}

/// Creates files and directories in an empty source, some with extended attributes or access control lists.
fn dress(source: &Path) {
    let at = |name: &str| source.join(name);
    for directory in ["plain", "dressed", "dressed/deep", "many"] {
        std::fs::create_dir(at(directory)).unwrap();
    }
    for number in 0..40 {
        paint(at(&format!("many/f{number}")), 10 + number);
    }
    for (name, bytes) in [
        ("plain/f", 10),
        ("attribute", 10),
        ("list", 20),
        ("both", 30),
        ("large", 5 << 20),
        ("closed", 5),
    ] {
        paint(at(name), bytes);
    }
    set_xattr(&at("attribute"), "user.comment", b"one");
    set_xattr(
        &at("attribute"),
        &format!("user.{}", "n".repeat(250)),
        &[7; 1000],
    );
    set_xattr(&at("both"), "user.comment", b"");
    set_xattr(&at("closed"), "user.comment", b"closed");
    set_xattr(&at("large"), "user.comment", b"large");
    set_xattr(&at("many/f7"), "user.comment", b"seven");
    set_xattr(&at("dressed"), "user.comment", b"directory");
    // The mask allows more than the entry of the group.
    set_acl(&at("list"), "u:7:rw,g::r,m::rw");
    set_acl(&at("both"), "u:8:rx,g:9:w");
    set_acl(&at("large"), "u:7:rw");
    set_acl(&at("many/f8"), "u:7:rw");
    set_acl(&at("dressed/deep"), "u:7:rwx,d:u:8:rw,d:g::rx");
    set_acl(&at("dressed"), "d:u:9:rwx");
    paint(at("dressed/late"), 12);
    set_mode(at("closed"), 0o400);
    symlink("attribute", at("link")).unwrap();
}

fn push(site: &Site, options: &[&str]) -> Value {
    let outcome = site.push(&[options, &["--json"]].concat(), site.contents(), "");
    outcome.done().summary()
}

fn moved(summary: &Value) -> (u64, &Value) {
    (summary["files"].as_u64().unwrap(), &summary["not_kept"])
}

both_ways!(
    attributes_and_lists_are_kept,
    changed_attributes_are_corrected_without_data,
    attributes_are_also_kept_in_place_and_by_contents,
    a_list_that_the_target_gives_widens_nothing,
    attributes_that_are_not_to_be_kept_stay_as_they_are,
    attributes_of_links_are_kept,
    times_of_access_are_kept_where_they_are_wanted,
    modes_and_times_are_not_kept_where_they_are_not_wanted,
    without_modes_existing_entries_keep_theirs,
);

fn attributes_and_lists_are_kept(site: &Site) {
    if !can_compare(site) {
        return;
    }
    dress(&site.source());
    let first = push(site, &[]);
    assert_eq!(moved(&first), (47, &Value::Array(Vec::new())));
    assert_rsync_is_content(site);
    let again = push(site, &[]);
    assert_eq!(moved(&again), (0, &Value::Array(Vec::new())));
    assert_rsync_is_content(site);
}

fn changed_attributes_are_corrected_without_data(site: &Site) {
    if !can_compare(site) {
        return;
    }
    dress(&site.source());
    push(site, &[]);
    let at = |name: &str| site.source().join(name);
    set_xattr(&at("attribute"), "user.comment", b"two");
    set_xattr(&at("plain/f"), "user.new", b"new");
    rustix::fs::removexattr(at("closed"), "user.comment").unwrap();
    set_acl(&at("list"), "u:7:r");
    set_acl(&at("large"), "u:11:r");
    set_acl(&at("dressed"), "u:11:r");
    rustix::fs::removexattr(at("both"), "system.posix_acl_access").unwrap();
    let listed = site.push(&["--dry-run"], site.contents(), "").done().stdout;
    for line in [
        "~ attribute (xattr)",
        "~ plain/f (xattr)",
        "~ closed (xattr)",
        "~ large (xattr)",
        "~ dressed/ (xattr)",
    ] {
        assert!(listed.contains(line), "{line}: {listed}");
    }
    wait_for_target(site);
    let second = push(site, &[]);
    assert_eq!((moved(&second).0, second["bytes"].as_u64()), (0, Some(0)));
    assert_rsync_is_content(site);
    // Attributes that exist only at the target are removed, too.
    set_xattr(&site.target().join("many/f1"), "user.alone", b"x");
    set_xattr(&site.target().join("plain"), "user.alone", b"x");
    wait_for_target(site);
    assert_eq!(moved(&push(site, &[])).0, 0);
    assert_rsync_is_content(site);
}

/// Waits until no entry at the target was changed in the current tick. An entry that was changed in this tick would be
/// sent again instead of corrected.
fn wait_for_target(site: &Site) {
    let mut directories = vec![site.target()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            wait_for_another_time(&entry.path());
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            }
        }
    }
}

fn attributes_are_also_kept_in_place_and_by_contents(site: &Site) {
    if !can_compare(site) {
        return;
    }
    dress(&site.source());
    push(site, &[]);
    let at = |name: &str| site.source().join(name);
    for name in ["list", "large", "attribute"] {
        paint(at(name), 6 << 20);
        set_xattr(&at(name), "user.comment", b"changed");
    }
    push(site, &["--inplace"]);
    assert_rsync_is_content(site);
    set_xattr(&at("many/f7"), "user.comment", b"eight");
    set_acl(&at("large"), "u:12:r");
    wait_for_target(site);
    assert_eq!(moved(&push(site, &["--checksum"])).0, 0);
    assert_rsync_is_content(site);
}

/// Tests individual files, files of a new directory, large files and directories.
fn a_list_that_the_target_gives_widens_nothing(site: &Site) {
    if !can_compare(site) {
        return;
    }
    let source = site.source();
    std::fs::create_dir(source.join("new")).unwrap();
    for number in 0..20 {
        paint(source.join(format!("new/f{number}")), 10);
    }
    paint(source.join("large"), 5 << 20);
    paint(source.join("alone"), 10);
    for name in ["large", "alone", "new/f3"] {
        set_mode(source.join(name), 0o640);
    }
    set_acl(&site.target(), "d:u:7:rwx,d:g::rwx,d:o::rx,d:m::rwx");
    push(site, &[]);
    assert_rsync_is_content(site);
    for name in ["large", "alone", "new/f3", "new"] {
        assert_eq!(
            xattr(&site.target().join(name), "system.posix_acl_access"),
            None,
            "{name}"
        );
    }
}

fn attributes_that_are_not_to_be_kept_stay_as_they_are(site: &Site) {
    if !can_compare(site) {
        return;
    }
    let (source, target) = (site.source(), site.target());
    paint(source.join("f"), 10);
    set_xattr(&source.join("f"), "user.comment", b"x");
    set_acl(&source.join("f"), "u:7:rw,g::r,m::rw");
    push(site, &["--no-preserve", "owner,xattr,acl,specials,devices"]);
    assert_eq!(xattr(&target.join("f"), "user.comment"), None);
    let mode = target.join("f").metadata().unwrap().mode() & 0o777;
    assert_eq!(
        mode & 0o070,
        0o040,
        "without its list a file gives its group what that does: {mode:o}"
    );
    set_xattr(&target.join("f"), "user.own", b"own");
    let again = push(site, &["--no-preserve", "owner,xattr,acl,specials,devices"]);
    assert_eq!(
        (moved(&again).0, xattr(&target.join("f"), "user.own")),
        (0, Some(b"own".to_vec()))
    );
    push(site, &["--no-X"]);
    assert_eq!(xattr(&target.join("f"), "user.own"), Some(b"own".to_vec()));
    assert!(xattr(&target.join("f"), "system.posix_acl_access").is_some());
}

/// Creates files of twenty owners, a setuid program of one, and a link of another.
fn give_away(source: &Path) {
    for number in 0..20_u32 {
        let path = source.join(format!("f{number}"));
        paint(&path, 10 + u64::from(number));
        std::os::unix::fs::chown(&path, Some(2000 + number), Some(3000 + number)).unwrap();
    }
    set_mode(source.join("f3"), 0o6755);
    std::fs::create_dir(source.join("d")).unwrap();
    paint(source.join("d/large"), 5 << 20);
    symlink("f3", source.join("given")).unwrap();
    let flags = XattrFlags::empty();
    rustix::fs::lsetxattr(source.join("given"), "trusted.of", b"link", flags).unwrap();
    for (name, id) in [("d", 2100), ("d/large", 2101), ("given", 2102)] {
        let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
        chownat(
            CWD,
            source.join(name),
            Some(user),
            Some(group),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
    }
}

pub(crate) fn grant_owners(site: &Site) {
    if site.is_remote() {
        let path = site.path("server/authorized_keys");
        let line = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{} set-owner\n", line.trim_end())).unwrap();
    }
}

mod owners {
    use super::*;

    both_ways!(
        owners_are_kept_with_archive,
        owners_are_corrected_without_data,
        owners_are_mapped,
        a_capability_stays_if_only_the_owner_is_corrected,
    );

    fn owners_are_kept_with_archive(site: &Site) {
        if !is_root() || !can_compare(site) {
            return skip("only root can give files away");
        }
        give_away(&site.source());
        grant_owners(site);
        let first = push(site, &["-a"]);
        assert_eq!(moved(&first), (21, &Value::Array(Vec::new())));
        assert_rsync_is_content(site);
        assert_eq!(
            site.target().join("f3").metadata().unwrap().mode() & 0o7777,
            0o6755
        );
        assert_eq!(moved(&push(site, &["-a"])), (0, &Value::Array(Vec::new())));
        assert_rsync_is_content(site);
        let given = site.source().join("given");
        rustix::fs::lremovexattr(&given, "trusted.of").unwrap();
        let listed = site
            .push(&["-a", "--dry-run"], site.contents(), "")
            .done()
            .stdout;
        assert!(
            listed.contains("~ given -> f3 (xattr)") && listed.contains("1 to change"),
            "{listed}"
        );
        chownat(
            CWD,
            &given,
            Some(Uid::from_raw(2103)),
            None,
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        let listed = site
            .push(&["-a", "--dry-run"], site.contents(), "")
            .done()
            .stdout;
        assert!(listed.contains("~ given -> f3 (owner, xattr)"), "{listed}");
        push(site, &["-a"]);
        assert_rsync_is_content(site);
    }

    fn owners_are_corrected_without_data(site: &Site) {
        if !is_root() || !can_compare(site) {
            return skip("only root can give files away");
        }
        give_away(&site.source());
        grant_owners(site);
        push(site, &[]);
        let target = site.target().join("f3").metadata().unwrap();
        assert_eq!(
            (target.uid(), target.mode() & 0o7777),
            (0, 0o755),
            "an owner is not kept without being asked for"
        );
        let listed = site
            .push(&["-a", "--dry-run"], site.contents(), "")
            .done()
            .stdout;
        assert!(listed.contains("~ f4 (owner)"), "{listed}");
        wait_for_target(site);
        assert_eq!(moved(&push(site, &["-a"])), (0, &Value::Array(Vec::new())));
        assert_rsync_is_content(site);
    }

    /// The kernel removes a program's capabilities when its owner or group changes.
    fn a_capability_stays_if_only_the_owner_is_corrected(site: &Site) {
        if !is_root() {
            return skip("only root can give files away");
        }
        let program = site.source().join("program");
        paint(&program, 1000);
        set_xattr(&program, "security.capability", CAPABILITY);
        grant_owners(site);
        push(site, &["-a"]);
        wait_for_target(site);
        push(site, &["-a", "--chown", ":78", "--strict-metadata"]);
        let target = site.target().join("program");
        assert_eq!(target.metadata().unwrap().gid(), 78);
        assert_eq!(
            xattr(&target, "security.capability").as_deref(),
            Some(CAPABILITY)
        );
    }

    fn owners_are_mapped(site: &Site) {
        if !is_root() {
            return skip("only root can give files away");
        }
        give_away(&site.source());
        grant_owners(site);
        let ids = |name: &str| {
            let stat = site.target().join(name).symlink_metadata().unwrap();
            (stat.uid(), stat.gid())
        };
        push(site, &["--chown", "77:78"]);
        assert_eq!([ids("f1"), ids("d/large"), ids("given")], [(77, 78); 3]);
        push(
            site,
            &[
                "-a",
                "--usermap",
                "2000-2005:5,*:6",
                "--groupmap",
                "3001:root",
            ],
        );
        assert_eq!(
            [ids("f1"), ids("f2"), ids("f9")],
            [(5, 0), (5, 3002), (6, 3009)]
        );
        let unknown = push(site, &["--chown", "no-such-user"]);
        assert_eq!(unknown["not_kept"][0]["what"], "owner");
    }
}

/// Metadata that would grant privileges is not set, and all of it is counted.
#[test]
fn without_the_grant_owners_are_counted_and_not_set() {
    let site = Site::daemon();
    if !is_root() {
        return skip("only root can give files away");
    }
    give_away(&site.source());
    let privileged = site.source().join("f5");
    set_xattr(&privileged, "trusted.secret", b"x");
    let first = push(&site, &["-a"]);
    let counts = first["not_kept"].as_array().unwrap();
    let count = |what: &str| {
        let found = counts.iter().find(|lack| lack["what"] == what);
        found.map(|lack| {
            (
                lack["entries"].as_u64().unwrap(),
                lack["why"].as_str().unwrap().to_owned(),
            )
        })
    };
    let why = "the key's grant does not allow it".to_owned();
    assert_eq!(
        (count("owner"), count("group")),
        (Some((23, why.clone())), Some((23, why.clone())))
    );
    assert_eq!(count("trusted xattr"), Some((2, why)));
    let stat = site.target().join("f3").metadata().unwrap();
    assert_eq!(
        (stat.uid(), stat.gid(), stat.mode() & 0o7777),
        (0, 0, 0o755)
    );
    assert_eq!(xattr(&site.target().join("f5"), "trusted.secret"), None);
    std::os::unix::fs::chown(site.source(), Some(2200), None).unwrap();
    let named = site.push(&["-a", "-v", "--strict-metadata"], site.contents(), "");
    let named = named
        .expect(23)
        .says(&["not kept: owner of 'f3' (the key's grant does not allow it)"])
        .says(&["not kept: owner of the target itself (the key's grant does not allow it)"]);
    assert!(
        named
            .stdout
            .contains("not kept: owner of 24 (the key's grant"),
        "{}",
        named.stdout
    );
}

/// Metadata with a setuid bit, another owner and these attributes.
fn claimed(mode: u32, xattrs: &[(&str, &[u8])]) -> Metadata {
    let account = |id| {
        Some(Account {
            id,
            name: "".into(),
        })
    };
    let xattr = |(name, value): &(&str, &[u8])| Xattr {
        name: name.as_bytes().into(),
        value: (*value).into(),
    };
    let xattrs = xattrs.iter().map(xattr).collect();
    let extra = Some(Arc::new(ExtraMetadata {
        owner: account(7),
        group: account(8),
        xattrs,
        ..ExtraMetadata::default()
    }));
    Metadata {
        extra,
        ..metadata(mode)
    }
}

fn intrude(root: &Path, entries: Vec<BatchEntry>) -> Vec<NotKept> {
    let mut intruder = Intruder::new(root);
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
    not_kept(intruded.answers)
}

/// Returns the counts of metadata that a receiver has not kept.
pub(crate) fn not_kept(answers: Vec<ToSender>) -> Vec<NotKept> {
    let counts = answers.into_iter().filter_map(|answer| match answer {
        ToSender::NotKept { counts } => Some(counts),
        _ => None,
    });
    counts.flatten().collect()
}

fn file_with(text: &str, metadata: Metadata) -> BatchEntry {
    let root = zmove_chunk::file_root(b"x");
    BatchEntry::File(FileEntry {
        name: name(text),
        metadata,
        bytes: 1,
        root,
        data: None,
    })
}

/// The attribute value for `cap_net_raw+ep`.
const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn a_sender_that_claims_rights_without_the_grant_gets_none() {
    if !is_root() {
        return skip("only root could set them");
    }
    let home = tempfile::tempdir().unwrap();
    let rights: &[(&str, &[u8])] = &[
        ("security.capability", CAPABILITY),
        ("trusted.a", b"x"),
        ("user.a", b"y"),
    ];
    let entries = vec![
        file_with("f", claimed(0o6755, rights)),
        BatchEntry::Directory(name("d"), claimed(0o755, &rights[1..])),
        BatchEntry::Symlink(name("l"), claimed(0o777, &[]), b"f".as_slice().into()),
    ];
    let why = NotKeptReason::NotGranted;
    let counts = [
        (MetadataKinds::OWNER, 3),
        (MetadataKinds::GROUP, 3),
        (MetadataKinds::TRUSTED, 2),
        (MetadataKinds::SECURITY, 1),
    ];
    assert_eq!(
        intrude(home.path(), entries),
        counts.map(|(kind, entries)| NotKept::new(kind, why, entries))
    );
    for text in ["f", "d", "l"] {
        let stat = home.path().join(text).symlink_metadata().unwrap();
        assert_eq!(
            (stat.uid(), stat.gid(), stat.mode() & 0o6000),
            (0, 0, 0),
            "{text}"
        );
    }
    for text in ["f", "d"] {
        let has = |attribute: &str| xattr(&home.path().join(text), attribute);
        assert_eq!(
            [has("security.capability"), has("trusted.a")],
            [None, None],
            "{text}"
        );
        assert_eq!(has("user.a").as_deref(), Some(&b"y"[..]), "{text}");
    }
}

/// An invalid list, more attributes than fit (a block on ext4), and a list of an unknown type.
#[test]
fn metadata_that_a_file_system_refuses_is_counted() {
    let site = Site::local();
    if !can_compare(&site) {
        return;
    }
    let broken: &[(&str, &[u8])] = &[("system.posix_acl_access", b"\x02\0\0\0nonsense")];
    let foreign: &[(&str, &[u8])] = &[("system.nfs4_acl", b"x")];
    let plain = |mode, xattrs| {
        let mut metadata = claimed(mode, xattrs);
        let extra = metadata.extra.as_mut().map(Arc::make_mut).unwrap();
        (extra.owner, extra.group) = (None, None);
        metadata
    };
    let entries = vec![
        file_with("broken", plain(0o664, broken)),
        file_with("foreign", plain(0o664, foreign)),
    ];
    let counts = intrude(&site.target(), entries);
    let expected = [
        NotKept::new(MetadataKinds::ACLS, NotKeptReason::Unsupported, 1),
        NotKept::new(MetadataKinds::ACLS, NotKeptReason::Invalid, 1),
    ];
    assert_eq!(counts, expected);
    let mode = |text: &str| site.target().join(text).metadata().unwrap().mode() & 0o777;
    assert_eq!((mode("broken"), mode("foreign")), (0o604, 0o664));
    let long = vec![7; 60_000];
    let names: Vec<_> = (10..26).map(|number| format!("user.{number}")).collect();
    let many: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), &long[..]))
        .collect();
    let counts = intrude(&site.target(), vec![file_with("many", plain(0o600, &many))]);
    let taken = xattr_names(&site.target().join("many"));
    assert!(
        counts
            == [NotKept::new(
                MetadataKinds::XATTRS,
                NotKeptReason::NoRoom,
                1
            )]
            || taken == names.len(),
        "{counts:?}, {taken}"
    );
}

fn xattr_names(path: &Path) -> usize {
    let mut list = vec![0; 64 << 10];
    let length = rustix::fs::listxattr(path, &mut list[..]).unwrap();
    list[..length]
        .split(|byte| *byte == 0)
        .filter(|name| name.starts_with(b"user."))
        .count()
}

/// Creates an entry of each special type that the user, or root, can create.
fn make_specials(source: &Path) {
    let make = |name: &str, form, device| {
        let path = source.join(name);
        rustix::fs::mknodat(CWD, &path, form, Mode::from_raw_mode(0o640), device).unwrap();
    };
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    make("disk", FileType::BlockDevice, rustix::fs::makedev(7, 250));
    std::os::unix::fs::chown(source.join("fifo"), Some(2000), Some(3000)).unwrap();
}

mod specials {
    use super::*;

    both_ways!(special_files_are_kept_with_archive);

    fn special_files_are_kept_with_archive(site: &Site) {
        if !is_root() || !can_compare(site) {
            return skip("only root can make devices");
        }
        make_specials(&site.source());
        grant_owners(site);
        let none = push(site, &[]);
        assert_eq!(
            (
                &none["specials"],
                none["not_kept"].as_array().unwrap().len()
            ),
            (&4.into(), 0)
        );
        std::fs::write(site.target().join("socket"), "in the way").unwrap();
        let listed = site
            .push(&["-a", "--dry-run"], site.contents(), "")
            .done()
            .stdout;
        assert!(
            listed.contains("+ fifo") && listed.contains("~ socket (type)"),
            "{listed}"
        );
        let first = push(site, &["-a"]);
        assert_eq!(
            (&first["specials"], moved(&first).1),
            (&0.into(), &Value::Array(Vec::new()))
        );
        assert_rsync_is_content(site);
        let inode = site.target().join("fifo").metadata().unwrap().ino();
        set_mode(site.source().join("fifo"), 0o600);
        push(site, &["-a"]);
        assert_rsync_is_content(site);
        assert_eq!(site.target().join("fifo").metadata().unwrap().ino(), inode);
        let listed = site
            .push(&["-a", "--dry-run"], site.contents(), "")
            .done()
            .stdout;
        assert!(listed.contains("0 to add, 0 to change"), "{listed}");
    }
}

fn modes_and_times_are_not_kept_where_they_are_not_wanted(site: &Site) {
    let (file, directory) = ("f", "d");
    paint(site.source().join(file), 10);
    std::fs::create_dir(site.source().join(directory)).unwrap();
    symlink("f", site.source().join("link")).unwrap();
    set_mode(site.source().join(file), 0o4751);
    set_mode(site.source().join(directory), 0o711);
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for name in [file, directory] {
        set_mtime(site.source().join(name), old);
    }
    let look = |name: &str| {
        let stat = site.target().join(name).symlink_metadata().unwrap();
        (stat.mode() & 0o7777, stat.modified().unwrap() == old)
    };
    push(site, &["--no-preserve", "mode"]);
    let umask = 0o777 & !usual_mode(site);
    assert_eq!(
        [look(file), look(directory)],
        [(0o666 & !umask, true), (0o777 & !umask, true)]
    );
    let before = std::time::SystemTime::now();
    let summary = push(site, &["--no-preserve", "times"]);
    assert_eq!(
        (moved(&summary).0, [look(file), look(directory)]),
        (1, [(0o751, false), (0o711, true)]),
        "nothing changes in the directory, so it keeps its time"
    );
    for name in [file, "link"] {
        let time = site
            .target()
            .join(name)
            .symlink_metadata()
            .unwrap()
            .modified()
            .unwrap();
        assert!(
            time + std::time::Duration::from_secs(1) > before,
            "{name} {time:?}"
        );
    }
    wait_for_target(site);
    assert_eq!(moved(&push(site, &["--no-preserve", "times", "-c"])).0, 0);
    site.push(&["-u", "--no-t"], site.contents(), "").expect(1);
}

/// Tests small and large files, including those that are sent again, directories and their parents.
fn without_modes_existing_entries_keep_theirs(site: &Site) {
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let existing = [
        (".", 0o2775),
        ("shared", 0o2775),
        ("shared/private", 0o600),
        ("shared/script", 0o711),
        ("closed", 0o500),
        ("closed/same", 0o640),
        ("large", 0o604),
    ];
    for directory in [site.source(), site.target()] {
        for name in ["shared", "closed"] {
            std::fs::create_dir(directory.join(name)).unwrap();
        }
        let bytes = if directory == site.source() {
            17 << 20
        } else {
            5
        };
        paint(directory.join("large"), bytes);
        paint(directory.join("shared/private"), bytes % 1000);
        paint(directory.join("shared/script"), 30);
        paint(directory.join("closed/same"), 40);
        set_mtime(directory.join("closed/same"), old);
    }
    let many = site.source().join("new");
    std::fs::create_dir(&many).unwrap();
    for number in 0..20 {
        paint(many.join(format!("f{number}")), 10);
        set_mode(many.join(format!("f{number}")), 0o700);
    }
    for (name, mode) in existing {
        set_mode(site.target().join(name), mode);
    }
    let umask = 0o777 & !usual_mode(site);
    let look = || {
        existing.map(|(name, _)| {
            let stat = site.target().join(name).metadata().unwrap();
            (name, stat.mode() & 0o7777)
        })
    };
    for options in [&["--no-p"][..], &["--no-p", "-c"], &["--no-p", "--inplace"]] {
        let listed = site
            .push(&[options, &["-n"]].concat(), site.contents(), "")
            .done()
            .stdout;
        assert!(!listed.contains("mode"), "{listed}");
        push(site, options);
        assert_eq!(look(), existing, "{options:?}");
        let mode = |name: &str| {
            let stat = site.target().join(name).metadata().unwrap();
            stat.mode() & 0o777
        };
        assert_eq!(
            ["new/f7", "new"].map(mode),
            [0o666 & !umask, 0o777 & !umask]
        );
        paint(site.source().join("large"), 18 << 20);
        paint(site.source().join("shared/private"), 99);
    }
    let new = site.target().join("new").metadata().unwrap().mode();
    assert_eq!(
        new & 0o2000,
        0o2000,
        "a new directory has the group of its parent"
    );
}

/// An existing directory keeps its time, as with `rsync -O`.
#[test]
fn times_of_directories_can_be_left_out() {
    let site = Site::local();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let older = std::time::UNIX_EPOCH + std::time::Duration::from_secs(500_000_000);
    std::fs::create_dir(site.source().join("d")).unwrap();
    paint(site.source().join("d/f"), 10);
    push(&site, &[]);
    for name in ["d/f", "d"] {
        set_mtime(site.source().join(name), old);
        set_mtime(site.target().join(name), older);
    }
    let time = |name: &str| {
        let stat = site.target().join(name).metadata().unwrap();
        stat.modified().unwrap()
    };
    // A file that has just changed would be sent again.
    wait_for_another_time(&site.target().join("d/f"));
    push(&site, &["-O", "-c"]);
    assert_eq!([time("d/f"), time("d")], [old, older]);
    let listed = site.push(&["-n", "--omit-dir-times"], site.source().join("d"), "");
    assert!(!listed.done().stdout.contains("times"));
    push(&site, &[]);
    assert_eq!(time("d"), old);
}

/// Attributes that only root may set include those of overlayfs layers, access control lists saved from XFS, and
/// labels. Without those of overlayfs, deleted files would reappear.
#[test]
fn attributes_of_root_are_kept_but_for_those_of_one_system() {
    let site = Site::local();
    if !is_root() || !can_compare(&site) {
        return skip("only root may set attributes of all namespaces");
    }
    std::fs::create_dir(site.source().join("d")).unwrap();
    paint(site.source().join("d/f"), 10);
    let kept = [
        ("d", "trusted.overlay.opaque"),
        ("d/f", "trusted.overlay.metacopy"),
        ("d/f", "trusted.SGI_ACL_FILE"),
        ("d/f", "security.example"),
    ];
    for (name, attribute) in kept {
        set_xattr(&site.source().join(name), attribute, b"y");
    }
    for name in ["d", "d/f"] {
        set_xattr(&site.source().join(name), "security.selinux", b"label");
    }
    let options = ["-a", "--strict-metadata"];
    for moved in ["1 file,", "no files to move"] {
        let outcome = site.push(&options, site.contents(), "").expect(0);
        let told = &outcome.stdout;
        assert!(told.contains(moved) && !told.contains("not kept"), "{told}");
        outcome
            .says(&[
                "attributes that are specific to one system are never copied: security.selinux",
            ])
            .lines(1);
        for (name, attribute) in kept {
            let value = xattr(&site.target().join(name), attribute);
            assert_eq!(value.as_deref(), Some(&b"y"[..]), "{attribute}");
        }
        assert_eq!(xattr(&site.target().join("d/f"), "security.selinux"), None);
    }
    site.push(&[], site.contents(), "").done();
    let verify = |code| {
        let mut zmove = site.zmove(&["verify", "-a"]);
        zmove.0.arg(site.contents()).arg(site.target());
        zmove.outcome().expect(code)
    };
    verify(0);
    for (name, attribute) in [kept[0], kept[3]] {
        let target = site.target().join(name);
        rustix::fs::removexattr(&target, attribute).unwrap();
        verify(6);
        site.push(&options, site.contents(), "").expect(0);
        assert!(xattr(&target, attribute).is_some(), "{attribute}");
    }
}

/// XFS shows an access control list under a second name. An attribute with that name from another file system would
/// become a list there.
#[test]
fn on_xfs_a_list_is_not_taken_for_an_attribute() {
    const XFS: Image = Image {
        bytes: 400 << 20,
        make: "mkfs.xfs -q -f",
        options: "loop",
    };
    let Some(site) = Site::within_image(&XFS) else {
        return;
    };
    if !can_compare(&site) {
        return;
    }
    for name in ["listed", "saved"] {
        paint(site.source().join(name), 10);
    }
    set_acl(&site.source().join("listed"), "u:7:rw,g::r,m::rw");
    set_xattr(&site.source().join("saved"), "trusted.SGI_ACL_FILE", b"y");
    for moved in [2, 0] {
        let summary = push(&site, &["-a"]);
        assert_eq!(moved, summary["files"].as_u64().unwrap());
        let lack = serde_json::json!({ "what": "trusted xattr", "why": "not supported there", "entries": 1 });
        assert_eq!(summary["not_kept"], serde_json::json!([lack]));
        let list = |directory: PathBuf| xattr(&directory.join("listed"), "system.posix_acl_access");
        let there = list(site.namespace().outside(&site.target()));
        assert!(there.is_some() && there == list(site.source()));
    }
}

/// Returns the default mode of a new directory.
fn usual_mode(site: &Site) -> u32 {
    std::fs::create_dir(site.path("usual")).unwrap();
    site.path("usual").metadata().unwrap().mode() & 0o777
}

fn times_of_access_are_kept_where_they_are_wanted(site: &Site) {
    for name in ["small", "large"] {
        paint(
            site.source().join(name),
            if name == "small" { 10 } else { 5 << 20 },
        );
    }
    std::fs::create_dir(site.source().join("d")).unwrap();
    symlink("small", site.source().join("link")).unwrap();
    let at =
        |number: u64| std::time::UNIX_EPOCH + std::time::Duration::new(1_500_000_000 + number, 7);
    let set_times = || {
        for (number, name) in (0..).zip(["small", "large", "d"]) {
            let times = std::fs::FileTimes::new()
                .set_accessed(at(number))
                .set_modified(at(9));
            let file = File::open(site.source().join(name)).unwrap();
            file.set_times(times).unwrap();
        }
    };
    let accessed = |name: &str| {
        site.target()
            .join(name)
            .symlink_metadata()
            .unwrap()
            .accessed()
            .unwrap()
    };
    set_times();
    push(site, &[]);
    assert!(accessed("small") > at(9));
    std::fs::remove_dir_all(site.target()).unwrap();
    std::fs::create_dir(site.target()).unwrap();
    set_times();
    push(site, &["--preserve", "atime"]);
    assert_eq!(["small", "large", "d"].map(accessed), [at(0), at(1), at(2)]);
}

/// Links have no attributes that users may set.
fn attributes_of_links_are_kept(site: &Site) {
    let link = |path: PathBuf| path.join("link");
    symlink("nowhere", link(site.source())).unwrap();
    let set = |value: &[u8]| {
        rustix::fs::lsetxattr(link(site.source()), "trusted.a", value, XattrFlags::empty()).is_ok()
    };
    if !is_root() || !set(b"one") {
        return skip("attributes of links need root and a file system that has them");
    }
    grant_owners(site);
    let there = || {
        let mut value = [0; 16];
        let length = rustix::fs::lgetxattr(link(site.target()), "trusted.a", &mut value).ok()?;
        Some(value[..length].to_vec())
    };
    let summary = push(site, &["-a"]);
    assert_eq!(
        (there(), &summary["not_kept"]),
        (Some(b"one".to_vec()), &serde_json::json!([]))
    );
    set(b"two");
    push(site, &["-a"]);
    assert_eq!(there(), Some(b"two".to_vec()));
    rustix::fs::lremovexattr(link(site.source()), "trusted.a").unwrap();
    push(site, &["-a"]);
    assert_eq!(there(), None);
    set(b"three");
    push(site, &[]);
    assert_eq!(there(), None, "it is not asked for");
}

#[test]
fn devices_need_the_grant_and_other_special_files_do_not() {
    if !is_root() {
        return skip("only root can make devices");
    }
    let site = Site::daemon();
    make_specials(&site.source());
    let summary = push(&site, &["-a", "--no-preserve", "owner"]);
    let counts = summary["not_kept"].as_array().unwrap();
    let why = "the key's grant does not allow it";
    assert_eq!(counts.len(), 1);
    assert_eq!(
        (&counts[0]["what"], &counts[0]["why"], &counts[0]["entries"]),
        (&"device".into(), &why.into(), &2.into())
    );
    assert_eq!(
        crate::support::tree::names(&site.target()),
        ["fifo", "socket"]
    );
}

#[test]
fn devices_are_not_made_where_they_would_do_nothing() {
    if !is_root() {
        return skip("only root can make devices");
    }
    let home = tempfile::tempdir().unwrap();
    let mount = |words: &[&str]| {
        Command::new("mount")
            .args(words)
            .arg(home.path())
            .status()
            .unwrap()
            .success()
    };
    if !mount(&["-t", "tmpfs", "-o", "nodev", "none"]) {
        return skip("nothing can be mounted here");
    }
    let site = Site::local();
    make_specials(&site.source());
    let mut command = site.zmove(&["push", "-a", "--json"]);
    command.0.arg(site.contents()).arg(home.path());
    let summary = command.outcome().done().summary();
    let names = crate::support::tree::names(home.path());
    assert!(
        Command::new("umount")
            .arg(home.path())
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(
        (names, &summary["not_kept"][0]["what"]),
        (
            vec!["fifo".to_owned(), "socket".to_owned()],
            &"device".into()
        )
    );
    assert_eq!(summary["not_kept"][0]["why"], "not supported there");
}
