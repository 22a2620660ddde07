//! What strangers make a daemon say: few lines of each kind, so that nobody can fill the log and drown what it is for.
//!
//! **Invariant:** the first of a kind is told at once, and however many follow, one line a second tells how many they
//! were.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{error, warn};
use zmove_receiver::DaemonEvent;

/// What has not been told yet of each kind that was told less than a second ago; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quiet(Arc<Mutex<HashMap<&'static str, Untold>>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Untold {
    count: u64,
    /// The last of them.
    text: String,
    from: Option<SocketAddr>,
}

/// The kind of connections that the system would not accept.
const ACCEPT: &str = "accept";
const INTERVAL: Duration = Duration::from_secs(1);

impl Quiet {
    /// Tells what a daemon tells, or keeps it for the next line of its kind. To be called on the runtime.
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

    /// Whether it is to be told at once.
    fn is_first(&self, kind: &'static str, from: Option<SocketAddr>, event: &DaemonEvent) -> bool {
        let mut kinds = self.lock();
        if let Some(untold) = kinds.get_mut(kind) {
            *untold = Untold { count: untold.count + 1, text: event.to_string(), from };
            return false;
        }
        kinds.insert(kind, Untold::default());
        true
    }

    async fn tell_rest(self, kind: &'static str) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let Some(Untold { count, text, from }) = self.take(kind) else { return };
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

    /// What has come since the last line; the kind is forgotten where that is nothing.
    fn take(&self, kind: &'static str) -> Option<Untold> {
        let mut kinds = self.lock();
        let untold = std::mem::take(kinds.get_mut(kind)?);
        if untold.count == 0 {
            kinds.remove(kind);
            return None;
        }
        Some(untold)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Untold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_receiver::Rejection;

    #[test]
    fn the_first_of_a_kind_is_told_and_the_others_are_counted() {
        let (quiet, from) = (Quiet::default(), "[::1]:7".parse().unwrap());
        let meet = |kind: Rejection, reason: &str| {
            let event = DaemonEvent::Rejected { kind, address: from, reason: reason.to_owned() };
            quiet.is_first(kind.name(), Some(from), &event)
        };
        assert!(meet(Rejection::Handshake, "a") && meet(Rejection::UnknownKey, "b"));
        assert!(!meet(Rejection::Handshake, "c") && !meet(Rejection::Handshake, "d"));
        let text = "rejected [::1]:7: d".to_owned();
        assert_eq!(quiet.take("handshake"), Some(Untold { count: 2, text, from: Some(from) }));
        assert_eq!((quiet.take("handshake"), quiet.take("unknown_key")), (None, None));
        assert!(meet(Rejection::Handshake, "e") && quiet.lock().len() == 1);
    }
}
