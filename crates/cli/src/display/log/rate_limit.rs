//! Rate limit for log lines that unknown clients can cause, so that no client can fill the log.
//!
//! **Invariant:** the first event of a kind is logged immediately. Further events of that kind are logged as one line
//! per second, with the last event and the number of events. This line is left out if all events have the address and
//! reason of the first event, and if there are at most as many events as one transfer has connections. The reason is
//! that a refused push is refused on each of its connections.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};
use zmove_daemon::{DaemonEvent, Rejection};
use zmove_types::Lock;
use zmove_wire::limits::LANES_MAX;

/// The events that were held back, by kind. An event is held back if an event of the same kind was logged less than a
/// second ago. Clones share this state.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogRateLimit(Arc<Lock<HashMap<&'static str, HeldBack>>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct HeldBack {
    /// Address and reason of the event that was logged immediately.
    first: Option<(IpAddr, String)>,
    /// Whether any held-back event has an address or reason other than that of `first`.
    others: bool,
    count: u64,
    /// Text of the last event that was held back.
    text: String,
    from: Option<SocketAddr>,
}

/// Kind of the events about connections that the system failed to accept.
const ACCEPT: &str = "accept";
const INTERVAL: Duration = Duration::from_secs(1);

impl LogRateLimit {
    /// Logs an event immediately, or holds it back and adds it to the next line of its kind. Must be called on the
    /// runtime.
    pub(crate) fn log(&self, event: &DaemonEvent) {
        let (kind, from) = match event {
            DaemonEvent::Rejected { kind, address, .. } => (kind.name(), Some(*address)),
            DaemonEvent::Accept { .. } => (ACCEPT, None),
            event => return super::log_event(event),
        };
        if self.is_first(kind, from, event) {
            super::log_event(event);
            tokio::spawn(self.clone().log_held_back(kind));
        }
    }

    /// Returns true if the event must be logged immediately. Otherwise, the function holds the event back.
    fn is_first(&self, kind: &'static str, from: Option<SocketAddr>, event: &DaemonEvent) -> bool {
        let whose = match event {
            // Only a peer that has completed its handshake can be a refused push. A peer that fails the handshake
            // cannot be recognized as a push.
            DaemonEvent::Rejected {
                kind,
                address,
                reason,
            } if *kind != Rejection::Handshake => Some((address.ip(), reason.clone())),
            _ => None,
        };
        let mut kinds = self.0.lock();
        if let Some(held_back) = kinds.get_mut(kind) {
            held_back.count += 1;
            held_back.text = event.to_string();
            held_back.from = from;
            held_back.others |= whose.is_none() || held_back.first != whose;
            return false;
        }
        kinds.insert(
            kind,
            HeldBack {
                first: whose,
                ..HeldBack::default()
            },
        );
        true
    }

    async fn log_held_back(self, kind: &'static str) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let Some(HeldBack {
                count, text, from, ..
            }) = self.take(kind)
            else {
                return;
            };
            let from = from.map(tracing::field::display);
            let others = match count {
                1 => String::new(),
                count => format!("; and {} more of this kind in one second", count - 1),
            };
            if kind == ACCEPT {
                error!(event = "accept", count, "{text}{others}");
            } else {
                warn!(event = "rejected", kind, from, count, "{text}{others}");
            }
        }
    }

    /// Takes the events of a kind that were held back since the last line of that kind. If no event was held back,
    /// forgets the kind.
    fn take(&self, kind: &'static str) -> Option<HeldBack> {
        let mut kinds = self.0.lock();
        let held_back = std::mem::take(kinds.get_mut(kind)?);
        let is_one_transfer = !held_back.others && held_back.count < u64::from(LANES_MAX);
        if held_back.count == 0 || is_one_transfer {
            kinds.remove(kind);
            return None;
        }
        Some(held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_of_one_refused_push_are_one_line() {
        let limit = LogRateLimit::default();
        let meet = |port: u16| {
            let (kind, address) = (
                Rejection::UnknownKey,
                SocketAddr::from(([192, 0, 2, 7], port)),
            );
            let event = DaemonEvent::Rejected {
                kind,
                address,
                reason: "unknown key".to_owned(),
            };
            limit.is_first(kind.name(), Some(address), &event)
        };
        assert!(meet(1));
        assert!((2..14).all(|port| !meet(port)));
        assert_eq!(limit.take("unknown_key"), None);
        assert!(meet(14), "it is forgotten");
        assert!((15..200).all(|port| !meet(port)));
        assert_eq!(
            limit.take("unknown_key").map(|held_back| held_back.count),
            Some(185),
            "too many for one"
        );
    }

    #[test]
    fn the_first_of_a_kind_is_told_and_the_others_are_counted() {
        let (limit, from) = (LogRateLimit::default(), "[::1]:7".parse().unwrap());
        let meet = |kind: Rejection, reason: &str| {
            let event = DaemonEvent::Rejected {
                kind,
                address: from,
                reason: reason.to_owned(),
            };
            limit.is_first(kind.name(), Some(from), &event)
        };
        assert!(meet(Rejection::Handshake, "a") && meet(Rejection::UnknownKey, "b"));
        assert!(!meet(Rejection::Handshake, "c") && !meet(Rejection::Handshake, "d"));
        let text = "rejected [::1]:7: d".to_owned();
        let held_back = HeldBack {
            first: None,
            others: true,
            count: 2,
            text,
            from: Some(from),
        };
        assert_eq!(limit.take("handshake"), Some(held_back));
        assert_eq!(
            (limit.take("handshake"), limit.take("unknown_key")),
            (None, None)
        );
        limit.0.lock().clear();
        assert!(meet(Rejection::Handshake, "e") && limit.0.lock().len() == 1);
    }
}
