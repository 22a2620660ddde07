//! Waits in the queue on behalf of a transfer, notifies its sender and answers the sender's pings.
//!
//! **Invariant:** no message of a queued transfer is decoded, and at most one short message is read.

use std::time::Duration;

use zmove_transport::PathProbe;
use zmove_wire::{Greeting, Role, ToSender, Waiting, encode_message};

use super::{RUNNING_ALREADY, Shared};
use crate::access::admission::{QueueStep, Queued, Slot};
use crate::access::refusals::REFUSAL_TIMEOUT;
use crate::event::{DaemonEvent, Rejection};
use crate::registry::Registered;
use crate::sending::PeerControl;
use crate::transfers::{ActiveTransfer, PeerInfo, StopReason};

/// Interval of the check whether the sender of a queued transfer is still connected.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why a wait in the queue ended.
enum WaitEnd {
    Slot(Slot),
    /// The number of transfers of the same key that are now ahead of this one.
    MovedUp(usize),
    /// The sender has closed its connection.
    Gone,
    CutOff(StopReason),
}

/// Encodes the notice of a position in the queue.
fn waiting(ahead: usize, reason: &str) -> Vec<u8> {
    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
    encode_message(&ToSender::Waiting(Waiting {
        ahead,
        text: reason.to_owned(),
    }))
}

/// A queued transfer. Its control connection is read while it waits, so that pings are answered.
pub(super) struct Waiter<'a> {
    pub(super) control: PeerControl,
    pub(super) probe: &'a PathProbe,
    pub(super) live: &'a ActiveTransfer,
}

impl Waiter<'_> {
    /// Reports the transfer's position in the queue to the sender. If `greeting` is set, sends the greeting first.
    /// Returns whether the sender accepted the message in time.
    async fn notify_sender(
        &mut self,
        greeting: Option<&Greeting>,
        ahead: usize,
        reason: &str,
    ) -> bool {
        let writer = &mut self.control.writer;
        let notice = waiting(ahead, reason);
        let said = async {
            match greeting {
                Some(greeting) => writer.greet_with(greeting, &notice).await,
                None => writer.send(&notice).await,
            }
        };
        tokio::time::timeout(REFUSAL_TIMEOUT, said)
            .await
            .is_ok_and(|said| said.is_ok())
    }
}

impl Shared {
    /// Waits in the queue for a slot. Notifies the sender unless a slot is free immediately. Returns the slot. If the
    /// transfer had to wait, also returns its registry entry.
    pub(super) async fn wait_in_queue(
        &self,
        mut waiter: Waiter<'_>,
        mut place: Queued,
        who: PeerInfo,
        greeting: Greeting,
    ) -> Option<(PeerControl, Slot, Option<Registered>)> {
        if let Some(slot) = place.take_if_assigned() {
            return Some((waiter.control, slot, None));
        }
        let address = who.address;
        let key = who.key;
        let reason = place.full.map_or_else(
            || "other transfers were first".to_owned(),
            |full| full.to_string(),
        );
        waiter.live.set_queued(&reason, place.ahead);
        (self.log)(&DaemonEvent::Waits {
            who,
            reason: reason.clone(),
        });
        let Some(registered) = self.registry.enter(key, greeting.transfer, None) else {
            self.reject(Rejection::Transfer, address, RUNNING_ALREADY);
            return None;
        };
        let greeting = Greeting::new(Role::Control, greeting.transfer);
        if !waiter
            .notify_sender(Some(&greeting), place.ahead, &reason)
            .await
        {
            return None;
        }
        let waited = loop {
            match self.next_step(waiter.probe, waiter.live, &mut place).await {
                WaitEnd::MovedUp(ahead) => {
                    waiter.live.set_queued(&reason, ahead);
                    if !waiter.notify_sender(None, ahead, &reason).await {
                        break WaitEnd::Gone;
                    }
                }
                waited => break waited,
            }
        };
        // The position in the queue is dropped before the refusal is sent. A slot that becomes free during the refusal
        // then goes to another transfer.
        drop(place);
        match waited {
            WaitEnd::Slot(slot) => return Some((waiter.control, slot, Some(registered))),
            WaitEnd::Gone | WaitEnd::MovedUp(_) => {}
            WaitEnd::CutOff(cut) => {
                self.refuse_transfer(key, waiter.control, None, cut.refusal())
                    .await;
            }
        }
        None
    }

    /// Waits for the slot of a transfer while its sender stays connected.
    async fn next_step(
        &self,
        probe: &PathProbe,
        live: &ActiveTransfer,
        place: &mut Queued,
    ) -> WaitEnd {
        let mut draining = self.draining.subscribe();
        let gone = async {
            let mut looks = tokio::time::interval(PRESENCE_INTERVAL);
            while !probe.has_ended() {
                looks.tick().await;
            }
        };
        tokio::select! {
            turn = place.next_step() => match turn {
                Some(QueueStep::Admitted(slot)) => WaitEnd::Slot(slot),
                Some(QueueStep::MovedUp(ahead)) => WaitEnd::MovedUp(ahead),
                None => WaitEnd::Gone,
            },
            () = gone => WaitEnd::Gone,
            () = async { drop(draining.wait_for(|draining| *draining).await) } => WaitEnd::CutOff(StopReason::Stopping),
            cut = self.cut_off(live) => WaitEnd::CutOff(cut),
        }
    }
}
