//! The ledger of single files, which outlives a session: see [`Run`](crate::Run).
//!
//! The ledger stores the path and the hash of each file that a session sent but that the receiver did not confirm or
//! publish. The number of these files is limited. If the next session finds such a file equal at the target, the file
//! counts as moved. When a file is confirmed in any session, a line is added to the manifest. At the end, only the last
//! line of each name is kept. Failures with the same text are reported once.

use std::collections::HashMap;

use zmove_types::{BytesByOrigin, DeliveryLog, HashOnlySet, Name, Origin, RelPath, Root};
use zmove_wire::{FrameKind, Overwrite};

use crate::account::manifest::{Manifest, ProofMethod};
use crate::read::source::{LargeSource, SizeAndMtime};
use crate::send::sent::{NameRole, Sent, SentFile};

/// The ledger of single files, which outlives a session.
#[derive(Debug, Default)]
pub(crate) struct FileLedger {
    pub(crate) manifest: Option<Manifest>,
    pub(crate) delivery_log: DeliveryLog,
    /// Whether files left unchanged at the target count as equal to their source files.
    unchanged_files_are_equal: bool,
    /// The name that the target gave to its only entry, if the name differs from that of the source.
    pub(crate) single_name: Option<Name>,
    /// Files that were sent in an earlier session and not confirmed.
    unconfirmed: HashMap<RelPath, Unconfirmed>,
    /// Messages that sessions have reported.
    reported: HashOnlySet,
}

/// A file that this run may have placed at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unconfirmed {
    size_and_mtime: SizeAndMtime,
    /// Root of the file, or `None` if its holes were not hashed.
    root: Option<Root>,
    known: ProofMethod,
    /// Origins of the bytes of a file that was sent, or `None` for a link to another name of the file.
    pub(crate) origins: Option<BytesByOrigin>,
}

impl Unconfirmed {
    fn of(file: &SentFile) -> Self {
        let is_sent = !matches!(file.part, NameRole::Link);
        Self {
            size_and_mtime: file.size_and_mtime,
            root: file.root,
            known: file.known,
            origins: is_sent.then(|| BytesByOrigin::of(Origin::Sent, file.data_bytes)),
        }
    }
}

impl FileLedger {
    pub(crate) fn new(manifest: Option<Manifest>) -> Self {
        Self {
            manifest,
            ..Self::default()
        }
    }

    /// Begins a session that replaces files according to `overwrite`.
    pub(crate) fn begin(&mut self, overwrite: Overwrite) {
        self.unchanged_files_are_equal = overwrite == Overwrite::Differing;
    }

    /// Returns whether the manifest also contains files that were already at the target.
    pub(crate) fn lists_unchanged_files(&self) -> bool {
        self.unchanged_files_are_equal && self.manifest.is_some()
    }

    /// Returns whether an earlier session has listed the file. The line of that session is still correct, because a
    /// file that equals its source now has not changed since the line was written.
    pub(crate) fn has_listed(&mut self, path: &RelPath) -> bool {
        let renamed = self.renamed();
        let path = renamed.as_ref().unwrap_or(path);
        let manifest = self.manifest.as_mut();
        manifest.is_some_and(|manifest| manifest.has_earlier(path))
    }

    /// Records a file that is complete at the target because of this session.
    pub(crate) fn confirm_moved(
        &mut self,
        path: &RelPath,
        root: Option<&Root>,
        known: ProofMethod,
    ) {
        self.delivery_log.note(path);
        self.confirm(path, root, known);
    }

    /// Records a file that is complete at the target, whether this session sent it or found it there.
    pub(crate) fn confirm(&mut self, path: &RelPath, root: Option<&Root>, known: ProofMethod) {
        if !self.unconfirmed.is_empty() {
            self.unconfirmed.remove(path);
        }
        let renamed = self.renamed();
        if let Some(manifest) = &mut self.manifest
            && let Some(root) = root
        {
            manifest.add(renamed.as_ref().unwrap_or(path), root, known);
        }
    }

    /// Returns the path of the only entry if the target has given it another name.
    pub(crate) fn renamed(&self) -> Option<RelPath> {
        self.single_name
            .as_ref()
            .and_then(|name| RelPath::root().join(name).ok())
    }

    /// Records a file as moved if it is at the target because an earlier session sent it without receiving a
    /// confirmation.
    pub(crate) fn confirm_earlier(
        &mut self,
        path: &RelPath,
        size_and_mtime: SizeAndMtime,
    ) -> Option<Unconfirmed> {
        if self.unconfirmed.is_empty() {
            return None;
        }
        let sent = self.unconfirmed.remove(path);
        let sent = sent.filter(|sent| sent.size_and_mtime == size_and_mtime)?;
        // The session that sent it requested the same proof. Without the proof, the file would not have been renamed
        // into place.
        self.confirm_moved(path, sent.root.as_ref(), sent.known);
        Some(sent)
    }

    /// Records that a group is stored at the target after it was sent in a frame of this kind. Returns the origin of
    /// its bytes.
    pub(crate) fn settle_group(&mut self, path: &RelPath, index: u32, kind: FrameKind) -> Origin {
        let origin = self.origin_by(kind, path, index);
        self.delivery_log.note_group(path, index, origin);
        origin
    }

    /// Returns the origin of the bytes of a group that is sent as a frame of this kind.
    pub(crate) fn origin_by(&self, kind: FrameKind, path: &RelPath, index: u32) -> Origin {
        match kind {
            FrameKind::Same => self.delivery_log.origin_of_same(path, index),
            _ => Origin::Sent,
        }
    }

    /// Records a message. Returns whether the message is new. For example, all files of a directory may fail with the
    /// same message.
    pub(crate) fn report_once(&mut self, message: &str) -> bool {
        self.reported.insert(message)
    }

    /// Records that the session was interrupted.
    pub(crate) fn note_interrupted(&mut self) {
        self.manifest
            .iter_mut()
            .for_each(Manifest::begin_next_session);
    }

    /// Remembers work that the receiver has not confirmed at the end of the session: the files of a batch, or a group
    /// of a large file.
    pub(crate) fn remember_open(&mut self, work: &Sent) {
        match work {
            Sent::Batch(batch) => batch
                .placed_files()
                .for_each(|file| self.remember(file.path.clone(), Unconfirmed::of(file))),
            Sent::Group(file, span, kind) => {
                let origin = self.origin_by(*kind, &file.target, span.index);
                self.delivery_log
                    .note_unsettled(&file.target, span.index, origin);
            }
        }
    }

    fn remember(&mut self, path: RelPath, sent: Unconfirmed) {
        if self.unconfirmed.len() < UNCONFIRMED_MAX || self.unconfirmed.contains_key(&path) {
            self.unconfirmed.insert(path, sent);
        }
    }

    /// Remembers a large file that the receiver has not confirmed as complete at the end of the session. `unsettled`
    /// are the bytes of its unconfirmed groups. A file that was not sent in full cannot be complete.
    pub(crate) fn remember_open_large(&mut self, file: &LargeSource, unsettled: BytesByOrigin) {
        if file.is_all_read() && !file.has_failed() {
            let mut origins = file.counted();
            origins += unsettled;
            let sent = Unconfirmed {
                size_and_mtime: SizeAndMtime::of(&file.entry),
                root: file.root(),
                known: ProofMethod::Received,
                origins: Some(origins),
            };
            self.remember(file.target.clone(), sent);
        }
    }
}

/// Maximum number of files that all sessions may leave unconfirmed. One session leaves at most the files that are in
/// flight or not yet renamed into place. The next session usually encounters these files first. Any file beyond the
/// maximum counts as skipped instead of moved if a later session finds it at the target.
const UNCONFIRMED_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use zmove_types::Timestamp;

    use super::*;
    use crate::account::manifest::Prover;
    use crate::plan::pack::Pack;
    use crate::send::sent::{NameRole, SentBatch, SentFile};

    fn size_and_mtime(bytes: u64) -> SizeAndMtime {
        SizeAndMtime {
            bytes,
            mtime: Timestamp {
                seconds: 7,
                nanos: 8,
            },
        }
    }

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    fn sent(name: &str) -> Sent {
        let file = SentFile {
            path: path(name),
            root: Some(Root([7; 32])),
            size_and_mtime: size_and_mtime(5),
            data_bytes: 5,
            known: ProofMethod::Received,
            retouched: false,
            part: NameRole::Alone,
        };
        Sent::Batch(SentBatch {
            pack: Pack::of(Vec::new()),
            files: vec![file],
            faults: Vec::new(),
        })
    }

    #[test]
    fn what_was_sent_and_not_confirmed_counts_once_when_it_is_there() {
        let home = tempfile::tempdir().unwrap();
        let manifest = home.path().join("m");
        let mut ledger = FileLedger {
            manifest: Some(Manifest::create(&manifest).unwrap()),
            ..FileLedger::default()
        };
        for name in ["a", "b", "c", "d"] {
            ledger.remember_open(&sent(name));
        }
        assert!(
            ledger
                .confirm_earlier(&path("a"), size_and_mtime(5))
                .is_some()
                && ledger
                    .confirm_earlier(&path("a"), size_and_mtime(5))
                    .is_none()
        );
        assert!(
            ledger
                .confirm_earlier(&path("b"), size_and_mtime(6))
                .is_none(),
            "it is another one"
        );
        let changed = SizeAndMtime {
            mtime: Timestamp {
                seconds: 7,
                nanos: 9,
            },
            ..size_and_mtime(5)
        };
        assert!(
            ledger.confirm_earlier(&path("d"), changed).is_none(),
            "another version is there"
        );
        ledger.confirm(&path("c"), Some(&Root([8; 32])), ProofMethod::Received);
        assert!(
            ledger
                .confirm_earlier(&path("c"), size_and_mtime(5))
                .is_none(),
            "it was moved again"
        );
        ledger.manifest.take().unwrap().finish().unwrap();
        let text = format!("{}  a\n{}  c\n", "07".repeat(32), "08".repeat(32));
        assert_eq!(std::fs::read_to_string(manifest).unwrap(), text);
    }

    #[test]
    fn what_an_earlier_session_has_listed_is_not_read_again() {
        for form in [Manifest::create, |path: &_| {
            Manifest::create_proofs(
                path,
                Prover {
                    host: "h".into(),
                    received: &["wire"],
                },
            )
        }] {
            let home = tempfile::tempdir().unwrap();
            let manifest = form(&home.path().join("m")).unwrap();
            let mut ledger = FileLedger {
                manifest: Some(manifest),
                ..FileLedger::default()
            };
            for name in ["d/a b", "back\\slash", "new\nline", "\"quoted\""] {
                ledger.confirm(&path(name), Some(&Root([8; 32])), ProofMethod::Received);
                assert!(
                    !ledger.has_listed(&path(name)),
                    "no session has ended before"
                );
            }
            ledger.note_interrupted();
            for name in ["d/a b", "back\\slash", "new\nline", "\"quoted\""] {
                assert!(ledger.has_listed(&path(name)), "{name}");
            }
            assert!(!ledger.has_listed(&path("d/a")) && !ledger.has_listed(&path("b")));
            ledger.confirm(&path("b"), Some(&Root([8; 32])), ProofMethod::SizeAndTime);
            ledger.note_interrupted();
            assert!(ledger.has_listed(&path("b")));
        }
    }

    #[test]
    fn what_sessions_leave_open_is_bounded() {
        let mut ledger = FileLedger::default();
        let sent = Unconfirmed {
            size_and_mtime: size_and_mtime(5),
            root: Some(Root([7; 32])),
            known: ProofMethod::Received,
            origins: Some(BytesByOrigin::of(Origin::Sent, 5)),
        };
        (0..=UNCONFIRMED_MAX).for_each(|number| ledger.remember(path(&number.to_string()), sent));
        assert_eq!(ledger.unconfirmed.len(), UNCONFIRMED_MAX);
        // A new entry replaces the previous entry of the same path.
        ledger.remember(
            path("0"),
            Unconfirmed {
                size_and_mtime: size_and_mtime(6),
                root: None,
                known: ProofMethod::SizeAndTime,
                origins: None,
            },
        );
        let found = ledger.confirm_earlier(&path("0"), size_and_mtime(6));
        assert!(
            found.is_some_and(|found| found.origins.is_none()),
            "{found:?}"
        );
    }

    #[test]
    fn a_failure_is_news_once() {
        let mut ledger = FileLedger::default();
        assert!(
            ledger.report_once("read 'a'") && !ledger.report_once("read 'a'"),
            "all files of a directory may fail for one reason"
        );
        ledger.note_interrupted();
        assert!(!ledger.report_once("read 'a'") && ledger.report_once("read 'b'"));
        ledger.note_interrupted();
        assert!(!ledger.report_once("read 'a'") && !ledger.report_once("read 'b'"));
    }
}
