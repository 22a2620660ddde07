//! A push that is fed piece by piece, in place of one walk: the part of one sender in a job that several share.
//!
//! ```text
//!  Feeder ──pieces──► planner ──► as in any push ──► receipts ──► the last of a piece goes ──► Settled
//!     └──orders─────────────────────────────────────────────────────────────────► answers
//! ```
//!
//! What belongs to a piece holds on to it ([`Piece`]), wherever it is: in the plan, with a reader, in flight. So a piece
//! has settled when the last of its entries has, and nothing counts them down.
//!
//! **Invariant:** an entry counts as confirmed only by the receiver's word. Whatever else becomes of it, it lets go of
//! its piece, and is missed among what was confirmed.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::{Semaphore, mpsc, oneshot};
use zmove_scan::{Directory, Entry, EntryKind, ScanItem};
use zmove_types::{Lock, RelPath};
use zmove_wire::limits::JOB_ORDERS_OUTSTANDING_MAX;
use zmove_wire::{FileHead, SharedJobOrder, SharedJobResult};

use crate::read::source::LargeSource;

/// The end at which a push is fed. The push ends when this has been dropped and all is settled.
#[derive(Clone, Debug)]
pub struct Feeder {
    fed: Sender<Fed>,
    asked: mpsc::UnboundedSender<Asked>,
    orders: Arc<Semaphore>,
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
pub(crate) enum Asked {
    /// To send an order; with the bytes of the file that gets its name by it.
    Order(SharedJobOrder, Option<u64>, oneshot::Sender<SharedJobResult>),
    /// The heads of orders for modes and times of directories.
    Directories(Vec<ScanItem>, oneshot::Sender<Vec<Vec<u8>>>),
    /// The declaration of a large file.
    Declaration(Arc<Directory>, Box<Entry>, oneshot::Sender<Result<Unnamed, String>>),
}

/// The ends at which a push takes what it is fed with.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) fed: Receiver<Fed>,
    pub(crate) asked: mpsc::UnboundedReceiver<Asked>,
}

/// A piece of a push, held by all that belongs to it.
#[derive(Debug)]
pub(crate) struct Piece {
    found: u64,
    large_bytes: u64,
    large: mpsc::UnboundedSender<LargeFound>,
    confirmed: AtomicU64,
    progress: AtomicU64,
    files: AtomicU64,
    bytes: AtomicU64,
    unnamed: Lock<Vec<Unnamed>>,
    settled: Option<oneshot::Sender<Settled>>,
}

/// What has become of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Entries that are not at the target, or not completely, and parts of the source that could not be read.
    pub failed: u64,
    /// Files that are at the target, without large ones that have no names yet.
    pub files: u64,
    /// The bytes of these files.
    pub bytes: u64,
    /// Large files all groups of which have been stored, and which get their names by an order.
    pub unnamed: Vec<Unnamed>,
}

/// A large file that has no name at the target yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Its declaration, for the order.
    pub head: Vec<u8>,
    /// Its path at the target.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
}

impl Unnamed {
    pub(crate) fn of(head: &FileHead) -> Self {
        Self { head: head.encode(), path: head.path.as_path().to_owned(), bytes: head.bytes }
    }
}

/// A piece that is under way.
#[derive(Debug)]
pub struct Sending {
    settled: oneshot::Receiver<Settled>,
    large: mpsc::UnboundedReceiver<LargeFound>,
    piece: Weak<Piece>,
}

/// A large file that the receiver needs, and which several are to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeFound {
    /// The directory that it is in, below its source.
    pub directory: RelPath,
    /// The file.
    pub entry: Entry,
}

/// What becomes of a piece that is under way.
#[derive(Debug)]
pub enum Progress {
    /// A large file is not sent with the piece, but left to several.
    Large(LargeFound),
    /// All else of the piece has settled.
    Settled(Settled),
}

impl Sending {
    /// What comes next of the piece; that it has settled comes last.
    ///
    /// # Errors
    /// The session is over.
    pub async fn next(&mut self) -> Result<Progress, SessionOver> {
        if let Some(large) = self.large.recv().await {
            return Ok(Progress::Large(large));
        }
        // the other end of that went with the piece
        (&mut self.settled).await.map(Progress::Settled).map_err(|_dropped| SessionOver)
    }

    /// A number that grows as long as the receiver stores and confirms something of the piece.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.piece.upgrade().map_or(u64::MAX, |piece| piece.progress.load(Ordering::Relaxed))
    }
}

impl Feeder {
    pub(crate) fn new() -> (Self, Feed) {
        let (fed_in, fed) = unbounded();
        let (asked_in, asked) = mpsc::unbounded_channel();
        let orders = Arc::new(Semaphore::new(JOB_ORDERS_OUTSTANDING_MAX));
        (Self { fed: fed_in, asked: asked_in, orders }, Feed { fed, asked })
    }

    /// Sends what a walk has found; files of so many bytes that the receiver needs are only told.
    ///
    /// # Errors
    /// The session is over.
    pub fn send(&self, items: Vec<ScanItem>, large_bytes: u64) -> Result<Sending, SessionOver> {
        let count = |item: &ScanItem| match item {
            ScanItem::Batch(batch) => batch.entries.len() as u64,
            ScanItem::Root { .. } | ScanItem::Error(_) => 1,
        };
        let found = items.iter().map(count).sum();
        self.begin((found, large_bytes), |piece| Fed::Items(piece, items))
    }

    /// Sends groups of a large file, which stays without a name.
    ///
    /// # Errors
    /// The session is over.
    pub fn send_range(
        &self,
        directory: Arc<Directory>,
        entry: Entry,
        groups: Range<u32>,
    ) -> Result<Sending, SessionOver> {
        self.begin((1, u64::MAX), |piece| Fed::Range(piece, directory, Box::new(entry), groups))
    }

    /// Counts a large file as one of this session, which has been left to several and gets its name here.
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
        let (answer_in, answer) = oneshot::channel();
        let asked = Asked::Declaration(directory, Box::new(entry), answer_in);
        self.asked.send(asked).map_err(|_over| SessionOver)?;
        answer.await.map_err(|_over| SessionOver)
    }

    /// The heads of orders by which directories get mode and time: those that a walk has found.
    ///
    /// # Errors
    /// The session is over.
    pub async fn directory_heads(&self, found: Vec<ScanItem>) -> Result<Vec<Vec<u8>>, SessionOver> {
        let (answer_in, answer) = oneshot::channel();
        self.asked.send(Asked::Directories(found, answer_in)).map_err(|_over| SessionOver)?;
        answer.await.map_err(|_over| SessionOver)
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
        let (answer_in, answer) = oneshot::channel();
        self.asked.send(Asked::Order(order, names, answer_in)).map_err(|_over| SessionOver)?;
        answer.await.map_err(|_over| SessionOver)
    }

    fn begin(
        &self,
        (found, large_bytes): (u64, u64),
        fed: impl FnOnce(Arc<Piece>) -> Fed,
    ) -> Result<Sending, SessionOver> {
        let (settled_in, settled) = oneshot::channel();
        let (large_in, large) = mpsc::unbounded_channel();
        let piece = Arc::new(Piece {
            found,
            large_bytes,
            large: large_in,
            confirmed: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unnamed: Lock::default(),
            settled: Some(settled_in),
        });
        let sending = Sending { settled, large, piece: Arc::downgrade(&piece) };
        self.fed.send(fed(piece)).map_err(|_over| SessionOver)?;
        Ok(sending)
    }
}

impl Piece {
    /// The receiver has an entry.
    pub(crate) fn confirm(&self, entry: &Entry) {
        self.confirm_without_data();
        if entry.kind == EntryKind::File {
            self.files.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(entry.size, Ordering::Relaxed);
        }
    }

    /// Leaves a file that the receiver needs to several, if it is so large; returns whether it has.
    pub(crate) fn leaves(&self, directory: &RelPath, entry: &Entry) -> bool {
        let is_left = entry.kind == EntryKind::File && entry.size >= self.large_bytes;
        if is_left {
            self.confirm_without_data();
            let _nobody_waits =
                self.large.send(LargeFound { directory: directory.clone(), entry: entry.clone() });
        }
        is_left
    }

    /// The receiver has a directory itself.
    pub(crate) fn confirm_without_data(&self) {
        self.confirmed.fetch_add(1, Ordering::Relaxed);
        self.has_moved();
    }

    /// The receiver has stored something of it.
    pub(crate) fn has_moved(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// The receiver has all groups of a large file that were to be sent; it gets its name by an order.
    pub(crate) fn confirm_large(&self, file: &LargeSource) {
        self.confirm_without_data();
        if let Some(head) = file.head() {
            self.unnamed.lock().push(Unnamed::of(&head));
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let settled = Settled {
            failed: self.found.saturating_sub(number(&self.confirmed)),
            files: number(&self.files),
            bytes: number(&self.bytes),
            unnamed: std::mem::take(self.unnamed.get_mut()),
        };
        if let Some(waiting) = self.settled.take() {
            let _nobody_waits = waiting.send(settled);
        }
    }
}
