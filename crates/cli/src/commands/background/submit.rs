//! `zmove submit`: adds a transfer to the store of jobs, and makes sure that a runner exists.
//!
//! This command asks questions and reports errors early where possible, because no user is present when the job runs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;
use zmove_engine::{Location, Remote, SourcesError, Start};
use zmove_jobs::{
    ArgumentList, JobId, JobWork, JobsDirectory, Moment, NewJob, NotifyConfig, SUBMITTER_VARIABLES,
    Store, Submitted, first_time, format_local, this_program, variable,
};
use zmove_types::Escaped;

use crate::args::{JobOptions, PushArgs, SubmitArgs};
use crate::commands::follow;
use crate::commands::mount;
use crate::commands::transfer::{names_other_host, warn_if_missing};
use crate::commands::trust::ensure_known_key;
use crate::display::progress::print_json;
use crate::display::prompt::Prompt;
use crate::display::terminal;
use crate::settings::{self, Copy};
use crate::value::exit::{Exit, refuse, usage_error};

/// Runs `zmove submit`.
pub(crate) fn run(args: SubmitArgs) -> Result<Exit> {
    let words: Vec<_> = std::env::args_os().skip(2).collect();
    let json = args.copy.push.json;
    let place = JobsDirectory::open(&settings::jobs()?)?;
    let mut store = Store::open(&place)?;
    let job = job(args, words)?;
    let Submitted { id, repeated } = store.submit(&job, Moment::now())?;
    if repeated {
        report_end(&store, id)?;
    }
    ensure_runner(&place)?;
    print_number(id, json);
    Ok(Exit::Done)
}

/// Reports how the job of a repeated submission ended. If only the job's number were printed, the job would seem to be
/// running.
fn report_end(store: &Store, id: JobId) -> Result<()> {
    let job = store.job(id)?;
    if let Some(ended) = job.ended {
        let state = job.state.phrase();
        let time = format_local(ended);
        terminal::warn(format_args!(
            "job {id} with this submission id {state} ({time}): nothing is sent again"
        ));
    }
    Ok(())
}

/// Prints a job's number.
pub(crate) fn print_number(id: JobId, json: bool) {
    if json {
        print_json(&json!({ "event": "submitted", "job": id }))
    } else {
        terminal::say(id)
    }
}

/// Wakes the runner. If no runner exists, starts one, which exits when it is idle.
pub(crate) fn ensure_runner(place: &JobsDirectory) -> Result<()> {
    if zmove_jobs::wake(place).context("wake the runner")? {
        return Ok(());
    }
    let log = std::fs::File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(place.runner_log());
    let log = log.with_context(|| format!("open '{}'", place.runner_log().display()))?;
    let mut runner = this_program();
    // The runner must not block the unmounting of the current directory.
    runner
        .args(["runner", "--detached"])
        .current_dir("/")
        .env("ZMOVE_JOBS", place.path());
    runner.envs(absolute_home().map(|home| ("ZMOVE_HOME", home)));
    let started = runner
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let mut started = started.context("start a runner")?;
    // If this command runs longer than the runner, the runner would remain a zombie until it is reaped.
    let bury = move || drop(started.wait());
    std::thread::Builder::new()
        .name("runner's end".to_owned())
        .spawn(bury)
        .context("start a thread")?;
    Ok(())
}

/// Makes sure that a runner exists if any job is unfinished. After a reboot or a kill, no runner exists, and the
/// displayed states would never change.
pub(crate) fn ensure_runner_for_open_jobs(place: &JobsDirectory, store: &Store) -> Result<()> {
    if store.has_work()?
        && let Err(error) = ensure_runner(place)
    {
        terminal::warn(format_args!(
            "no runner is running, so no job starts: {error:#}"
        ));
    }
    Ok(())
}

fn job(args: SubmitArgs, words: Vec<OsString>) -> Result<NewJob> {
    refuse_for_jobs(&args.copy.push)?;
    if args.job.watch {
        follow::refuse_contradictions(&args)?;
    }
    let SubmitArgs { copy, job } = args;
    let JobOptions {
        label,
        submission_id,
        priority,
        at,
        every,
        after,
        deadline,
        notify,
        ..
    } = job;
    check_notify(notify.as_deref())?;
    if let Some(at) = &at {
        warn_if_past(at.moment());
    }
    let directory = std::env::current_dir().context("find the working directory")?;
    let (target, sources) = copy.push.paths.split_last().expect("two are demanded");
    let source = described(&sources[0], &directory, sources.len());
    let target = match &copy.push.cluster {
        Some(cluster) => format!("{cluster}:{}", Escaped::path(target)),
        None => described(target, &directory, 1),
    };
    let label = match label {
        Some(label) => checked_label(label)?,
        None => name_of(&sources[0], settings::start(&copy.push.dial)),
    };
    let environment = environment(mount::recorded_mounts(&copy.push)?);
    // With a cluster, the keys of the receivers are in the cluster's file.
    let are_known = copy.push.dial.accept_new || copy.push.cluster.is_some();
    let strict = copy.push.dial.strict;
    let copy = Copy::new(copy, Arc::new(Prompt))?;
    if let Copy::Push(settings) = &copy
        // If a job starts later, its sources may not exist yet.
        && after.is_empty()
        && at.is_none()
        && every.is_none()
    {
        refuse_missing(&settings.args)?;
    }
    let hosts = hosts(copy);
    if !are_known {
        hosts
            .iter()
            .try_for_each(|host| ensure_known_key(host, strict))?;
    }
    Ok(NewJob {
        submission: submission_id,
        label,
        work: JobWork {
            arguments: ArgumentList(words),
            directory,
            environment,
        },
        source,
        target,
        host: hosts.first().map(ToString::to_string).unwrap_or_default(),
        priority,
        not_before: first_time(at.as_ref(), every.as_ref(), Moment::now()),
        at,
        schedule: every,
        after,
        deadline: deadline.0,
        notify,
    })
}

fn warn_if_past(at: Moment) {
    if at < Moment::now() {
        terminal::warn(format_args!(
            "the time of --at {} is in the past: the job starts now",
            format_local(at)
        ));
    }
}

/// Returns the remote hosts of a copy, starting with the host of the target.
fn hosts(copy: Copy) -> Vec<Remote> {
    match copy {
        Copy::Push(settings) => match settings.location {
            Location::Local(_) => Vec::new(),
            Location::Remote(remote) => std::iter::once(remote).chain(settings.also).collect(),
        },
        Copy::Pull(settings) => vec![settings.remote],
        Copy::Between(settings) => vec![settings.target, settings.source],
    }
}

fn checked_label(label: String) -> Result<String> {
    if label.len() > LABEL_BYTES_MAX {
        return Err(usage_error(format!(
            "--label: at most {LABEL_BYTES_MAX} bytes"
        )));
    }
    Ok(label)
}

/// Maximum length of a label in bytes, the same as for a file name.
const LABEL_BYTES_MAX: usize = 255;

/// Warns of missing sources. Like a push, refuses a job if none of its sources exists.
fn refuse_missing(args: &PushArgs) -> Result<()> {
    let (_, sources) = args.paths.split_last().expect("two are demanded");
    let missing = sources.iter().filter(|source| warn_if_missing(source));
    if missing.count() == sources.len() {
        return Err(SourcesError::Nothing.into());
    }
    Ok(())
}

/// Refuses passwords, and options that make no sense without a user at the terminal. The command line is stored with
/// the job and displayed. While the job runs, the system shows it to all users of this host.
fn refuse_for_jobs(args: &PushArgs) -> Result<()> {
    let mut paths = args.paths.iter().map(|path| path.to_string_lossy());
    let ssh = args.dial.ssh_command.as_deref();
    refuse(&[
        (
            args.dry_run,
            "--dry-run cannot be used in a job: use 'zmove copy --dry-run'",
        ),
        (
            !args.can_be_repeated(),
            "--inplace with --update cannot be used in a job: a file of which only a part was replaced is newer than \
             its source, so a further attempt would keep it",
        ),
        (
            args.selection.reads_stdin() || !args.selection.can_be_read_again(),
            "a job reads --files-from and --filter-from when it starts, and possibly again: name files instead of \
             stdin",
        ),
        (
            paths.any(|path| has_password(&path)),
            "a password in an address would be visible in the job: use a key",
        ),
        (
            ssh.is_some_and(types_password),
            "a password in --ssh-command would be stored with the job: use a key, or 'sshpass -f FILE'",
        ),
    ])
}

/// Returns whether the path is an address with a password, such as `ssh://USER:PASSWORD@HOST/PATH`.
fn has_password(path: &str) -> bool {
    let Some((_, rest)) = path.split_once("://") else {
        return false;
    };
    let user = rest
        .split('/')
        .next()
        .and_then(|host| host.rsplit_once('@'));
    user.is_some_and(|(user, _)| user.contains(':'))
}

/// Returns whether the command contains a password, as in `sshpass -p PASSWORD ssh`.
fn types_password(command: &str) -> bool {
    let mut words = command
        .split_whitespace()
        .map(|word| word.trim_matches(['\'', '"']));
    words.any(|word| word.rsplit('/').next() == Some("sshpass"))
        && words.any(|word| word.starts_with("-p"))
}

/// Refuses a notification text that no hook or webhook would receive. Without a text, an invalid configuration only
/// causes a warning.
fn check_notify(text: Option<&str>) -> Result<()> {
    let Some(text) = text else {
        if let Err(error) = NotifyConfig::read(&settings::notify()?) {
            terminal::warn(format_args!("no notifications will be sent: {error}"));
        }
        return Ok(());
    };
    if text.len() > NOTIFY_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(usage_error(format!(
            "--notify: write one line of at most {NOTIFY_BYTES_MAX} bytes"
        )));
    }
    settings::notify_config().map(drop)
}

/// Maximum length in bytes of the text for the hook and the webhook. This is enough for several mail addresses.
const NOTIFY_BYTES_MAX: usize = 1000;

/// Returns the environment variables that a job needs, and the variables that record the mounts of its sources.
fn environment(mounts: Vec<OsString>) -> ArgumentList {
    // Reading the umask requires setting it. No other thread creates files at this point.
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    let umask = format!("{:o}", umask.as_raw_mode());
    let kept = SUBMITTER_VARIABLES
        .into_iter()
        .filter(|name| *name != ZMOVE_HOME);
    let kept = kept.filter_map(|name| Some(variable(name, &std::env::var_os(name)?)));
    let home = absolute_home().map(|home| variable(ZMOVE_HOME, home.as_os_str()));
    ArgumentList(
        kept.chain(home)
            .chain(mounts)
            .chain([variable(UMASK, OsStr::new(&umask))])
            .collect(),
    )
}

/// Returns `ZMOVE_HOME` as an absolute path, for a process that starts in another directory.
fn absolute_home() -> Option<PathBuf> {
    std::path::absolute(settings::named(ZMOVE_HOME)?).ok()
}

/// Environment variable of zmove's home directory. Its value may be a relative path.
const ZMOVE_HOME: &str = "ZMOVE_HOME";

/// Environment variable that passes the umask to the process of a job.
pub(crate) const UMASK: &str = "ZMOVE_JOB_UMASK";

/// Returns a path in the form in which it is displayed. Local paths are made absolute.
pub(crate) fn described(path: &OsStr, directory: &Path, count: usize) -> String {
    let path = if names_other_host(path) {
        path.to_owned()
    } else {
        directory.join(path).into_os_string()
    };
    let more = if count > 1 {
        format!(" and {} more", count - 1)
    } else {
        String::new()
    };
    format!("{}{more}", Escaped::path(&path))
}

/// Returns the last component of a path, which may be on another host. A name may contain colons.
fn name_of(typed: &OsStr, start: Start) -> String {
    let path = match Location::parse(typed, start) {
        Ok(Location::Remote(remote)) => OsString::from_vec(remote.path),
        _ => typed.to_owned(),
    };
    let name = |path: &OsStr| {
        let path = path.to_string_lossy();
        let path = path.trim_end_matches('/');
        path.rsplit('/').next().unwrap_or_default().to_owned()
    };
    let found = [name(&path), name(typed)];
    let found = found.into_iter().find(|name| !name.is_empty());
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_this_host_are_shown_from_the_root_on() {
        let format_local = |path: &str| described(OsStr::new(path), Path::new("/home/a"), 1);
        assert_eq!(format_local("run7/"), "/home/a/run7/");
        assert_eq!(format_local("/data"), "/data");
        assert_eq!(format_local("h:run7"), "h:run7");
        assert_eq!(format_local("zmove://h/run7"), "zmove://h/run7");
        assert_eq!(
            described(OsStr::new("a"), Path::new("/"), 3),
            "/a and 2 more"
        );
    }

    #[test]
    fn passwords_are_seen() {
        for (path, expected) in [
            ("ssh://alice:secret@h/a", true),
            ("zmove://alice:s@cret@h:5870/a", true),
            ("ssh://alice@h:22/a", false),
            ("zmove://h:5870/a:b@c", false),
            ("alice@h:a:b", false),
        ] {
            assert_eq!(has_password(path), expected, "{path}");
        }
        for (command, expected) in [
            ("sshpass -p secret ssh", true),
            ("/usr/bin/sshpass -psecret ssh -i k", true),
            ("'sshpass' '-p' 'x' ssh", true),
            ("sshpass -f file ssh", false),
            ("ssh -p 2222", false),
        ] {
            assert_eq!(types_password(command), expected, "{command}");
        }
    }

    #[test]
    fn a_job_has_the_name_of_its_source() {
        for (path, name) in [
            ("a/run7/", "run7"),
            ("h:run7", "run7"),
            ("h:/a/b.h5", "b.h5"),
            ("./run:1", "run:1"),
            ("a/run:1:2/", "run:1:2"),
            ("h:run:1", "run:1"),
            ("h:7:run", "run"),
            ("alice@h:/a/run:1", "run:1"),
            ("zmove://h:7/a/run:1", "run:1"),
            ("h:", "h:"),
            // The root directory has no name.
            ("/", ""),
        ] {
            assert_eq!(name_of(OsStr::new(path), Start::Daemon), name, "{path}");
        }
    }
}
