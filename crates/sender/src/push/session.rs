//! The state that all stages of one session share.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use zmove_types::{FileId, Observer};
use zmove_wire::{ToReceiver, Version, WireError};

use crate::account::Account;
use crate::account::failure::FileError;
use crate::account::timeline::Timeline;
use crate::control::relay::{Held, PeerQuota};
use crate::plan::queue::Queue;
use crate::read::extras::Extras;
use crate::read::read_ahead::ReadAhead;
use crate::send::in_flight::InFlight;
use crate::send::push_rate::PushRate;

/// The state that all stages of one session share.
pub(crate) struct Session {
    pub(crate) account: Account,
    pub(crate) timeline: Timeline,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) queue: Queue,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) extras: Extras,
    pub(crate) rate: PushRate,
    /// Held while a message of the receiver is entered, so that who finds nothing in flight has heard of all of it.
    pub(crate) entering: Mutex<()>,
    /// What the receiver may hold here, where there is a limit.
    pub(crate) quota: Option<Arc<dyn PeerQuota>>,
}

impl Session {
    /// A new session with a receiver that speaks `version`, which began at `started`; messages to the receiver go by
    /// `outgoing`.
    pub(crate) fn new(
        observer: Arc<dyn Observer>,
        (version, extras): (Version, Extras),
        started: Instant,
        outgoing: UnboundedSender<ToReceiver>,
        quota: Option<Arc<dyn PeerQuota>>,
    ) -> Self {
        let in_flight = Arc::new(InFlight::new(version, Arc::clone(&observer), outgoing));
        Self {
            account: Account::new(observer),
            extras,
            timeline: Timeline::new(started),
            queue: Queue::new(Arc::clone(&in_flight)),
            in_flight,
            read_ahead: ReadAhead::new(),
            rate: PushRate::default(),
            entering: Mutex::default(),
            quota,
        }
    }

    /// Books memory for what the receiver says, where there is a limit.
    ///
    /// # Errors
    /// The limit would be exceeded.
    pub(crate) fn book_memory(&self, bytes: usize) -> Result<Option<Held>, WireError> {
        self.quota.as_ref().map(|quota| quota.book_memory(bytes)).transpose()
    }

    /// Fails a large file on this side: nothing of it may appear at the target. A file that has come to its end stays
    /// as it was reported.
    pub(crate) fn fail_large(&self, id: FileId, error: &FileError) {
        if let Some(counted) = self.in_flight.abandon_large(id) {
            self.account.fail_large(counted, error);
        }
    }
}
