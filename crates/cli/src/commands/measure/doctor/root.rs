//! `/proc` and `/sys`, or a directory tree that replaces them in a test.
//!
//! **Invariant:** a file that is missing or cannot be parsed is `None`, never an error.

use std::path::PathBuf;
use std::str::FromStr;

/// The directory that contains `proc` and `sys`.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// Returns the root directory of this host.
    pub(crate) fn host() -> Self {
        Self("/".into())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the text of a file, without surrounding whitespace.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Parses the whole content of a file as a number.
    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the value of a numeric sysctl. Its name is written with dots.
    pub(crate) fn sysctl<T: FromStr>(&self, name: &str) -> Option<T> {
        self.number(&sysctl_path(name))
    }

    /// Returns the values of a sysctl that holds a list separated by whitespace.
    pub(crate) fn sysctl_words(&self, name: &str) -> Option<Vec<String>> {
        Some(
            self.text(&sysctl_path(name))?
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        )
    }
}

fn sysctl_path(name: &str) -> String {
    format!("proc/sys/{}", name.replace('.', "/"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;

    /// A root directory for tests.
    pub(crate) struct Fake(tempfile::TempDir);

    impl Fake {
        /// Creates a root directory with these files.
        pub(crate) fn of(files: &[(&str, &str)]) -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            files.iter().for_each(|(path, text)| fake.put(path, text));
            fake
        }

        /// Creates a root directory with these sysctls.
        pub(crate) fn of_sysctls(values: &[(&str, &str)]) -> Self {
            let fake = Self::of(&[]);
            values
                .iter()
                .for_each(|(name, text)| fake.put(&sysctl_path(name), text));
            fake
        }

        pub(crate) fn put(&self, path: &str, text: &str) {
            let file = self.0.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{text}\n")).unwrap();
        }

        pub(crate) fn root(&self) -> Root {
            Root(self.path().into())
        }

        pub(crate) fn path(&self) -> &Path {
            self.0.path()
        }
    }

    #[test]
    fn what_is_missing_or_odd_is_unknown() {
        let fake = Fake::of_sysctls(&[("net.ipv4.tcp_sack", "1"), ("net.ipv4.odd", "many")]);
        let root = fake.root();
        assert_eq!(root.sysctl::<u64>("net.ipv4.tcp_sack"), Some(1));
        assert_eq!(root.sysctl::<u64>("net.ipv4.odd"), None);
        assert_eq!(root.sysctl::<u64>("net.ipv4.gone"), None);
        assert_eq!(root.text("proc/sys/net"), None, "a directory has no text");
    }
}
