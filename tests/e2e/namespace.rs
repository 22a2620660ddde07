//! A mount namespace with a small file system of its own, held open by a process that waits.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{has_program, is_root, skip};

/// The namespace; gone when dropped.
pub(crate) struct Namespace(Child);

impl Namespace {
    /// A namespace in which `directory` is a file system of `bytes` in memory; `None` where that is not possible.
    pub(crate) fn with_small_disk(directory: &Path, bytes: u64) -> Option<Self> {
        if !is_root() || !has_program("unshare") || !has_program("nsenter") {
            skip("mounting a small file system needs root, unshare and nsenter");
            return None;
        }
        let script = r#"mount -t tmpfs -o size="$1",mode=755 none "$2" && echo ready && read -r _"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(bytes.to_string()).arg(directory);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let namespace = Self(child);
        if ready != "ready\n" {
            skip("this kernel does not let us mount a file system");
            return None;
        }
        Some(namespace)
    }

    /// The words before a command that is to run inside.
    pub(crate) fn enter(&self) -> [OsString; 5] {
        ["nsenter".into(), "--target".into(), self.0.id().to_string().into(), "--mount".into(), "--".into()]
    }

    /// How a path inside is reached from outside.
    pub(crate) fn outside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.0.id()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
