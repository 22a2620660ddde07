//! A tree with all kinds of metadata, created by a script, copied to all kinds of file systems over all transports.
//!
//! rsync checks the result. Data ranges, which rsync does not compare, must equal those of the source. The tests use
//! selected pairs of a transport and a file system, not all combinations.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use zmove_disk::find_data;
use zmove_types::GROUP_BYTES;

use super::{grant_owners, push, rsync_output};
use crate::commands::ssh::{Sshd, push_by};
use crate::connections::resume::break_off_after;
use crate::support::command::ZMOVE;
use crate::support::harness::{Site, has_program, is_root, skip};
use crate::support::namespace::{Image, Namespace};
use crate::support::tree::name_groups;

const RSYNC_KEEPS: &str = "-naHAXS";
/// A file with 8 GiB of holes, which rsync reads slowly, so only its data ranges are compared.
const LARGE: &str = "holes/large";
/// Length of an attribute that every file system here supports.
const ATTRIBUTE_BYTES: u64 = 1500;

/// Whether this host can create and compare the tree.
fn can_grow() -> bool {
    let programs = ["setfacl", "setfattr", "setcap", "rsync"];
    let missing = |name: &&str| !has_program(name) && !Path::new("/usr/sbin").join(name).is_file();
    if !is_root() || programs.iter().any(missing) {
        skip("the tree needs root, setfacl, setfattr, setcap and rsync");
        return false;
    }
    true
}

/// Creates the tree. Returns `false` if the file system does not support it.
fn grow(root: &Path, attribute_bytes: u64) -> bool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/sources/metadata/tree.sh");
    let made = Command::new("sh")
        .arg(script)
        .arg(root)
        .arg(attribute_bytes.to_string())
        .output()
        .unwrap();
    if !made.status.success() {
        skip(&format!(
            "the tree cannot be made here: {}",
            String::from_utf8_lossy(&made.stderr)
        ));
    }
    made.status.success()
}

/// Asserts that rsync finds no differences, that hard links are the same as at the source, and that every file has the
/// same data ranges. The paths are paths inside the namespace.
#[track_caller]
fn assert_whole(namespace: Option<&Namespace>, source: &Path, target: &Path) {
    let mut words: Vec<OsString> = namespace
        .map(Namespace::enter)
        .into_iter()
        .flatten()
        .collect();
    let options = [
        "rsync",
        RSYNC_KEEPS,
        "--numeric-ids",
        "-i",
        "--checksum",
        "--delete",
    ];
    words.extend(options.map(OsString::from));
    let mut rsync = Command::new(&words[0]);
    rsync.args(&words[1..]).arg(format!("--exclude=/{LARGE}"));
    rsync
        .arg("--exclude=/lost+found")
        .arg(source.join(""))
        .arg(target.join(""));
    assert_eq!(rsync_output(rsync), "");
    let [source, target] = [source, target]
        .map(|path| namespace.map_or(path.to_owned(), |namespace| namespace.outside(path)));
    assert!(
        name_groups(&source).keys().eq(name_groups(&target).keys()),
        "other groups of names"
    );
    for path in files(&source) {
        let below = path.strip_prefix(&source).unwrap();
        assert_eq!(
            data(&path),
            data(&target.join(below)),
            "{}",
            below.display()
        );
    }
    assert!(
        read_data(&source.join(LARGE)) == read_data(&target.join(LARGE)),
        "the large file's data"
    );
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

/// Returns the data ranges of a file with holes, or `None` for a file without holes.
fn data(path: &Path) -> Option<Vec<std::ops::Range<u64>>> {
    let file = File::open(path).unwrap();
    let bytes = file.metadata().unwrap().len();
    let found = find_data(&file, bytes).unwrap().0;
    found.map(|data| data.ranges().to_vec())
}

fn read_data(path: &Path) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let ranges = data(path).unwrap();
    let mut bytes = Vec::new();
    for range in ranges {
        let mut room = vec![0; usize::try_from(range.end - range.start).unwrap()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut room, range.start).unwrap();
        bytes.append(&mut room);
    }
    bytes
}

/// Asserts that everything was kept, and that nothing was moved if it existed before.
#[track_caller]
fn assert_summary(summary: &Value, there: bool) {
    assert_eq!(summary["failed"], 0, "{summary}");
    assert_eq!(summary["not_kept"], Value::Array(Vec::new()), "{summary}");
    assert_eq!(
        summary["bytes"] == 0 && summary["files"] == 0,
        there,
        "{summary}"
    );
}

/// Pushes the source twice to the file system in the site's namespace, and compares after each push.
fn push_twice(site: &Site, options: &[&str]) {
    for there in [false, true] {
        assert_summary(&push(site, options), there);
        assert_whole(Some(site.namespace()), &site.source(), &site.path("target"));
    }
}

#[test]
fn all_metadata_arrives_over_tcp_on_ext4_after_a_kill() {
    const EXT4: Image = Image {
        bytes: 300 << 20,
        make: "mkfs.ext4 -q -F -b 4096",
        options: "loop",
    };
    let Some(mut site) = can_grow().then(|| Site::within_image(&EXT4)).flatten() else {
        return;
    };
    site.start_daemon();
    if !grow(&site.source(), ATTRIBUTE_BYTES) {
        return;
    }
    grant_owners(&site);
    let options = ["-a", "--strict-metadata", "--json"];
    break_off_after(2 * GROUP_BYTES, &site, |relay| {
        site.push_by(relay, &options)
    });
    push_twice(&site, &options[..2]);
}

/// Both ends are on one file system, whose attributes may have 64 KiB.
#[test]
fn all_metadata_arrives_over_quic_on_xfs_with_the_largest_attributes() {
    const XFS: Image = Image {
        bytes: 400 << 20,
        make: "mkfs.xfs -q -f",
        options: "loop",
    };
    let Some(mut site) = can_grow().then(|| Site::within_image(&XFS)).flatten() else {
        return;
    };
    site.start_daemon_with(&["--transport", "quic"]);
    grant_owners(&site);
    let [source, target] = ["target/source", "target/target"].map(|name| site.path(name));
    let outside = site.namespace().outside(&source);
    std::fs::create_dir(&outside).unwrap();
    if !grow(&outside, 65_536) {
        return;
    }
    for there in [false, true] {
        let options = ["-a", "--strict-metadata", "--json", "--transport", "quic"];
        assert_summary(
            &site
                .push(&options, source.join(""), "target")
                .done()
                .summary(),
            there,
        );
        assert_whole(Some(site.namespace()), &source, &target);
    }
}

#[test]
fn all_metadata_arrives_within_the_host_on_btrfs() {
    const BTRFS: Image = Image {
        bytes: 400 << 20,
        make: "mkfs.btrfs -q -f",
        options: "loop",
    };
    let Some(site) = can_grow().then(|| Site::within_image(&BTRFS)).flatten() else {
        return;
    };
    if grow(&site.source(), ATTRIBUTE_BYTES) {
        push_twice(&site, &["-a", "--strict-metadata"]);
    }
}

/// A mount, which is removed when dropped.
struct Mount(TempDir);

impl Mount {
    fn new(command: &mut Command) -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let mounted = command
            .arg(place.path())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            skip("nothing can be mounted here");
        }
        mounted.then_some(Self(place))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(
            Command::new("umount")
                .arg("--lazy")
                .arg(self.path())
                .status(),
        );
    }
}

#[test]
fn all_metadata_arrives_over_ssh_in_memory() {
    let site = Site::local();
    if !can_grow() || !grow(&site.source(), ATTRIBUTE_BYTES) {
        return;
    }
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    let mut mount = Command::new("mount");
    let Some(memory) = Mount::new(mount.args(["-t", "tmpfs", "-o", "size=300m", "none"])) else {
        return;
    };
    for there in [false, true] {
        let target = sshd.at(memory.path());
        let options = ["-a", "--strict-metadata"];
        let outcome =
            push_by(&site, &sshd.command(), Path::new(ZMOVE), &options, &target).outcome();
        assert_summary(&outcome.done().summary(), there);
        assert_whole(None, &site.source(), memory.path());
    }
}

/// Attributes, access control lists and FIFOs arrive. Owners, devices, capabilities and setuid bits are counted.
/// Nothing fails.
fn an_ordinary_user_keeps_what_they_may(site: &Site) {
    if !grow(&site.source(), ATTRIBUTE_BYTES) {
        return;
    }
    let mut readable = Command::new("chmod");
    assert!(
        readable
            .args(["-R", "a+rX"])
            .arg(site.source())
            .status()
            .unwrap()
            .success()
    );
    let summary = push(site, &["-a"]);
    assert_eq!(summary["failed"], 0, "{summary}");
    let lacks = summary["not_kept"].as_array().unwrap();
    let mut whats: Vec<_> = lacks
        .iter()
        .map(|lack| lack["what"].as_str().unwrap())
        .collect();
    whats.sort_unstable();
    assert_eq!(
        whats,
        ["device", "group", "owner", "security xattr"],
        "{lacks:?}"
    );
    let mode = site.target().join("owners/f1").metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o755, "a setuid bit would lend the receiver's rights");
    let mut rsync = Command::new("setpriv");
    rsync.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "rsync",
        "-nrlptAXSi",
        "--specials",
    ]);
    rsync.args([
        "--numeric-ids",
        "--checksum",
        "--delete",
        "--exclude=/owners/f[1-4]",
        "--exclude=/shared",
    ]);
    rsync
        .arg(format!("--exclude=/{LARGE}"))
        .arg(site.contents())
        .arg(site.target().join(""));
    let devices = |line: &&str| !line.contains("specials/") && !line.contains("/null");
    let left = rsync_output(rsync);
    assert_eq!(
        left.lines().filter(devices).collect::<Vec<_>>(),
        [""; 0],
        "{left}"
    );
    assert_eq!(push(site, &["-a"])["bytes"], 0);
}

#[test]
fn an_ordinary_user_keeps_permitted_metadata_within_the_host() {
    if let Some(site) = can_grow().then(Site::unprivileged).flatten() {
        an_ordinary_user_keeps_what_they_may(&site);
    }
}

#[test]
fn the_daemon_of_an_ordinary_user_keeps_permitted_metadata() {
    if let Some(mut site) = can_grow().then(Site::unprivileged).flatten() {
        site.start_daemon();
        grant_owners(&site);
        an_ordinary_user_keeps_what_they_may(&site);
    }
}
