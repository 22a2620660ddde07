//! `zmove runner`, and the process of each job that it starts.

mod http;
mod options;
mod ssh_messages;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::Mode;
use zmove_engine::OnInterrupt;
use zmove_jobs::{
    COPY_TO_END, IdlePolicy, JOB_RUN, JobsDirectory, Limits, NotifyMethod, Program, RunEnd, Runner,
    RunnerConfig, RunnerError, Store, THIS_PROGRAM,
};
use zmove_types::{TransferId, from_hex};

use crate::args::{RunnerArgs, RunnerCommand, SubmitArgs};
use crate::commands::submit::UMASK;
use crate::commands::{copy, follow, mount};
use crate::display::terminal;
use crate::settings;
use crate::value::exit::{Exit, failure, verdict};

/// Runs `zmove runner`.
pub(crate) fn run(args: &RunnerArgs) -> Result<Exit> {
    let place = JobsDirectory::open(&settings::jobs()?)?;
    if let Some(RunnerCommand::Notify) = &args.command {
        return send_tests(&place);
    }
    if args.detached {
        leave_terminal();
    }
    if let Some(address) = args.http {
        http::serve(&place, address, args)?;
    }
    let config = config(args)?;
    if args.detached {
        return match Runner::begin_unless_running(&place, config.clone())? {
            Some(runner) => run_until_end(runner, &place, config),
            None => Ok(Exit::Done),
        };
    }
    let runner = match Runner::begin(&place, config.clone()) {
        // While this process replaced its program, a command may have started another runner.
        Err(RunnerError::Up { pid }) if args.http.is_some() || Program::is_successor() => {
            take_over(&place, &config, pid)?
        }
        Err(error @ RunnerError::Up { .. }) => return Err(failure(Exit::Busy, error.to_string())),
        runner => runner?,
    };
    terminal::say(format_args!(
        "running the jobs of '{}'",
        place.path().display()
    ));
    run_until_end(runner, &place, config)
}

/// Runs jobs until the runner ends. If the runner's executable was replaced, executes the new one.
fn run_until_end(runner: Runner, place: &JobsDirectory, config: RunnerConfig) -> Result<Exit> {
    let end = runner.run(|text| terminal::warn(text))?;
    let replaced = config.program.clone().filter(|_| end == RunEnd::Replaced);
    let Some(program) = replaced else {
        return Ok(Exit::Done);
    };
    let error = program.execute_successor();
    terminal::warn(format_args!(
        "runner: cannot execute '{}', which has replaced this program: {error}; the old version continues",
        program.path().display()
    ));
    let config = RunnerConfig {
        program: None,
        ..config
    };
    match Runner::begin_unless_running(place, config.clone())? {
        Some(runner) => run_until_end(runner, place, config),
        None => Ok(Exit::Done),
    }
}

/// Sends a test event with each configured method. Tries all methods before it returns an error.
fn send_tests(place: &JobsDirectory) -> Result<Exit> {
    let config = settings::notify_config()?;
    let store = Store::open(place)?.id()?;
    let mut result = Ok(Exit::Done);
    for method in NotifyMethod::ALL
        .into_iter()
        .filter(|method| config.has(*method))
    {
        match config.send_test(method, &store) {
            Ok(()) => terminal::say(format_args!("the {method} accepted a test event")),
            Err(why) => {
                let text = format!("the {method} did not accept a test event: {why}");
                result = result.and(Err(failure(Exit::Connection, text)));
            }
        }
    }
    result
}

fn config(args: &RunnerArgs) -> Result<RunnerConfig> {
    let until_idle = args
        .until_idle
        .map(|age| age.0)
        .or(args.detached.then_some(IDLE));
    Ok(RunnerConfig {
        words: vec![THIS_PROGRAM.into(), "run-job".into()],
        judge: verdict,
        limits: Limits {
            all: args.max,
            host: args.max_per_host,
            target: args.max_per_target.unwrap_or(usize::MAX),
            key: args.max_per_key.unwrap_or(usize::MAX),
        },
        stay: until_idle.map_or(IdlePolicy::Always, IdlePolicy::UntilIdle),
        program: Some(Program::of_this_process().context("find this program")?),
        notify: settings::notify()?,
    })
}

/// Waits until the current runner ends, and then becomes the runner. The current runner may have been started by `zmove
/// submit`. This process already serves the web page while it waits.
fn take_over(place: &JobsDirectory, config: &RunnerConfig, pid: Option<i32>) -> Result<Runner> {
    let process = pid.map_or_else(String::new, |pid| format!(", process {pid},"));
    terminal::say(format_args!(
        "another runner{process} is running: this runner starts when the other one ends"
    ));
    loop {
        std::thread::sleep(FOLLOW_INTERVAL);
        match Runner::begin(place, config.clone()) {
            Err(RunnerError::Up { .. }) => {}
            runner => return Ok(runner?),
        }
    }
}

/// Runs one job. A job is a copy that reports events and uses the arguments with which the job was submitted.
pub(crate) fn run_job(mut args: SubmitArgs, started: Instant) -> Result<Exit> {
    leave_terminal();
    let umask = std::env::var(UMASK)
        .ok()
        .and_then(|umask| u32::from_str_radix(&umask, 8).ok());
    if let Some(umask) = umask {
        rustix::process::umask(Mode::from_raw_mode(umask));
    }
    mount::check_recorded_mounts(&args.copy.push)?;
    args.copy.push.json = true;
    if let Ok(id) = std::env::var(COPY_TO_END) {
        return copy::end(args.copy, &id);
    }
    if follow::is_batch() {
        follow::prepare_batch(&mut args.copy.push);
    } else if args.job.watch {
        return follow::follow(&args);
    }
    let said = ssh_messages::log_len();
    // If the job is paused or ended, its transfer between other hosts must stop too. If this process is killed, the
    // next attempt stops that transfer.
    copy::run(args.copy, started, OnInterrupt::Stop)
        .map_err(|error| ssh_messages::add_ssh_message(error, said))
}

/// Returns the run that all attempts of this process's job share. Returns `None` if this process does not belong to a
/// job.
pub(crate) fn run_of_job() -> Option<TransferId> {
    let digits = std::env::var(JOB_RUN).ok()?;
    from_hex(digits.as_bytes()).map(TransferId)
}

/// Detaches from the terminal. The terminal then sends no signals to this process, and no child process prompts on it.
fn leave_terminal() {
    // `setsid` fails if this process leads a process group. Such a process is already detached from the terminal.
    let _led = rustix::process::setsid();
}

/// Interval between checks for the end of the previous runner.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);
/// Idle time after which a runner that was started by a command exits.
const IDLE: Duration = Duration::from_secs(600);
