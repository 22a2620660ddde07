//! Control groups (version 2), one per side. A group counts the CPU time of all its processes, including those that
//! have ended, and can kill them all.
//!
//! `measure/race.rs` creates a pair of groups per run, and `session.rs` removes the groups of a lab that was killed.
//! Only statistics that need no controller are used, so the groups also work next to a version 1 hierarchy.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::processes::run;

/// A control group. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// Creates the group `name` of the lab `id`.
    pub(crate) fn create(id: &str, name: &str) -> Result<Self> {
        let path = lab_group(&hierarchy()?, id).join(name);
        fs::create_dir_all(&path)
            .with_context(|| format!("failed to create {}", path.display()))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the CPU time used so far by all processes of the group, including those that have ended.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let statistics =
            fs::read_to_string(self.path.join("cpu.stat")).context("failed to read cpu.stat")?;
        let usage = statistics
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        let microseconds = usage.context("cpu.stat has no usage_usec")?.parse()?;
        Ok(Duration::from_micros(microseconds))
    }

    /// Returns the sum of the peak resident sizes of the running processes, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        processes(&self.path)
            .iter()
            .map(|process| peak_resident_bytes(process))
            .sum()
    }

    /// Kills all processes of the group and waits until they have ended.
    pub(crate) fn kill(&self) {
        kill(&self.path);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        remove(&self.path);
    }
}

/// Kills and removes all groups of the lab `id`.
pub(crate) fn clear(id: &str) {
    let Ok(hierarchy) = hierarchy() else { return };
    let path = lab_group(&hierarchy, id);
    if !path.exists() {
        return;
    }
    kill(&path);
    for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    remove(&path);
}

fn lab_group(hierarchy: &Path, id: &str) -> PathBuf {
    hierarchy.join(format!("zmove-lab-{id}"))
}

/// Returns the mount point of the version 2 hierarchy, and mounts the hierarchy if necessary.
fn hierarchy() -> Result<PathBuf> {
    if let Some(path) = mounted()? {
        return Ok(path);
    }
    fs::create_dir_all(OWN_HIERARCHY)?;
    run::line(&format!("mount -t cgroup2 zmove-lab {OWN_HIERARCHY}"))?;
    Ok(PathBuf::from(OWN_HIERARCHY))
}

fn mounted() -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("failed to read the mounts")?;
    let place = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    Ok(place)
}

fn processes(group: &Path) -> Vec<String> {
    let list = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    list.lines().map(str::to_owned).collect()
}

fn peak_resident_bytes(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1_024
}

fn kill(group: &Path) {
    if let Err(error) = fs::write(group.join("cgroup.kill"), "1") {
        eprintln!(
            "zmove-lab: failed to end the processes in {}: {error}",
            group.display()
        );
    }
    let start = Instant::now();
    while populated(group) && start.elapsed() < KILL_PATIENCE {
        thread::sleep(KILL_STEP);
    }
}

fn populated(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}

fn remove(group: &Path) {
    if let Err(error) = fs::remove_dir(group) {
        eprintln!("zmove-lab: failed to remove {}: {error}", group.display());
    }
}

const OWN_HIERARCHY: &str = "/run/zmove-lab/groups";
const KILL_PATIENCE: Duration = Duration::from_secs(5);
const KILL_STEP: Duration = Duration::from_millis(2);
