//! The sessions of this process by their targets, so that the next session at a target finds no dead one there.
//!
//! A kernel reports when a sender over TCP or ssh is gone, but nobody does over QUIC. So when a session begins, it asks
//! the senders of sessions over QUIC of the same owner at overlapping targets for an echo ([`SenderProof`]). A session
//! whose sender does not echo in time ends as if it had been cut off.
//!
//! The new session waits for sessions that end, since they hold parts and journals that it may take over. It does not
//! wait for ever: a session that hangs in its storage has no lease any more. Targets of different owners are beneath
//! roots of their own, which are not compared.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use zmove_types::Lock;

use crate::session::keeping::{Echo, KeptLease, SenderProof};

/// The sessions of one process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TargetSessions(Arc<Lock<Vec<TargetSession>>>);

/// A target as the owner of a session asks for it, beneath a root of its own.
#[derive(Clone, Debug)]
struct Place {
    owner: String,
    target: Vec<u8>,
}

/// A session, as the next ones see it.
#[derive(Clone, Debug)]
struct TargetSession {
    place: Place,
    sender: SenderProof,
    /// Ends the session with `true`. It has no receivers once the session has ended.
    lost: Arc<watch::Sender<bool>>,
}

/// A session that works at a target until this is dropped.
#[derive(Debug)]
pub(crate) struct Working {
    sessions: TargetSessions,
    own: Arc<watch::Sender<bool>>,
    lost: watch::Receiver<bool>,
}

/// How long a new session waits for those that end: about as long as most storage takes for a flush.
const WAIT_MAX: Duration = Duration::from_secs(5);

impl TargetSessions {
    /// Waits until each session at an overlapping target has a sender that is alive or has ended, but not for ever.
    /// From then on the new session works there as well.
    pub(crate) async fn begin(&self, owner: &str, target: &[u8], kept: &KeptLease) -> Working {
        let place = Place {
            owner: owner.to_owned(),
            target: target.to_vec(),
        };
        let (own, lost) = watch::channel(false);
        let own = Arc::new(own);
        let unproven: Vec<_> = {
            let mut all = self.0.lock();
            let unproven = all
                .iter()
                .filter(|other| other.place.overlaps(&place) && other.sender.needs_echo());
            let unproven = unproven.cloned().collect();
            all.push(TargetSession {
                place,
                sender: kept.proof(),
                lost: Arc::clone(&own),
            });
            unproven
        };
        let working = Working {
            sessions: self.clone(),
            own,
            lost,
        };
        let settled: JoinSet<_> = unproven.into_iter().map(TargetSession::settle).collect();
        let _or_late = tokio::time::timeout(WAIT_MAX, settled.join_all()).await;
        working
    }
}

impl TargetSession {
    /// Ends a session whose sender does not echo a ping, and waits until the session has ended. A session whose
    /// connection has ended does so by itself: it may have come to a good end.
    async fn settle(self) {
        let echo = self.sender.echo().await;
        if echo == Echo::Late {
            self.lost.send_replace(true);
        }
        if echo != Echo::Received {
            self.lost.closed().await;
        }
    }
}

impl Place {
    /// Whether one is the other, or within it.
    fn overlaps(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|place| Path::new(OsStr::from_bytes(&place.target)));
        self.owner == other.owner && (own.starts_with(others) || others.starts_with(own))
    }
}

impl Working {
    /// Waits until another session has found that this one has lost its sender.
    pub(crate) async fn is_lost(&self) {
        let mut lost = self.lost.clone();
        // This holds the sending end, so the wait ends no other way.
        let _lost = lost.wait_for(|lost| *lost).await;
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut all = self.sessions.0.lock();
        all.retain(|other| !Arc::ptr_eq(&other.lost, &self.own));
    }
}

#[cfg(test)]
mod tests {
    use zmove_transport::{ChannelHandle, ControlReader, control_pair};

    use super::*;
    use crate::session::keeping::SenderPlace;

    /// A lease whose sender never echoes a ping, as over QUIC, and the connection to that sender.
    fn without_echo() -> (KeptLease, ControlReader) {
        let (near, _far) = tokio::io::duplex(1024);
        let (reader, writer) = control_pair(near);
        let connection = ChannelHandle::default();
        let kept = KeptLease::begin(SenderPlace::Elsewhere, writer.pinger(), connection);
        (kept, reader)
    }

    /// The time that a session waits before it begins.
    async fn waited(sessions: &TargetSessions, owner: &str, target: &[u8]) -> Duration {
        let started = tokio::time::Instant::now();
        let kept = KeptLease::constant();
        drop(sessions.begin(owner, target, &kept).await);
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_waits_for_those_that_end_at_an_overlapping_target() {
        let sessions = TargetSessions::default();
        let (kept, _reader) = without_echo();
        let first = sessions.begin("me", b"/a/b", &kept).await;
        assert_eq!(waited(&sessions, "me", b"/a/bc").await, Duration::ZERO);
        assert_eq!(waited(&sessions, "you", b"/a/b").await, Duration::ZERO);
        for target in [&b"/a"[..], b"/a/b/", b"/a/b/c"] {
            assert_eq!(waited(&sessions, "me", target).await, WAIT_MAX, "it hangs");
        }
        let next = async {
            drop(sessions.begin("me", b"/a", &KeptLease::constant()).await);
        };
        tokio::pin!(next);
        tokio::select! {
            () = &mut next => panic!("the first one has not ended"),
            () = first.is_lost() => {}
        }
        drop(first);
        next.await;
        assert!(sessions.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_session_whose_sender_is_alive() {
        let sessions = TargetSessions::default();
        let working = sessions.begin("me", b"/a", &KeptLease::constant()).await;
        assert_eq!(waited(&sessions, "me", b"/a").await, Duration::ZERO);
        assert!(!*working.lost.borrow());
    }
}
