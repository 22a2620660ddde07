//! A conversation about what a transfer would do.
//!
//! **Invariant:** nothing here, nor in what it calls, writes to the target. When [`run`] returns, the tasks it started
//! have ended.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zmove_transport::{ControlError, ControlWriter, Inbox, LaneSource};
use zmove_wire::limits::{INQUIRED_ENTRIES_MAX, INQUIRIES_OUTSTANDING_MAX, KEEPS_OUTSTANDING_MAX};
use zmove_wire::{
    Finished, Inquiry, Keep, Open, Opened, TargetState, ToReceiver, ToSender, TopName, WireError,
    encode_message,
};

use crate::error::SessionError;
use crate::inquire::Onlooker;
use crate::mirror::extra;
use crate::seen::Seen;
use crate::session::{CLOSE_TIMEOUT, SessionReport, refusal_of, refuse};
use crate::set_ids::SetIds;
use crate::target::Access;

/// The ways of one conversation.
pub(crate) struct Preview {
    pub(crate) writer: ControlWriter,
    pub(crate) inbox: Inbox<ToReceiver>,
    /// Nothing comes on them.
    pub(crate) lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    pub(crate) lanes_max: u16,
}

/// Answers until the sender has asked all.
pub(crate) async fn run(
    mut ways: Preview,
    open: Open,
    (access, set_ids): (Access, SetIds),
    stop: impl Future<Output = ()>,
) -> Result<SessionReport, SessionError> {
    let (target, compare, overwrite) = (open.target.clone(), open.compare, open.overwrite);
    let seen = tokio::task::spawn_blocking(move || Seen::look(&open, &access)).await;
    let seen = match seen.unwrap_or_else(|_panic| Err(refusal_of(&SessionError::Panicked))) {
        Ok(seen) => seen,
        Err(refusal) => return refuse(&mut ways.writer, ways.inbox, refusal).await,
    };
    let state = if seen.tree.is_some() { TargetState::Populated } else { TargetState::Empty };
    let single_name = seen.rename.as_ref().map(|(_, to)| TopName(to.clone()));
    let opened = Opened { state, lanes_max: ways.lanes_max, single_name };
    ways.writer.send(&encode_message(&ToSender::Opened(opened))).await?;
    let onlooker = Arc::new(Onlooker { seen, compare, overwrite, set_ids, stopping: AtomicBool::new(false) });
    let mut answers = JoinSet::new();
    let ended = tokio::select! {
        ended = ways.converse(&onlooker, &mut answers) => ended,
        () = stop => Err(SessionError::Stopping),
    };
    onlooker.stopping.store(true, Ordering::Relaxed);
    while answers.join_next().await.is_some() {}
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
        onlooker: &Arc<Onlooker>,
        answers: &mut JoinSet<ToSender>,
    ) -> Result<(), SessionError> {
        let mut announced = false;
        while !announced || !answers.is_empty() {
            tokio::select! {
                message = self.inbox.recv() => match message.ok_or(ControlError::Closed)?? {
                    ToReceiver::Inquire(inquiry) if !announced => take(onlooker, inquiry, answers)?,
                    ToReceiver::Keep(keep) if !announced => list(onlooker, keep, answers)?,
                    ToReceiver::Announce { items: 0, mismatches: 0 } => announced = true,
                    _ => return Err(WireError::OutOfOrder { what: "a message of a preview" }.into()),
                },
                Some(answer) = answers.join_next() => {
                    let answer = answer.map_err(|_panic| SessionError::Panicked)?;
                    self.writer.send(&encode_message(&answer)).await?;
                }
                Some(lane) = self.lanes.recv() => drop(lane),
            }
        }
        self.writer.send(&encode_message(&ToSender::Finished(Finished::default()))).await?;
        Ok(self.writer.finish().await?)
    }
}

fn list(onlooker: &Arc<Onlooker>, keep: Keep, answers: &mut JoinSet<ToSender>) -> Result<(), WireError> {
    keep.check()?;
    if answers.len() >= KEEPS_OUTSTANDING_MAX {
        return Err(WireError::OutOfOrder { what: "a list of names that stay" });
    }
    let onlooker = Arc::clone(onlooker);
    answers.spawn_blocking(move || ToSender::Extra(extra(onlooker.seen.tree.as_ref(), &keep)));
    Ok(())
}

fn take(
    onlooker: &Arc<Onlooker>,
    inquiry: Inquiry,
    answers: &mut JoinSet<ToSender>,
) -> Result<(), WireError> {
    let entries: usize = inquiry.groups.iter().map(|group| group.entries.len()).sum();
    let value = entries.max(inquiry.groups.len());
    if value > INQUIRED_ENTRIES_MAX {
        let (value, limit) = (value as u64, INQUIRED_ENTRIES_MAX as u64);
        return Err(WireError::OverLimit { what: "entries inquired about", value, limit });
    }
    if answers.len() >= INQUIRIES_OUTSTANDING_MAX {
        return Err(WireError::OutOfOrder { what: "an inquiry before the earlier ones are answered" });
    }
    let onlooker = Arc::clone(onlooker);
    answers.spawn_blocking(move || ToSender::Findings(onlooker.answer(&inquiry)));
    Ok(())
}
