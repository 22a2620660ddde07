//! A running lab, which leaves nothing behind when it ends.
//!
//! A session holds a lock on its directory below `/run/zmove-lab` and has a janitor: a second process of this program
//! that waits for the end of its standard input. However the lab ends (return, ^C, kill -9), that pipe closes, and the
//! janitor removes its processes, namespaces, mounts and directory. If the janitor was killed too, the next lab cleans
//! up.

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
    /// Cleans up after labs that were killed, and opens a new session.
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

    /// Returns the name of this lab, which is part of the names of its namespaces, groups and directories.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns a directory that is removed with the session.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates a subdirectory of the session's directory.
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

/// Restarts this program in a separate mount namespace, unless it already runs in one. Every mount namespace that
/// another program creates is a copy of all current mounts. Without this, a file system that the lab unmounts would
/// remain mounted in such a copy and would keep writing to a device whose contents have been replaced.
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

/// The janitor process: waits for the lab to end, then cleans up.
pub(crate) fn janitor(id: &str) -> Result<()> {
    rustix::process::setsid().ok();
    let mut nothing = Vec::new();
    std::io::stdin()
        .read_to_end(&mut nothing)
        .context("failed to wait for the lab")?;
    clear(id);
    Ok(())
}

/// Cleans up after every lab that is no longer running. Returns the names of those labs.
pub(crate) fn sweep() -> Result<Vec<String>> {
    let _one_at_a_time = lock_sessions()?;
    clear_dead()
}

/// Takes the lock on all sessions. It is held while a lab starts, because a lab looks dead until it holds its own lock,
/// and while dead labs are cleaned up.
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

/// Opens the file of a lab's lock. Programs that the lab starts do not inherit it.
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
        // The lab's janitor has removed the session since the directory was listed.
        Err(_) if !directory.exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the processes, namespaces, mounts, loop devices and files of the lab `id`, in this order.
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

/// Returns the mounts below a directory with their file system types, last mount first.
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

/// Aborts the devices that `powercut` serves. A thread of a killed lab may wait for its own device, which keeps the
/// process from ending. A forced unmount fails all pending requests, but it is not possible while the loop device has
/// the file open. Loop devices are therefore set to detach with their last user.
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
/// The variable that is set if the lab runs in a separate mount namespace.
const OWN_MOUNTS: &str = "ZMOVE_LAB_OWN_MOUNTS";
