//! The additional messages of a sending host, reported to this side's observer as if the sender were local.
//!
//! **Invariant:** text from a host is made printable before it reaches a terminal.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use zmove_receiver::NamedFiles;
use zmove_sender::{Manifest, ProofMethod};
use zmove_types::{ChangeKind, Event, Lock, Observer, RelPath, Root, printable};
use zmove_wire::limits::LANES_MAX;
use zmove_wire::{FileHash, Refusal, Relay, TransferAccount, TransferProgress};

/// Processes the additional messages of a sending host.
pub(crate) struct RelayedEvents {
    observer: Arc<dyn Observer>,
    /// Channel for requesting more lanes.
    more: UnboundedSender<u16>,
    /// Time from the start of the run until the host began to send.
    offset: Duration,
    manifest: Lock<Option<Manifest>>,
    heard: Lock<SenderReport>,
    /// Files that were completed on this side and whose hashes the host has not reported yet.
    unreported: Lock<HashMap<RelPath, Root>>,
}

/// Maximum number of files in `unreported`. A host reports a file as soon as it has learned that the file is complete,
/// so normally only files in flight are in the map.
const UNREPORTED_MAX: usize = 1 << 20;

/// The information that a session has received from the host.
#[derive(Debug, Default)]
pub(crate) struct SenderReport {
    /// Progress of the sender in its last session.
    pub(crate) progress: TransferProgress,
    /// Highest sum of files and bytes at the target that the sender has reported, over all sessions.
    pub(crate) max_progress: u64,
    pub(crate) account: Option<TransferAccount>,
    pub(crate) broken: Option<Refusal>,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) lanes: usize,
    /// When the sender first reported an answer of its receiver.
    pub(crate) answered: Option<Instant>,
    /// Number of files that were already at the target and whose hashes the host reported.
    pub(crate) reported_existing: u64,
    /// Number of times that the sender has started another session with its receiver.
    pub(crate) restarts: u64,
}

impl RelayedEvents {
    pub(crate) fn new(
        observer: Arc<dyn Observer>,
        manifest: Option<Manifest>,
        more: UnboundedSender<u16>,
        offset: Duration,
    ) -> Self {
        Self {
            observer,
            more,
            offset,
            manifest: Lock::new(manifest),
            heard: Lock::default(),
            unreported: Lock::default(),
        }
    }

    /// Processes an additional message.
    pub(crate) fn take(&self, relay: Relay) {
        match relay {
            Relay::SessionBegins => {
                let mut heard = self.heard.lock();
                heard.restarts += 1;
                heard.progress = TransferProgress::default();
            }
            Relay::Told(told) => told.into_iter().for_each(|told| self.forward_event(told)),
            Relay::Hashed(hashed) => {
                self.list(&hashed, ProofMethod::Received);
                let mut unreported = self.unreported.lock();
                for FileHash { path, .. } in &hashed {
                    unreported.remove(path);
                }
            }
            Relay::Looked(hashed) => {
                self.list(&hashed, ProofMethod::SizeAndTime);
                self.heard.lock().reported_existing += hashed.len() as u64;
            }
            // The channel is closed only while the session is being stopped.
            Relay::Lanes(more) => drop(self.more.send(more.min(LANES_MAX))),
            Relay::Account(account) => self.heard.lock().account = Some(*account),
            Relay::Broken(refusal) => {
                let refusal = Refusal {
                    text: printable(&refusal.text),
                    ..refusal
                };
                self.heard.lock().broken = Some(refusal);
            }
        }
    }

    fn list(&self, hashed: &[FileHash], known: ProofMethod) {
        if let Some(manifest) = &mut *self.manifest.lock() {
            hashed
                .iter()
                .for_each(|hashed| manifest.add(&hashed.path, &hashed.root, known));
        }
    }

    /// Adds the files that the host has not reported to the manifest. The hashes were computed when the files arrived.
    fn add_unreported(&self) {
        let unreported = std::mem::take(&mut *self.unreported.lock());
        if let Some(manifest) = &mut *self.manifest.lock() {
            unreported
                .iter()
                .for_each(|(path, root)| manifest.add(path, root, ProofMethod::Received));
        }
    }

    /// Returns the manifest and the information that was received, at the end of the session. `ended` is the reason why
    /// this side stopped reading, if there is one.
    pub(crate) fn end(&self, ended: Option<Refusal>) -> (Option<Manifest>, SenderReport) {
        // If the connection is lost, the host's final messages are lost too. The next session will find these files to
        // be equal and will not report them.
        self.add_unreported();
        let mut heard = std::mem::take(&mut *self.heard.lock());
        heard.broken = heard.broken.or(ended);
        (self.manifest.lock().take(), heard)
    }

    /// Returns the number of times that the sender has started another session.
    pub(crate) fn restarts(&self) -> u64 {
        self.heard.lock().restarts
    }

    fn forward_event(&self, mut event: Event) {
        // Ignore the host's own waiting states. Only this side reports that it waits, because the display remembers
        // each cause and shows it as a state.
        if let Event::Waiting { message } | Event::HeldUp { by: message } = event {
            event = Event::Warned { message };
        }
        let mut heard = self.heard.lock();
        match &mut event {
            Event::FirstByte(after) => {
                *after = self.offset.saturating_add(*after);
                heard.first_byte.get_or_insert(*after);
            }
            Event::Sampled(sample) => {
                sample.elapsed = self.offset.saturating_add(sample.elapsed);
            }
            Event::LaneUp { lanes } => {
                *lanes = (*lanes).min(usize::from(LANES_MAX));
                heard.lanes = heard.lanes.max(*lanes);
            }
            Event::Answered => drop(heard.answered.get_or_insert_with(Instant::now)),
            Event::Resent { what: text }
            | Event::Failed { message: text }
            | Event::NotKept { message: text }
            | Event::Warned { message: text } => *text = printable(text),
            Event::Limited { by } => {
                let stage: String = by.chars().take(STAGE_CHARS_MAX).collect();
                *by = printable(&stage).into();
            }
            Event::Listed { changes } => {
                for change in changes {
                    if let ChangeKind::Changed(why) = &mut change.kind {
                        *why = printable(why);
                    }
                }
            }
            event => heard.count(event),
        }
        drop(heard);
        self.observer.on(&event);
    }
}

impl SenderReport {
    fn count(&mut self, event: &Event) {
        if self.progress.hear(event) {
            let mut there = self.progress.stored;
            there.add(self.progress.skipped);
            let there = there.files.saturating_add(there.bytes);
            self.max_progress = self.max_progress.max(there);
        }
    }
}

impl NamedFiles for RelayedEvents {
    fn named(&self, path: RelPath, root: Root) {
        let mut unreported = self.unreported.lock();
        unreported.insert(path, root);
        let is_full = unreported.len() >= UNREPORTED_MAX;
        drop(unreported);
        if is_full {
            self.add_unreported();
        }
    }
}

impl fmt::Debug for RelayedEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relayed").finish_non_exhaustive()
    }
}

/// Maximum number of characters of a stage name that is displayed.
const STAGE_CHARS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use zmove_types::NoObserver;

    #[test]
    fn what_each_session_of_the_sender_counts_anew_is_there_once() {
        let (more, _wanted) = tokio::sync::mpsc::unbounded_channel();
        let relayed = RelayedEvents::new(Arc::new(NoObserver), None, more, Duration::ZERO);
        let told = |stored_bytes, skipped_bytes| {
            Relay::Told(vec![
                Event::Stored {
                    files: 1,
                    bytes: stored_bytes,
                },
                Event::Skipped {
                    files: 0,
                    bytes: skipped_bytes,
                },
            ])
        };
        for relay in [told(5, 1), told(5, 1), Relay::SessionBegins, told(2, 3)] {
            relayed.take(relay);
        }
        let (_, heard) = relayed.end(None);
        assert_eq!(
            (
                heard.max_progress,
                heard.progress.stored.bytes,
                heard.restarts
            ),
            (14, 2, 1)
        );
    }

    /// A lost connection also loses the host's final messages.
    #[test]
    fn files_of_which_the_host_has_not_told_stand_in_the_manifest() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&lines);
        let manifest = Manifest::with_callback(move |path, root, known| {
            assert_eq!(known, ProofMethod::Received);
            told.lock().unwrap().push((path.to_string(), *root));
        });
        let (more, _wanted) = tokio::sync::mpsc::unbounded_channel();
        let relayed =
            RelayedEvents::new(Arc::new(NoObserver), Some(manifest), more, Duration::ZERO);
        let path = |text: &str| RelPath::from_bytes(text.as_bytes()).unwrap();
        relayed.named(path("told"), Root([1; 32]));
        relayed.named(path("lost"), Root([2; 32]));
        let hashed = Relay::Hashed(vec![FileHash {
            path: path("told"),
            root: Root([1; 32]),
        }]);
        relayed.take(hashed);
        drop(relayed.end(None));
        let expected = [
            ("told".to_owned(), Root([1; 32])),
            ("lost".to_owned(), Root([2; 32])),
        ];
        assert_eq!(*lines.lock().unwrap(), expected);
    }
}
