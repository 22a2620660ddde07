//! Tests the lab's commands on a small scale, with the zmove next to the lab's program.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Condvar, Mutex, PoisonError};

mod closing;
mod inspection;
mod late;
mod matrix;
mod metadata;
mod powercut;
mod scale;
mod stale;
mod stalling;
mod torture;
mod wake;

/// The lab's program.
const LAB: &str = env!("CARGO_BIN_EXE_zmove-lab");

/// Reports why a case cannot run on this machine.
///
/// # Panics
/// If `ZMOVE_REQUIRE_LAB=1` demands that every case runs.
fn skip(reason: &str) {
    let is_required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(!is_required, "ZMOVE_REQUIRE_LAB=1, but {reason}");
    eprintln!("skipped: {reason}");
}

/// Maximum number of concurrent cases. A file whose contents are generated when they are read must be read within
/// seconds, which is not possible if all cases start their programs at the same time.
const CASES_MAX: usize = 8;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

thread_local! {
    /// The turn of a case. A case waits for its turn before it starts a program, and gives the turn back when its
    /// thread ends.
    static TURN: Turn = Turn::wait();
}

struct Turn;

impl Turn {
    fn wait() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = ENDED
            .wait_while(running, |running| *running == CASES_MAX)
            .unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// Waits for the turn of this case, and returns the path of the zmove next to the lab's program.
///
/// # Errors
/// The program is missing, so the case cannot run.
fn zmove() -> Result<PathBuf, String> {
    TURN.with(|_turn| ());
    zmove_at_once()
}

/// Like [`zmove`], but for a case that does not wait for a turn.
fn zmove_at_once() -> Result<PathBuf, String> {
    let zmove = Path::new(LAB).with_file_name("zmove");
    if zmove.is_file() {
        return Ok(zmove);
    }
    Err(format!(
        "{} is missing; `cargo test --workspace` makes it",
        zmove.display()
    ))
}

/// Returns the path of the zmove next to the lab's program, if this process can also mount FUSE file systems. Otherwise
/// reports why the case cannot run.
fn zmove_and_mounts() -> Option<PathBuf> {
    let can_mount = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let found = zmove().and_then(|zmove| {
        can_mount
            .then_some(zmove)
            .ok_or_else(|| "there is no root with /dev/fuse".to_owned())
    });
    found.inspect_err(|reason| skip(reason)).ok()
}

/// Runs a script in a directory while the lab mounts `over` there as storage that answers late or deviates. The script
/// finds the mount in `$ZMOVE_LAB_LATE`.
fn on_mount(home: &Path, over: &str, options: &[&str], script: &str) -> Output {
    Command::new(LAB)
        .args(["late", "--over", over])
        .args(options)
        .args(["--", "sh", "-c", script])
        .current_dir(home)
        .env("HOME", home)
        .output()
        .unwrap()
}
