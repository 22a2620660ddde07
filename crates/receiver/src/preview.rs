//! A conversation about what a transfer would do.
//!
//! **Invariant:** nothing here, nor in what it calls, writes to the target, but for asking its file system what it keeps
//! of times: on a file without a name, or, where there are none, a hidden one that is gone at once. When [`run`] returns, the
//! tasks it started have ended.

pub(crate) mod inquiry;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use zmove_disk::KeptTimes;
use zmove_transport::{ControlError, ControlWriter, LaneSource};
use zmove_types::TransferId;
use zmove_wire::limits::{INQUIRED_ENTRIES_MAX, INQUIRIES_OUTSTANDING_MAX, KEEPS_OUTSTANDING_MAX};
use zmove_wire::{
    Finished, Inquiry, Keep, Open, Opened, TargetState, ToReceiver, ToSender, TopName, WireError,
    encode_message,
};

use crate::account::messages::{Booked, Messages};
use crate::account::{Account, Held};
use crate::error::SessionError;
use crate::mirror::{Effort, Spared, extra};
use crate::preview::inquiry::Previewer;
use crate::session::close::{CLOSE_TIMEOUT, SessionReport, refusal_of, refuse};
use crate::session::threads::Workers;
use crate::store::rules::{Rules, SetIds};
use crate::store::target::Access;
use crate::store::target::read_only::Seen;

/// The ways of one conversation.
pub(crate) struct Preview {
    pub(crate) writer: ControlWriter,
    pub(crate) inbox: Messages,
    /// Nothing comes on them.
    pub(crate) lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    pub(crate) lanes_max: u16,
    /// Where what it holds is booked.
    pub(crate) account: Account,
}

/// What is being looked at, and by whom.
struct Looking {
    workers: Workers,
    account: Account,
    answers: JoinSet<Result<Answer, oneshot::error::RecvError>>,
}

/// What is to be told, with what it takes until it has been.
type Answer = Result<(ToSender, Held), WireError>;

/// Answers until the sender has asked all.
pub(crate) async fn run(
    mut ways: Preview,
    open: Open,
    (access, set_ids): (Access, SetIds),
    stop: impl Future<Output = ()>,
) -> Result<SessionReport, SessionError> {
    let (target, rules) = (open.target.clone(), Rules::of(&open, set_ids));
    let tag = format!("times-{}", &TransferId(open.run).to_string()[..12]);
    let seen = tokio::task::spawn_blocking(move || Seen::look(&open, &access)).await;
    let seen = match seen.unwrap_or_else(|_panic| Err(refusal_of(&SessionError::Panicked))) {
        Ok(seen) => seen,
        Err(refusal) => return refuse(&mut ways.writer, ways.inbox, refusal).await,
    };
    let state = if seen.tree.is_some() { TargetState::Populated } else { TargetState::Empty };
    let single_name = seen.rename.as_ref().map(|(_, to)| TopName(to.clone()));
    let opened = Opened { state, lanes_max: ways.lanes_max, single_name };
    ways.writer.send(&encode_message(&ToSender::Opened(opened))).await?;
    let previewer = Arc::new(Previewer {
        seen,
        rules,
        times: KeptTimes::new(&tag),
        account: ways.account.clone(),
        stopping: AtomicBool::new(false),
    });
    let mut looking = Looking {
        workers: Workers::new(&ways.account),
        account: ways.account.clone(),
        answers: JoinSet::new(),
    };
    let ended = tokio::select! {
        ended = ways.converse(&previewer, &mut looking) => ended,
        () = stop => Err(SessionError::Stopping),
    };
    previewer.stopping.store(true, Ordering::Relaxed);
    looking.workers.end().await;
    let said = async {
        if let Err(error) = &ended {
            let refusal = ToSender::Refused(refusal_of(error));
            ways.writer.send(&encode_message(&refusal)).await?;
            return ways.writer.finish().await;
        }
        // the peer closes first, so that nothing it said is left unread
        while let Some(Ok(_)) = ways.inbox.recv().await {}
        Ok(())
    };
    let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, said).await;
    ended.map(|()| SessionReport { target, ..SessionReport::default() })
}

impl Preview {
    async fn converse(
        &mut self,
        previewer: &Arc<Previewer>,
        looking: &mut Looking,
    ) -> Result<(), SessionError> {
        let mut announced = false;
        while !announced || !looking.answers.is_empty() {
            tokio::select! {
                message = self.inbox.recv() => {
                    let Booked { message, held } = message.ok_or(ControlError::Closed)??;
                    match message {
                        ToReceiver::Inquire(inquiry) if !announced => {
                            looking.take(previewer, inquiry, held)?;
                        }
                        ToReceiver::Keep(keep) if !announced => looking.list(previewer, keep, held)?,
                        ToReceiver::Announce { items: 0, mismatches: 0 } => announced = true,
                        _ => return Err(WireError::OutOfOrder { what: "a message of a preview" }.into()),
                    }
                }
                Some(answer) = looking.answers.join_next() => {
                    // who was to answer has panicked
                    let answer = answer.ok().and_then(Result::ok).ok_or(SessionError::Panicked)?;
                    let (answer, _until_it_is_told) = answer?;
                    self.writer.send(&encode_message(&answer)).await?;
                }
                Some(lane) = self.lanes.recv() => drop(lane),
            }
        }
        self.writer.send(&encode_message(&ToSender::Finished(Finished::default()))).await?;
        Ok(self.writer.finish().await?)
    }
}

impl Looking {
    fn list(&mut self, previewer: &Arc<Previewer>, keep: Keep, held: Held) -> Result<(), SessionError> {
        keep.check()?;
        if self.answers.len() >= KEEPS_OUTSTANDING_MAX {
            return Err(WireError::OutOfOrder { what: "a list of names that stay" }.into());
        }
        let previewer = Arc::clone(previewer);
        self.answer(held, move |room| {
            let mut effort = Effort::new(previewer.account.turn(&previewer.stopping), room);
            Ok(ToSender::Extra(extra(previewer.seen.tree.as_ref(), &keep, &Spared::default(), &mut effort)))
        })
    }

    fn take(&mut self, previewer: &Arc<Previewer>, inquiry: Inquiry, held: Held) -> Result<(), SessionError> {
        let entries: usize = inquiry.groups.iter().map(|group| group.entries.len()).sum();
        let value = entries.max(inquiry.groups.len());
        if value > INQUIRED_ENTRIES_MAX {
            let (value, limit) = (value as u64, INQUIRED_ENTRIES_MAX as u64);
            return Err(WireError::OverLimit { what: "entries inquired about", value, limit }.into());
        }
        if self.answers.len() >= INQUIRIES_OUTSTANDING_MAX {
            let what = "an inquiry before the earlier ones are answered";
            return Err(WireError::OutOfOrder { what }.into());
        }
        let previewer = Arc::clone(previewer);
        self.answer(held, move |room| {
            let findings = previewer.answer(&inquiry);
            room.grow(size_of_val(&findings.findings[..]))?;
            Ok(ToSender::Findings(findings))
        })
    }

    /// Answers a question, which goes then; `answer` books what that takes.
    fn answer(
        &mut self,
        question: Held,
        answer: impl FnOnce(&mut Held) -> Result<ToSender, WireError> + Send + 'static,
    ) -> Result<(), SessionError> {
        let (told, answered) = oneshot::channel();
        self.answers.spawn(answered);
        let mut held = self.account.nothing();
        self.workers.start(move || {
            let answer = answer(&mut held);
            drop(question);
            // nobody listens any more only when the conversation is over
            let _over = told.send(answer.map(|answer| (answer, held)));
        })
    }
}
