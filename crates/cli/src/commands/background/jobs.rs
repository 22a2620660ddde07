//! `zmove jobs`: lists jobs, backs up the list, and removes old jobs from it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use zmove_jobs::{Job, JobsDirectory, Moment, State, Store};

use crate::args::{JobsArgs, JobsCommand};
use crate::commands::submit::ensure_runner_for_open_jobs;
use crate::display::format::counted;
use crate::display::job::{Row, table};
use crate::display::terminal;
use crate::settings;
use crate::value::age::Age;
use crate::value::exit::Exit;

/// Runs `zmove jobs`.
pub(crate) fn run(args: &JobsArgs) -> Result<Exit> {
    let place = JobsDirectory::open(&settings::jobs()?)?;
    let mut store = Store::open(&place)?;
    let now = Moment::now();
    match &args.command {
        None => list(args, &place, &store, now)?,
        Some(JobsCommand::Backup { file }) => store.back_up(file)?,
        Some(JobsCommand::Clean { older_than }) => clean(&place, &mut store, now, *older_than)?,
    }
    Ok(Exit::Done)
}

fn list(args: &JobsArgs, place: &JobsDirectory, store: &Store, now: Moment) -> Result<()> {
    ensure_runner_for_open_jobs(place, store)?;
    let since = if args.all {
        Moment::FIRST
    } else {
        now.before(RECENT)
    };
    let is_asked_for = |job: &Job| args.state.is_empty() || args.state.contains(&job.state);
    let jobs = store.jobs(since)?.into_iter().filter(is_asked_for);
    let rows: Vec<_> = jobs.map(|job| Row::of(place, job)).collect();
    if args.json {
        let lines: String = rows
            .iter()
            .map(|row| format!("{}\n", row.as_json()))
            .collect();
        terminal::print(lines);
    } else if rows.is_empty() {
        terminal::say("no jobs");
    } else {
        terminal::print(table(&rows, now));
        if rows.len() > SCREEN_JOBS {
            terminal::say(counts(rows.iter().map(Row::state)));
        }
    }
    Ok(())
}

/// Returns the number of jobs, in total and by state.
fn counts(states: impl Iterator<Item = State>) -> String {
    let mut counts = BTreeMap::new();
    states.for_each(|state| *counts.entry(state.to_string()).or_insert(0) += 1);
    let all: u64 = counts.values().sum();
    let by_state: Vec<_> = counts
        .iter()
        .map(|(state, jobs)| format!("{jobs} {state}"))
        .collect();
    format!("{}: {}", counted(all, "job"), by_state.join(", "))
}

fn clean(place: &JobsDirectory, store: &mut Store, now: Moment, older_than: Age) -> Result<()> {
    let before = now.before(older_than.0);
    let forgotten = store.forget(before)?;
    for id in &forgotten {
        // A job that never started has no directory. A directory that cannot be removed does no harm.
        let _best_effort = std::fs::remove_dir_all(place.job(*id));
    }
    terminal::say(format_args!(
        "forgot {}",
        counted(forgotten.len() as u64, "job")
    ));
    let kept = store.jobs(Moment::FIRST)?;
    if !kept.is_empty() {
        terminal::say(kept_for(
            kept.iter().map(|job| job.ended),
            before,
            older_than,
        ));
    }
    Ok(())
}

/// Returns the reasons why jobs are kept, given the end times of these jobs. The end time is `None` if a job has not
/// ended.
fn kept_for(ends: impl Iterator<Item = Option<Moment>>, before: Moment, older_than: Age) -> String {
    let mut all = 0;
    let mut unended = 0;
    let mut young = 0;
    for ended in ends {
        all += 1;
        unended += u64::from(ended.is_none());
        young += u64::from(ended.is_some_and(|ended| ended >= before));
    }
    let reasons = [
        (unended, "not ended".to_owned()),
        (
            young,
            format!("ended less than {older_than} ago, see --older-than"),
        ),
        (
            all - unended - young,
            "needed by other jobs, or with pending notifications".to_owned(),
        ),
    ];
    let reasons = reasons.into_iter().filter(|(jobs, _)| *jobs > 0);
    let reasons: Vec<_> = reasons.map(|(jobs, why)| format!("{jobs} {why}")).collect();
    format!("kept {}: {}", counted(all, "job"), reasons.join("; "))
}

/// Number of jobs that fit on one screen of a terminal. For longer lists, the counts by state are printed too.
const SCREEN_JOBS: usize = 10;
/// Time for which a job is listed after its end.
const RECENT: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_jobs_are_counted_by_state() {
        let states = [State::Done, State::Failed, State::Done];
        assert_eq!(counts(states.into_iter()), "3 jobs: 2 done, 1 failed");
    }

    #[test]
    fn why_jobs_are_kept_is_told() {
        let kept = |ends: &[Option<i64>]| {
            let ends = ends.iter().map(|end| end.map(Moment));
            kept_for(ends, Moment(100), Age(Duration::from_secs(60)))
        };
        assert_eq!(kept(&[None]), "kept 1 job: 1 not ended");
        let all = kept(&[None, Some(100), Some(170), Some(99), None]);
        let young = "2 ended less than 1 min ago, see --older-than";
        assert_eq!(
            all,
            format!(
                "kept 5 jobs: 2 not ended; {young}; 1 needed by other jobs, or with pending notifications"
            )
        );
    }
}
