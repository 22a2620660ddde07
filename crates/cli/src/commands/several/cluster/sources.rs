//! Checks whether a node has the same sources as the head of a job.
//!
//! This comparison keeps out nodes with different sources before they do any work. Such a node may have a copy of the
//! sources, or an empty directory because a file system is not mounted. Entries deeper in the trees are compared during
//! the work (`scan/walk/mark.rs`).
//!
//! **Invariant:** a node takes part only with the head's list of sources, because work items refer to a source by its
//! number.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::{Result, bail};
use rustix::process::{Gid, getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use zmove_cluster::SharedJob;
use zmove_cluster::jetstream::{JobNotice, NOTICE_INTERVAL, Reader, SourceMark, SourceNotice};
use zmove_disk::{Mount, boot_id};
use zmove_engine::Sources;
use zmove_scan::{PathKind, ScanRoot, Selection, is_mount_at};
use zmove_types::{Escaped, RelPath};

/// Describes the sources as the head sees them. Relative paths are relative to `directory`.
pub(crate) fn notices(directory: &Path, sources: &Sources) -> Vec<SourceNotice> {
    let names = (NAMES_OF_ALL / sources.paths().count().max(1)).clamp(1, NAMES);
    let mountinfo = mountinfo();
    let paths = sources.paths().map(|path| directory.join(path));
    paths.map(|path| notice(&mountinfo, path, names)).collect()
}

/// Describes a source, or a directory in a source, with up to `names_max` of the names in it. The list of names is
/// empty if the directory is empty, or if the path is not a directory.
fn notice(mountinfo: &[u8], path: PathBuf, names_max: usize) -> SourceNotice {
    let entries = path.read_dir().into_iter().flatten();
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().into_vec()));
    SourceNotice {
        names: names.take(names_max).collect(),
        mark: mark(mountinfo, &path),
        path: path.into_os_string().into_vec(),
    }
}

/// Returns the identity of the entry at a path. If the last component of the path is a symbolic link, the link itself
/// is identified.
fn mark(mountinfo: &[u8], path: &Path) -> Option<SourceMark> {
    let found = path.symlink_metadata().ok()?;
    let mount = || Mount::containing(mountinfo, &path.canonicalize().ok()?);
    let is_local = mount().is_some_and(|mount| LOCAL.contains(&&*mount.kind));
    Some(SourceMark {
        inode: found.ino(),
        local: boot_id()
            .filter(|_| is_local)
            .map(|host| (host, found.dev())),
    })
}

/// The source trees of a push, together with the mount table in which their mounts are looked up.
#[derive(Clone)]
pub(crate) struct Trees {
    /// The mount table of this host.
    mountinfo: Vec<u8>,
    roots: Vec<ScanRoot>,
    selection: Option<Arc<Selection>>,
}

impl Trees {
    /// Returns the trees of a job.
    pub(crate) fn new(job: &SharedJob) -> Self {
        Self {
            mountinfo: mountinfo(),
            roots: job.sources.clone(),
            selection: job.config.scan.selection.clone(),
        }
    }

    /// Describes the mounts in the source trees as the head sees them. If a node lacks one of these mounts, the node
    /// sees an empty directory or the files that the mount hides. Mounts that the selection excludes are left out,
    /// because no node enters them.
    pub(crate) fn mounts(&self) -> Vec<SourceNotice> {
        let mut found = Vec::new();
        for root in &self.roots {
            let Ok(canonical) = root.source.canonicalize() else {
                continue;
            };
            for mount in Mount::all(&self.mountinfo) {
                let below = mount.point.strip_prefix(&canonical);
                let Ok(below) = below else { continue };
                if below.as_os_str().is_empty() || !self.admits(root, below, &mount.point) {
                    continue;
                }
                // If a later mount at a parent directory hides this mount, `is_mount_at` returns `Some(false)`.
                let is_seen =
                    is_mount_at(&mount.point).is_ok_and(|is_mount| is_mount != Some(false));
                // The list may exceed the limit by one mount. A longer list than the limit shows that the list is
                // incomplete.
                if is_seen && found.len() <= MOUNTS {
                    found.push(notice(&self.mountinfo, root.source.join(below), NAMES));
                }
            }
        }
        found
    }

    /// Sends the list of mounts again after each mount or unmount. A separate thread inspects the mounts, because a
    /// mount that does not respond may block the thread.
    pub(crate) fn watch_mounts(mut self) -> watch::Receiver<Vec<SourceNotice>> {
        let (reports, mounts) = watch::channel(Vec::new());
        spawn_blocking(move || {
            while !reports.is_closed() {
                thread::sleep(NOTICE_INTERVAL);
                let before = std::mem::replace(&mut self.mountinfo, mountinfo());
                if self.mountinfo != before {
                    reports.send_replace(self.mounts());
                }
            }
        });
        mounts
    }

    /// Returns whether the selection admits the entry `below` a root.
    fn admits(&self, root: &ScanRoot, below: &Path, point: &Path) -> bool {
        let Some(selection) = &self.selection else {
            return true;
        };
        let path = root.prefix.as_path().join(below);
        let Ok(path) = RelPath::from_bytes(path.as_os_str().as_bytes()) else {
            return true;
        };
        let [directory, other] =
            [PathKind::Directory, PathKind::Other].map(|kind| selection.admits(&path, kind));
        // If the selection gives the same answer for a directory and for any other entry, the entry is not inspected,
        // because its mount may not respond.
        if directory == other || point.is_dir() {
            directory
        } else {
            other
        }
    }
}

/// Returns the user, groups and privileges with which this process reads the sources.
pub(crate) fn reader() -> Reader {
    let groups = getgroups().unwrap_or_default().into_iter();
    let capabilities = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    Reader {
        user: geteuid().as_raw(),
        groups: groups.chain([getegid()]).map(Gid::as_raw).collect(),
        reads_all: capabilities
            .intersects(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH),
    }
}

/// Compares the permissions with which this node and the head read the sources. If they differed, the set of sent files
/// would depend on which node takes an item. Files that a server hides only from the root user of one host are not
/// detected.
fn compare_readers(here: &Reader, head: &Reader) -> Result<()> {
    if here.reads_all {
        return Ok(());
    }
    if here.user != head.user {
        bail!(
            "this node reads the sources as user {}, but the sending node as user {}",
            here.user,
            head.user
        );
    }
    if head.reads_all {
        bail!(
            "the sending node may read all files, but this node reads as user {}",
            here.user
        );
    }
    if let Some(group) = head.groups.difference(&here.groups).next() {
        bail!(
            "the sending node reads the sources in group {group}, but user {} is not in this group on this node",
            here.user
        );
    }
    Ok(())
}

/// Returns the error message for a source that differs between this node and the head.
pub(super) fn mismatch_message(path: &Path) -> String {
    format!(
        "the source '{}' is not the same here as on the sending node",
        Escaped::path(&path)
    )
}

/// Compares the sources of this node, and the permissions of their reader, with those of the head.
///
/// # Errors
/// Returns an error if a source does not exist on this node or differs from the head's source.
pub(super) fn compare(reader: &Reader, here: &Sources, head: &JobNotice) -> Result<()> {
    let mut paths = here.paths();
    for path in head.sources.iter().map(path_of) {
        if paths.next() != Some(path) {
            bail!(mismatch_message(path));
        }
    }
    if head.mounts.len() > MOUNTS {
        bail!(
            "more than {MOUNTS} file systems are mounted below the sources, too many to compare: the sending node \
             works alone"
        );
    }
    compare_readers(reader, &head.reader)?;
    let mountinfo = mountinfo();
    let mut all = head.sources.iter().chain(&head.mounts);
    all.try_for_each(|there| compare_source(there, &mountinfo))
}

/// Returns the paths at which file systems are mounted at the head.
pub(super) fn mount_points(head: &JobNotice) -> BTreeSet<PathBuf> {
    let mounts = head.mounts.iter();
    mounts.map(|mount| path_of(mount).to_owned()).collect()
}

/// Returns the mount table of this host.
fn mountinfo() -> Vec<u8> {
    std::fs::read("/proc/self/mountinfo").unwrap_or_default()
}

/// Compares a source with its description from the head. A different directory lacks the described names, and a copy
/// has a different inode number. If the description has few names and all these files were removed since, this node
/// does not take part. This does no harm.
fn compare_source(there: &SourceNotice, mountinfo: &[u8]) -> Result<()> {
    let path = path_of(there);
    let shown = Escaped::path(&path);
    let is_here = |name: &Vec<u8>| {
        path.join(OsStr::from_bytes(name))
            .symlink_metadata()
            .is_ok()
    };
    if let Some(first) = there.names.first()
        && !there.names.iter().any(is_here)
    {
        bail!(
            "'{shown}' is another directory here, or is not mounted: it does not contain '{}'",
            Escaped(first)
        );
    }
    let Some((there, here)) = there.mark.zip(mark(mountinfo, path)) else {
        return Ok(());
    };
    if there.local.is_some() && here.local.is_some() && there.local != here.local {
        bail!(
            "'{shown}' is on a local file system here and on the sending node: all nodes need one shared file system"
        );
    }
    if there.inode != here.inode {
        bail!(
            "'{shown}' is not the same here as on the sending node, but possibly a copy (inode {} here, {} there): \
             all nodes need one shared file system",
            here.inode,
            there.inode
        );
    }
    Ok(())
}

/// Returns the path of a source, or of a directory in a source.
pub(super) fn path_of(source: &SourceNotice) -> &Path {
    Path::new(OsStr::from_bytes(&source.path))
}

/// File systems that two hosts cannot have mounted for writing at the same time, and read-only images. Each host has a
/// separate file system of such a type, possibly with different contents. A replica of a volume, for example one made
/// from sent snapshots, has the inode numbers of its original and lags behind it.
const LOCAL: [&str; 38] = [
    "affs", "aufs", "bcachefs", "befs", "btrfs", "cramfs", "devtmpfs", "ecryptfs", "erofs",
    "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "hfs", "hfsplus", "hpfs", "iso9660",
    "jffs2", "jfs", "minix", "msdos", "nilfs2", "ntfs", "ntfs3", "overlay", "ramfs", "reiserfs",
    "romfs", "squashfs", "tmpfs", "ubifs", "udf", "ufs", "vfat", "xfs", "zfs",
];
/// Maximum number of names in the description of one source. When a source changes, fewer names than this usually
/// disappear at the same time.
const NAMES: usize = 8;
/// Maximum number of names in the descriptions of all sources. These names are sent every second.
const NAMES_OF_ALL: usize = 1024;
/// Maximum number of mounts to describe. The descriptions are sent every second.
const MOUNTS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use zmove_engine::NoListener;
    use zmove_scan::Rule;

    fn sources(paths: &[&Path]) -> Sources {
        let paths: Vec<_> = paths
            .iter()
            .map(|path| path.as_os_str().to_owned())
            .collect();
        Sources::examine(&paths, None, &NoListener).unwrap()
    }

    fn trees(mountinfo: Vec<u8>, paths: &[&Path], rules: &[&str]) -> Trees {
        let rules: Vec<_> = rules
            .iter()
            .filter_map(|rule| Rule::from_line(rule.as_bytes()).unwrap())
            .collect();
        let selection = Selection::new(&rules, 0..=u64::MAX).unwrap();
        let roots = sources(paths).roots();
        Trees {
            mountinfo,
            roots,
            selection: Some(Arc::new(selection)),
        }
    }

    fn told(sources: Vec<SourceNotice>, mounts: Vec<SourceNotice>) -> JobNotice {
        JobNotice {
            sources,
            mounts,
            begun: true,
            reader: reader(),
            ..JobNotice::default()
        }
    }

    #[test]
    fn a_source_that_is_empty_here_or_missing_is_another_one() {
        let site = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| site.path().join(name));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(one.join("f"), "f").unwrap();
        let head = told(
            notices(Path::new("/"), &sources(&[&one, &other])),
            Vec::new(),
        );
        let compared = |paths: &[&Path]| {
            compare(&reader(), &sources(paths), &head).map_err(|error| error.to_string())
        };
        assert_eq!(compared(&[&one, &other]), Ok(()));
        std::fs::write(other.join("came"), "later").unwrap();
        assert_eq!(compared(&[&one, &other]), Ok(()));
        assert!(
            compared(&[&one])
                .unwrap_err()
                .contains("other' is not the same here")
        );
        assert!(
            compared(&[&other])
                .unwrap_err()
                .contains("one' is not the same here")
        );
        std::fs::remove_file(one.join("f")).unwrap();
        std::fs::write(one.join("lost+found"), "").unwrap();
        assert!(
            compared(&[&one, &other])
                .unwrap_err()
                .ends_with("is not mounted: it does not contain 'f'")
        );
    }

    #[test]
    fn what_is_mounted_below_a_source_has_to_be_mounted_here_too() {
        let site = tempfile::tempdir().unwrap();
        let root = site.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/mounted")).unwrap();
        std::fs::create_dir_all(root.join("empty")).unwrap();
        std::fs::write(root.join("a/mounted/f"), "f").unwrap();
        let line = |path: &Path| format!("1 2 0:1 / {} rw - xfs dev rw\n", path.display());
        let mountinfo = [
            &root,
            &root.join("a/mounted"),
            &root.join("empty"),
            Path::new("/elsewhere"),
        ]
        .map(line);
        let seen = trees(mountinfo.concat().into(), &[&root], &[]).mounts();
        assert_eq!(seen, [], "one that another mount hides is none");
        let all = trees(super::mountinfo(), &[Path::new("/")], &[]).mounts();
        assert!(all.iter().any(|mount| mount.path == b"/proc"), "{all:?}");
        let path = root.join("a/mounted").into_os_string().into_vec();
        let seen = vec![SourceNotice {
            path,
            names: vec![b"f".to_vec()],
            mark: None,
        }];
        let head = told(notices(Path::new("/"), &sources(&[&root])), seen);
        compare(&reader(), &sources(&[&root]), &head).unwrap();
        std::fs::remove_file(root.join("a/mounted/f")).unwrap();
        let error = compare(&reader(), &sources(&[&root]), &head)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("a/mounted' is another directory here, or is not mounted"),
            "{error}"
        );
    }

    #[test]
    fn what_is_mounted_where_the_selection_leaves_it_out_is_none_of_theirs() {
        let points = |rules: &[&str]| {
            let seen = trees(mountinfo(), &[Path::new("/")], rules).mounts();
            let points = seen
                .into_iter()
                .map(|mount| PathBuf::from(OsString::from_vec(mount.path)));
            points
                .filter(|point| point.starts_with("/proc"))
                .collect::<Vec<_>>()
        };
        assert!(points(&[]).contains(&"/proc".into()));
        for rules in [&["/proc/"][..], &["proc"], &["/*", "!/usr"]] {
            assert_eq!(points(rules), [""; 0].map(PathBuf::from), "{rules:?}");
        }
        assert!(points(&["*.proc", "/proc/sys"]).contains(&"/proc".into()));
    }

    #[test]
    fn another_user_and_too_many_mounts_keep_a_node_away() {
        let site = tempfile::tempdir().unwrap();
        let here = sources(&[site.path()]);
        let seen = notices(Path::new("/"), &here);
        let compared =
            |head: JobNotice| compare(&reader(), &here, &head).map_err(|error| error.to_string());
        let mounts = vec![seen[0].clone(); MOUNTS];
        assert_eq!(compared(told(seen.clone(), mounts.clone())), Ok(()));
        let mounts = [&mounts[..], &seen[..]].concat();
        assert!(
            compared(told(seen.clone(), mounts))
                .unwrap_err()
                .contains("more than 256 file systems")
        );
        let reader = |user, groups: &[u32]| Reader {
            user,
            groups: groups.iter().copied().collect(),
            reads_all: false,
        };
        let root = Reader {
            reads_all: true,
            ..reader(0, &[0])
        };
        let compared_as = |node: &Reader, head: &Reader| {
            let head = JobNotice {
                reader: head.clone(),
                ..told(seen.clone(), Vec::new())
            };
            compare(node, &here, &head).map_err(|error| error.to_string())
        };
        let head = reader(1001, &[1001, 2000]);
        for node in [&head, &reader(1001, &[7, 1001, 2000]), &root] {
            assert_eq!(compared_as(node, &head), Ok(()));
        }
        let keeps_away = |node: &Reader, head: &Reader, why: &str| {
            let told = compared_as(node, head).unwrap_err();
            assert!(told.contains(why), "{told}");
        };
        keeps_away(
            &reader(1000, &[1001, 2000]),
            &head,
            "as user 1000, but the sending node as user 1001",
        );
        keeps_away(
            &reader(1001, &[1001]),
            &head,
            "in group 2000, but user 1001 is not in this group on this node",
        );
        keeps_away(
            &reader(0, &[0]),
            &root,
            "may read all files, but this node reads as user 0",
        );
    }

    #[test]
    fn file_systems_that_one_host_alone_has_are_known() {
        let site = tempfile::tempdir().unwrap();
        let root = site.path().canonicalize().unwrap();
        let is_local = |kind: &&str| {
            let mountinfo = format!("1 2 0:1 / {} rw - {kind} dev rw\n", root.display());
            mark(mountinfo.as_bytes(), &root).unwrap().local.is_some()
        };
        let kinds = [
            "vfat", "exfat", "f2fs", "ntfs3", "fuseblk", "iso9660", "squashfs", "erofs", "ext4",
            "zfs",
        ];
        assert_eq!(kinds.iter().filter(|kind| !is_local(kind)).count(), 0);
        assert_eq!(
            ["nfs4", "lustre", "ceph", "gpfs", "fuse.sshfs"]
                .iter()
                .find(|kind| is_local(kind)),
            None
        );
    }

    #[test]
    fn a_copy_is_told_from_what_it_is_a_copy_of_and_one_host_from_another() {
        let site = tempfile::tempdir().unwrap();
        let here = sources(&[site.path()]);
        let told_with = |change: fn(&mut SourceMark)| {
            let mut seen = notices(Path::new("/"), &here);
            change(seen[0].mark.as_mut().unwrap());
            compare(&reader(), &here, &told(seen, Vec::new())).map_err(|error| error.to_string())
        };
        assert_eq!(told_with(|_| {}), Ok(()));
        assert!(
            told_with(|mark| mark.inode += 1)
                .unwrap_err()
                .contains("possibly a copy")
        );
        assert_eq!(told_with(|mark| mark.local = None), Ok(()));
        // A file system that only one host can mount.
        let root = site.path().canonicalize().unwrap();
        let mountinfo = format!("1 2 0:1 / {} rw - ext4 dev rw\n", root.display());
        let mut seen = [notice(mountinfo.as_bytes(), root, NAMES)];
        let mut compared_with = |local| {
            seen[0].mark.as_mut().unwrap().local = local;
            compare_source(&seen[0], mountinfo.as_bytes())
        };
        compared_with(Some((1, 2))).unwrap_err();
        // One of the two hosts may be the file server of the other.
        compared_with(None).unwrap();
    }

    #[test]
    fn whoever_may_read_all_says_so() {
        use std::os::unix::fs::OpenOptionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("f");
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o000)
            .open(&file)
            .unwrap();
        assert_eq!(reader().reads_all, std::fs::File::open(&file).is_ok());
    }
}
