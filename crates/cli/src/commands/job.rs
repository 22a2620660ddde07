//! `zmove job ID`: shows a job, waits for it, holds it or ends it.

use std::time::{Duration, Instant};

use anyhow::Result;
use zmove_jobs::{Answer, JobId, Moment, Place, State, Store, StoreError};

use crate::args::{JobAction, JobArgs};
use crate::commands::submit::{ensure_runner, go_on, tell};
use crate::display::job::{Details, Row, event, event_as_json, table};
use crate::display::progress::print_json;
use crate::display::terminal;
use crate::settings;
use crate::value::exit::Exit;

/// Runs `zmove job`.
pub(crate) fn run(args: &JobArgs) -> Result<Exit> {
    let place = Place::open(&settings::jobs()?)?;
    let mut store = Store::open(&place)?;
    let (id, now) = (args.id, Moment::now());
    match &args.action {
        None => show(&place, &store, args)?,
        Some(JobAction::Log { json }) => log(&place, &store, id, *json)?,
        Some(JobAction::Wait { timeout }) => {
            return wait(&place, &store, id, timeout.map(|timeout| timeout.0), |_| {});
        }
        Some(JobAction::Attach) => return attach(&place, &store, id),
        Some(JobAction::Rerun) => {
            let new = store.rerun(id, now)?;
            ensure_runner(&place)?;
            tell(new, args.json);
        }
        Some(JobAction::Pause) => order(&place, id, store.pause(id, now), "paused")?,
        Some(JobAction::Resume) => order(&place, id, store.resume(id, now), "resumed")?,
        Some(JobAction::Cancel) => {
            // Whoever ends an earlier run of a schedule means the schedule.
            let live = store.live_run(id)?;
            if live != id {
                terminal::say(format_args!("job {id} has ended; the next run of its schedule is job {live}"));
            }
            order(&place, live, store.cancel(live, now), "cancelled")?;
        }
    }
    Ok(Exit::Done)
}

fn show(place: &Place, store: &Store, args: &JobArgs) -> Result<()> {
    go_on(place, store)?;
    let row = Row::of(place, store.job(args.id)?);
    let (ends, events) = (store.attempts(args.id)?, store.events(args.id, 0, u32::MAX)?);
    let details = Details { ends, events, deliveries: store.deliveries(args.id)?, log: place.log(args.id) };
    if args.json {
        print_json(&details.add_to(row.as_json()));
    } else {
        let lines = details.lines(&row);
        terminal::print(table(&[row], Moment::now()) + &lines);
    }
    Ok(())
}

fn log(place: &Place, store: &Store, id: JobId, json: bool) -> Result<()> {
    store.job(id)?;
    let events = store.events(id, 0, u32::MAX)?;
    if json {
        events.iter().for_each(|event| print_json(&event_as_json(event)));
        return Ok(());
    }
    events.iter().map(event).for_each(terminal::say);
    let said = std::fs::read(place.log(id)).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().for_each(terminal::say);
    Ok(())
}

/// Says what has become of an order, and has the runner see to it.
fn order(place: &Place, id: JobId, answer: Result<Answer, StoreError>, what: &str) -> Result<()> {
    match answer? {
        Answer::Now(_) => terminal::say(format_args!("job {id} is {what}")),
        Answer::Asked => terminal::say(format_args!("job {id} is being {what}")),
    }
    ensure_runner(place)
}

/// Waits for the end of a job, and shows it meanwhile.
fn wait(
    place: &Place,
    store: &Store,
    id: JobId,
    timeout: Option<Duration>,
    show: impl Fn(&Row),
) -> Result<Exit> {
    let since = Instant::now();
    let mut looked_for_runner: Option<Instant> = None;
    loop {
        let job = store.job(id)?;
        let (state, is_final) = (job.state, job.state.is_final());
        let row = Row::of(place, job);
        show(&row);
        if is_final {
            terminal::say(row.end());
            return Ok(exit_of(state));
        }
        if timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
            terminal::say(row.end());
            return Ok(Exit::StillGoing);
        }
        // It may have been killed: then nobody else would ever end this wait.
        if looked_for_runner.is_none_or(|looked| looked.elapsed() > RUNNER_INTERVAL) {
            ensure_runner(place)?;
            looked_for_runner = Some(Instant::now());
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Shows a bar until the job ends.
fn attach(place: &Place, store: &Store, id: JobId) -> Result<Exit> {
    let bar = terminal::running("{bar:24} {percent:>3}% {msg}");
    let exit = wait(place, store, id, None, |row| {
        if row.state().is_final() {
            bar.finish_and_clear();
        }
        let (done, found) = row.bytes();
        bar.set_length(found);
        bar.set_position(done);
        bar.set_message(row.bar());
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

/// How often a job is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often it is looked whether there is a runner.
const RUNNER_INTERVAL: Duration = Duration::from_secs(2);
