//! Runs helper programs to completion. A failure is returned as an error with the program's error output.

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

/// Runs a program that is given as one line. Its arguments cannot contain spaces.
pub(crate) fn line(command: &str) -> Result<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let (program, arguments) = words.split_first().context("an empty command")?;
    output(program, arguments)
}

/// Runs a cleanup command that is given as one line. A failure is printed and otherwise ignored.
pub(crate) fn clean_up(command: &str) {
    if let Err(error) = line(command) {
        eprintln!("zmove-lab: {error:#}");
    }
}
