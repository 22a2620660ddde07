//! The display while a push runs: a bar on a terminal, JSON lines, or nothing but failures.
//!
//! Workers only bump atomics; one ticker thread draws, so that the display never slows the transfer.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::args::PushArgs;
use crate::display::dry_run;
use crate::display::failures::{self, Failures, SCHEMA};
use crate::display::format::whole_parts;
use crate::display::nodes;
use crate::display::rate_window::RateWindow;
use crate::display::terminal;
use crate::display::trace::{self, TraceFile};
use crate::value::age::Age;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::sync::watch;
use zmove_api::tells_time_left;
use zmove_engine::{Listener, Notice};
use zmove_jobs::Nodes;
use zmove_tools::sweep::MovedSizes;
use zmove_types::{ByteCount, Change, Event, Observer};

/// The display of one push.
pub(crate) struct Display {
    watcher: Arc<Watcher>,
    ticker: OnceLock<Ticker>,
}

/// The thread that draws until `end` is dropped.
struct Ticker {
    end: Sender<()>,
    /// `None` if the thread could not be started: nothing is drawn then.
    thread: Option<JoinHandle<()>>,
}

/// The observer that events go to.
struct Watcher {
    totals: Totals,
    /// The files and bytes moved, which are not reset when a push goes on after its connections were lost.
    moved: Arc<MovedSizes>,
    bar: ProgressBar,
    /// The present rate of what moves, while the bar has also what need not.
    pace: Mutex<RateWindow>,
    form: Form,
    trace: Option<TraceFile>,
    state: Mutex<State>,
    /// The nodes that take part, once they have been reported.
    nodes: watch::Sender<Nodes>,
    /// `None` where each failure is named.
    failures: Option<Mutex<Failures>>,
}

/// The form in which events are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bar,
    Json,
    /// Lines without a bar, where standard error is no terminal.
    Lines,
    Failures,
}

impl Form {
    /// How often it is shown how far a transfer is; `None`: never.
    const fn interval(self) -> Option<Duration> {
        match self {
            Self::Bar => Some(DRAW_INTERVAL),
            Self::Json => Some(JSON_INTERVAL),
            Self::Lines => Some(LINE_INTERVAL),
            Self::Failures => None,
        }
    }
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
        let Self {
            found_files,
            found_bytes,
            done_files,
            done_bytes,
            scan_ended,
            ..
        } = self;
        for counter in [found_files, found_bytes, done_files, done_bytes] {
            counter.store(0, Ordering::Relaxed);
        }
        scan_ended.store(false, Ordering::Relaxed);
    }
}

/// The state of the push, beside the counts.
struct State {
    limit: &'static str,
    /// Whether the user has been told that the receiver is busy.
    told_busy: bool,
    /// The moment since which there has been no connection.
    lost: Option<Instant>,
    /// The moment since which the transfer has been in line, and why.
    waits: Option<(Instant, String)>,
    /// The id of the transfer, by which its host knows it too.
    transfer: Option<String>,
    /// What the user has been told that receivers wait for.
    told_held_up: HashSet<String>,
}

const DRAW_INTERVAL: Duration = Duration::from_millis(200);
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// How often a line says how far it is, where standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);
const IN_LINE: &str = "{wide_msg}";
pub(crate) const BAR: &str = "{bar:10} {percent:>3}% {wide_msg}";
/// The columns in front of a bar's words.
const BAR_COLUMNS: usize = "0123456789 100% ".len();
/// The event that tells what each node of a push has moved.
pub(crate) const TOOK_PART: &str = "took_part";
/// A time beyond this is no more than a sign that hardly anything moves.
const LEFT_MAX: f64 = 100.0 * 24.0 * 3600.0;

impl Display {
    /// A display that shows nothing before it is [started](Self::start): a question may have to be asked first.
    pub(crate) fn new(args: &PushArgs, trace: Option<TraceFile>) -> Self {
        let form = match args {
            PushArgs { json: true, .. } => Form::Json,
            PushArgs { quiet: true, .. } => Form::Failures,
            _ if std::io::stderr().is_terminal() => Form::Bar,
            _ => Form::Lines,
        };
        if args.compress && !args.quiet {
            terminal::warn("-z: zmove does not compress, and sends the data as it is");
        }
        let watcher = Arc::new(Watcher {
            totals: Totals::default(),
            moved: Arc::default(),
            bar: ProgressBar::hidden().with_message("starting"),
            pace: Mutex::default(),
            form,
            trace,
            nodes: watch::Sender::default(),
            failures: (!args.json && !args.keeping.verbose).then(Mutex::default),
            state: Mutex::new(State {
                limit: "starting",
                told_busy: false,
                lost: None,
                waits: None,
                transfer: None,
                told_held_up: HashSet::new(),
            }),
        });
        Self {
            watcher,
            ticker: OnceLock::new(),
        }
    }

    /// Starts to show the observer's events; called again, it counts from the beginning.
    pub(crate) fn start(&self) {
        if self.ticker.get().is_some() {
            return self.watcher.totals.reset();
        }
        let Some(interval) = self.watcher.form.interval() else {
            return;
        };
        if self.watcher.form == Form::Bar {
            terminal::draw(&self.watcher.bar, BAR);
        }
        self.ticker.get_or_init(|| {
            let (end, ended) = channel();
            let watcher = Arc::clone(&self.watcher);
            let work = move || watcher.tick(interval, &ended, &|line| terminal::warn(line));
            Ticker {
                end,
                thread: std::thread::Builder::new().spawn(work).ok(),
            }
        });
    }

    /// The observer that the push reports to.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.watcher) as Arc<dyn Observer>
    }

    /// The nodes that take part, which the push reports here.
    pub(crate) fn nodes(&self) -> watch::Sender<Nodes> {
        self.watcher.nodes.clone()
    }

    /// The files and bytes that the receiver has reported as stored, by size.
    pub(crate) fn moved(&self) -> Arc<MovedSizes> {
        Arc::clone(&self.watcher.moved)
    }

    /// Ends the trace, if there is one, with what limited the transfer.
    pub(crate) fn close_trace(&self, limited_by: &str) {
        self.watcher
            .trace
            .iter()
            .for_each(|trace| trace::report(trace.close(limited_by)));
    }

    /// The id of the transfer, if it has had one.
    pub(crate) fn transfer(&self) -> Option<String> {
        self.watcher.state().transfer.clone()
    }

    /// Removes the progress bar from the terminal. Returns what each has moved, where several take part.
    pub(crate) fn end(self) -> Option<String> {
        if let Some(Ticker { end, thread }) = self.ticker.into_inner() {
            drop(end);
            // A display that failed is no failure of the transfer.
            let _display_failed = thread.map(JoinHandle::join);
        }
        self.watcher.bar.finish_and_clear();
        let took_part = self.watcher.nodes().as_ref().and_then(nodes::took_part);
        if let (Form::Json, Some(message)) = (self.watcher.form, &took_part) {
            self.watcher
                .print(json!({ "event": TOOK_PART, "message": message }));
        }
        if let Some(failures) = &self.watcher.failures {
            let failures = lock(failures);
            failures.unnamed().for_each(terminal::warn);
            failures.advice().into_iter().for_each(terminal::warn);
        }
        took_part
    }
}

impl Listener for Display {
    fn hear(&self, notice: &Notice<'_>) {
        match notice {
            Notice::SessionBegins { transfer } => {
                self.watcher.state().transfer = transfer.map(|transfer| transfer.to_string());
                self.start();
            }
            // Something is on the screen already once a session has begun.
            Notice::Dialling { .. }
                if self.watcher.form != Form::Bar || self.ticker.get().is_some() => {}
            Notice::ConnectionLost { .. } => self.watcher.lose(&notice.to_string()),
            Notice::CopyRuns { .. } if self.watcher.form == Form::Failures => {}
            Notice::CopyRuns { id, .. } => {
                self.watcher.say(
                    &notice.to_string(),
                    json!({ "event": "copy_runs", "id": id }),
                );
            }
            Notice::SourceMissing { .. } => self.watcher.fail(&notice.to_string()),
            Notice::ReceiverBusy { .. } => self.watcher.wait(&notice.to_string()),
            notice => terminal::warn(notice),
        }
    }
}

impl Watcher {
    /// Shows at even intervals how far it is; `say` has the lines of [`Form::Lines`].
    fn tick(&self, interval: Duration, ended: &Receiver<()>, say: &dyn Fn(String)) {
        let mut told = 0;
        loop {
            let is_over = ended.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
            let done = self.totals.done_bytes.load(Ordering::Relaxed);
            let found = self.totals.found_bytes.load(Ordering::Relaxed).max(done);
            let moved = self.moved.total().bytes;
            self.bar.set_length(found.max(1));
            self.bar.set_position(done);
            // A transfer that breaks off has no other account of what it has moved.
            let is_news = std::mem::replace(&mut told, moved) != moved;
            if is_over && !(self.form == Form::Json && is_news) {
                return;
            }
            match self.form {
                Form::Json => self.print(self.as_json(done, found)),
                Form::Lines => say(self.message(done, found)),
                _ => self.draw(self.message(done, found)),
            }
            if is_over {
                return;
            }
        }
    }

    /// Shows the bar with these words; in line there is nothing to draw, and the words are all.
    fn draw(&self, message: String) {
        let is_in_line = self.state().waits.is_some();
        terminal::style(&self.bar, if is_in_line { IN_LINE } else { BAR });
        self.bar.set_message(if is_in_line {
            message
        } else {
            beside_bar(&message)
        });
    }

    fn message(&self, done: u64, found: u64) -> String {
        let totals = &self.totals;
        if let Some((since, why)) = &self.state().waits {
            let lasted = Age(since.elapsed());
            return format!("in line for {lasted}: {why}");
        }
        let files = totals.done_files.load(Ordering::Relaxed);
        let found_files = totals.found_files.load(Ordering::Relaxed);
        let scan_ended = totals.scan_ended.load(Ordering::Relaxed);
        let more = if scan_ended { "" } else { "+" };
        let flushing = totals.flushing.load(Ordering::Relaxed) && done >= found;
        let rate = self.rate();
        let left = rate.map_or(0.0, |rate| {
            ByteCount(found.saturating_sub(done)).as_f64() / rate
        });
        let is_known = scan_ended && tells_time_left(self.moved.total().bytes, found);
        let left = if is_known && left > 0.0 && left < LEFT_MAX {
            format!(", {} left", Age(Duration::from_secs_f64(left)))
        } else {
            String::new()
        };
        let nodes = self.nodes();
        let rate = nodes::rate_and_nodes(rate, nodes.as_ref());
        format!(
            "{} of {}{more}{rate}{left}, {}, {files} of {found_files}{more} files{}",
            ByteCount(done),
            ByteCount(found),
            if flushing { "flushing" } else { self.limit() },
            nodes.as_ref().map(nodes::which).unwrap_or_default(),
        )
    }

    /// The present rate of what moves, if it is known: the sum of those of the nodes, which are shown beside, where all
    /// are.
    fn rate(&self) -> Option<f64> {
        match self.nodes() {
            Some(nodes) if are_all_listed(&nodes) => {
                let sum = nodes.nodes.iter().map(|node| node.bytes_per_second);
                Some(ByteCount(sum.sum()).as_f64())
            }
            _ => lock(&self.pace).rate(Instant::now()),
        }
    }

    /// What limits the push. Where all nodes have come to move nothing, no session says that any more.
    fn limit(&self) -> &'static str {
        let stand_still = |nodes: &Nodes| {
            let mut all = nodes.nodes.iter();
            are_all_listed(nodes)
                && all.clone().all(|node| node.bytes_per_second == 0)
                && all.any(|node| node.bytes > 0)
        };
        if self.nodes().as_ref().is_some_and(stand_still) {
            "waiting for replies"
        } else {
            self.state().limit
        }
    }

    /// The nodes, where several take part.
    fn nodes(&self) -> Option<Nodes> {
        let nodes = self.nodes.borrow();
        (nodes.count > 1).then(|| nodes.clone())
    }

    fn as_json(&self, done: u64, found: u64) -> Value {
        let totals = &self.totals;
        let total = self.moved.total();
        let rate = self.rate();
        let limit = self.limit();
        let state = self.state();
        let waiting = state.waits.as_ref();
        let waiting = waiting.map(
            |(since, why)| json!({ "seconds": since.elapsed().as_secs_f64(), "message": why }),
        );
        json!({
            "event": "progress",
            "seconds": self.bar.elapsed().as_secs_f64(),
            "bytes_done": done,
            "bytes_found": found,
            "files_done": totals.done_files.load(Ordering::Relaxed),
            "files_found": totals.found_files.load(Ordering::Relaxed),
            "scan_ended": totals.scan_ended.load(Ordering::Relaxed),
            "bytes_moved": total.bytes,
            "files_moved": total.files,
            "bytes_per_second": rate,
            "lanes": totals.lanes.load(Ordering::Relaxed),
            "limited_by": limit_key(limit),
            "waiting": waiting,
            "nodes": self.nodes(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn fail(&self, message: &str) {
        let is_named = self
            .failures
            .as_ref()
            .is_none_or(|failures| lock(failures).count(message));
        if is_named {
            let mut event = failures::parts(message);
            event["event"] = "failed".into();
            event["message"] = message.into();
            self.say(message, event);
        }
    }

    fn lose(&self, message: &str) {
        {
            let mut state = self.state();
            state.limit = "reconnecting";
            state.lost = Some(Instant::now());
            state.waits = None;
        }
        self.totals.lanes.store(0, Ordering::Relaxed);
        self.totals.flushing.store(false, Ordering::Relaxed);
        self.tell("connection_lost", message);
    }

    /// Says once what a receiver waits for, though each of several sessions may say so.
    fn tell_held_up(&self, by: &str) {
        if self.state().told_held_up.insert(by.to_owned()) {
            self.tell("waiting", &format!("waiting: {by}"));
        }
    }

    fn wait(&self, cause: &str) {
        let told = {
            let mut state = self.state();
            let since = state
                .waits
                .take()
                .map_or_else(Instant::now, |(since, _)| since);
            state.waits = Some((since, cause.to_owned()));
            state.limit = "waiting";
            std::mem::replace(&mut state.told_busy, true)
        };
        if !told {
            self.tell(
                "waiting",
                &format!("waiting: the receiver is busy: {cause}"),
            );
        }
    }

    /// Reports that the connection is back, if it was lost.
    fn come_back(&self) {
        let lost = self.state().lost.take();
        if let Some(lost) = lost {
            let seconds = lost.elapsed().as_secs_f64();
            let message = format!(
                "reconnected after {seconds:.*} s",
                usize::from(seconds < 10.0)
            );
            self.say(
                &message,
                json!({ "event": "reconnected", "seconds": seconds }),
            );
        }
    }

    /// Writes a line for the user, and an event with the same message.
    fn tell(&self, event: &str, message: &str) {
        self.say(message, json!({ "event": event, "message": message }));
    }

    /// Writes a line for the user, and an event.
    fn say(&self, message: &str, event: Value) {
        if self.form == Form::Json {
            self.print(event);
        }
        self.warn(message);
    }

    /// Prints an event with the id of the transfer.
    fn print(&self, mut event: Value) {
        event["schema"] = SCHEMA.into();
        event["transfer"] = self.state().transfer.clone().into();
        print_json(&event);
    }

    fn list(&self, changes: &[Change]) {
        match self.form {
            Form::Json => changes
                .iter()
                .for_each(|change| self.print(dry_run::as_json(change))),
            Form::Failures => {}
            Form::Bar | Form::Lines => self
                .bar
                .suspend(|| terminal::print(dry_run::lines(changes))),
        }
    }

    /// Writes a line on standard error, above the bar.
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
                    lock(&self.pace).add(Instant::now(), *bytes);
                }
                add(&totals.done_files, *files);
                add(&totals.done_bytes, *bytes);
            }
            Event::ScanEnded => totals.scan_ended.store(true, Ordering::Relaxed),
            Event::LaneUp { lanes } => {
                self.state().waits = None;
                totals.lanes.store(*lanes as u64, Ordering::Relaxed);
            }
            Event::Flushing => totals.flushing.store(true, Ordering::Relaxed),
            Event::Limited { by } => self.state().limit = by,
            Event::Failed { message } => self.fail(message),
            Event::Listed { changes } => self.list(changes),
            Event::NotKept { message } => self.say(
                &format!("not kept: {message}"),
                json!({ "event": "not_kept", "message": message }),
            ),
            Event::Warned { message } => self.tell("warning", message),
            Event::HeldUp { by } => self.tell_held_up(by),
            Event::Waiting { message } => self.wait(message),
            Event::Resent { what } if self.form == Form::Json => {
                self.print(json!({ "event": "resent", "what": what }));
            }
            Event::Resent { what } => {
                self.warn(&format!("arrived damaged and is sent again: {what}"))
            }
            Event::Answered => self.come_back(),
            Event::Sampled(sample) => self
                .trace
                .iter()
                .for_each(|trace| trace::report(trace.write(sample))),
            _ => {}
        }
    }
}

/// Whether no node is left out because there are many.
fn are_all_listed(nodes: &Nodes) -> bool {
    nodes.count == nodes.nodes.len() as u64
}

/// The words beside a [bar](BAR), as far as the terminal is wide: part by part, since half a number is another one.
pub(crate) fn beside_bar(words: &str) -> String {
    let columns =
        terminal::columns(std::io::stderr()).map(|columns| columns.saturating_sub(BAR_COLUMNS));
    columns
        .map_or(words, |columns| whole_parts(words, columns))
        .to_owned()
}

/// A limit of the rate in the words of `limited_by`, as the summary has them.
fn limit_key(limit: &str) -> &'static str {
    match limit {
        "starting" => "start_up",
        "waiting" => "queue",
        "reconnecting" => "connection",
        "waiting for replies" | "path or target" => "path",
        "source scan" => "scan",
        "source reads" => "source_reads",
        "sender CPU" | "the sender" => "sender_cpu",
        "rate limit" => "own_rate",
        "target" => "target_writes",
        "path" => "path",
        _ => "unknown",
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints one event as one line.
pub(crate) fn print_json(value: &Value) {
    terminal::print(format_args!("{value}\n"));
}

#[cfg(test)]
mod tests {
    use zmove_jobs::Node;

    use super::*;

    fn watcher(form: Form) -> Watcher {
        Watcher {
            totals: Totals::default(),
            moved: Arc::default(),
            bar: ProgressBar::hidden(),
            pace: Mutex::default(),
            form,
            trace: None,
            state: Mutex::new(State {
                limit: "path",
                told_busy: false,
                lost: None,
                waits: None,
                transfer: None,
                told_held_up: HashSet::new(),
            }),
            nodes: watch::Sender::default(),
            failures: None,
        }
    }

    /// The first line that a log gets, and the first after `meanwhile` of which `is_second` holds.
    fn lines(
        watcher: &Watcher,
        meanwhile: impl FnOnce(),
        is_second: impl Fn(&str) -> bool,
    ) -> [String; 2] {
        let (end, ended) = channel();
        let (said, heard) = channel();
        let say = |line: String| {
            // the test has what it wants
            let _over = said.send(line);
        };
        std::thread::scope(|scope| {
            let say = &say;
            scope.spawn(move || watcher.tick(Duration::from_millis(1), &ended, say));
            let first = heard.recv().unwrap();
            meanwhile();
            let second = heard.iter().find(|line| is_second(line)).unwrap();
            drop(end);
            [first, second]
        })
    }

    #[test]
    fn a_log_gets_a_line_every_half_minute_that_says_how_far_it_is() {
        assert_eq!(Form::Lines.interval(), Some(Duration::from_secs(30)));
        let watcher = watcher(Form::Lines);
        watcher.on(&Event::Found {
            files: 3,
            bytes: 3 << 20,
        });
        let [first, second] = lines(
            &watcher,
            || {
                watcher.on(&Event::Stored {
                    files: 1,
                    bytes: 1 << 20,
                });
                watcher.on(&Event::ScanEnded);
            },
            |line| line.starts_with("1.00 MiB of 3.00 MiB, "),
        );
        assert!(
            first.starts_with("0 B of 3.00 MiB+, ") && first.ends_with(", path, 0 of 3+ files"),
            "{first}"
        );
        assert!(
            second.starts_with("1.00 MiB of 3.00 MiB, ") && second.ends_with(" of 3 files"),
            "{second}"
        );
    }

    #[test]
    fn the_rate_is_the_sum_of_those_that_are_shown_beside_it() {
        let node = |name: &str, bytes_per_second| Node {
            name: name.to_owned(),
            bytes_per_second,
            ..Node::default()
        };
        let watcher = watcher(Form::Json);
        let nodes = vec![node("a", 1_000_000), node("b", 2_000_000)];
        watcher.nodes.send_replace(Nodes {
            count: 2,
            nodes,
            ..Nodes::default()
        });
        assert_eq!(watcher.as_json(0, 0)["bytes_per_second"], 3e6);
        assert!(
            watcher.message(0, 0).contains(" 24.0 Mbit/s by 2 nodes, "),
            "{}",
            watcher.message(0, 0)
        );
    }

    #[test]
    fn where_none_moves_anything_any_more_what_has_limited_it_is_not_shown() {
        let node = |bytes, bytes_per_second| Node {
            name: "a".to_owned(),
            bytes,
            bytes_per_second,
            ..Node::default()
        };
        let shown = |nodes: [(u64, u64); 2]| {
            let watcher = watcher(Form::Bar);
            watcher.on(&Event::Limited { by: "rate limit" });
            let nodes = nodes.map(|(bytes, rate)| node(bytes, rate)).to_vec();
            watcher.nodes.send_replace(Nodes {
                count: 2,
                nodes,
                ..Nodes::default()
            });
            watcher.message(0, 0)
        };
        assert!(
            shown([(9, 0), (0, 0)]).contains(" by 2 nodes, waiting for replies, "),
            "one hangs"
        );
        for moves in [[(9, 0), (9, 1)], [(0, 0), (0, 0)]] {
            assert!(
                shown(moves).contains(" by 2 nodes, rate limit, "),
                "{moves:?}"
            );
        }
    }

    #[test]
    fn nodes_are_seen_on_a_narrow_terminal() {
        let watcher = watcher(Form::Bar);
        watcher.nodes.send_replace(Nodes {
            count: 12,
            items_waiting: Some(10_000),
            ..Nodes::default()
        });
        let message = watcher.message(1023 << 20, 1023 << 20);
        let room = 80 - BAR_COLUMNS;
        assert!(message[..room].contains(" by 12 nodes, "), "{message}");
        assert!(
            message.ends_with(" files; 10000 items waiting"),
            "{message}"
        );
    }

    #[test]
    fn a_log_says_where_in_line_it_is_and_that_it_has_moved_up() {
        let watcher = watcher(Form::Lines);
        let full = |ahead| Event::Waiting {
            message: format!("{ahead} of the same key before this one; full"),
        };
        watcher.wait_untold(&full(2));
        let [first, second] = lines(
            &watcher,
            || watcher.wait_untold(&full(1)),
            |line| !line.contains("2 of the same key"),
        );
        assert!(
            first.starts_with("in line for ") && first.contains("2 of the same key"),
            "{first}"
        );
        assert!(second.contains("1 of the same key"), "{second}");
    }

    impl Watcher {
        /// Takes a notice of a wait without a line of its own.
        fn wait_untold(&self, event: &Event) {
            self.state().told_busy = true;
            self.on(event);
        }
    }
}
