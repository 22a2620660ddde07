//! A conversation in which the receiver removes the leftovers of ended sessions from its target, or lists them.
//! `zmove clean` runs it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use zmove_wire::{Fault, Leftover, Open, ToReceiver, ToSender, WireError, encode_message};

use crate::control::link::Link;
use crate::control::relay::{NoQuota, inbox};
use crate::control::{permission, receive};
use crate::error::SessionError;

/// An event of a cleaning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CleanEvent {
    /// The receiver has found a leftover, and removed it if that was its fate.
    Found(Leftover),
    /// Something could not be looked at, or not removed.
    Failed(Fault),
    /// The receiver waits for something.
    Waits(String),
}

/// Has the receiver clean its target, and reports the events of that.
///
/// # Errors
/// [`SessionError`] when the cleaning did not come to its end, [`SessionError::Interrupted`] once `stop` resolves.
pub async fn clean(
    open: Open,
    link: Link,
    tell: &mut (dyn FnMut(CleanEvent) + Send),
    stop: impl Future<Output = ()>,
) -> Result<(), SessionError> {
    tokio::select! {
        cleaned = run(open, link, tell) => cleaned,
        () = stop => Err(SessionError::Interrupted),
    }
}

async fn run(
    open: Open,
    link: Link,
    tell: &mut (dyn FnMut(CleanEvent) + Send),
) -> Result<(), SessionError> {
    let greeting = link.greeting().encode();
    let (mut reader, mut writer) = link.control;
    writer.send(&greeting).await?;
    let greeted = async {
        reader.greeting().await?;
        // A receiver that refuses need not have read the opening: its answer has the reason.
        let _refused_early = writer.send(&encode_message(&ToReceiver::Open(open))).await;
        Ok(inbox(reader, Arc::new(NoQuota)))
    };
    // Do not wait for a turn in the queue: a user waits for the answer.
    let (mut inbox, _opened) = permission(greeted, Duration::ZERO, |_said| ()).await?;
    loop {
        match receive(&mut inbox).await? {
            ToSender::Leftover(leftover) => tell(CleanEvent::Found(leftover)),
            ToSender::Fault(fault) => tell(CleanEvent::Failed(fault)),
            ToSender::HeldUp { text } => tell(CleanEvent::Waits(text)),
            ToSender::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            ToSender::Finished(_) => return Ok(writer.finish().await?),
            _ => {
                return Err(WireError::OutOfOrder {
                    what: "a result of a cleaning",
                }
                .into());
            }
        }
    }
}
