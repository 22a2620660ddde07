//! `zmove runner`, and the process of each job that it starts.

mod ssh_words;

pub(crate) mod mount;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::Mode;
use zmove_jobs::{Limits, Place, Runner, RunnerConfig, RunnerError, Stay};

use crate::args::{RunnerArgs, SubmitArgs};
use crate::commands::submit::{MOUNT, UMASK};
use crate::commands::{copy, follow};
use crate::display::terminal;
use crate::settings;
use crate::value::exit::{Exit, failure, verdict};

/// Runs `zmove runner`.
pub(crate) fn run(args: &RunnerArgs) -> Result<Exit> {
    let place = Place::open(&settings::jobs()?)?;
    if args.detached {
        leave_terminal();
    }
    let until_idle = args.until_idle.map(|age| age.0).or(args.detached.then_some(IDLE));
    let config = RunnerConfig {
        words: vec![std::env::current_exe()?.into_os_string(), "run-job".into()],
        judge: verdict,
        limits: Limits {
            all: args.max,
            host: args.max_per_host,
            target: args.max_per_target.unwrap_or(usize::MAX),
            key: args.max_per_key.unwrap_or(usize::MAX),
        },
        stay: until_idle.map_or(Stay::Always, Stay::UntilIdle),
    };
    if args.detached {
        let runner = Runner::begin_unless_up(&place, config)?;
        runner.map_or(Ok(()), |runner| runner.run(|text| terminal::warn(text)))?;
        return Ok(Exit::Done);
    }
    let runner = match Runner::begin(&place, config) {
        Err(error @ RunnerError::Up { .. }) => return Err(failure(Exit::Busy, error.to_string())),
        runner => runner?,
    };
    terminal::say(format_args!("running the jobs of '{}'", place.path().display()));
    runner.run(|text| terminal::warn(text))?;
    Ok(Exit::Done)
}

/// Does one job: a copy that tells its events, by the words with which it was submitted.
pub(crate) fn run_job(mut args: SubmitArgs, started: Instant) -> Result<Exit> {
    leave_terminal();
    let umask = std::env::var(UMASK).ok().and_then(|umask| u32::from_str_radix(&umask, 8).ok());
    if let Some(umask) = umask {
        rustix::process::umask(Mode::from_raw_mode(umask));
    }
    if let Some(mount) = std::env::var_os(MOUNT) {
        mount::demand(&args.copy.push, Path::new(&mount))?;
    }
    args.copy.push.json = true;
    if follow::is_batch() {
        follow::prepare_batch(&mut args.copy.push);
    } else if args.watch {
        return follow::follow(&args);
    }
    let said = ssh_words::so_far();
    copy::run(args.copy, started).map_err(|error| ssh_words::judge(error, said))
}

/// Leaves the terminal, so that no signal comes from there, and nothing that is started asks there.
fn leave_terminal() {
    // Who leads a group cannot, and has left it already.
    let _led = rustix::process::setsid();
}

/// How long a runner stays that a command has started.
const IDLE: Duration = Duration::from_secs(600);
