//! The connections of the few programs of this host that ask the daemon about itself: so many at a time, each for so
//! long.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;

/// The most connections of one listener that are served at once; further ones wait.
const CONNECTIONS_MAX: usize = 8;
/// How long one connection may last, with all its requests.
pub(super) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to pause when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves what `poll_accept` of a listener brings, for ever.
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
            // A client that is slow, gone or makes no sense is ignored.
            let _ended = tokio::time::timeout(CONNECTION_TIMEOUT, conversation).await;
            drop(place);
        });
    }
}
