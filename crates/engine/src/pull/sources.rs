//! The sources of a pull as the user typed them, and the names that they allow at the top level of the target.
//!
//! A host expands globs, and a malicious host could send any files under any names. In CVE-2022-29154, rsync trusted
//! the host. This side therefore matches the names at the top level again, against the last component of each source.
//!
//! **Invariant:** unless a source stands for the contents of a directory, only requested names are allowed at the top
//! level of the target. With a list of paths, only listed paths are allowed at any depth.

use std::sync::Arc;

use zmove_receiver::{ListedPaths, TopNames};
use zmove_scan::glob_matches;

/// The sources of a pull.
#[derive(Clone, Debug)]
pub struct RemoteSources {
    paths: Vec<Vec<u8>>,
    /// The listed paths, which are relative to the only source.
    listed: Option<Arc<ListedPaths>>,
}

impl RemoteSources {
    /// Creates the sources from their paths. If there is a list, it contains paths relative to the only source, each
    /// followed by the separator byte.
    #[must_use]
    pub fn new(paths: Vec<Vec<u8>>, list: Option<(&[u8], u8)>) -> Self {
        let listed = list.map(|(list, separator)| Arc::new(listed(list, separator)));
        Self { paths, listed }
    }

    /// Returns the paths.
    #[must_use]
    pub fn paths(&self) -> &[Vec<u8>] {
        &self.paths
    }

    /// Returns the names that a host may send.
    #[must_use]
    pub fn top_names(&self) -> TopNames {
        if let Some(listed) = self.listed.clone() {
            return TopNames::listed(listed);
        }
        let last = |path: &Vec<u8>| {
            path.rsplit(|&byte| byte == b'/')
                .next()
                .unwrap_or_default()
                .to_vec()
        };
        let names: Vec<_> = self.paths.iter().map(last).collect();
        if names
            .iter()
            .any(|name| matches!(name.as_slice(), b"" | b"." | b".."))
        {
            return TopNames::default();
        }
        TopNames::only(move |name| {
            names
                .iter()
                .any(|asked| asked == name || glob_matches(asked, name))
        })
    }
}

/// Parses a list of paths. The path `.` is the source itself, whose mode and time are applied to the target.
fn listed(list: &[u8], separator: u8) -> ListedPaths {
    let mut listed = ListedPaths::default();
    for path in list.split(|&byte| byte == separator) {
        listed.add(if separator == b'\n' {
            path.strip_suffix(b"\r").unwrap_or(path)
        } else {
            path
        });
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::RelPath;

    fn takes(sources: &[&str], list: Option<&str>, path: &str) -> bool {
        let paths = sources
            .iter()
            .map(|path| path.as_bytes().to_vec())
            .collect();
        let sources = RemoteSources::new(paths, list.map(|list| (list.as_bytes(), b'\n')));
        sources
            .top_names()
            .check(&RelPath::from_bytes(path.as_bytes()).unwrap())
            .is_ok()
    }

    #[test]
    fn only_names_that_were_asked_for_are_let_in() {
        assert!(takes(&["a/b"], None, "b/x/y"));
        assert!(takes(&["a/*.txt"], None, "x.txt"));
        assert!(
            takes(&["a/[x]"], None, "[x]"),
            "taken literally by the host, where it matches nothing"
        );
        assert!(takes(&["a", "b/"], None, "anything"));
        assert!(takes(&[""], None, "anything") && takes(&["/"], None, ""));
        for path in ["a/x", "c", ""] {
            assert!(!takes(&["a/b"], None, path), "{path}");
        }
        assert!(!takes(&["a/*.txt"], None, ".txt") && !takes(&["a/*.txt"], None, "x.rc"));
        assert!(!takes(&["a/*"], None, ".ssh/authorized_keys"));
    }

    #[test]
    fn of_a_list_only_what_is_listed_is_let_in() {
        let list = Some("./x/y\r\n\nz\n");
        assert!(
            takes(&["a/"], list, "x/y") && takes(&["a/"], list, "x") && takes(&["a/"], list, "z")
        );
        assert!(!takes(&["a/"], list, "y") && !takes(&["a/"], list, ""));
        assert!(!takes(&["a/"], list, "x/other") && !takes(&["a/"], list, "z/in it"));
        assert!(takes(&["a/"], Some(".\n"), "") && !takes(&["a/"], Some(".\n"), "x"));
    }
}
