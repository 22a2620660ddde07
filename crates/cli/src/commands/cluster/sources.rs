//! Whether a node has the sources of a job as its head has them.
//!
//! **Invariant:** a node takes part only where its list of sources is the head's: work names a source by its number.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::{Result, bail};
use zmove_cluster::jetstream::{JobNotice, SourceNotice};
use zmove_disk::Mount;
use zmove_engine::Sources;
use zmove_types::Escaped;

/// The sources as the head sees them.
pub(crate) fn notices(directory: &Path, sources: &Sources) -> Vec<SourceNotice> {
    let notice = |path: &Path| SourceNotice {
        path: directory.join(path).into_os_string().into_vec(),
        names: some_names(path),
    };
    sources.paths().map(notice).collect()
}

/// Some names in a directory; none of what is no directory, or empty.
fn some_names(path: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = path.read_dir() else { return Vec::new() };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().into_vec()));
    names.take(NAMES).collect()
}

/// What is mounted below the sources, as the head sees it: where one of these is not mounted at a node, the directory
/// is empty there.
pub(crate) fn mounts(mountinfo: &[u8], directory: &Path, sources: &Sources) -> Vec<SourceNotice> {
    let mut found = Vec::new();
    for source in sources.paths() {
        let Ok(canonical) = source.canonicalize() else { continue };
        for mount in Mount::all(mountinfo) {
            let below =
                mount.point.strip_prefix(&canonical).ok().filter(|below| !below.as_os_str().is_empty());
            let Some(below) = below else { continue };
            let (path, names) = (directory.join(source).join(below), some_names(&mount.point));
            if !names.is_empty() && found.len() < MOUNTS {
                found.push(SourceNotice { path: path.into_os_string().into_vec(), names });
            }
        }
    }
    found
}

/// Compares the sources here with those of the head.
///
/// # Errors
/// One is not here, or is another one.
pub(super) fn compare(here: &Sources, head: &JobNotice) -> Result<()> {
    let mut paths = here.paths();
    for SourceNotice { path, .. } in &head.sources {
        let path = Path::new(OsStr::from_bytes(path));
        if paths.next() != Some(path) {
            bail!("the source '{}' is not here, or not as at the node that sends", Escaped::path(&path));
        }
    }
    if let Some(more) = paths.next() {
        bail!("the source '{}' is here, and not at the node that sends", Escaped::path(&more));
    }
    head.sources.iter().chain(&head.mounts).try_for_each(compare_names)
}

/// Looks for the names that the head has seen in a directory. All of some few may have gone since; then this node takes
/// no part, and loses nothing.
fn compare_names(SourceNotice { path, names }: &SourceNotice) -> Result<()> {
    let path = Path::new(OsStr::from_bytes(path));
    let is_here = |name: &Vec<u8>| path.join(OsStr::from_bytes(name)).symlink_metadata().is_ok();
    match names.first() {
        Some(first) if !names.iter().any(is_here) => bail!(
            "'{}' is another directory here, or is not mounted: it has no '{}'",
            Escaped::path(&path),
            Escaped(first)
        ),
        _ => Ok(()),
    }
}

/// How many names are told: more than go at once where a source changes.
const NAMES: usize = 8;
/// How many mounts are told, every second.
const MOUNTS: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use zmove_engine::NoListener;

    fn sources(paths: &[&Path]) -> Sources {
        let paths: Vec<_> = paths.iter().map(|path| path.as_os_str().to_owned()).collect();
        Sources::look_at(&paths, None, &NoListener).unwrap()
    }

    fn told(sources: Vec<SourceNotice>, mounts: Vec<SourceNotice>) -> JobNotice {
        let (job, epoch, version, nodes) = ([0; 16], 1, String::new(), BTreeMap::new());
        let (directory, words) = (Vec::new(), Vec::new());
        JobNotice { job, epoch, version, directory, words, sources, mounts, nodes, begun: true }
    }

    #[test]
    fn a_source_that_is_empty_here_or_missing_is_another_one() {
        let site = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| site.path().join(name));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(one.join("f"), "f").unwrap();
        let head = told(notices(Path::new("/"), &sources(&[&one, &other])), Vec::new());
        let compared = |paths: &[&Path]| compare(&sources(paths), &head).map_err(|error| error.to_string());
        assert_eq!(compared(&[&one, &other]), Ok(()));
        std::fs::write(other.join("came"), "later").unwrap();
        assert_eq!(compared(&[&one, &other]), Ok(()));
        assert!(compared(&[&one]).unwrap_err().contains("other' is not here"));
        assert!(compared(&[&other]).unwrap_err().contains("one' is not here"));
        assert!(compared(&[&one, &other, site.path()]).unwrap_err().contains("is here, and not"));
        std::fs::remove_file(one.join("f")).unwrap();
        std::fs::write(one.join("lost+found"), "").unwrap();
        assert!(compared(&[&one, &other]).unwrap_err().ends_with("is not mounted: it has no 'f'"));
    }

    #[test]
    fn what_is_mounted_below_a_source_has_to_be_mounted_here_too() {
        let site = tempfile::tempdir().unwrap();
        let root = site.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/mounted")).unwrap();
        std::fs::create_dir_all(root.join("empty")).unwrap();
        std::fs::write(root.join("a/mounted/f"), "f").unwrap();
        let line = |path: &Path| format!("1 2 0:1 / {} rw - xfs dev rw\n", path.display());
        let mountinfo =
            [&root, &root.join("a/mounted"), &root.join("empty"), Path::new("/elsewhere")].map(line);
        let seen = mounts(mountinfo.concat().as_bytes(), Path::new("/"), &sources(&[&root]));
        let path = root.join("a/mounted").into_os_string().into_vec();
        assert_eq!(seen, [SourceNotice { path, names: vec![b"f".to_vec()] }]);
        let head = told(notices(Path::new("/"), &sources(&[&root])), seen);
        compare(&sources(&[&root]), &head).unwrap();
        std::fs::remove_file(root.join("a/mounted/f")).unwrap();
        let error = compare(&sources(&[&root]), &head).unwrap_err().to_string();
        assert!(error.contains("a/mounted' is another directory here, or is not mounted"), "{error}");
    }
}
