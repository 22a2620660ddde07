//! Whether the peer of a QUIC connection is still there: when its process is killed, nobody says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::settings::CONTROL_WINDOW_BYTES;

/// A way to ask whether a connection's peer is still there.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    pub(crate) connection: quinn::Connection,
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
    pub(crate) fn of(connection: &quinn::Connection) -> Self {
        Self {
            connection: connection.clone(),
            asked: Arc::default(),
        }
    }

    /// Lets the peer send as much before it is read as control may.
    pub(crate) fn open_control_window(&self) {
        self.connection
            .set_receive_window(CONTROL_WINDOW_BYTES.into());
    }

    /// Whether anything of the peer arrives within about a second, which is asked to acknowledge something.
    pub(crate) async fn beats(&self) -> bool {
        let heard = || self.connection.stats().udp_rx.datagrams;
        tokio::time::sleep(SETTLE).await;
        let before = heard();
        self.ask();
        let until = Instant::now() + PATIENCE + self.connection.rtt() * ROUND_TRIPS;
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
        let more = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        self.connection
            .set_receive_window(CONTROL_WINDOW_BYTES.saturating_add(more).into());
    }
}
