//! Ends QUIC connections gracefully. A connection must not be closed before the peer has acknowledged its last bytes,
//! and the close itself must be sent.

use std::sync::Arc;
use std::time::Duration;

use quinn::SendStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::lane_bytes::LaneBytes;
use super::{DONE, DROPPED};

/// Maximum time for a peer to acknowledge the last bytes.
const LINGER: Duration = Duration::from_secs(5);

/// Keeps a connection open until its holder has finished it or dropped it, or until it is lost.
pub(super) struct Linger {
    pub(super) connection: quinn::Connection,
    pub(super) lane_bytes: Arc<LaneBytes>,
    /// Receives the stream after it was finished.
    pub(super) left: UnboundedReceiver<SendStream>,
}

impl Linger {
    pub(super) async fn wait(&mut self) {
        let parting = async {
            let Some(stream) = self.left.recv().await else {
                return DROPPED;
            };
            let _in_time = timeout(LINGER, stream.stopped()).await;
            DONE
        };
        tokio::select! {
            code = parting => self.connection.close(code, b""),
            _lost = self.connection.closed() => {}
        }
        self.lane_bytes.mark_lost();
    }
}
