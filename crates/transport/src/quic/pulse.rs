//! Whether the peer of a QUIC connection is still there: when its process is killed, nobody says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::settings::CONTROL_WINDOW_BYTES;

/// A way to ask whether a connection's peer is still there; over TCP its kernel says when it is not.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Option<Asking>);

#[derive(Clone, Debug)]
struct Asking {
    connection: quinn::Connection,
    asked: Arc<AtomicU32>,
}

/// What has arrived by then came before the question.
const SETTLE: Duration = Duration::from_millis(100);
/// How long a peer may take to be heard, beside [`ROUND_TRIPS`]: time for its host to give it a core.
const PATIENCE: Duration = Duration::from_secs(1);
/// Round trips in which questions that are lost are repeated.
const ROUND_TRIPS: u32 = 4;
/// How often to look whether anything has come.
const GLANCE: Duration = Duration::from_millis(5);

impl Pulse {
    pub(super) fn of(connection: &quinn::Connection) -> Self {
        Self(Some(Asking {
            connection: connection.clone(),
            asked: Arc::default(),
        }))
    }

    /// Whether anything of the peer arrives within about a second, which is asked to acknowledge something.
    pub async fn beats(&self) -> bool {
        let Some(Asking { connection, .. }) = &self.0 else {
            return true;
        };
        let heard = || connection.stats().udp_rx.datagrams;
        tokio::time::sleep(SETTLE).await;
        let before = heard();
        self.ask();
        let until = Instant::now() + PATIENCE + connection.rtt() * ROUND_TRIPS;
        while heard() == before {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(GLANCE).await;
        }
        true
    }

    /// Sends a frame that has to be acknowledged: the window of control, one byte larger each time.
    fn ask(&self) {
        if let Some(Asking { connection, asked }) = &self.0 {
            let more = asked.fetch_add(1, Ordering::Relaxed) + 1;
            connection.set_receive_window(CONTROL_WINDOW_BYTES.saturating_add(more).into());
        }
    }
}
