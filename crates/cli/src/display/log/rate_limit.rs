//! Rate limit for log lines that any stranger can cause, so that nobody can fill the log.
//!
//! **Invariant:** the first event of a kind is logged at once; however many follow, one line a second has the last of
//! them and their number.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{error, warn};
use zmove_daemon::DaemonEvent;

/// The events that were held back, by kind: one of that kind was logged less than a second ago. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogRateLimit(Arc<Mutex<HashMap<&'static str, HeldBack>>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct HeldBack {
    count: u64,
    /// The text of the last event.
    text: String,
    from: Option<SocketAddr>,
}

/// The kind of event for connections that the system would not accept.
const ACCEPT: &str = "accept";
const INTERVAL: Duration = Duration::from_secs(1);

impl LogRateLimit {
    /// Logs an event, or holds it back for the next line of its kind. To be called on the runtime.
    pub(crate) fn tell(&self, event: &DaemonEvent) {
        let (kind, from) = match event {
            DaemonEvent::Rejected { kind, address, .. } => (kind.name(), Some(*address)),
            DaemonEvent::Accept { .. } => (ACCEPT, None),
            event => return super::tell(event),
        };
        if self.is_first(kind, from, event) {
            super::tell(event);
            tokio::spawn(self.clone().tell_rest(kind));
        }
    }

    /// Whether an event is to be logged at once; otherwise it is held back.
    fn is_first(&self, kind: &'static str, from: Option<SocketAddr>, event: &DaemonEvent) -> bool {
        let mut kinds = self.lock();
        if let Some(held_back) = kinds.get_mut(kind) {
            *held_back = HeldBack { count: held_back.count + 1, text: event.to_string(), from };
            return false;
        }
        kinds.insert(kind, HeldBack::default());
        true
    }

    async fn tell_rest(self, kind: &'static str) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let Some(HeldBack { count, text, from }) = self.take(kind) else { return };
            let from = from.map(tracing::field::display);
            let others = match count {
                1 => String::new(),
                count => format!("; and {} others of this kind in a second", count - 1),
            };
            if kind == ACCEPT {
                error!(event = "accept", count, "{text}{others}");
            } else {
                warn!(event = "rejected", kind, from, count, "{text}{others}");
            }
        }
    }

    /// Takes the events of a kind since the last line; the kind is forgotten where there are none.
    fn take(&self, kind: &'static str) -> Option<HeldBack> {
        let mut kinds = self.lock();
        let held_back = std::mem::take(kinds.get_mut(kind)?);
        if held_back.count == 0 {
            kinds.remove(kind);
            return None;
        }
        Some(held_back)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, HeldBack>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_daemon::Rejection;

    #[test]
    fn the_first_of_a_kind_is_told_and_the_others_are_counted() {
        let (limit, from) = (LogRateLimit::default(), "[::1]:7".parse().unwrap());
        let meet = |kind: Rejection, reason: &str| {
            let event = DaemonEvent::Rejected { kind, address: from, reason: reason.to_owned() };
            limit.is_first(kind.name(), Some(from), &event)
        };
        assert!(meet(Rejection::Handshake, "a") && meet(Rejection::UnknownKey, "b"));
        assert!(!meet(Rejection::Handshake, "c") && !meet(Rejection::Handshake, "d"));
        let text = "rejected [::1]:7: d".to_owned();
        assert_eq!(limit.take("handshake"), Some(HeldBack { count: 2, text, from: Some(from) }));
        assert_eq!((limit.take("handshake"), limit.take("unknown_key")), (None, None));
        assert!(meet(Rejection::Handshake, "e") && limit.lock().len() == 1);
    }
}
