//! The report of a cleanup: one line for each leftover found, and a summary.

use serde_json::{Value, json};
use zmove_sender::CleanEvent;
use zmove_types::{ByteCount, Escaped};
use zmove_wire::{Leftover, LeftoverFate, LeftoverKind};

use crate::args::CleanArgs;
use crate::display::failures::{SCHEMA, parts};
use crate::display::format::{counted, minute};
use crate::display::progress::print_json;
use crate::display::terminal;
use crate::value::exit::Exit;

/// The results of a cleanup so far.
#[derive(Debug, Default)]
pub(super) struct CleanReport {
    is_preview: bool,
    is_json: bool,
    removed: LeftoverSum,
    kept: LeftoverSum,
    failed: u64,
}

/// Number of leftovers, and the bytes that they use.
#[derive(Clone, Copy, Debug, Default)]
struct LeftoverSum {
    entries: u64,
    bytes: u64,
}

impl LeftoverSum {
    fn add(&mut self, leftover: &Leftover) {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(leftover.bytes);
    }
}

impl CleanReport {
    pub(super) fn new(args: &CleanArgs) -> Self {
        Self {
            is_preview: args.dry_run,
            is_json: args.json,
            ..Self::default()
        }
    }

    pub(super) fn take(&mut self, event: CleanEvent) {
        match event {
            CleanEvent::Found(leftover) => {
                match leftover.fate {
                    LeftoverFate::Goes => self.removed.add(&leftover),
                    LeftoverFate::StaysUntil { .. } | LeftoverFate::Foreign => {
                        self.kept.add(&leftover);
                    }
                }
                if self.is_json {
                    print(self.as_json(&leftover));
                } else {
                    terminal::say(self.line(&leftover));
                }
            }
            CleanEvent::Failed(fault) => {
                self.failed += 1;
                self.print_event("failed", &format!("receiver: {fault}"));
            }
            CleanEvent::Waits(text) => self.print_event("waiting", &format!("waiting: {text}")),
            _ => {}
        }
    }

    /// Prints the summary, and returns the exit code.
    pub(super) fn end(self) -> Exit {
        let exit = if self.failed > 0 {
            Exit::Partial
        } else {
            Exit::Done
        };
        if self.is_json {
            print(json!({
                "event": "cleaned",
                "dry_run": self.is_preview,
                "removed": self.removed.entries,
                "removed_bytes": self.removed.bytes,
                "kept": self.kept.entries,
                "kept_bytes": self.kept.bytes,
                "failed": self.failed,
                "exit": exit as i32,
            }));
        } else {
            terminal::say(self.summary());
        }
        exit
    }

    fn print_event(&self, event: &str, message: &str) {
        if self.is_json {
            let mut said = match event {
                "failed" => parts(message),
                _ => json!({}),
            };
            said["event"] = event.into();
            said["message"] = message.into();
            print(said);
        }
        terminal::warn(message);
    }

    fn line(&self, leftover: &Leftover) -> String {
        let fate = match leftover.fate {
            LeftoverFate::Goes if self.is_preview => "would be removed".to_owned(),
            LeftoverFate::Goes => "removed".to_owned(),
            LeftoverFate::StaysUntil { seconds } => format!("kept until {}", minute(seconds)),
            LeftoverFate::Foreign => {
                "kept, belongs to another user or was not created by zmove".to_owned()
            }
        };
        let kind = match leftover.kind {
            LeftoverKind::Unfinished => "unfinished file",
            LeftoverKind::Directory => "unfinished directory",
            LeftoverKind::Part => "part of a large file",
            LeftoverKind::SharedJob => "directory of a push to several receivers",
        };
        let path = Escaped(leftover.path.as_bytes());
        let bytes = ByteCount(leftover.bytes);
        format!("{fate}: {kind} '{path}', {bytes}")
    }

    fn as_json(&self, leftover: &Leftover) -> Value {
        let until = match leftover.fate {
            LeftoverFate::StaysUntil { seconds } => Some(seconds),
            LeftoverFate::Goes | LeftoverFate::Foreign => None,
        };
        json!({
            "event": "leftover",
            "path": String::from_utf8_lossy(leftover.path.as_bytes()),
            "kind": match leftover.kind {
                LeftoverKind::Unfinished => "file",
                LeftoverKind::Directory => "directory",
                LeftoverKind::Part => "part",
                LeftoverKind::SharedJob => "job",
            },
            "bytes": leftover.bytes,
            "fate": match leftover.fate {
                LeftoverFate::Goes if self.is_preview => "would_be_removed",
                LeftoverFate::Goes => "removed",
                LeftoverFate::StaysUntil { .. } => "kept",
                LeftoverFate::Foreign => "foreign",
            },
            "kept_until": until,
        })
    }

    fn summary(&self) -> String {
        let Self { removed, kept, .. } = self;
        let gone = if self.is_preview {
            "would be removed"
        } else {
            "removed"
        };
        let mut text = match removed.entries {
            0 => "nothing to remove".to_owned(),
            entries => format!(
                "{} {gone}, {}",
                counted(entries, "leftover"),
                ByteCount(removed.bytes)
            ),
        };
        if kept.entries > 0 {
            text += &format!("; {} kept, {}", kept.entries, ByteCount(kept.bytes));
        }
        if self.failed > 0 {
            text += &format!("; {} failed", self.failed);
        }
        text
    }
}

/// Prints an event. It has no transfer ID, because the daemon's log identifies a cleanup by its target.
fn print(mut event: Value) {
    event["schema"] = SCHEMA.into();
    event["transfer"] = Value::Null;
    print_json(&event);
}
