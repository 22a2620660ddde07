//! A push that is fed piece by piece, in place of one walk: the part of one sender in a job that several share.
//!
//! ```text
//!  Feeder ──pieces──► planner ──► as in any push ──► receipts ──► the last of a piece goes ──► Settled
//!     └──orders─────────────────────────────────────────────────────────────────► answers
//! ```
//!
//! What belongs to a piece holds on to it ([`Piece`]), in the plan, with a reader or in flight. So a piece has settled
//! when the last of its entries has, and nothing counts them down.
//!
//! **Invariant:** what is asked of a push that has ended fails, and is not waited for.

use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::{Semaphore, mpsc, oneshot};
use zmove_scan::{Directory, Entry, EntryKind, ScanItem};
use zmove_transport::SharedRate;
use zmove_types::GROUP_BYTES;
use zmove_wire::limits::JOB_ORDERS_OUTSTANDING_MAX;
use zmove_wire::{Batch, SharedJobOrder, SharedJobResult};

use crate::push::piece::{Piece, PieceSize, Progress, Unnamed};

/// The end at which a push is fed. The push ends when this has been dropped and all is settled.
#[derive(Clone, Debug)]
pub struct Feeder {
    fed: Sender<Fed>,
    asked: mpsc::UnboundedSender<FeedRequest>,
    orders: Arc<Semaphore>,
    rate: Arc<OnceLock<SharedRate>>,
}

/// The push has ended, so that nothing is done any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session with the receiver has ended")]
pub struct SessionOver;

/// What the planner is fed with.
#[derive(Debug)]
pub(crate) enum Fed {
    /// Entries, directories and errors, as a walk finds them.
    Items(Arc<Piece>, Vec<ScanItem>),
    /// Groups of a large file: from the first, so many.
    Range(Arc<Piece>, Arc<Directory>, Box<Entry>, Range<u32>),
    /// A file that is to get its name here, and of which others have sent groups.
    Found,
}

/// What the session is asked for beside.
#[derive(Debug)]
pub(crate) enum FeedRequest {
    /// To send an order; with the bytes of the file that gets its name by it.
    Order(
        SharedJobOrder,
        Option<u64>,
        oneshot::Sender<SharedJobResult>,
    ),
    /// The heads of orders for modes and times of directories.
    Directories(Vec<ScanItem>, oneshot::Sender<Vec<Batch>>),
    /// The declaration of a large file.
    Declaration(
        Arc<Directory>,
        Box<Entry>,
        oneshot::Sender<Result<Unnamed, String>>,
    ),
}

/// The ends at which a push takes what it is fed with.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) fed: Receiver<Fed>,
    pub(crate) asked: mpsc::UnboundedReceiver<FeedRequest>,
    /// What the lanes keep, once there is a session.
    pub(crate) rate: Arc<OnceLock<SharedRate>>,
}

/// A piece that is under way.
#[derive(Debug)]
pub struct Sending {
    heard: mpsc::UnboundedReceiver<Progress>,
    piece: Weak<Piece>,
}

impl Sending {
    /// What comes next of the piece; that it has settled comes last.
    ///
    /// # Errors
    /// The session is over.
    pub async fn next(&mut self) -> Result<Progress, SessionOver> {
        self.heard.recv().await.ok_or(SessionOver)
    }

    /// A number that grows as long as the receiver stores and confirms something of the piece.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.piece
            .upgrade()
            .map_or(u64::MAX, |piece| piece.progress())
    }
}

impl Feeder {
    pub(crate) fn new() -> (Self, Feed) {
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
            Feed { fed, asked, rate },
        )
    }

    /// Whether there is a rate that the session keeps, and it has sent something within this time, or waited for its
    /// turn.
    #[must_use]
    pub fn has_used_rate_within(&self, span: Duration) -> bool {
        self.rate
            .get()
            .is_some_and(|rate| rate.is_wanted_within(span, Instant::now()))
    }

    /// Sends what a walk has found; files of so many bytes that the receiver needs are only told.
    ///
    /// # Errors
    /// The session is over.
    pub fn send(&self, items: Vec<ScanItem>, large_bytes: u64) -> Result<Sending, SessionOver> {
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
        self.begin(size, |piece| Fed::Items(piece, items))
    }

    /// Sends groups of a large file, which stays without a name. Only the caller is told if they fail: another may send
    /// them, and the file has not failed then.
    ///
    /// # Errors
    /// The session is over.
    pub fn send_range(
        &self,
        directory: Arc<Directory>,
        entry: Entry,
        groups: Range<u32>,
    ) -> Result<Sending, SessionOver> {
        let bytes = u64::from(groups.end.saturating_sub(groups.start)) * GROUP_BYTES;
        let size = PieceSize {
            entries: 1,
            bytes: bytes.min(entry.size),
            large_bytes: u64::MAX,
        };
        self.begin(size, |piece| {
            Fed::Range(piece, directory, Box::new(entry), groups)
        })
    }

    /// Counts a large file as one of this session, which has been left to several and has got its name here.
    ///
    /// # Errors
    /// The session is over.
    pub fn find(&self) -> Result<(), SessionOver> {
        self.fed.send(Fed::Found).map_err(|_over| SessionOver)
    }

    /// The declaration of a large file, for the order that gives it its name; the inner error is why it cannot be
    /// read.
    ///
    /// # Errors
    /// The session is over.
    pub async fn declaration(
        &self,
        directory: Arc<Directory>,
        entry: Entry,
    ) -> Result<Result<Unnamed, String>, SessionOver> {
        self.ask(|answer| FeedRequest::Declaration(directory, Box::new(entry), answer))
            .await
    }

    /// What orders have by which directories get mode and time: those that a walk has found.
    ///
    /// # Errors
    /// The session is over.
    pub async fn directory_batches(&self, found: Vec<ScanItem>) -> Result<Vec<Batch>, SessionOver> {
        self.ask(|answer| FeedRequest::Directories(found, answer))
            .await
    }

    /// Has the receiver do something; `names` has the bytes of the file that gets its name by it.
    ///
    /// # Errors
    /// The session is over.
    pub async fn order(
        &self,
        order: SharedJobOrder,
        names: Option<u64>,
    ) -> Result<SharedJobResult, SessionOver> {
        let _turn = self.orders.acquire().await.map_err(|_closed| SessionOver)?;
        self.ask(|answer| FeedRequest::Order(order, names, answer))
            .await
    }

    async fn ask<T>(
        &self,
        asked: impl FnOnce(oneshot::Sender<T>) -> FeedRequest,
    ) -> Result<T, SessionOver> {
        let (answer_in, answer) = oneshot::channel();
        self.asked
            .send(asked(answer_in))
            .map_err(|_over| SessionOver)?;
        answer.await.map_err(|_over| SessionOver)
    }

    fn begin(
        &self,
        size: PieceSize,
        fed: impl FnOnce(Arc<Piece>) -> Fed,
    ) -> Result<Sending, SessionOver> {
        let (piece, heard) = Piece::new(size);
        let sending = Sending {
            heard,
            piece: Arc::downgrade(&piece),
        };
        self.fed.send(fed(piece)).map_err(|_over| SessionOver)?;
        Ok(sending)
    }
}
