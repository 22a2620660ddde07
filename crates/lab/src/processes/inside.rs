//! Starts programs on one of the two hosts.
//!
//! The lab executes itself (`zmove-lab inside …`). The new process joins the control group and the network namespace,
//! asks the kernel to be killed when the lab ends, and executes the program. In this way, no code runs between fork and
//! exec.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::processes::groups::Group;

/// The program to start, and its namespace and group.
#[derive(Args, Debug)]
pub(crate) struct InsideArgs {
    /// Network namespace to join.
    #[arg(long)]
    namespace: Option<String>,
    /// Control group to join.
    #[arg(long)]
    group: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns a command that runs `program` in a namespace and a group. The process is killed when the calling thread
/// ends.
pub(crate) fn command(
    namespace: Option<&str>,
    group: Option<&Group>,
    program: &str,
) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
    command.arg("inside");
    if let Some(namespace) = namespace {
        command.args(["--namespace", namespace]);
    }
    if let Some(group) = group {
        command.arg("--group").arg(group.path());
    }
    command.arg("--").arg(program);
    Ok(command)
}

/// Replaces this process with the program. Returns only if that fails.
pub(crate) fn become_program(inside: &InsideArgs) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("failed to tie this process to the lab")?;
    if let Some(group) = &inside.group {
        fs::write(group.join("cgroup.procs"), "0").context("failed to join the control group")?;
    }
    if let Some(namespace) = &inside.namespace {
        join(namespace)?;
    }
    let (program, arguments) = inside.command.split_first().context("no program given")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("failed to start {}", program.display()))
}

/// Moves the calling thread into a named network namespace.
pub(crate) fn join(namespace: &str) -> Result<()> {
    let place = format!("/run/netns/{namespace}");
    let file = File::open(&place).with_context(|| format!("failed to open {place}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("failed to join {place}"))
}

/// Runs `work` on a new thread inside a namespace.
pub(crate) fn on_host<T: Send>(
    namespace: &str,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            join(namespace)?;
            work()
        });
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread inside {namespace} panicked"))?
    })
}
