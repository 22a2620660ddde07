//! Serves local programs that query the daemon. Limits the number of simultaneous connections and the duration of each
//! connection.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;

/// Maximum number of connections of one listener that are served at the same time. Further connections wait to be
/// accepted.
const CONNECTIONS_MAX: usize = 8;
/// Maximum duration of a connection, including all its requests.
pub(super) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the next accept when the system has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the connections that `poll_accept` of a listener returns, forever.
pub(super) async fn serve_each<Socket, Conversation>(
    mut poll_accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<Socket>>,
    converse: impl Fn(Socket) -> Conversation,
) where
    Conversation: Future<Output: Send> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&room)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let Ok(socket) = poll_fn(&mut poll_accept).await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let conversation = converse(socket);
        tokio::spawn(async move {
            // The result is ignored. A client may be slow, may have disconnected, or may send an invalid request.
            let _ended = tokio::time::timeout(CONNECTION_TIMEOUT, conversation).await;
            drop(place);
        });
    }
}
