//! A session in which the receiver lists or removes the leftovers of ended sessions in its target. `zmove clean` runs
//! it.

use std::future::Future;

use zmove_wire::{Fault, Leftover, Open, ToSender, out_of_order};

use crate::control::link::Link;
use crate::control::{open_without_queue, receive};
use crate::error::SessionError;

/// An event of a cleaning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CleanEvent {
    /// The receiver has found a leftover of an ended session. Unless the leftover must be kept, the receiver has also
    /// removed it.
    Found(Leftover),
    /// A file or directory could not be examined or removed.
    Failed(Fault),
    /// The receiver is waiting for the given reason.
    Waits(String),
}

/// Asks the receiver to clean its target, and reports the events.
///
/// # Errors
/// Returns a [`SessionError`] if the cleaning did not complete, and [`SessionError::Interrupted`] once `stop` resolves.
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
    let greeting = link.greeting();
    let (reader, mut writer) = link.control;
    let (mut inbox, _opened) = open_without_queue(greeting, reader, &mut writer, open).await?;
    loop {
        match receive(&mut inbox).await? {
            ToSender::Leftover(leftover) => tell(CleanEvent::Found(leftover)),
            ToSender::Fault(fault) => tell(CleanEvent::Failed(fault)),
            ToSender::HeldUp { text } => tell(CleanEvent::Waits(text)),
            ToSender::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            ToSender::Finished(_) => return Ok(writer.finish().await?),
            _ => {
                return out_of_order("a message during a cleanup");
            }
        }
    }
}
