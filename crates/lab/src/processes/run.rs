//! Runs helper programs to their end and turns a failure into an error with what they said.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program and returns its standard output.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let spoken = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start {}", spoken()))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            spoken(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program whose arguments hold no spaces, given as one line.
pub(crate) fn line(command: &str) -> Result<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let (program, arguments) = words.split_first().context("an empty command")?;
    output(program, arguments)
}

/// Runs such a line of clean-up work; a failure is reported and not fatal.
pub(crate) fn clean_up(command: &str) {
    if let Err(error) = line(command) {
        eprintln!("zmove-lab: {error:#}");
    }
}
