//! A session that reports what a transfer would do.
//!
//! **Invariant:** nothing here, nor in what it calls, writes to the target, except to learn how its file system stores
//! times: on a file without a name or, where there are none, on a hidden one that is removed at once. When [`run`]
//! returns, the tasks it started have ended.

pub(crate) mod inquiry;
pub(crate) mod listed;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use zmove_disk::{KeptTimes, Task};
use zmove_transport::ControlError;
use zmove_wire::limits::{
    HASH_ORDERS_OUTSTANDING_MAX, HASHED_GROUPS_MAX, INQUIRED_ENTRIES_MAX,
    INQUIRIES_OUTSTANDING_MAX, KEEPS_OUTSTANDING_MAX, within,
};
use zmove_wire::{
    ExtraneousNames, FaultCode, Finished, HashOrder, Inquiry, Keep, Open, Opened, TargetState,
    ToReceiver, ToSender, TopName, WireError,
};

use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::mirror::{Spared, WorkBudget, extra};
use crate::preview::inquiry::Previewer;
use crate::quota::Booking;
use crate::quota::messages::BookedMessage;
use crate::session::connections::{
    Connections, Looked, SessionReport, look, opened, unless_stopped,
};
use crate::session::opening::free_bytes;
use crate::session::threads::Workers;
use crate::storage_reader::StorageReader;
use crate::store::rules::Rules;
use crate::store::target::Seen;
use crate::store::target::giving_way::{GivingWay, removals_of};
use crate::store::target::keeper::Keeper;
use crate::store::target::links::Claims;
use crate::top_names::TopNames;

/// A preview under way.
struct Preview {
    connections: Connections,
    previewer: Arc<Previewer>,
    /// The names that may be asked about.
    names: TopNames,
    /// The threads that look at the target.
    workers: Workers,
    answers: JoinSet<Result<Answer, oneshot::error::RecvError>>,
}

/// The most inquiries and orders to hash that wait for an answer.
const QUESTIONS_MAX: usize = INQUIRIES_OUTSTANDING_MAX + HASH_ORDERS_OUTSTANDING_MAX;

/// One answer to the sender, with the memory that is booked for it until it has been sent.
type Answer = Result<(ToSender, Booking), WireError>;

/// Answers inquiries until the sender has announced the end.
pub(crate) async fn run(
    mut connections: Connections,
    open: Open,
    config: &ReceiverConfig,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let target = open.target.clone();
    let looked = Some(if open.verify {
        Looked::Verification
    } else {
        Looked::Preview
    });
    let storage = open
        .verify
        .then(|| StorageReader::new(&config.file_io, config.buffers_max));
    let rules = Rules::of(&open, &config.rights);
    let giving_way = GivingWay::of(&open, removals_of(&open));
    let listed = config.listed.clone();
    let access = config.rights.access.clone();
    let looked_at = async {
        let seen = match listed {
            Some(_) => Seen::default(),
            None => look(move || Seen::look(&open, &access))
                .await
                .map_err(SessionError::Refused)?,
        };
        let is_there = seen.tree.is_some() || listed.is_some();
        let room = seen.tree.as_ref().filter(|_| storage.is_none());
        let free_bytes = room.and_then(|tree| free_bytes(tree.fd()));
        let opened = opened_at(&seen, is_there, config.lanes_max, free_bytes);
        connections.open(opened).await?;
        Ok(seen)
    };
    tokio::pin!(stop);
    let seen = match unless_stopped(stop.as_mut(), looked_at)
        .await
        .unwrap_or_else(Err)
    {
        Ok(seen) => seen,
        Err(error) => return Err(connections.refuse(error).await),
    };
    let previewer = Arc::new(Previewer {
        seen,
        rules,
        giving_way,
        keeper: Keeper::new(&config.accounts, None),
        times: KeptTimes::of_inspection(),
        claims: Claims::new(&config.quota),
        quota: config.quota.clone(),
        stopping: AtomicBool::new(false),
        storage,
        listed,
    });
    let mut preview = Preview {
        connections,
        previewer,
        names: config.top_names.clone(),
        workers: Workers::new(&config.quota),
        answers: JoinSet::new(),
    };
    let ended = tokio::select! {
        ended = preview.converse() => ended,
        error = stop => Err(error),
    };
    preview.previewer.stopping.store(true, Ordering::Relaxed);
    preview.workers.end().await;
    preview.connections.part(&ended).await;
    ended.map(|()| SessionReport {
        target,
        looked,
        ..SessionReport::default()
    })
}

/// The answer to an opening whose target looks like this.
fn opened_at(seen: &Seen, is_there: bool, lanes_max: u16, free_bytes: Option<u64>) -> Opened {
    let state = if is_there {
        TargetState::Populated
    } else {
        TargetState::Empty
    };
    Opened {
        single_name: seen.rename.as_ref().map(|(_, to)| TopName(to.clone())),
        free_bytes,
        ..opened(state, lanes_max)
    }
}

impl Preview {
    async fn converse(&mut self) -> Result<(), SessionError> {
        let mut announced = false;
        while !announced || !self.answers.is_empty() {
            tokio::select! {
                message = self.connections.inbox.recv() => {
                    let BookedMessage { message, held } = message.ok_or(ControlError::Closed)??;
                    self.names.check_message(&message)?;
                    match message {
                        ToReceiver::Inquire(inquiry) if !announced => self.take(inquiry, held)?,
                        ToReceiver::Keep(keep) if !announced => self.list(keep, held)?,
                        ToReceiver::Hash(order) if !announced => self.hash(order, held)?,
                        ToReceiver::Announce { items: 0, mismatches: 0 } => announced = true,
                        _ => return Err(SessionError::out_of_order("a message of a preview")),
                    }
                }
                Some(answer) = self.answers.join_next() => {
                    // A closed channel means that the thread which was to answer has panicked.
                    let answer = answer.ok().and_then(Result::ok).ok_or(SessionError::Panicked)?;
                    let (answer, _until_it_is_told) = answer?;
                    self.connections.send(&answer).await?;
                }
                Some(lane) = self.connections.lanes.recv() => drop(lane),
            }
        }
        let counts = self.previewer.keeper.counts();
        if !counts.is_empty() {
            self.connections.send(&ToSender::NotKept { counts }).await?;
        }
        Ok(self
            .connections
            .send_last(&ToSender::Finished(Finished::default()))
            .await?)
    }

    fn list(&mut self, keep: Keep, held: Booking) -> Result<(), SessionError> {
        keep.check()?;
        if self.answers.len() >= KEEPS_OUTSTANDING_MAX {
            return Err(SessionError::out_of_order("a list of names that stay"));
        }
        self.answer(held, move |previewer, room| {
            if previewer.seen.is_closed {
                let faults = (0..)
                    .zip(&keep.ranges)
                    .map(|(range, _)| (range, FaultCode::os(&Errno::ACCESS.into())));
                return Ok(ToSender::ExtraneousNames(ExtraneousNames {
                    keep: keep.keep,
                    faults: faults.collect(),
                    ..ExtraneousNames::default()
                }));
            }
            let mut budget =
                WorkBudget::new(previewer.quota.turn(Task::Look, &previewer.stopping), room);
            Ok(ToSender::ExtraneousNames(extra(
                previewer.seen.tree.as_ref(),
                &keep,
                &Spared::default(),
                &mut budget,
            )))
        })
    }

    fn take(&mut self, inquiry: Inquiry, held: Booking) -> Result<(), SessionError> {
        let entries: usize = inquiry.groups.iter().map(|group| group.entries.len()).sum();
        within(
            "entries inquired about",
            entries.max(inquiry.groups.len()),
            INQUIRED_ENTRIES_MAX,
        )?;
        if self.answers.len() >= QUESTIONS_MAX {
            return Err(SessionError::out_of_order(
                "an inquiry before the earlier ones are answered",
            ));
        }
        self.answer(held, move |previewer, room| {
            let findings = previewer.answer(&inquiry);
            room.grow(size_of_val(&findings.findings[..]))?;
            Ok(ToSender::Findings(findings))
        })
    }

    fn hash(&mut self, order: HashOrder, held: Booking) -> Result<(), SessionError> {
        if self.previewer.storage.is_none() {
            return Err(SessionError::out_of_order(
                "an order to hash, without a verification",
            ));
        }
        within("groups to hash", order.groups as usize, HASHED_GROUPS_MAX)?;
        if self.answers.len() >= QUESTIONS_MAX {
            return Err(SessionError::out_of_order(
                "an order before the earlier ones are answered",
            ));
        }
        self.answer(held, move |previewer, room| {
            let hashed = previewer.hash(&order);
            room.grow(size_of_val(&hashed.values[..]))?;
            Ok(ToSender::Hashed(hashed))
        })
    }

    /// Starts to answer a question. `answer` books the memory of its result; that of the question is given back after
    /// it.
    fn answer(
        &mut self,
        question: Booking,
        answer: impl FnOnce(&Previewer, &mut Booking) -> Result<ToSender, WireError> + Send + 'static,
    ) -> Result<(), SessionError> {
        let (told, answered) = oneshot::channel();
        self.answers.spawn(answered);
        let previewer = Arc::clone(&self.previewer);
        self.workers.start(move || {
            let mut held = previewer.quota.book_nothing();
            let answer = answer(&previewer, &mut held);
            drop(question);
            // Nobody receives it any more only when the session is over.
            let _over = told.send(answer.map(|answer| (answer, held)));
        })
    }
}
