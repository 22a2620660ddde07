//! Whoever ends a QUIC connection: the last bytes must have arrived before it is closed, and a close must be told.

use std::sync::Arc;
use std::time::Duration;

use quinn::SendStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::account::Account;
use super::{DONE, DROPPED};

/// How long a peer may take to acknowledge the last bytes.
const LINGER: Duration = Duration::from_secs(5);

/// Keeps a connection until whoever holds it has finished or dropped it, or it is lost; `left` is its stream then.
pub(super) async fn keep(
    connection: &quinn::Connection,
    account: &Account,
    mut left: UnboundedReceiver<SendStream>,
) {
    let parting = async {
        let Some(stream) = left.recv().await else { return DROPPED };
        let _in_time = timeout(LINGER, stream.stopped()).await;
        DONE
    };
    tokio::select! {
        code = parting => connection.close(code, b""),
        _lost = connection.closed() => {}
    }
    account.lose();
}

/// The keeper of a connection that lives on the runtime of its endpoint.
pub(super) fn spawn(
    connection: quinn::Connection,
    account: Arc<Account>,
    left: UnboundedReceiver<SendStream>,
) {
    tokio::spawn(async move { keep(&connection, &account, left).await });
}
