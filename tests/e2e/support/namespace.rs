//! A mount namespace with a small separate file system. A waiting process keeps it alive.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::harness::{has_program, is_root, skip};
use crate::support::quiet_machine::share_machine;

/// The namespace. It is removed when dropped.
pub(crate) struct Namespace {
    child: Child,
    /// Directory of the image or of the layers, if the file system has any.
    place: Option<TempDir>,
}

/// A file system on a loop device, with the commands that create and mount it.
pub(crate) struct Image {
    pub(crate) bytes: u64,
    pub(crate) make: &'static str,
    pub(crate) options: &'static str,
}

impl Namespace {
    /// A namespace in which `directory` is a tmpfs of `bytes` bytes. Returns `None` if this host cannot provide it.
    pub(crate) fn with_small_disk(directory: &Path, bytes: u64) -> Option<Self> {
        if !can_mount("mounting a small file system") {
            return None;
        }
        let script = r#"mount -t tmpfs -o size="$1",mode=755 none "$2" && echo ready && read -r _"#;
        Self::start(
            script,
            &[bytes.to_string().as_ref(), directory.as_os_str()],
            None,
        )
    }

    /// A namespace in which `directory` is the file system of the kernel's traces. Returns `None` if this host cannot
    /// provide it.
    pub(crate) fn with_traces(directory: &Path) -> Option<Self> {
        if !can_mount("mounting the traces") {
            return None;
        }
        let script = r#"mount -t tracefs none "$1" && echo ready && read -r _"#;
        Self::start(script, &[directory.as_os_str()], None)
    }

    /// A namespace in which the first directory of each pair is also mounted at the path of the second one. Returns
    /// `None` if this host cannot provide it.
    pub(crate) fn with_binds(pairs: &[(&Path, &Path)]) -> Option<Self> {
        if !can_mount("a bind mount") {
            return None;
        }
        let script = r#"while [ "$#" -gt 0 ]; do mount --bind "$1" "$2" || exit; shift 2; done; echo ready; read -r _"#;
        let words: Vec<_> = pairs
            .iter()
            .flat_map(|(from, to)| [from.as_os_str(), to.as_os_str()])
            .collect();
        Self::start(script, &words, None)
    }

    /// A namespace in which `directory` has two layers (overlayfs), the lower one with a directory `d`. Returns `None`
    /// if this host cannot provide it.
    pub(crate) fn with_layers(directory: &Path) -> Option<Self> {
        if !can_mount("mounting layers") {
            return None;
        }
        let layers = tempfile::tempdir().unwrap();
        let script = r#"cd "$1" && mkdir -p lower/d upper work && mount -t overlay \
            -o lowerdir=lower,upperdir=upper,workdir=work none "$2" && echo ready && read -r _"#;
        let path = layers.path().to_owned();
        Self::start(
            script,
            &[path.as_os_str(), directory.as_os_str()],
            Some(layers),
        )
    }

    /// A namespace in which `directory` joins two directories with mergerfs. Returns `None` if this host cannot provide
    /// it.
    pub(crate) fn with_merged(directory: &Path) -> Option<Self> {
        if !can_run_mergerfs("joining directories") {
            return None;
        }
        let branches = tempfile::tempdir().unwrap();
        // mergerfs ends with the shell.
        let script = r#"cd "$1" && mkdir one two && { setpriv --pdeathsig KILL mergerfs -f one:two "$2" & } &&
            until mountpoint -q "$2"; do kill -0 $! || exit; sleep 0.05; done && echo ready && read -r _"#;
        let path = branches.path().to_owned();
        Self::start(
            script,
            &[path.as_os_str(), directory.as_os_str()],
            Some(branches),
        )
    }

    /// A namespace in which `directory` joins two file systems with equal inode numbers. `A/x` and `A/y` are names of
    /// one file. `B/x` and `B/y` are names of another file with the same number, size and time. Returns `None` if this
    /// host cannot provide it.
    pub(crate) fn with_equal_inodes(directory: &Path) -> Option<Self> {
        if !can_run_mergerfs("equal inode numbers") {
            return None;
        }
        let branches = tempfile::tempdir().unwrap();
        let script = r#"cd "$1" && for name in A B; do
                mkdir $name && mount -t tmpfs tmpfs $name && mkdir $name/$name && echo "the file $name" >$name/$name/x &&
                ln $name/$name/x $name/$name/y && touch -d 2024-01-01 $name/$name/x || exit
            done
            { setpriv --pdeathsig KILL mergerfs -f -o use_ino,inodecalc=passthrough A:B "$2" & } &&
            until mountpoint -q "$2"; do kill -0 $! || exit; sleep 0.05; done && echo ready && read -r _"#;
        let path = branches.path().to_owned();
        Self::start(
            script,
            &[path.as_os_str(), directory.as_os_str()],
            Some(branches),
        )
    }

    /// A namespace in which a FUSE file system with the file `d/f` is mounted on `directory` and its server has been
    /// killed. Returns `None` if this host cannot provide it.
    pub(crate) fn with_dead_mount(directory: &Path) -> Option<Self> {
        if !can_run_mergerfs("a dead mount") {
            return None;
        }
        let branches = tempfile::tempdir().unwrap();
        let script = r#"cd "$1" && mkdir -p one/d && echo f > one/d/f &&
            { setpriv --pdeathsig KILL mergerfs -f one "$2" & } &&
            until mountpoint -q "$2"; do kill -0 $! || exit; sleep 0.05; done
            kill -KILL $! && wait $!; echo ready && read -r _"#;
        let path = branches.path().to_owned();
        Self::start(
            script,
            &[path.as_os_str(), directory.as_os_str()],
            Some(branches),
        )
    }

    /// A namespace in which a FUSE file system is mounted on `directory` whose server takes requests and never answers
    /// them, so that not even SIGKILL ends an operation on it. The server waits for a second file system, whose server
    /// is stopped. Returns `None` if this host cannot provide it.
    pub(crate) fn with_silent_mount(directory: &Path) -> Option<Self> {
        if !can_run_mergerfs("a mount that does not answer") {
            return None;
        }
        let branches = tempfile::tempdir().unwrap();
        let script = r#"cd "$1" && mkdir -p one/d two && serve() {
                setpriv --pdeathsig KILL mergerfs -f -o allow_other,cache.attr=0,cache.entry=0 "$1" "$2" &
                until mountpoint -q "$2"; do kill -0 $! || exit; sleep 0.05; done
            }
            serve one two && stopped=$! && serve two "$2" && kill -STOP $stopped && echo ready && read -r _"#;
        let path = branches.path().to_owned();
        Self::start(
            script,
            &[path.as_os_str(), directory.as_os_str()],
            Some(branches),
        )
    }

    /// A namespace in which `directory` is a file system in an image. Returns `None` if this host cannot provide it.
    pub(crate) fn with_image(directory: &Path, image: &Image) -> Option<Self> {
        let program = image.make.split(' ').next().unwrap();
        let makes = has_program(program) || Path::new("/usr/sbin").join(program).is_file();
        if !is_root() || !has_program("unshare") || !has_program("nsenter") || !makes {
            skip(&format!(
                "a file system of its own needs root, unshare, nsenter and {program}"
            ));
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let script = r#"PATH="$PATH:/usr/sbin:/sbin"; truncate -s "$1" "$2" && $3 "$2" >&2 &&
            mount -o "$4" "$2" "$5" && echo ready && read -r _"#;
        let path = place.path().join("image");
        let bytes = image.bytes.to_string();
        let words = [
            bytes.as_ref(),
            path.as_os_str(),
            image.make.as_ref(),
            image.options.as_ref(),
        ];
        Self::start(
            script,
            &[&words[..], &[directory.as_os_str()]].concat(),
            Some(place),
        )
    }

    /// Path of the image that contains the file system.
    pub(crate) fn image(&self) -> PathBuf {
        self.place.as_ref().unwrap().path().join("image")
    }

    /// A namespace in which `directory` is an overlay of in-memory directories below `room`. The lowest layer begins as
    /// a copy of `directory`.
    pub(crate) fn with_overlay(directory: &Path, room: &Path) -> Option<Self> {
        if !can_mount("an overlay") {
            return None;
        }
        let script = r#"mount -t tmpfs none "$1" && cd "$1" && mkdir upper work && cp -a "$2" lower &&
            mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none "$2" && echo ready && read -r _"#;
        Self::start(script, &[room.as_os_str(), directory.as_os_str()], None)
    }

    /// A namespace in which `directory` is ext4 on a thin disk, which allocates memory at `room` when a block is first
    /// written. When that memory is exhausted, writes to the journal fail.
    pub(crate) fn with_thin_disk(directory: &Path, room: &Path) -> Option<Self> {
        if !can_mount("a disk that fails") {
            return None;
        }
        let script = r#"PATH="$PATH:/usr/sbin:/sbin"; mount -t tmpfs -o size=32m none "$1" &&
            truncate -s 256m "$1/image" && mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 "$1/image" >&2 &&
            mount -o loop "$1/image" "$2" && echo ready && read -r _"#;
        Self::start(script, &[room.as_os_str(), directory.as_os_str()], None)
    }

    fn start(script: &str, words: &[&OsStr], image: Option<TempDir>) -> Option<Self> {
        share_machine();
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                script,
                "sh",
            ])
            .args(words);
        command.stderr(Stdio::null());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        let namespace = Self {
            child,
            place: image,
        };
        if ready != "ready\n" {
            skip("this kernel does not let us mount a file system");
            return None;
        }
        Some(namespace)
    }

    /// Runs a command in the namespace and returns whether it succeeded.
    pub(crate) fn run(&self, words: &[&OsStr]) -> bool {
        let [program, rest @ ..] = self.enter();
        let mut command = Command::new(program);
        command
            .args(rest)
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().unwrap().success()
    }

    /// Returns the command prefix that runs a command in the namespace.
    pub(crate) fn enter(&self) -> [OsString; 5] {
        [
            "nsenter".into(),
            "--target".into(),
            self.child.id().to_string().into(),
            "--mount".into(),
            "--".into(),
        ]
    }

    /// Returns the path outside the namespace of a path inside it.
    pub(crate) fn outside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.child.id()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Whether this host can mount in a namespace. Otherwise the test is skipped with a reason that names `what`.
fn can_mount(what: &str) -> bool {
    let programs = ["unshare", "nsenter"];
    let can = is_root() && programs.into_iter().all(has_program);
    if !can {
        skip(&format!("{what} needs root, unshare and nsenter"));
    }
    can
}

/// Whether mergerfs can run in a namespace on this host. Otherwise the test is skipped with a reason that names `what`.
fn can_run_mergerfs(what: &str) -> bool {
    let programs = ["unshare", "nsenter", "setpriv", "mergerfs"];
    let can = is_root() && programs.into_iter().all(has_program);
    if !can {
        skip(&format!(
            "{what} needs root, unshare, nsenter, setpriv and mergerfs"
        ));
    }
    can
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
