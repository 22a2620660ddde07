//! What a peer asks that has dialled and does not send: files, a copy to another host, a grant, or a result.
//!
//! **Invariant:** what does not make sense is refused before anything is looked for.

use std::future::Future;

use zmove_receiver::Booking;
use zmove_wire::{CopyOrder, Fetch, Greeting, Role, ToSource, WireError};

use crate::copying;
use crate::sending::{
    Order, SendingError, SendingSession, Sent, next, order, refuse_nonsense, send_files, shown,
};
use crate::transfers::Cut;

/// Sends one transfer; cuts it off when `stop` resolves. Answers what else may be asked on such a connection.
///
/// # Errors
/// [`SendingError`] when it did not come to its end. Files that failed are no such error.
pub(crate) async fn answer(
    mut session: SendingSession,
    stop: impl Future<Output = Cut>,
) -> Result<Sent, SendingError> {
    session
        .control
        .1
        .greet(&Greeting::new(Role::Control, session.transfer))
        .await?;
    let mut held = session.share.quota.book_nothing();
    let first = match next(&mut session.control.0, &mut held).await {
        Ok(first) => first,
        Err(error) => return Err(refuse_nonsense(session.control, error).await),
    };
    match first {
        ToSource::Fetch(fetch) => {
            let (session, order) = rest_of(session, *fetch, held).await?;
            send_files(session, order, stop).await
        }
        ToSource::Copy(copy) => {
            let CopyOrder { fetch, .. } = &*copy;
            let (session, order) = rest_of(session, fetch.clone(), held).await?;
            copying::copy(session, *copy, order, stop).await
        }
        ToSource::Grant(order) => copying::grant(session, *order).await,
        ToSource::Result { id, stop } => copying::tell_result(session, id, stop).await,
        ToSource::Listed { .. } | ToSource::Begin(_) => {
            let error = WireError::OutOfOrder {
                what: "a list, or a beginning, without an order",
            };
            Err(refuse_nonsense(session.control, error.into()).await)
        }
    }
}

/// The whole order for files, which the session is for from now on.
async fn rest_of(
    mut session: SendingSession,
    fetch: Fetch,
    held: Booking,
) -> Result<(SendingSession, Order), SendingError> {
    match order(&mut session.control.0, fetch, held).await {
        Ok(order) => {
            session.meter.opened(&shown(&order.fetch));
            Ok((session, order))
        }
        Err(error) => Err(refuse_nonsense(session.control, error).await),
    }
}
