//! The process of a job that watches its source (`submit --watch`). It moves files in batches as they become ready.
//! Each batch has a child process that works like any other job, with the batch as its `--files-from` list.
//!
//! The process keeps its knowledge of the tree only in memory. After a crash, the next process walks the tree again and
//! finds which files are already at the target, so no file is left out.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use zmove_disk::is_part;
use zmove_engine::SourcesError;
use zmove_jobs::{AttemptProgress, Watching, is_shared, this_program};
use zmove_types::{Escaped, Lock};
use zmove_watch::{Batch, ChangeDetection, Watch, WatchConfig};

use crate::args::{PushArgs, SubmitArgs};
use crate::commands::transfer::{interrupted, names_other_host, warn_if_missing};
use crate::display::progress::print_json;
use crate::display::terminal;
use crate::settings;
use crate::value::exit::{Exit, failure, first, usage_error};

/// Refuses options that make no sense if files arrive over time. Also refuses a source that does not exist.
pub(crate) fn refuse_contradictions(args: &SubmitArgs) -> Result<()> {
    let push = &args.copy.push;
    let [source, _] = &push.paths[..] else {
        return Err(usage_error("--watch needs exactly one source directory"));
    };
    let refused = [
        (
            push.delete,
            "--delete: entries removed at the source stay at the target",
        ),
        (
            push.selection.files_from.is_some(),
            "--files-from: it moves all new files",
        ),
        (
            push.cluster.is_some(),
            "--cluster: the other nodes do not see new files",
        ),
        (push.manifest.is_some(), "--manifest: the job has no end"),
        (push.proofs.is_some(), "--proofs: the job has no end"),
        (push.trace.is_some(), "--trace: the job has no end"),
        (
            args.job.every.is_some(),
            "--every: the job runs until it is cancelled",
        ),
    ];
    if let Some(why) = first(&refused) {
        return Err(usage_error(format!("--watch cannot be used with {why}")));
    }
    if !names_other_host(source) && warn_if_missing(source) {
        return Err(SourcesError::Nothing.into());
    }
    if !Path::new(source).is_dir() {
        return Err(usage_error(format!(
            "--watch: '{}' is not a directory on this host",
            Escaped::path(source)
        )));
    }
    Ok(())
}

/// Returns whether this process moves a batch of a watching job. If so, standard input lists the files of the batch.
pub(crate) fn is_batch() -> bool {
    std::env::var_os(BATCH).is_some()
}

/// Makes the process of a batch exit when its parent exits, and makes it read the list of the batch's files.
pub(crate) fn prepare_batch(args: &mut PushArgs) {
    // If this call fails, two processes may run for a short time. The second process then skips the files that the
    // first one has already moved.
    let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    if std::env::var_os(BATCH) != Some(parent.to_string().into()) {
        // The parent exited before this process registered for the signal.
        std::process::exit(Exit::Interrupted as i32);
    }
    args.selection.read_list("/proc/self/fd/0");
}

/// Watches and moves files until the process is asked to stop or a transfer fails.
pub(crate) fn follow(args: &SubmitArgs) -> Result<Exit> {
    let root = std::path::absolute(&args.copy.push.paths[0]).context("find the source")?;
    let config = WatchConfig {
        rest: args.job.rest.map_or(REST, |rest| rest.0),
        rescan: args.job.rescan.map(|rescan| rescan.0),
        is_shared,
        is_unfinished: |name| is_part(name.as_bytes()),
    };
    let watch = Watch::begin(&root, config).context("start a thread")?;
    let stop = Stop::listen()?;
    let mut report =
        WatchReport::new((args.job.deadline.0 / 4).clamp(REPORT_INTERVAL, REPEAT_INTERVAL_MAX));
    let mut killed = 0;
    while !stop.is_asked() {
        watch.notes().into_iter().for_each(terminal::warn);
        let Some(batch) = watch.take(BATCH_FILES_MAX, LOOK_INTERVAL) else {
            report.send_if_due(&watch, ReportDue::Changed);
            continue;
        };
        report.begin(&batch);
        report.send_if_due(&watch, ReportDue::Changed);
        let moved = move_batch(&batch, &stop, |progress| {
            report.now = progress;
            report.send_if_due(&watch, ReportDue::InTime);
        })?;
        match moved.exit {
            Some(0 | 23) => {
                killed = 0;
                moved.report_failures(&root, &batch);
                report.end(&moved);
                watch.settle(batch, |path| moved.has_failed(path));
            }
            Some(exit) if root.is_dir() && !stop.is_asked() => {
                return Ok(moved.fail(exit));
            }
            // If several batch processes in a row were killed, the sender of the signals probably meant to stop this
            // process.
            None if killed >= KILLED_MAX && !stop.is_asked() => {
                return Ok(moved.fail(Exit::Broken as i32));
            }
            _ => {
                killed += u32::from(moved.exit.is_none());
                report.give_up();
                watch.put_back(batch);
                stop.wait(RETRY_WAIT);
            }
        }
    }
    Err(failure(Exit::Interrupted, "the job was asked to end"))
}

/// A request to stop, which is forwarded to the process of the running batch.
struct Stop(Arc<Lock<StopState>>);

#[derive(Default)]
struct StopState {
    is_asked: bool,
    process: Option<Pid>,
}

impl Stop {
    fn listen() -> Result<Self> {
        let wish = Arc::<Lock<StopState>>::default();
        let shared = Arc::clone(&wish);
        let listen = move || {
            let _listened = settings::block_on(1, async {
                interrupted().await;
                Ok(())
            });
            let mut wish = shared.lock();
            wish.is_asked = true;
            let _gone = wish
                .process
                .map(|process| kill_process(process, Signal::TERM));
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(listen)
            .context("start a thread")?;
        Ok(Self(wish))
    }

    fn is_asked(&self) -> bool {
        self.0.lock().is_asked
    }

    /// Sets the process to which a stop request is forwarded. The caller must pass `None` before it reaps the process.
    fn forward_to(&self, process: Option<&Child>) {
        let mut wish = self.0.lock();
        wish.process = process.map(Pid::from_child);
        if wish.is_asked {
            let _gone = wish
                .process
                .map(|process| kill_process(process, Signal::TERM));
        }
    }

    fn wait(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.is_asked() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The result of a batch.
#[derive(Default)]
struct MovedBatch {
    /// `None` if the process was killed.
    exit: Option<i32>,
    files: u64,
    bytes: u64,
    limited_by: Option<String>,
    message: Option<String>,
    failures: Vec<Value>,
    /// Paths that were reported as failed, and every suffix of these paths that follows a `/`. `None` if a failure was
    /// reported without a path.
    failed: Option<HashSet<String>>,
}

impl MovedBatch {
    fn has_failed(&self, path: &Path) -> bool {
        let Some(failed) = &self.failed else {
            return true;
        };
        let is_told = |path: &Path| failed.contains(&Escaped::path(path).to_string());
        !failed.is_empty() && path.ancestors().any(is_told)
    }

    /// Reports the failures, unless none of the failed files exists any more. The files' owner has then moved or
    /// removed them.
    fn report_failures(&self, root: &Path, batch: &Batch) {
        if batch
            .paths()
            .any(|path| self.has_failed(path) && root.join(path).symlink_metadata().is_ok())
        {
            self.failures.iter().for_each(print_json);
        }
    }

    /// Reports the failure of a transfer. The failure ends the job or this attempt.
    fn fail(&self, exit: i32) -> Exit {
        let message = self
            .message
            .clone()
            .unwrap_or_else(|| "the process of the transfer was killed".to_owned());
        print_json(&json!({ "event": "error", "message": message, "exit": exit }));
        Exit::from_code(exit)
    }

    fn take(&mut self, line: &str, tell: &mut impl FnMut(AttemptProgress)) {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            return;
        };
        let number = |name: &str| event[name].as_u64().unwrap_or(0);
        let text = |name: &str| event[name].as_str().map(str::to_owned);
        if event["exit"].is_i64() {
            self.files = number("files");
            self.bytes = number("bytes");
            self.limited_by = text("limited_by");
            self.message = text("message");
            return;
        }
        match event["event"].as_str() {
            Some("progress") => serde_json::from_value(event).map_or((), tell),
            Some("failed") => {
                match (event["path"].as_str(), &mut self.failed) {
                    (Some(path), Some(failed)) => {
                        let ends = path
                            .match_indices('/')
                            .map(|(at, _)| path[at + 1..].to_owned());
                        failed.extend(ends.chain([path.to_owned()]));
                    }
                    _ => self.failed = None,
                }
                if self.failures.len() < FAILURES_MAX {
                    self.failures.push(event);
                }
            }
            _ => print_json(&event),
        }
    }
}

/// Moves a batch in a child process.
fn move_batch(
    batch: &Batch,
    stop: &Stop,
    mut tell: impl FnMut(AttemptProgress),
) -> Result<MovedBatch> {
    let list = list_of(batch).context("list files in memory")?;
    // `this_program` runs the same executable as this process, even if the file of the executable was replaced.
    let mut command = this_program();
    command
        .args(std::env::args_os().skip(1))
        .env(BATCH, std::process::id().to_string());
    if batch.is_by_contents() {
        command.arg("--checksum");
    }
    let started = command.stdin(list).stdout(Stdio::piped()).spawn();
    let mut process = started.context("start the process of a transfer")?;
    stop.forward_to(Some(&process));
    let told = process.stdout.take().expect("a pipe was asked for");
    let mut moved = MovedBatch {
        failed: Some(HashSet::new()),
        ..MovedBatch::default()
    };
    for line in BufReader::new(told).lines() {
        moved.take(&line.context("read the events of a transfer")?, &mut tell);
    }
    // From here on, the kernel may give the process ID to another process.
    stop.forward_to(None);
    moved.exit = process.wait().context("wait for a transfer")?.code();
    Ok(moved)
}

/// Writes the paths of a batch, each terminated by NUL, to a file in memory, which can be read repeatedly.
fn list_of(batch: &Batch) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("batch", MemfdFlags::CLOEXEC)?);
    let paths = batch
        .paths()
        .flat_map(|path| path.as_os_str().as_bytes().iter().copied().chain([0]));
    file.write_all(&paths.collect::<Vec<u8>>())?;
    file.rewind()?;
    Ok(file)
}

/// The condition under which a report is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportDue {
    /// The report is due if anything other than a byte count has changed.
    Changed,
    /// The report is due if enough time has passed since the last report.
    InTime,
}

/// The reported state of the job, as sums over all batches.
struct WatchReport {
    begun: Instant,
    last_report: Option<(Instant, Watching)>,
    /// Interval at which an idle state is reported again. A new runner has not seen the earlier reports, and would
    /// assume that the job makes no progress.
    repeat: Duration,
    /// Files and bytes moved by finished batches.
    files_moved: u64,
    bytes_moved: u64,
    /// Whether a batch is running.
    is_moving: bool,
    /// Progress of the running batch. If no batch is running, the rate and the limit of the last batch.
    now: AttemptProgress,
    /// Number of bytes at the start of the event file whose storage was freed.
    freed_bytes: u64,
}

impl WatchReport {
    fn new(repeat: Duration) -> Self {
        Self {
            begun: Instant::now(),
            last_report: None,
            repeat,
            files_moved: 0,
            bytes_moved: 0,
            is_moving: false,
            now: AttemptProgress {
                limited_by: WATCHING.to_owned(),
                ..AttemptProgress::default()
            },
            freed_bytes: 0,
        }
    }

    fn begin(&mut self, batch: &Batch) {
        self.is_moving = true;
        self.now.files_found = batch.paths().len() as u64;
    }

    fn end(&mut self, moved: &MovedBatch) {
        self.files_moved += moved.files;
        self.bytes_moved += moved.bytes;
        self.give_up();
        let limited_by = moved.limited_by.clone();
        self.now.limited_by = limited_by.unwrap_or_else(|| WATCHING.to_owned());
    }

    fn give_up(&mut self) {
        self.is_moving = false;
        self.now = AttemptProgress {
            bytes_per_second: self.now.bytes_per_second,
            limited_by: std::mem::take(&mut self.now.limited_by),
            ..AttemptProgress::default()
        };
    }

    fn send_if_due(&mut self, watch: &Watch, when: ReportDue) {
        let state = watch.state();
        let idle = !self.is_moving && state.ready == 0 && state.has_walked;
        if idle {
            self.now.bytes_per_second = None;
            WATCHING.clone_into(&mut self.now.limited_by);
        }
        let why = match state.detection {
            ChangeDetection::Events => None,
            ChangeDetection::Walks(why) => Some(why),
        };
        let shown = Watching {
            by: if why.is_none() { "events" } else { "walks" }.to_owned(),
            why,
            directories: state.directories as u64,
            ready: state.ready as u64,
            changing: state.changing as u64,
            there: state.exists,
            idle,
        };
        let told = self.last_report.as_ref();
        let is_within = |interval| told.is_some_and(|(at, _)| at.elapsed() < interval);
        let recent = is_within(REPORT_INTERVAL);
        let same = is_within(self.repeat) && told.is_some_and(|(_, told)| *told == shown);
        let was_idle = told.is_some_and(|(_, told)| told.idle);
        if recent && (was_idle == idle || when == ReportDue::InTime)
            || same && when == ReportDue::Changed
        {
            return;
        }
        let AttemptProgress {
            bytes_per_second,
            limited_by,
            ..
        } = &self.now;
        print_json(&json!({
            "event": "progress",
            "seconds": self.begun.elapsed().as_secs_f64(),
            "bytes_done": self.bytes_moved + self.now.bytes_done,
            "bytes_found": self.bytes_moved + self.now.bytes_found,
            "files_done": self.files_moved + self.now.files_done,
            "files_found": self.files_moved + self.now.files_found,
            "scan_ended": true,
            "bytes_moved": self.bytes_moved + self.now.bytes_moved,
            "files_moved": self.files_moved + self.now.files_moved,
            "bytes_per_second": bytes_per_second.unwrap_or_default(),
            "lanes": 0,
            "limited_by": limited_by,
            "waiting": null,
            "watch": shown,
        }));
        self.last_report = Some((Instant::now(), shown));
        self.free_read_events();
    }

    /// Frees the storage of events that the runner read long ago. A watching job does not end, so its event file is not
    /// removed.
    fn free_read_events(&mut self) {
        let events = std::io::stdout();
        let told = rustix::fs::seek(&events, rustix::fs::SeekFrom::Current(0)).unwrap_or(0);
        if told < self.freed_bytes + 2 * EVENTS_KEPT_BYTES {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _not_everywhere = fallocate(events.as_fd(), flags, 0, told - EVENTS_KEPT_BYTES);
        self.freed_bytes = told - EVENTS_KEPT_BYTES;
    }
}

/// Environment variable of the process of a batch. It holds the ID of the parent process.
const BATCH: &str = "ZMOVE_JOB_BATCH";
/// Name that is reported as the job's limit while the job has no work.
const WATCHING: &str = "watching";
/// Default minimum time since the last change of a file before the file is moved, if no process has closed it.
const REST: Duration = Duration::from_secs(3);
/// Maximum number of files in a batch. With this many files, the time to connect does not matter, and no file waits
/// long for the rest of its batch.
const BATCH_FILES_MAX: usize = 1 << 14;
/// Interval between checks for a request to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const REPEAT_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Pause after a batch that could not be moved.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of consecutive batches whose process was killed. If one more process is killed, the attempt ends.
const KILLED_MAX: u32 = 3;
/// Maximum number of reported failures per batch. The log names all failures.
const FAILURES_MAX: usize = 100;
/// Number of bytes of events to keep. A runner never lags behind by this much.
const EVENTS_KEPT_BYTES: u64 = 4 << 20;
