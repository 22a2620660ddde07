//! What the user sees while a push runs: a bar on a terminal, JSON lines, or nothing but failures.
//!
//! Workers only bump atomics; one ticker thread draws, so that the display never slows the transfer.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ceiling::Moved;
use crate::display::listing;
use crate::display::terminal;
use crate::display::trace::Trace;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use zmove_engine::{Listener, Notice};
use zmove_types::{ByteCount, Change, Event, Observer};

/// The display of one push.
pub(crate) struct Display {
    watcher: Arc<Watcher>,
    ticker: Mutex<Option<JoinHandle<()>>>,
}

/// Where events go.
struct Watcher {
    totals: Totals,
    /// Not set back when a push goes on after its connections were lost.
    moved: Arc<Moved>,
    bar: ProgressBar,
    form: Form,
    quiet: bool,
    trace: Option<Trace>,
    limit: Mutex<&'static str>,
    /// The user knows that the receiver is busy.
    told_busy: AtomicBool,
    /// Since when there has been no connection.
    lost: Mutex<Option<Instant>>,
    ended: Mutex<bool>,
    end: Condvar,
    started: Instant,
}

/// How events are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bar,
    Json,
    Failures,
}

#[derive(Default)]
struct Totals {
    found_files: AtomicU64,
    found_bytes: AtomicU64,
    done_files: AtomicU64,
    done_bytes: AtomicU64,
    lanes: AtomicU64,
    scan_ended: AtomicBool,
    flushing: AtomicBool,
}

impl Totals {
    fn reset(&self) {
        let Self { found_files, found_bytes, done_files, done_bytes, scan_ended, .. } = self;
        for counter in [found_files, found_bytes, done_files, done_bytes] {
            counter.store(0, Ordering::Relaxed);
        }
        scan_ended.store(false, Ordering::Relaxed);
    }
}

const DRAW_INTERVAL: Duration = Duration::from_millis(200);
const JSON_INTERVAL: Duration = Duration::from_secs(1);

impl Display {
    /// A display that shows nothing before it is [started](Self::start): there may be a question to ask first.
    pub(crate) fn new(json: bool, quiet: bool, trace: Option<Trace>) -> Self {
        let form = match (json, quiet || !std::io::stderr().is_terminal()) {
            (true, _) => Form::Json,
            (false, false) => Form::Bar,
            (false, true) => Form::Failures,
        };
        let bar = ProgressBar::hidden();
        let watcher = Arc::new(Watcher {
            totals: Totals::default(),
            moved: Arc::default(),
            bar,
            form,
            quiet,
            trace,
            limit: Mutex::new("starting"),
            told_busy: AtomicBool::new(false),
            lost: Mutex::new(None),
            ended: Mutex::new(false),
            end: Condvar::new(),
            started: Instant::now(),
        });
        Self { watcher, ticker: Mutex::new(None) }
    }

    /// Starts to show what the observer is told; again, it counts from the beginning.
    pub(crate) fn start(&self) {
        let mut ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner);
        if ticker.is_some() {
            return self.watcher.totals.reset();
        }
        if self.watcher.form == Form::Bar {
            style(&self.watcher.bar);
        }
        if self.watcher.form != Form::Failures {
            let watcher = Arc::clone(&self.watcher);
            *ticker = Some(std::thread::spawn(move || watcher.tick()));
        }
    }

    /// What the push reports to.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.watcher) as Arc<dyn Observer>
    }

    /// How much of which size has been stored, as far as it has been told.
    pub(crate) fn moved(&self) -> Arc<Moved> {
        Arc::clone(&self.watcher.moved)
    }

    /// Removes the progress bar from the terminal.
    pub(crate) fn end(self) {
        *self.watcher.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.watcher.end.notify_all();
        let ticker = self.ticker.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(ticker) = ticker {
            // a display that failed is no failure of the transfer
            let _display_failed = ticker.join();
        }
        self.watcher.bar.finish_and_clear();
    }
}

impl Listener for Display {
    fn hear(&self, notice: &Notice<'_>) {
        match notice {
            Notice::SessionBegins => self.start(),
            Notice::ConnectionLost { .. } => self.watcher.lose(&notice.to_string()),
            Notice::ReceiverBusy { .. } => self.watcher.wait(&notice.to_string()),
            notice => terminal::warn(notice),
        }
    }
}

fn style(bar: &ProgressBar) {
    bar.set_style(ProgressStyle::with_template("{bar:24} {percent:>3}% {msg}").expect("a constant template"));
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
}

impl Watcher {
    fn tick(&self) {
        let interval = if self.form == Form::Json { JSON_INTERVAL } else { DRAW_INTERVAL };
        let mut recent = Recent::default();
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            ended = self.end.wait_timeout(ended, interval).unwrap_or_else(PoisonError::into_inner).0;
            if !*ended {
                self.show(&mut recent);
            }
        }
    }

    fn show(&self, recent: &mut Recent) {
        let done = self.totals.done_bytes.load(Ordering::Relaxed);
        let found = self.totals.found_bytes.load(Ordering::Relaxed).max(done);
        let rate = recent.rate(done, self.started.elapsed());
        if self.form == Form::Json {
            return self.show_json(done, found, rate);
        }
        self.bar.set_length(found.max(1));
        self.bar.set_position(done);
        self.bar.set_message(self.message(done, found, rate));
    }

    fn message(&self, done: u64, found: u64, rate: f64) -> String {
        let totals = &self.totals;
        let files = totals.done_files.load(Ordering::Relaxed);
        let found_files = totals.found_files.load(Ordering::Relaxed);
        let more = if totals.scan_ended.load(Ordering::Relaxed) { "" } else { "+" };
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let state = if totals.flushing.load(Ordering::Relaxed) && done >= found { "flushing" } else { limit };
        format!(
            "{} of {}{more}, {files} of {found_files}{more} files, {}, {}, {state}",
            ByteCount(done),
            ByteCount(found),
            zmove_types::ByteRate(rate),
            eta(found - done, rate),
        )
    }

    fn show_json(&self, done: u64, found: u64, rate: f64) {
        let totals = &self.totals;
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        print_json(&json!({
            "event": "progress",
            "seconds": self.started.elapsed().as_secs_f64(),
            "bytes_done": done,
            "bytes_found": found,
            "files_done": totals.done_files.load(Ordering::Relaxed),
            "files_found": totals.found_files.load(Ordering::Relaxed),
            "scan_ended": totals.scan_ended.load(Ordering::Relaxed),
            "bytes_per_second": rate,
            "lanes": totals.lanes.load(Ordering::Relaxed),
            "limited_by": limit,
        }));
    }

    fn lose(&self, message: &str) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = "reconnecting";
        self.totals.lanes.store(0, Ordering::Relaxed);
        self.totals.flushing.store(false, Ordering::Relaxed);
        self.say(message, &json!({ "event": "connection_lost", "message": message }));
    }

    fn wait(&self, cause: &str) {
        if !self.told_busy.swap(true, Ordering::Relaxed) {
            *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = "waiting";
            let message = format!("waiting: the receiver is busy: {cause}");
            self.say(&message, &json!({ "event": "waiting", "message": message }));
        }
    }

    /// Says it if the connection was lost.
    fn come_back(&self) {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lost) = lost {
            let seconds = lost.elapsed().as_secs_f64();
            let message = format!("reconnected after {seconds:.*} s", usize::from(seconds < 10.0));
            self.say(&message, &json!({ "event": "reconnected", "seconds": seconds }));
        }
    }

    /// One line for the user, and an event.
    fn say(&self, message: &str, event: &serde_json::Value) {
        if self.form == Form::Json {
            print_json(event);
        }
        self.warn(message);
    }

    fn list(&self, changes: &[Change]) {
        match self.form {
            Form::Json => changes.iter().for_each(|change| print_json(&listing::as_json(change))),
            _ if self.quiet => {}
            _ => self.bar.suspend(|| terminal::print(listing::lines(changes))),
        }
    }

    fn tell_resent(&self, what: &str) {
        match self.form {
            Form::Json => print_json(&json!({ "event": "resent", "what": what })),
            Form::Failures | Form::Bar => self.warn(&format!("arrived damaged and is sent again: {what}")),
        }
    }

    /// A line on standard error, above the bar.
    fn warn(&self, text: &str) {
        self.bar.suspend(|| terminal::warn(text));
    }
}

impl Observer for Watcher {
    fn on(&self, event: &Event) {
        let totals = &self.totals;
        let add = |counter: &AtomicU64, number: u64| {
            counter.fetch_add(number, Ordering::Relaxed);
        };
        match event {
            Event::Found { files, bytes } => {
                add(&totals.found_files, *files);
                add(&totals.found_bytes, *bytes);
            }
            Event::Stored { files, bytes } | Event::Skipped { files, bytes } => {
                if matches!(event, Event::Stored { .. }) {
                    self.moved.add(*files, *bytes);
                }
                add(&totals.done_files, *files);
                add(&totals.done_bytes, *bytes);
            }
            Event::ScanEnded => totals.scan_ended.store(true, Ordering::Relaxed),
            Event::LaneUp { lanes } => totals.lanes.store(*lanes as u64, Ordering::Relaxed),
            Event::Flushing => totals.flushing.store(true, Ordering::Relaxed),
            Event::Limited { by } => *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = by,
            Event::Failed { message } => self.say(message, &json!({ "event": "failed", "message": message })),
            Event::Listed { changes } => self.list(changes),
            Event::Warned { message } => {
                self.say(message, &json!({ "event": "warning", "message": message }));
            }
            Event::Waiting { message } => self.wait(message),
            Event::Resent { what } => self.tell_resent(what),
            Event::Answered => self.come_back(),
            Event::Sampled(sample) => {
                if let Some(trace) = &self.trace {
                    trace.write(sample);
                }
            }
            _ => {}
        }
    }
}

/// The rate over the last seconds.
#[derive(Default)]
struct Recent {
    smoothed: f64,
    before: (u64, Duration),
}

impl Recent {
    fn rate(&mut self, done: u64, now: Duration) -> f64 {
        let (bytes_before, time_before) = self.before;
        let seconds = (now - time_before).as_secs_f64().max(1e-6);
        let current = ByteCount(done.saturating_sub(bytes_before)).as_f64() / seconds;
        let weight = (seconds / 3.0).min(1.0);
        self.smoothed =
            if bytes_before == 0 { current } else { self.smoothed * (1.0 - weight) + current * weight };
        self.before = (done, now);
        self.smoothed
    }
}

fn eta(bytes_left: u64, rate: f64) -> String {
    if bytes_left == 0 || rate < 1.0 {
        return "ETA -".to_owned();
    }
    let left = Duration::from_secs_f64((ByteCount(bytes_left).as_f64() / rate).min(9e6)).as_secs();
    match left {
        0..3600 => format!("ETA {}:{:02}", left / 60, left % 60),
        _ => format!("ETA {}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60),
    }
}

/// One event, one line.
pub(crate) fn print_json(value: &serde_json::Value) {
    terminal::print(format_args!("{value}\n"));
}
