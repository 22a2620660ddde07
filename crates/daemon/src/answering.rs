//! Answers a peer that has dialed this host but does not send files here. Such a peer fetches files, orders a copy to
//! another host, requests a grant, or asks for the result of a copy.
//!
//! **Invariant:** an invalid request is refused before anything is looked up.

use std::future::Future;

use zmove_receiver::unless_stopped;
use zmove_wire::{CopyOrder, GrantOrder, Greeting, Role, ToSource, WireError};

use crate::copying;
use crate::sending::{
    Order, PeerControl, SendingError, SendingSession, Sent, cut_off, next, order, refuse_malformed,
    send_files, shown,
};
use crate::transfers::StopReason;

/// Reads the request of a peer and answers it. If `stop` resolves, a transfer in progress is interrupted.
///
/// # Errors
/// Returns [`SendingError`] if the request was not completed. Files that failed are not an error.
pub(crate) async fn answer(
    mut session: SendingSession,
    stop: impl Future<Output = StopReason>,
) -> Result<Sent, SendingError> {
    tokio::pin!(stop);
    let asked = match unless_stopped(stop.as_mut(), read_request(&mut session)).await {
        Ok(Ok(asked)) => asked,
        Ok(Err(error)) => return Err(refuse_malformed(session.control, error).await),
        Err(cut) => return Err(cut_off(session.control, cut).await),
    };
    match asked {
        PeerOrder::Files(order) => send_files(session, order, stop).await,
        PeerOrder::Copy(copy, order) => copying::copy(session, *copy, order, stop).await,
        PeerOrder::Grant(order) => copying::grant(session, *order).await,
        PeerOrder::Result { id, stop } => copying::send_result(session, id, stop).await,
    }
}

/// The request of a peer.
enum PeerOrder {
    Files(Order),
    Copy(Box<CopyOrder>, Order),
    Grant(Box<GrantOrder>),
    Result { id: [u8; 16], stop: bool },
}

/// Greets the peer and reads its complete request.
async fn read_request(session: &mut SendingSession) -> Result<PeerOrder, SendingError> {
    let PeerControl { reader, writer } = &mut session.control;
    writer
        .greet(&Greeting::new(Role::Control, session.transfer))
        .await?;
    let mut held = session.share.quota.empty_charge();
    Ok(match next(reader, &mut held).await? {
        ToSource::Fetch(fetch) => {
            let order = order(reader, *fetch, held).await?;
            session.meter.set_target(&shown(&order.fetch));
            PeerOrder::Files(order)
        }
        ToSource::Copy(copy) => {
            let order = order(reader, copy.fetch.clone(), held).await?;
            session.meter.set_target(&shown(&order.fetch));
            PeerOrder::Copy(copy, order)
        }
        ToSource::Grant(order) => PeerOrder::Grant(order),
        ToSource::Result { id, stop } => PeerOrder::Result { id, stop },
        ToSource::Listed { .. } | ToSource::Begin(_) => {
            return Err(WireError::OutOfOrder {
                what: "a list, or a beginning, without an order",
            }
            .into());
        }
    })
}
