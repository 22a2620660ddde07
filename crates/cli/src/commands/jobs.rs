//! `zmove jobs`: lists jobs, copies their list, and forgets old ones.

use std::time::Duration;

use anyhow::Result;
use zmove_jobs::{Moment, Place, Selection, Store};

use crate::args::{JobsArgs, JobsCommand};
use crate::commands::submit::go_on;
use crate::display::format::counted;
use crate::display::job::{Row, table};
use crate::display::terminal;
use crate::settings;
use crate::value::exit::Exit;

/// Runs `zmove jobs`.
pub(crate) fn run(args: &JobsArgs) -> Result<Exit> {
    let place = Place::open(&settings::jobs()?)?;
    let mut store = Store::open(&place)?;
    let now = Moment::now();
    match &args.command {
        None => list(args, &place, &store, now)?,
        Some(JobsCommand::Backup { file }) => store.back_up(file)?,
        Some(JobsCommand::Clean { older_than }) => clean(&place, &mut store, before(now, older_than.0))?,
    }
    Ok(Exit::Done)
}

fn list(args: &JobsArgs, place: &Place, store: &Store, now: Moment) -> Result<()> {
    go_on(place, store)?;
    let selection = if args.all { Selection::All } else { Selection::Recent(before(now, RECENT)) };
    let rows: Vec<_> = store.jobs(selection)?.into_iter().map(|job| Row::of(place, job)).collect();
    if args.json {
        let lines: String = rows.iter().map(|row| format!("{}\n", row.as_json())).collect();
        terminal::print(lines);
    } else if rows.is_empty() {
        terminal::say("no jobs");
    } else {
        terminal::print(table(&rows, now));
    }
    Ok(())
}

fn clean(place: &Place, store: &mut Store, before: Moment) -> Result<()> {
    let forgotten = store.forget(before)?;
    for id in &forgotten {
        // One that was never begun has none; what stays is in nobody's way.
        let _best_effort = std::fs::remove_dir_all(place.job(*id));
    }
    terminal::say(format_args!("forgot {}", counted(forgotten.len() as u64, "job")));
    Ok(())
}

fn before(now: Moment, span: Duration) -> Moment {
    Moment(now.0.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
}

/// How long a job is listed after its end.
const RECENT: Duration = Duration::from_secs(24 * 60 * 60);
