//! The display of a running push: a bar on a terminal, JSON lines, or only failures.
//!
//! Workers only add to counters. A single ticker thread draws, so the display never slows the transfer down.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::IsTerminal;
use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
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
use zmove_api::can_estimate_time_left;
use zmove_engine::{Listener, Notice};
use zmove_jobs::Nodes;
use zmove_tools::sweep::MovedSizes;
use zmove_types::{ByteCount, Change, Event, Lock, Observer};
use zmove_wire::{FileTotal, TransferProgress};

/// The display of one push.
pub(crate) struct Display {
    watcher: Arc<Watcher>,
    ticker: OnceLock<Ticker>,
}

/// The thread that draws until `end` is dropped.
struct Ticker {
    end: Sender<()>,
    /// The thread, or `None` if it could not be started. Without the thread, nothing is drawn.
    thread: Option<JoinHandle<()>>,
}

/// The observer that receives the events.
struct Watcher {
    /// The files and bytes moved. They are not reset when a push resumes after its connections were lost.
    moved: Arc<MovedSizes>,
    bar: ProgressBar,
    form: OutputForm,
    trace: Option<TraceFile>,
    state: Lock<PushState>,
    /// The nodes that take part. Empty until the nodes are known.
    nodes: watch::Sender<Nodes>,
}

/// The form in which events are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputForm {
    Bar,
    Json,
    /// Lines without a bar, for a standard error that is not a terminal.
    Lines,
    /// Neither a bar nor lines about the progress.
    NoProgress,
    Failures,
}

impl OutputForm {
    /// Returns the interval at which progress is shown. Returns `None` if progress is never shown.
    const fn interval(self) -> Option<Duration> {
        match self {
            Self::Bar => Some(DRAW_INTERVAL),
            Self::Json => Some(JSON_INTERVAL),
            Self::Lines => Some(LINE_INTERVAL),
            Self::NoProgress | Self::Failures => None,
        }
    }
}

/// The state of a push.
#[derive(Default)]
struct PushState {
    /// The counts of the current sessions.
    progress: TransferProgress,
    lanes: usize,
    scan_ended: bool,
    flushing: bool,
    /// Current rate of the moved bytes. The bar also counts bytes that did not need to be moved.
    rate: RateWindow,
    limit: Cow<'static, str>,
    /// Time at which the connection was lost. `None` while a connection exists.
    lost: Option<Instant>,
    /// Time at which the transfer joined the queue, and the reason why it waits.
    waits: Option<(Instant, String)>,
    /// ID of the transfer. The other host uses the same ID.
    transfer: Option<String>,
    /// The reasons for waiting that were already shown to the user.
    reported: HashSet<String>,
    /// Numbers of failures by kind. `None` if every failure is printed.
    failures: Option<Failures>,
}

impl PushState {
    fn new(failures: Option<Failures>) -> Self {
        Self {
            limit: "starting".into(),
            failures,
            ..Self::default()
        }
    }

    /// Returns the number of files and bytes at the target.
    fn done(&self) -> FileTotal {
        let mut done = self.progress.stored;
        done.add(self.progress.skipped);
        done
    }

    /// Returns the number of bytes found. The result is at least the number of bytes at the target.
    fn found_bytes(&self) -> u64 {
        self.progress.found.bytes.max(self.done().bytes)
    }

    /// Returns the current rate of the moved bytes, if known. If all nodes are displayed, returns the sum of their
    /// rates, so that the total matches the displayed rates.
    fn rate(&self, nodes: Option<&Nodes>) -> Option<f64> {
        match nodes {
            Some(nodes) if are_all_listed(nodes) => {
                let sum = nodes.nodes.iter().map(|node| node.bytes_per_second);
                Some(ByteCount(sum.sum()).as_f64())
            }
            _ => self.rate.rate(Instant::now()),
        }
    }

    /// Returns the current limit of the push. If no node moves data any more, no session reports a limit, and the push
    /// is waiting for replies.
    fn limit(&self, nodes: Option<&Nodes>) -> &str {
        let stand_still = |nodes: &Nodes| {
            let mut all = nodes.nodes.iter();
            are_all_listed(nodes)
                && all.clone().all(|node| node.bytes_per_second == 0)
                && all.any(|node| node.bytes > 0)
        };
        if nodes.is_some_and(stand_still) {
            "waiting for replies"
        } else {
            &self.limit
        }
    }
}

const DRAW_INTERVAL: Duration = Duration::from_millis(200);
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between progress lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);
/// The reason why a transfer is queued.
const BUSY: &str = "the receiver is busy";
const QUEUED_TEMPLATE: &str = "{wide_msg}";
pub(crate) const BAR: &str = "{bar:10} {percent:>3}% {wide_msg}";
/// Number of columns before the text of a bar.
const BAR_COLUMNS: usize = "0123456789 100% ".len();
/// The event that reports the files and bytes moved by each node of a push.
pub(crate) const TOOK_PART: &str = "took_part";
/// Maximum remaining time to display, in seconds. A longer time only means that hardly any data is moving.
const LEFT_MAX: f64 = 100.0 * 24.0 * 3600.0;

impl Display {
    /// Creates a display that shows nothing until it is [started](Self::start). Before that, the user may have to
    /// answer a question.
    pub(crate) fn new(args: &PushArgs, trace: Option<TraceFile>) -> Self {
        let form = match args {
            PushArgs { json: true, .. } => OutputForm::Json,
            PushArgs { quiet: true, .. } => OutputForm::Failures,
            PushArgs {
                no_progress: true, ..
            } => OutputForm::NoProgress,
            _ if std::io::stderr().is_terminal() => OutputForm::Bar,
            _ => OutputForm::Lines,
        };
        if args.compress && !args.quiet {
            terminal::warn("-z: zmove does not compress data; the option has no effect");
        }
        let failures = (!args.json && !args.keeping.verbose).then(Failures::default);
        let watcher = Arc::new(Watcher {
            moved: Arc::default(),
            bar: ProgressBar::hidden().with_message("starting"),
            form,
            trace,
            nodes: watch::Sender::default(),
            state: Lock::new(PushState::new(failures)),
        });
        Self {
            watcher,
            ticker: OnceLock::new(),
        }
    }

    /// Starts to display the events of the observer. Each later call resets the counts.
    pub(crate) fn start(&self) {
        if self.ticker.get().is_some() {
            let mut state = self.watcher.state.lock();
            state.progress = TransferProgress::default();
            state.scan_ended = false;
            return;
        }
        let Some(interval) = self.watcher.form.interval() else {
            return;
        };
        if self.watcher.form == OutputForm::Bar {
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

    /// Returns the observer to which the push reports.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.watcher) as Arc<dyn Observer>
    }

    /// Returns the channel on which the push reports the nodes that take part.
    pub(crate) fn nodes(&self) -> watch::Sender<Nodes> {
        self.watcher.nodes.clone()
    }

    /// Returns the files and bytes that the receiver reported as stored, by size.
    pub(crate) fn moved(&self) -> Arc<MovedSizes> {
        Arc::clone(&self.watcher.moved)
    }

    /// Writes the limit of the transfer to the trace, and closes it. Does nothing if there is no trace.
    pub(crate) fn close_trace(&self, limited_by: &str) {
        self.watcher
            .trace
            .iter()
            .for_each(|trace| trace::report(trace.close(limited_by)));
    }

    /// Returns the ID of the transfer, if it is known.
    pub(crate) fn transfer(&self) -> Option<String> {
        self.watcher.state.lock().transfer.clone()
    }

    /// Removes the progress bar from the terminal. If several nodes took part, returns a text with the files and bytes
    /// that each node moved.
    pub(crate) fn end(self) -> Option<String> {
        if let Some(Ticker { end, thread }) = self.ticker.into_inner() {
            drop(end);
            // If the display thread panicked, the transfer does not fail.
            let _display_failed = thread.map(JoinHandle::join);
        }
        self.watcher.bar.finish_and_clear();
        let took_part = self.watcher.nodes().as_ref().and_then(nodes::took_part);
        if let Some(message) = took_part
            .as_ref()
            .filter(|_| self.watcher.form == OutputForm::Json)
        {
            self.watcher
                .print(json!({ "event": TOOK_PART, "message": message }));
        }
        if let Some(failures) = &self.watcher.state.lock().failures {
            failures.unnamed().for_each(terminal::warn);
            failures.advice().for_each(terminal::warn);
        }
        took_part
    }
}

impl Listener for Display {
    fn hear(&self, notice: &Notice<'_>) {
        match notice {
            Notice::SessionBegins { transfer } => {
                self.watcher.state.lock().transfer = transfer.map(|transfer| transfer.to_string());
                self.start();
            }
            // If a session has already started, the display shows progress, so this notice is not shown.
            Notice::Dialling { .. }
                if self.watcher.form != OutputForm::Bar || self.ticker.get().is_some() => {}
            Notice::ConnectionLost { .. } => self.watcher.report_lost(&notice.to_string()),
            Notice::CopyRuns { .. } if self.watcher.form == OutputForm::Failures => {}
            Notice::CopyRuns { id, .. } => {
                self.watcher.say(
                    &notice.to_string(),
                    json!({ "event": "copy_runs", "id": id }),
                );
            }
            Notice::SourceMissing { .. } => self.watcher.report_failure(&notice.to_string()),
            Notice::ReceiverBusy { .. } => self.watcher.wait(&notice.to_string()),
            notice => terminal::warn(notice),
        }
    }
}

impl Watcher {
    /// Shows the progress at regular intervals. `say` prints the lines of [`OutputForm::Lines`].
    fn tick(&self, interval: Duration, ended: &Receiver<()>, say: &dyn Fn(String)) {
        let mut told = 0;
        loop {
            let is_over = ended.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
            let moved = self.moved.total().bytes;
            self.update_bar();
            // For an interrupted transfer, this last event is the only report of its final progress.
            let is_news = mem::replace(&mut told, moved) != moved;
            if is_over && !(self.form == OutputForm::Json && is_news) {
                return;
            }
            match self.form {
                OutputForm::Json => self.print(self.as_json()),
                OutputForm::Lines => say(self.message()),
                _ => self.draw(self.message()),
            }
            if is_over {
                return;
            }
        }
    }

    /// Sets the length and position of the bar.
    fn update_bar(&self) {
        let state = self.state.lock();
        self.bar.set_length(state.found_bytes().max(1));
        self.bar.set_position(state.done().bytes);
    }

    /// Shows the bar with this text. If the transfer is queued, shows only the text.
    fn draw(&self, message: String) {
        let is_in_line = self.state.lock().waits.is_some();
        terminal::style(&self.bar, if is_in_line { QUEUED_TEMPLATE } else { BAR });
        self.bar.set_message(if is_in_line {
            message
        } else {
            bar_text(&message)
        });
    }

    fn message(&self) -> String {
        let nodes = self.nodes();
        let state = self.state.lock();
        if let Some((since, why)) = &state.waits {
            let lasted = Age(since.elapsed());
            return format!("queued for {lasted}: {why}");
        }
        let done = state.done();
        let found = state.found_bytes();
        let more = if state.scan_ended { "" } else { "+" };
        let flushing = state.flushing && done.bytes >= found;
        let rate = state.rate(nodes.as_ref());
        let left = rate.map_or(0.0, |rate| {
            ByteCount(found.saturating_sub(done.bytes)).as_f64() / rate
        });
        let is_known = state.scan_ended && can_estimate_time_left(self.moved.total().bytes, found);
        let left = if is_known && left > 0.0 && left < LEFT_MAX {
            format!(", {} left", Age(Duration::from_secs_f64(left)))
        } else {
            String::new()
        };
        format!(
            "{} of {}{more}{}{left}, {}, {} of {}{more} files{}",
            ByteCount(done.bytes),
            ByteCount(found),
            nodes::rate_and_nodes(rate, nodes.as_ref()),
            if flushing {
                "flushing"
            } else {
                state.limit(nodes.as_ref())
            },
            done.files,
            state.progress.found.files,
            nodes
                .as_ref()
                .map(nodes::waiting_and_slow)
                .unwrap_or_default(),
        )
    }

    /// Returns the nodes, if several take part.
    fn nodes(&self) -> Option<Nodes> {
        let nodes = self.nodes.borrow();
        (nodes.count > 1).then(|| nodes.clone())
    }

    fn as_json(&self) -> Value {
        let nodes = self.nodes();
        let moved = self.moved.total();
        let state = self.state.lock();
        let done = state.done();
        let waiting = state.waits.as_ref();
        let waiting = waiting.map(
            |(since, why)| json!({ "seconds": since.elapsed().as_secs_f64(), "message": why }),
        );
        json!({
            "event": "progress",
            "seconds": self.bar.elapsed().as_secs_f64(),
            "bytes_done": done.bytes,
            "bytes_found": state.found_bytes(),
            "files_done": done.files,
            "files_found": state.progress.found.files,
            "scan_ended": state.scan_ended,
            "bytes_moved": moved.bytes,
            "files_moved": moved.files,
            "bytes_per_second": state.rate(nodes.as_ref()),
            "lanes": state.lanes,
            "limited_by": limit_key(state.limit(nodes.as_ref())),
            "waiting": waiting,
            "nodes": nodes,
        })
    }

    fn report_failure(&self, message: &str) {
        let mut state = self.state.lock();
        let failures = state.failures.as_mut();
        let is_named = failures.is_none_or(|failures| failures.count(message));
        drop(state);
        if is_named {
            let mut event = failures::parts(message);
            event["event"] = "failed".into();
            event["message"] = message.into();
            self.say(message, event);
        }
    }

    fn report_lost(&self, message: &str) {
        let mut state = self.state.lock();
        state.limit = "reconnecting".into();
        state.lost = Some(Instant::now());
        state.waits = None;
        state.lanes = 0;
        state.flushing = false;
        drop(state);
        self.report_event("connection_lost", message);
    }

    /// Shows a wait event only once for each `reason`, because several sessions may report the same wait.
    fn report_wait(&self, reason: &str, message: &str) {
        if self.state.lock().reported.insert(reason.to_owned()) {
            self.report_event("waiting", &format!("waiting: {message}"));
        }
    }

    fn wait(&self, cause: &str) {
        let mut state = self.state.lock();
        let since = state
            .waits
            .take()
            .map_or_else(Instant::now, |(since, _)| since);
        state.waits = Some((since, cause.to_owned()));
        state.limit = "waiting".into();
        drop(state);
        self.report_wait(BUSY, &format!("{BUSY}: {cause}"));
    }

    /// If the connection was lost, reports that it is restored.
    fn report_reconnected(&self) {
        let lost = self.state.lock().lost.take();
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

    /// Prints a line for the user, and an event that has the same message.
    fn report_event(&self, event: &str, message: &str) {
        self.say(message, json!({ "event": event, "message": message }));
    }

    /// Prints a line for the user, and an event.
    fn say(&self, message: &str, event: Value) {
        if self.form == OutputForm::Json {
            self.print(event);
        }
        self.warn(message);
    }

    /// Prints an event with the ID of the transfer.
    fn print(&self, mut event: Value) {
        event["schema"] = SCHEMA.into();
        event["transfer"] = self.state.lock().transfer.clone().into();
        print_json(&event);
    }

    fn list(&self, changes: &[Change]) {
        match self.form {
            OutputForm::Json => changes
                .iter()
                .for_each(|change| self.print(dry_run::as_json(change))),
            OutputForm::Failures => {}
            OutputForm::Bar | OutputForm::Lines | OutputForm::NoProgress => self
                .bar
                .suspend(|| terminal::print(dry_run::lines(changes))),
        }
    }

    /// Prints a line to standard error, above the bar.
    fn warn(&self, text: &str) {
        self.bar.suspend(|| terminal::warn(text));
    }
}

impl Observer for Watcher {
    fn on(&self, event: &Event) {
        match event {
            Event::Found { .. } | Event::Skipped { .. } => {
                self.state.lock().progress.hear(event);
            }
            Event::Stored { files, bytes } => {
                self.moved.add(*files, *bytes);
                let mut state = self.state.lock();
                state.rate.add(Instant::now(), *bytes);
                state.progress.hear(event);
            }
            Event::ScanEnded => self.state.lock().scan_ended = true,
            Event::LaneUp { lanes } => {
                let mut state = self.state.lock();
                state.waits = None;
                state.lanes = *lanes;
            }
            Event::Flushing => self.state.lock().flushing = true,
            Event::Limited { by } => self.state.lock().limit.clone_from(by),
            Event::Failed { message } => self.report_failure(message),
            Event::Listed { changes } => self.list(changes),
            Event::NotKept { message } => self.say(
                &format!("not kept: {message}"),
                json!({ "event": "not_kept", "message": message }),
            ),
            Event::Warned { message } => self.report_event("warning", message),
            Event::HeldUp { by } => self.report_wait(by, by),
            Event::Waiting { message } => self.wait(message),
            Event::Resent { what } if self.form == OutputForm::Json => {
                self.print(json!({ "event": "resent", "what": what }));
            }
            Event::Resent { what } => {
                self.warn(&format!("arrived damaged and is sent again: {what}"))
            }
            Event::Answered => self.report_reconnected(),
            Event::Sampled(sample) => self
                .trace
                .iter()
                .for_each(|trace| trace::report(trace.write(sample))),
            _ => {}
        }
    }
}

/// Returns whether the display lists all nodes. If there are many nodes, some are left out.
fn are_all_listed(nodes: &Nodes) -> bool {
    nodes.count == nodes.nodes.len() as u64
}

/// Returns the text next to a [bar](BAR), shortened to fit the terminal. Only complete parts of the text are kept,
/// because a truncated number would be misread.
pub(crate) fn bar_text(words: &str) -> String {
    let columns =
        terminal::columns(std::io::stderr()).map(|columns| columns.saturating_sub(BAR_COLUMNS));
    columns
        .map_or(words, |columns| whole_parts(words, columns))
        .to_owned()
}

/// Returns the `limited_by` keyword for a limit, as in the summary.
fn limit_key(limit: &str) -> &'static str {
    match limit {
        "starting" => "start_up",
        "waiting" => "queue",
        "reconnecting" => "connection",
        "waiting for replies" | "path or target" | "path" => "path",
        "source scan" => "scan",
        "source reads" => "source_reads",
        "sender CPU" | "the sender" => "sender_cpu",
        "rate limit" => "own_rate",
        "target" => "target_writes",
        _ => "unknown",
    }
}

/// Prints an event on one line.
pub(crate) fn print_json(value: &Value) {
    terminal::print(format_args!("{value}\n"));
}

#[cfg(test)]
mod tests {
    use zmove_jobs::Node;

    use super::*;

    fn watcher(form: OutputForm) -> Watcher {
        let mut state = PushState::new(None);
        state.limit = "path".into();
        Watcher {
            moved: Arc::default(),
            bar: ProgressBar::hidden(),
            form,
            trace: None,
            state: Lock::new(state),
            nodes: watch::Sender::default(),
        }
    }

    /// Returns the first line of a log, and the first line after `meanwhile` for which `is_second` is true.
    fn lines(
        watcher: &Watcher,
        meanwhile: impl FnOnce(),
        is_second: impl Fn(&str) -> bool,
    ) -> [String; 2] {
        let (end, ended) = channel();
        let (said, heard) = channel();
        let say = |line: String| {
            // The test has received both lines.
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
        assert_eq!(OutputForm::Lines.interval(), Some(Duration::from_secs(30)));
        let watcher = watcher(OutputForm::Lines);
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
        let watcher = watcher(OutputForm::Json);
        let nodes = vec![node("a", 1_000_000), node("b", 2_000_000)];
        watcher.nodes.send_replace(Nodes {
            count: 2,
            nodes,
            ..Nodes::default()
        });
        assert_eq!(watcher.as_json()["bytes_per_second"], 3e6);
        assert!(
            watcher.message().contains(" 24.0 Mbit/s by 2 nodes, "),
            "{}",
            watcher.message()
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
            let watcher = watcher(OutputForm::Bar);
            watcher.on(&Event::Limited {
                by: "rate limit".into(),
            });
            let nodes = nodes.map(|(bytes, rate)| node(bytes, rate)).to_vec();
            watcher.nodes.send_replace(Nodes {
                count: 2,
                nodes,
                ..Nodes::default()
            });
            watcher.message()
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
        let watcher = watcher(OutputForm::Bar);
        watcher.nodes.send_replace(Nodes {
            count: 12,
            items_waiting: Some(10_000),
            ..Nodes::default()
        });
        watcher.on(&Event::Skipped {
            files: 0,
            bytes: 1023 << 20,
        });
        let message = watcher.message();
        let room = 80 - BAR_COLUMNS;
        assert!(message[..room].contains(" by 12 nodes, "), "{message}");
        assert!(
            message.ends_with(" files; 10000 items waiting"),
            "{message}"
        );
    }

    #[test]
    fn a_log_says_where_in_line_it_is_and_that_it_has_moved_up() {
        let watcher = watcher(OutputForm::Lines);
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
            first.starts_with("queued for ") && first.contains("2 of the same key"),
            "{first}"
        );
        assert!(second.contains("1 of the same key"), "{second}");
    }

    impl Watcher {
        /// Handles a wait event without printing a line for it.
        fn wait_untold(&self, event: &Event) {
            self.state.lock().reported.insert(BUSY.to_owned());
            self.on(event);
        }
    }
}
