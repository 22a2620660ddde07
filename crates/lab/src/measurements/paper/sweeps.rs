//! The storage sweeps that the paper performs before transfers: one for each side, saved next to the study.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::measurements::peers::ZmoveProgram;

/// Sweeps the storage of both sides, unless there is a saved sweep.
pub(crate) fn ensure(out: &Path, zmove: &ZmoveProgram, source: &Path, target: &Path) -> Result<()> {
    std::fs::create_dir_all(source)
        .with_context(|| format!("failed to create {}", source.display()))?;
    for (name, storage) in [("source", source), ("target", target)] {
        let result = out.join(format!("sweep-{name}.json"));
        if result.exists() {
            continue;
        }
        eprintln!("zmove-lab: sweeping the {name}'s storage");
        let home = tempfile::tempdir().context("failed to make a directory")?;
        let swept = Command::new(zmove.path())
            .env("ZMOVE_HOME", home.path())
            .args(["sweep", "--budget", BUDGET, "--time", TIME, "--json"])
            .arg(&result)
            .arg("--svg")
            .arg(out.join(format!("sweep-{name}.svg")))
            .arg(storage)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .context("failed to start zmove sweep")?;
        if !swept.status.success() {
            bail!(
                "zmove sweep of {}: {}",
                storage.display(),
                String::from_utf8_lossy(&swept.stderr).trim()
            );
        }
    }
    Ok(())
}

/// A budget for which both file systems have enough space.
const BUDGET: &str = "1GiB";
const TIME: &str = "40s";
