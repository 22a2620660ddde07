//! The daemon's log: one line for each event on standard error, as text or JSON.
//!
//! **Invariant:** control characters from a peer are escaped, and no event contains a secret.

mod rate_limit;

use std::fmt::{self, Debug, Display};
use std::fs::File;
use std::io;
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, error, info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};
use zmove_daemon::{DaemonEvent, EndedTransfer, TransferEnd};
use zmove_receiver::InspectionKind;
use zmove_types::Lock;
use zmove_wire::Cipher;

use crate::args::LogFormat;
use crate::display::terminal::Printable;

pub(crate) use rate_limit::LogRateLimit;

/// A log file that can be reopened after rotation.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: Lock<File>,
}

impl LogFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            path: path.to_owned(),
            file: Lock::new(append_to(path)?),
        }))
    }

    /// Opens the path of the log again, because the old file was renamed. If that fails, the log continues to use the
    /// old file.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        *self.file.lock() = append_to(&self.path)?;
        Ok(())
    }
}

/// Opens a log for appending. A FIFO that no process reads is an error, because the daemon would otherwise block
/// silently at startup.
fn append_to(path: &Path) -> io::Result<File> {
    let file = File::options()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

impl io::Write for &LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Directs all further events of this program to the file, or to standard error if no file is given.
pub(crate) fn start(format: LogFormat, file: Option<&Arc<LogFile>>) {
    let own = Targets::new().with_target("zmove_cli", LevelFilter::INFO);
    let writer = match file {
        Some(file) => BoxMakeWriter::new(Arc::clone(file)),
        None => BoxMakeWriter::new(io::stderr),
    };
    let journal = file.is_none() && is_journal();
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer = match format {
        LogFormat::Text => layer
            .with_ansi(false)
            .event_format(Sentences { journal })
            .boxed(),
        LogFormat::Json => {
            let json = layer.json().flatten_event(true).with_target(false);
            json.with_current_span(false).with_span_list(false).boxed()
        }
    };
    let begun =
        tracing::subscriber::set_global_default(Registry::default().with(layer.with_filter(own)));
    begun.expect("the log is started once");
}

/// Logs a message that may require action by the operator.
pub(crate) fn warning(text: impl Display) {
    warn!(event = "warning", "{text}");
}

/// Logs a message that may interest the operator but requires no action.
pub(crate) fn note(text: impl Display) {
    info!(event = "note", "{text}");
}

/// Logs the error that ends the program.
pub(crate) fn failed(text: impl Display) {
    error!(event = "failed", "{text}");
}

/// Logs that the daemon accepts connections.
pub(crate) fn listening(address: impl Display, key: impl Display) {
    info!(event = "listening", %address, %key, "listening on {address}, key {key}");
}

/// Writes a daemon event to the log.
fn log_event(event: &DaemonEvent) {
    match event {
        DaemonEvent::Rejected { kind, address, .. } => {
            warn!(event = "rejected", kind = kind.name(), from = %address, "{event}");
        }
        DaemonEvent::Waits { who, .. } => {
            info!(event = "in_line", name = who.name, key = %who.key, from = %who.address, "{event}");
        }
        DaemonEvent::Begun { who } => {
            info!(event = "begun", name = who.name, key = %who.key, from = %who.address, "{event}");
        }
        DaemonEvent::Ended(ended) => log_end(ended),
        DaemonEvent::Granted {
            who,
            source,
            target,
        } => {
            let target = String::from_utf8_lossy(target);
            info!(
                event = "granted", audit = true, name = who.name, key = %who.key, from = %who.address,
                sender = %source, %target, "{event}"
            );
        }
        event => error!(event = "accept", "{event}"),
    }
}

/// Writes the end of a transfer to the log. Fields that do not apply to the transfer are left out.
fn log_end(ended: &EndedTransfer) {
    let EndedTransfer { who, moved, end } = ended;
    let result = end.error_kind().unwrap_or(end.result());
    let path = String::from_utf8_lossy(moved.target.as_deref().unwrap_or_default());
    let mut source = None;
    let mut target = Some(&*path);
    let mut to = None;
    let mut of = None;
    let mut mount = None;
    let name = match end {
        TransferEnd::Received { cipher, report } => {
            of = Some(word_of(*cipher));
            match report.looked {
                None => "received",
                Some(InspectionKind::Preview) => "previewed",
                Some(InspectionKind::Verification) => "verified",
                Some(InspectionKind::Cleaning) => "cleaned",
            }
        }
        TransferEnd::Probed => "probed",
        TransferEnd::Broken(_) => "broken",
        TransferEnd::Sent { cipher, .. } => {
            source = target.take();
            of = Some(word_of(*cipher));
            "sent"
        }
        TransferEnd::Copied { to: host, .. } => {
            source = target.take();
            to = Some(format!("{}:{}", host.host, host.port));
            "copied"
        }
        TransferEnd::SendingBroken(_) => {
            source = target.take();
            "sending_broken"
        }
        TransferEnd::LeftBehind(storage) => {
            mount = storage
                .as_ref()
                .map(|storage| storage.point.display().to_string());
            "left_behind"
        }
    };
    let seconds = (moved.elapsed.as_secs_f64() * 1e3).round() / 1e3;
    // A macro is needed because the level of a log line must be a constant.
    macro_rules! line {
        ($level:ident) => {
            $level!(
                event = name, audit = true, result, name = who.name, key = %who.key, from = %who.address,
                source, target, to, mount, bytes = moved.bytes, files = moved.files, probe_bytes = moved.probed,
                seconds, faults = end.faults(), cipher = of, "{ended}"
            )
        };
    }
    match end {
        TransferEnd::Broken(_) | TransferEnd::SendingBroken(_) => line!(warn),
        TransferEnd::LeftBehind(_) => line!(error),
        _ => line!(info),
    }
}

const fn word_of(cipher: Cipher) -> &'static str {
    match cipher {
        Cipher::None => "none",
        _ => "tls",
    }
}

/// Returns whether standard error is the socket of systemd's journal. The variable `JOURNAL_STREAM` identifies that
/// socket by device and inode.
fn is_journal() -> bool {
    let Some(said) = std::env::var("JOURNAL_STREAM").ok() else {
        return false;
    };
    let Ok(own) = std::fs::metadata("/proc/self/fd/2") else {
        return false;
    };
    said == format!("{}:{}", own.st_dev(), own.st_ino())
}

/// The text format of the log, with one sentence per line. systemd's journal records the time and the program name
/// itself, so a line for the journal has only the priority.
struct Sentences {
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.journal {
            write!(writer, "<{}>", priority(*event.metadata().level()))?;
        } else {
            SystemTime.format_time(&mut writer)?;
            write!(writer, " zmove: ")?;
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        writeln!(writer, "{}", Printable(message.0))
    }
}

/// Returns the syslog priority of a log level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        _ => 6,
    }
}

/// The message text, extracted from the fields of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
