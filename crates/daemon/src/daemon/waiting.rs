//! The wait of a transfer in the queue: its sender is notified, and its pings are answered.
//!
//! **Invariant:** of a transfer that waits nothing is decoded, and at most one short message is read.

use std::time::Duration;

use zmove_transport::PathProbe;
use zmove_wire::{Greeting, Role, ToSender, Waiting, encode_message};

use super::{Control, RUNNING_ALREADY, Shared};
use crate::access::admission::{QueueStep, Queued, Slot};
use crate::access::refusals::REFUSAL_TIMEOUT;
use crate::event::{DaemonEvent, Rejection};
use crate::registry::Registered;
use crate::transfers::{Cut, Live, Who};

/// How often it is checked whether the sender of a queued transfer is still connected.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(1);

/// How a wait in the queue ended.
enum Waited {
    Slot(Slot),
    /// Fewer of the same key are before it: so many.
    MovedUp(usize),
    /// The sender has closed its connection.
    Gone,
    CutOff(Cut),
}

/// The notice of a place in the queue.
fn waiting(ahead: usize, reason: &str) -> Vec<u8> {
    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
    encode_message(&ToSender::Waiting(Waiting {
        ahead,
        text: reason.to_owned(),
    }))
}

/// A transfer that waits in the queue. Its control connection is read meanwhile, so pings are answered.
pub(super) struct Waiter<'a> {
    pub(super) control: Control,
    pub(super) probe: &'a PathProbe,
    pub(super) live: &'a Live,
}

impl Waiter<'_> {
    /// Tells the sender its place in the queue, at first together with the greeting. Returns whether it took that.
    async fn is_told(&mut self, greeting: Option<&Greeting>, ahead: usize, reason: &str) -> bool {
        let writer = &mut self.control.1;
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
    /// Waits in the queue for a slot, unless it is given at once, and notifies the sender. Returns the slot, and the
    /// registry entry of a transfer that has waited.
    pub(super) async fn wait_in_line(
        &self,
        mut waiter: Waiter<'_>,
        mut place: Queued,
        who: Who,
        greeting: Greeting,
    ) -> Option<(Control, Slot, Option<Registered>)> {
        if let Some(slot) = place.at_once() {
            return Some((waiter.control, slot, None));
        }
        let address = who.address;
        let key = who.key;
        let reason = place
            .full
            .map_or_else(|| "others were first".to_owned(), |full| full.to_string());
        waiter.live.waits(&reason, place.ahead);
        (self.log)(&DaemonEvent::Waits {
            who,
            reason: reason.clone(),
        });
        let Some(registered) = self.registry.enter(key, greeting.transfer, None) else {
            self.reject(Rejection::Transfer, address, RUNNING_ALREADY);
            return None;
        };
        let greeting = Greeting::new(Role::Control, greeting.transfer);
        if !waiter.is_told(Some(&greeting), place.ahead, &reason).await {
            return None;
        }
        let waited = loop {
            match self.turn(waiter.probe, waiter.live, &mut place).await {
                Waited::MovedUp(ahead) => {
                    waiter.live.waits(&reason, ahead);
                    if !waiter.is_told(None, ahead, &reason).await {
                        break Waited::Gone;
                    }
                }
                waited => break waited,
            }
        };
        // Drop the place first: a slot that comes too late goes to others while this transfer is refused.
        drop(place);
        match waited {
            Waited::Slot(slot) => return Some((waiter.control, slot, Some(registered))),
            Waited::Gone | Waited::MovedUp(_) => {}
            Waited::CutOff(cut) => {
                self.refuse_transfer(key, waiter.control, None, cut.refusal())
                    .await;
            }
        }
        None
    }

    /// Waits for the slot of a transfer as long as its sender stays connected.
    async fn turn(&self, probe: &PathProbe, live: &Live, place: &mut Queued) -> Waited {
        let mut draining = self.draining.subscribe();
        let gone = async {
            let mut looks = tokio::time::interval(PRESENCE_INTERVAL);
            while !probe.is_ended() {
                looks.tick().await;
            }
        };
        tokio::select! {
            turn = place.turn() => match turn {
                Some(QueueStep::Seated(slot)) => Waited::Slot(slot),
                Some(QueueStep::MovedUp(ahead)) => Waited::MovedUp(ahead),
                None => Waited::Gone,
            },
            () = gone => Waited::Gone,
            () = async { drop(draining.wait_for(|draining| *draining).await) } => Waited::CutOff(Cut::Stopping),
            cut = self.cut_off(live) => Waited::CutOff(cut),
        }
    }
}
