//! The storage sweeps that stand before every transfer in the paper: one of each side, kept beside the study.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::measurements::peers::ZmoveProgram;

/// Sweeps both storages, each unless it has been.
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

/// What both file systems have room for.
const BUDGET: &str = "1GiB";
const TIME: &str = "40s";
