//! The queue of control messages on their way out.

use tokio::sync::mpsc::UnboundedSender;
use zmove_wire::ToReceiver;

/// Puts control messages on their way. The writer says goodbye when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing(UnboundedSender<ToReceiver>);

impl Outgoing {
    pub(crate) const fn new(queue: UnboundedSender<ToReceiver>) -> Self {
        Self(queue)
    }

    /// Puts a control message on its way.
    pub(crate) fn send(&self, message: ToReceiver) {
        // the queue is closed only when the session is over
        let _session_over = self.0.send(message);
    }
}
