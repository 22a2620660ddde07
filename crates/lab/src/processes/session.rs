//! One running lab, and what is left of it afterwards: nothing.
//!
//! A session holds a lock on its directory below `/run/zmove-lab` and a janitor: a second process of this program that
//! waits for the end of its standard input. However the lab ends (return, ^C, kill -9), that pipe closes, and the
//! janitor removes processes, namespaces, mounts and directory. A lab whose janitor died too is swept by the next one.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use crate::processes::{groups, run};

/// A running lab.
#[derive(Debug)]
pub(crate) struct Session {
    id: String,
    directory: PathBuf,
    janitor: Child,
    _lock: File,
}

impl Session {
    /// Sweeps what dead labs left and opens a new session.
    pub(crate) fn open() -> Result<Self> {
        let _one_at_a_time = lock_sessions()?;
        clear_dead()?;
        let id = std::process::id().to_string();
        let directory = Path::new(SESSIONS).join(&id);
        fs::create_dir_all(&directory)
            .with_context(|| format!("failed to create {}", directory.display()))?;
        let lock = lock_file(&directory)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .context("failed to lock the session")?;
        let janitor = Command::new(std::env::current_exe()?)
            .args(["janitor", &id])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("failed to start the janitor")?;
        Ok(Self {
            id,
            directory,
            janitor,
            _lock: lock,
        })
    }

    /// The name of this lab in namespaces, groups and directories.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// A directory that ends with the session.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A fresh subdirectory of it.
    pub(crate) fn subdirectory(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path)
            .with_context(|| format!("failed to create {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        if let Err(error) = self.janitor.wait() {
            eprintln!("zmove-lab: failed to wait for the janitor: {error}");
        }
    }
}

/// Begins this program again in a mount namespace of its own, unless it is in one. A namespace that any other
/// program makes is a copy of all that is mounted then: a file system of the lab that is unmounted would stay
/// mounted there, and go on writing to a device that has been given other contents.
pub(crate) fn own_mounts() -> Result<()> {
    if std::env::var_os(OWN_MOUNTS).is_some() {
        return Ok(());
    }
    let mut again = Command::new("unshare");
    again
        .args(["--mount", "--propagation=private", "--"])
        .arg(std::env::current_exe()?);
    let error = again
        .args(std::env::args_os().skip(1))
        .env(OWN_MOUNTS, "1")
        .exec();
    Err(error).context("failed to run unshare")
}

/// The janitor process: waits for the lab's end, then clears up.
pub(crate) fn janitor(id: &str) -> Result<()> {
    rustix::process::setsid().ok();
    let mut nothing = Vec::new();
    std::io::stdin()
        .read_to_end(&mut nothing)
        .context("failed to wait for the lab")?;
    clear(id);
    Ok(())
}

/// Clears up behind every lab that no longer runs; returns their names.
pub(crate) fn sweep() -> Result<Vec<String>> {
    let _one_at_a_time = lock_sessions()?;
    clear_dead()
}

/// Held while a lab begins, which looks dead until it holds its own lock, and while dead ones are cleared up behind.
fn lock_sessions() -> Result<File> {
    fs::create_dir_all(SESSIONS)
        .with_context(|| format!("failed to create {SESSIONS} (the lab runs as root)"))?;
    let lock = lock_file(Path::new(SESSIONS))?;
    flock(&lock, FlockOperation::LockExclusive).context("failed to lock the sessions")?;
    Ok(lock)
}

fn clear_dead() -> Result<Vec<String>> {
    let mut cleared = Vec::new();
    let Ok(entries) = fs::read_dir(SESSIONS) else {
        return Ok(cleared);
    };
    for entry in entries {
        let entry = entry?;
        let Ok(id) = entry.file_name().into_string() else {
            continue;
        };
        if id.bytes().all(|byte| byte.is_ascii_digit()) && is_dead(&entry.path())? {
            clear(&id);
            cleared.push(id);
        }
    }
    Ok(cleared)
}

/// The lock a running lab holds; it is not inherited by what the lab starts.
fn lock_file(directory: &Path) -> Result<File> {
    let path = directory.join("lock");
    let open = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    open.with_context(|| format!("failed to open {}", path.display()))
}

fn is_dead(directory: &Path) -> Result<bool> {
    match lock_file(directory) {
        Ok(lock) => Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()),
        // Its janitor removed the session in the meantime.
        Err(_) if !directory.exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes processes, namespaces, mounts, loop devices and files of the lab `id`, in this order.
fn clear(id: &str) {
    groups::clear(id);
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        if name.starts_with(&format!("zl{id}-")) {
            run::clean_up(&format!("ip netns del {name}"));
        }
    }
    let directory = Path::new(SESSIONS).join(id);
    abort_devices_below(&directory);
    unmount_below(&directory);
    if let Err(error) = fs::remove_dir_all(&directory) {
        eprintln!(
            "zmove-lab: failed to remove {}: {error}",
            directory.display()
        );
    }
}

/// Mounts below a directory, the last one first, each with its mount point and its file system's type.
fn mounts_below(directory: &Path) -> Vec<(PathBuf, String)> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(1);
        Some((PathBuf::from(words.next()?), words.next()?.to_owned()))
    };
    let mut below: Vec<_> = mounts.lines().filter_map(mount).collect();
    below.retain(|(place, _)| place.starts_with(directory));
    below.reverse();
    below
}

/// Ends what `powercut` serves. A thread of a killed lab may wait for its own device, and keep it from ending: a forced
/// unmount answers all requests with errors, and fails where the loop device still has the file open. Loop devices are
/// told to end with their last user.
fn abort_devices_below(directory: &Path) {
    let served = mounts_below(directory)
        .into_iter()
        .filter(|(_, kind)| kind == "fuse");
    for (place, _) in served {
        let _busy_until_the_loop_device_ends =
            run::line(&format!("umount --force {}", place.display()));
        let loops = run::line("losetup --noheadings --list --raw --output NAME,BACK-FILE")
            .unwrap_or_default();
        for line in loops.lines() {
            if let Some((node, file)) = line.split_once(' ')
                && Path::new(file).starts_with(&place)
            {
                run::clean_up(&format!("losetup --detach {node}"));
            }
        }
    }
}

fn unmount_below(directory: &Path) {
    for (place, _) in mounts_below(directory) {
        run::clean_up(&format!("umount {}", place.display()));
    }
}

const SESSIONS: &str = "/run/zmove-lab";
/// Set where a lab is in a mount namespace of its own.
const OWN_MOUNTS: &str = "ZMOVE_LAB_OWN_MOUNTS";
