//! A push that is fed piece by piece instead of by one walk. It is one sender's share of a job that several senders
//! work on.
//!
//! ```text
//!  Feeder ──pieces──► planner ──► stages as in any push ──► receipts ──► last reference to a piece dropped ──► Settled
//!     └──orders───────────────────────────────────────────────────────────────────────────────────────► answers
//! ```
//!
//! Everything that belongs to a piece holds a reference to it ([`Piece`]): in the plan, with a reader or in flight. A
//! piece has therefore settled when its last entry has, and no counter is needed.
//!
//! **Invariant:** a request to a push that has ended fails immediately instead of waiting.

use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::{Semaphore, mpsc, oneshot};
use zmove_scan::{Directory, Entry, EntryKind, ScanItem};
use zmove_transport::SharedRate;
use zmove_types::GROUP_BYTES;
use zmove_wire::limits::JOB_ORDERS_OUTSTANDING_MAX;
use zmove_wire::{Batch, FileHead, SharedJobOrder, SharedJobResult};

use crate::push::piece::{Piece, PieceProgress, PieceSize};

/// The handle that feeds a push. The push ends when all handles have been dropped and everything has settled.
#[derive(Clone, Debug)]
pub struct Feeder {
    fed: Sender<PlannerInput>,
    asked: mpsc::UnboundedSender<FeedRequest>,
    orders: Arc<Semaphore>,
    rate: Arc<OnceLock<SharedRate>>,
}

/// The error of a request to a push that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session with the receiver has ended")]
pub struct SessionEnded;

/// Input for the planner.
#[derive(Debug)]
pub(crate) enum PlannerInput {
    /// Entries, directories and errors, in the form in which a walk finds them.
    Items(Arc<Piece>, Vec<ScanItem>),
    /// A range of groups of a large file.
    Range(Arc<Piece>, Arc<Directory>, Box<Entry>, Range<u32>),
    /// Notice that this session has renamed a large file into place. Several senders have sent the groups of the file.
    CommittedLarge,
}

/// A request to the session other than a piece to send.
#[derive(Debug)]
pub(crate) enum FeedRequest {
    /// Sends an order about a shared job to the receiver. The number is the length in bytes of the file that the order
    /// renames into place, if any.
    Order(
        SharedJobOrder,
        Option<u64>,
        oneshot::Sender<SharedJobResult>,
    ),
    /// Builds the heads of orders that set modes and times of directories.
    Directories(Vec<ScanItem>, oneshot::Sender<Vec<Batch>>),
    /// Builds the declaration of a large file.
    Declaration(
        Arc<Directory>,
        Box<Entry>,
        oneshot::Sender<Result<FileHead, String>>,
    ),
}

/// The receiving ends of a feeder's channels.
#[derive(Debug)]
pub(crate) struct FeedReceivers {
    pub(crate) fed: Receiver<PlannerInput>,
    pub(crate) asked: mpsc::UnboundedReceiver<FeedRequest>,
    /// The rate limit of the lanes. Set once the session exists.
    pub(crate) rate: Arc<OnceLock<SharedRate>>,
}

/// A piece that is being sent.
#[derive(Debug)]
pub struct PieceHandle {
    reports: mpsc::UnboundedReceiver<PieceProgress>,
    piece: Weak<Piece>,
}

impl PieceHandle {
    /// Returns the next progress report of the piece. The last report is that the piece has settled.
    ///
    /// # Errors
    /// The session is over.
    pub async fn next(&mut self) -> Result<PieceProgress, SessionEnded> {
        self.reports.recv().await.ok_or(SessionEnded)
    }

    /// Returns a counter that increases whenever the receiver stores or confirms part of the piece.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.piece
            .upgrade()
            .map_or(u64::MAX, |piece| piece.progress())
    }
}

impl Feeder {
    pub(crate) fn new() -> (Self, FeedReceivers) {
        let (fed_in, fed) = unbounded();
        let (asked_in, asked) = mpsc::unbounded_channel();
        let orders = Arc::new(Semaphore::new(JOB_ORDERS_OUTSTANDING_MAX));
        let rate = Arc::default();
        (
            Self {
                fed: fed_in,
                asked: asked_in,
                orders,
                rate: Arc::clone(&rate),
            },
            FeedReceivers { fed, asked, rate },
        )
    }

    /// Returns whether the session has a rate limit and has used it in the last `span`. Sending data and waiting for
    /// permission to send both count as use.
    #[must_use]
    pub fn has_used_rate_within(&self, span: Duration) -> bool {
        self.rate
            .get()
            .is_some_and(|rate| rate.is_wanted_within(span, Instant::now()))
    }

    /// Sends the entries that a walk has found. Files of at least `large_bytes` bytes that the receiver needs are
    /// reported instead of sent.
    ///
    /// # Errors
    /// The session is over.
    pub fn send(
        &self,
        items: Vec<ScanItem>,
        large_bytes: u64,
    ) -> Result<PieceHandle, SessionEnded> {
        let mut size = PieceSize {
            entries: 0,
            bytes: 0,
            large_bytes,
        };
        for item in &items {
            match item {
                ScanItem::Batch(batch) => {
                    size.entries += batch.entries.len() as u64;
                    let files = batch
                        .entries
                        .iter()
                        .filter(|entry| entry.kind == EntryKind::File);
                    let bytes = files
                        .map(|entry| entry.size)
                        .filter(|bytes| *bytes < large_bytes);
                    size.bytes += bytes.sum::<u64>();
                }
                ScanItem::Root { .. } | ScanItem::Error(_) => size.entries += 1,
            }
        }
        self.begin(size, |piece| PlannerInput::Items(piece, items))
    }

    /// Sends groups of a large file without renaming the file into place. A failure to send the groups is reported only
    /// to the caller. The file itself has not failed, because another sender may send these groups.
    ///
    /// # Errors
    /// The session is over.
    pub fn send_range(
        &self,
        directory: Arc<Directory>,
        entry: Entry,
        groups: Range<u32>,
    ) -> Result<PieceHandle, SessionEnded> {
        let bytes = u64::from(groups.end.saturating_sub(groups.start)) * GROUP_BYTES;
        let size = PieceSize {
            entries: 1,
            bytes: bytes.min(entry.size),
            large_bytes: u64::MAX,
        };
        self.begin(size, |piece| {
            PlannerInput::Range(piece, directory, Box::new(entry), groups)
        })
    }

    /// Counts a large file in this session. Several senders have sent its groups, and this session has renamed it into
    /// place.
    ///
    /// # Errors
    /// The session is over.
    pub fn count_committed(&self) -> Result<(), SessionEnded> {
        self.fed
            .send(PlannerInput::CommittedLarge)
            .map_err(|_over| SessionEnded)
    }

    /// Returns the declaration of a large file, for the order that renames it into place. The inner error is the reason
    /// why the file cannot be read.
    ///
    /// # Errors
    /// The session is over.
    pub async fn declaration(
        &self,
        directory: Arc<Directory>,
        entry: Entry,
    ) -> Result<Result<FileHead, String>, SessionEnded> {
        self.ask(|answer| FeedRequest::Declaration(directory, Box::new(entry), answer))
            .await
    }

    /// Returns the heads of orders that set the modes and times of the directories in `found`, which come from a walk.
    ///
    /// # Errors
    /// The session is over.
    pub async fn directory_batches(
        &self,
        found: Vec<ScanItem>,
    ) -> Result<Vec<Batch>, SessionEnded> {
        self.ask(|answer| FeedRequest::Directories(found, answer))
            .await
    }

    /// Sends an order about a shared job to the receiver. `names` is the length in bytes of the file that the order
    /// renames into place, if any.
    ///
    /// # Errors
    /// The session is over.
    pub async fn order(
        &self,
        order: SharedJobOrder,
        names: Option<u64>,
    ) -> Result<SharedJobResult, SessionEnded> {
        let _turn = self
            .orders
            .acquire()
            .await
            .map_err(|_closed| SessionEnded)?;
        self.ask(|answer| FeedRequest::Order(order, names, answer))
            .await
    }

    async fn ask<T>(
        &self,
        asked: impl FnOnce(oneshot::Sender<T>) -> FeedRequest,
    ) -> Result<T, SessionEnded> {
        let (answer_in, answer) = oneshot::channel();
        self.asked
            .send(asked(answer_in))
            .map_err(|_over| SessionEnded)?;
        answer.await.map_err(|_over| SessionEnded)
    }

    fn begin(
        &self,
        size: PieceSize,
        fed: impl FnOnce(Arc<Piece>) -> PlannerInput,
    ) -> Result<PieceHandle, SessionEnded> {
        let (piece, reports) = Piece::new(size);
        let sending = PieceHandle {
            reports,
            piece: Arc::downgrade(&piece),
        };
        self.fed.send(fed(piece)).map_err(|_over| SessionEnded)?;
        Ok(sending)
    }
}
