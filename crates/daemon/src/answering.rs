//! What a peer asks that has dialled and does not send: files, a copy to another host, a grant, or a result.
//!
//! **Invariant:** what does not make sense is refused before anything is looked for.

use std::future::Future;

use zmove_transport::{ControlError, ControlReader, ControlWriter};
use zmove_wire::{CopyOrder, Greeting, Refusal, RefusalCode, Role, ToSource, WireError};

use crate::copying;
use crate::sending::{SendingError, SendingSession, Sent, next, order, refuse, send_files, shown};

/// Sends one transfer; cuts it off when `stop` resolves. Answers what else may be asked on such a connection.
///
/// # Errors
/// [`SendingError`] when it did not come to its end. Files that failed are no such error.
pub(crate) async fn answer(
    mut session: SendingSession,
    stop: impl Future<Output = ()>,
) -> Result<Sent, SendingError> {
    session.control.1.greet(&Greeting::new(Role::Control, session.transfer)).await?;
    let mut held = session.quota.book_nothing();
    let first = match next(&mut session.control.0, &mut held).await {
        Ok(first) => first,
        Err(error) => return Err(refuse_nonsense(session.control, error).await),
    };
    match first {
        ToSource::Fetch(fetch) => {
            let order = match order(&mut session.control.0, *fetch, held).await {
                Ok(order) => order,
                Err(error) => return Err(refuse_nonsense(session.control, error).await),
            };
            session.meter.opened(&shown(&order.fetch));
            send_files(session, order, stop).await
        }
        ToSource::Copy(copy) => {
            let CopyOrder { fetch, .. } = &*copy;
            let order = match order(&mut session.control.0, fetch.clone(), held).await {
                Ok(order) => order,
                Err(error) => return Err(refuse_nonsense(session.control, error).await),
            };
            session.meter.opened(&shown(&order.fetch));
            copying::copy(session, *copy, order, stop).await
        }
        ToSource::Grant(order) => copying::grant(session, *order).await,
        ToSource::Result { id, stop } => copying::tell_result(session, id, stop).await,
        ToSource::Listed { .. } | ToSource::Begin(_) => {
            let error = WireError::OutOfOrder { what: "a list, or a beginning, without an order" };
            Err(refuse_nonsense(session.control, error.into()).await)
        }
    }
}

/// Tells a peer why what it has said is not understood.
async fn refuse_nonsense(control: (ControlReader, ControlWriter), error: SendingError) -> SendingError {
    let SendingError::Control(ControlError::Wire(error)) = error else { return error };
    refuse(control, Refusal { code: RefusalCode::Protocol, text: error.to_string() }).await
}
