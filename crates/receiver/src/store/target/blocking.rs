//! Finds the entry that prevents a target from being a directory, so that the refusal can name that entry. If the
//! refusal only said "File exists", the user would look at the target and not at a file above it.

use std::iter::successors;
use std::path::Path;

use rustix::fs::FileType;
use zmove_disk::{Tree, stat_at};
use zmove_types::{Escaped, RelPath};

/// Describes the entry on the path from `tree` to `path` that is not a directory. `shown` is the path as the user knows
/// it. Returns `None` if no such entry exists.
pub(super) fn blocking_entry(tree: &Tree, path: &RelPath, shown: &Path) -> Option<String> {
    let upwards = successors(Some(path.clone()), RelPath::parent);
    for (path, shown_so_far) in upwards.zip(shown.ancestors()) {
        let (parent, name) = path.split()?;
        let Ok(parent) = tree.open_directory(&parent) else {
            continue;
        };
        let stat = stat_at(&parent, name).ok()?;
        let what = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return None,
            FileType::Symlink => {
                "is a symbolic link, which is not followed (give the path without links)"
            }
            FileType::RegularFile => FILE,
            _ => OTHER,
        };
        return Some(describe(shown, shown_so_far, what));
    }
    None
}

/// Describes the entry that blocks the path `shown`, like [`blocking_entry`]. Used for a target that the user names in
/// the same process, where symbolic links are followed.
pub(super) fn own_blocking_entry(shown: &Path) -> Option<String> {
    for path in shown.ancestors() {
        let Ok(found) = path.symlink_metadata() else {
            continue;
        };
        let what = match path.metadata() {
            Ok(metadata) if metadata.is_dir() => return None,
            Ok(metadata) if metadata.is_file() => FILE,
            Ok(_) => OTHER,
            Err(_) if found.is_symlink() => {
                "is a broken symbolic link (choose another target, or remove the link)"
            }
            Err(_) => return None,
        };
        return Some(describe(shown, path, what));
    }
    None
}

const FILE: &str = "is a file and not a directory (choose another target, or remove the file)";
const OTHER: &str = "is not a directory";

fn describe(target: &Path, blocker: &Path, what: &str) -> String {
    let target_text = Escaped::path(&target);
    if blocker == target {
        return format!("target '{target_text}' {what}");
    }
    format!(
        "target '{target_text}': '{}' {what}",
        Escaped::path(&blocker)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_is_named_and_how_it_is() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("d")).unwrap();
        std::fs::write(home.path().join("d/f"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", home.path().join("d/link")).unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let said = |path: &str| {
            blocking_entry(
                &tree,
                &RelPath::from_bytes(path.as_bytes()).unwrap(),
                Path::new(path),
            )
        };
        for (path, text) in [
            (
                "d/f/a/b",
                "target 'd/f/a/b': 'd/f' is a file and not a directory (choose ",
            ),
            ("d/f", "target 'd/f' is a file and not a directory (choose "),
            (
                "d/link/x",
                "target 'd/link/x': 'd/link' is a symbolic link, which is not followed (give ",
            ),
        ] {
            assert!(
                said(path).is_some_and(|said| said.starts_with(text)),
                "{:?}",
                said(path)
            );
        }
        assert_eq!([said("d"), said("d/new/x")], [None, None]);
        let own = |path: &str| own_blocking_entry(&home.path().join(path)).unwrap_or_default();
        assert!(
            own("d/f/a/b").contains("/d/f' is a file and not a directory (choose "),
            "{}",
            own("d/f/a/b")
        );
        assert!(own("d/link/x").contains("/d/link' is a broken symbolic link (choose "));
        assert_eq!(own("d/new/x"), "");
    }
}
