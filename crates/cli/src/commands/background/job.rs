//! `zmove job ID`: shows a job, waits for it, pauses it or cancels it.

use std::time::{Duration, Instant};

use anyhow::Result;
use zmove_jobs::{
    JobId, JobsDirectory, Moment, Notification, NotificationState, NotifyConfig, RequestResult,
    State, Store,
};

use crate::args::{JobAction, JobArgs};
use crate::commands::submit::{ensure_runner, ensure_runner_for_open_jobs, print_number};
use crate::display::job::{Details, Row, event, event_as_json, one};
use crate::display::progress::{BAR, bar_text, print_json};
use crate::display::terminal;
use crate::settings;
use crate::value::exit::Exit;

/// Runs `zmove job`.
pub(crate) fn run(args: &JobArgs) -> Result<Exit> {
    let place = JobsDirectory::open(&settings::jobs()?)?;
    let mut store = Store::open(&place)?;
    let id = args.id;
    let now = Moment::now();
    match &args.action {
        None => show(&place, &store, args)?,
        Some(JobAction::Log) => log(&place, &store, id, args.json)?,
        Some(JobAction::Wait { timeout }) => {
            return wait(
                &place,
                &store,
                args,
                timeout.map(|timeout| timeout.0),
                |_| {},
            );
        }
        Some(JobAction::Attach) => return attach(&place, &store, args),
        Some(JobAction::Rerun) => {
            let new = store.rerun(id, now)?;
            ensure_runner(&place)?;
            print_number(new, args.json);
        }
        Some(JobAction::Pause) => {
            let answer = store.pause(id, now)?;
            ordered(&place, &store, args, id, answer, "paused")?;
        }
        Some(JobAction::Resume) => {
            let answer = store.resume(id, now)?;
            ordered(&place, &store, args, id, answer, "resumed")?;
        }
        Some(JobAction::Cancel) => {
            // If the user names an earlier run of a schedule, the next run is canceled, which ends the schedule.
            let live = store.live_run(id)?;
            if live != id && !args.json {
                terminal::say(format_args!(
                    "job {id} has ended; the next run of its schedule is job {live}"
                ));
            }
            let answer = store.cancel(live, now)?;
            ordered(&place, &store, args, live, answer, "cancelled")?;
        }
    }
    Ok(Exit::Done)
}

fn show(place: &JobsDirectory, store: &Store, args: &JobArgs) -> Result<()> {
    ensure_runner_for_open_jobs(place, store)?;
    let row = Row::of(place, store.job(args.id)?);
    let details = Details {
        ends: store.attempts(args.id)?,
        events: store.events(args.id, 0, u32::MAX)?,
        notifications: notifications(store, args.id)?,
        log: place.log(args.id),
    };
    if args.json {
        print_json(&details.add_to(row.as_json()));
    } else {
        terminal::print(one(&row, &details, Moment::now()));
    }
    Ok(())
}

/// Returns the notifications of a job. Leaves out new notifications that the runner will drop because their method is
/// not configured.
fn notifications(store: &Store, id: JobId) -> Result<Vec<Notification>> {
    let mut notifications = store.notifications(id)?;
    if let Ok(config) = NotifyConfig::read(&settings::notify()?) {
        notifications.retain(|notification| {
            let is_new =
                notification.state == NotificationState::Waiting && notification.tries == 0;
            !is_new || config.has(notification.method)
        });
    }
    Ok(notifications)
}

fn log(place: &JobsDirectory, store: &Store, id: JobId, json: bool) -> Result<()> {
    store.job(id)?;
    let events = store.events(id, 0, u32::MAX)?;
    if json {
        events
            .iter()
            .for_each(|event| print_json(&event_as_json(event)));
        return Ok(());
    }
    events
        .iter()
        .for_each(|told| terminal::print_lines(&event(told)));
    let said = std::fs::read(place.log(id)).unwrap_or_default();
    terminal::print_lines(&String::from_utf8_lossy(&said));
    Ok(())
}

/// Makes the runner act on a command, and reports the result.
fn ordered(
    place: &JobsDirectory,
    store: &Store,
    args: &JobArgs,
    id: JobId,
    answer: RequestResult,
    what: &str,
) -> Result<()> {
    ensure_runner(place)?;
    match answer {
        _ if args.json => print_json(&Row::of(place, store.job(id)?).as_json()),
        RequestResult::Now(_) => terminal::say(format_args!("job {id} is {what}")),
        RequestResult::Asked => terminal::say(format_args!("job {id} is being {what}")),
    }
    Ok(())
}

/// Waits for the end of a job, and calls `show` with the job's state while it waits.
fn wait(
    place: &JobsDirectory,
    store: &Store,
    args: &JobArgs,
    timeout: Option<Duration>,
    show: impl Fn(&Row),
) -> Result<Exit> {
    let since = Instant::now();
    let mut looked_for_runner: Option<Instant> = None;
    loop {
        let job = store.job(args.id)?;
        let state = job.state;
        let row = Row::of(place, job);
        show(&row);
        if state.is_final() || timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
            if args.json {
                print_json(&row.as_json());
            } else {
                terminal::say(row.end());
            }
            return Ok(exit_of(state));
        }
        // The runner may have been killed. If no new runner started, this wait would never end.
        if looked_for_runner.is_none_or(|looked| looked.elapsed() > RUNNER_INTERVAL) {
            ensure_runner(place)?;
            looked_for_runner = Some(Instant::now());
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Shows a progress bar until the job ends.
fn attach(place: &JobsDirectory, store: &Store, args: &JobArgs) -> Result<Exit> {
    let bar = terminal::running(BAR);
    let exit = wait(place, store, args, None, |row| {
        if row.state().is_final() {
            bar.finish_and_clear();
        }
        let (done, found) = row.bytes();
        bar.set_length(found);
        bar.set_position(done);
        bar.set_message(bar_text(&row.bar()));
    });
    bar.finish_and_clear();
    exit
}

fn exit_of(state: State) -> Exit {
    match state {
        State::Done => Exit::Done,
        State::Failed => Exit::JobFailed,
        State::Cancelled => Exit::JobCancelled,
        State::Expired => Exit::JobExpired,
        State::Waiting | State::Queued | State::Running | State::Paused => Exit::StillGoing,
    }
}

/// Interval at which the state of a job is read.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between checks that a runner exists.
const RUNNER_INTERVAL: Duration = Duration::from_secs(2);
