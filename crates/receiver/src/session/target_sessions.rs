//! Which sessions of this process work at which targets, so that the next one at a target finds no dead one there.
//!
//! A kernel reports when a sender over TCP or ssh is gone, but nobody does over QUIC. So when a session begins, each
//! session of the same owner at an overlapping target that depends on pings alone has to prove anew that its sender is
//! alive. If that takes too long, it ends as if it had been cut off.
//!
//! The new session waits for those that end, since they hold parts and journals that it may take over. It does not
//! wait for ever: whoever hangs in its storage has no lease any more. What different owners name is beneath roots of
//! their own, which are not compared.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use zmove_transport::ControlError;
use zmove_types::Lock;

use crate::session::keeping::KeptLease;

/// The sessions of one process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TargetSessions(Arc<Lock<Vec<Asked>>>);

/// A target as the owner of a session asks for it, beneath a root of its own.
#[derive(Clone, Debug)]
struct Place {
    owner: String,
    target: Vec<u8>,
}

/// A session, as others ask it whether its sender is alive. The channel closes when the session has ended.
#[derive(Clone, Debug)]
struct Asked {
    place: Place,
    question: Arc<Notify>,
    /// When it last began to find out that its sender was alive.
    heard: watch::Receiver<Option<Instant>>,
}

/// A session that works at a target until this is dropped.
#[derive(Debug)]
pub(crate) struct Working {
    sessions: TargetSessions,
    question: Arc<Notify>,
    heard: watch::Sender<Option<Instant>>,
}

/// How long a new session waits for those that end: about as long as most storage takes for a flush.
const WAIT_MAX: Duration = Duration::from_secs(5);

impl TargetSessions {
    /// Waits until each session at an overlapping target has heard of its sender or has ended, but not for ever. From
    /// then on the new session works there as well.
    pub(crate) async fn begin(&self, owner: &str, target: &[u8]) -> Working {
        let place = Place {
            owner: owner.to_owned(),
            target: target.to_vec(),
        };
        let question = Arc::<Notify>::default();
        let (heard, hears) = watch::channel(None);
        let others = {
            let mut all = self.0.lock();
            let others: Vec<_> = all
                .iter()
                .filter(|other| other.place.overlaps(&place))
                .cloned()
                .collect();
            all.push(Asked {
                place,
                question: Arc::clone(&question),
                heard: hears,
            });
            others
        };
        let working = Working {
            sessions: self.clone(),
            question,
            heard,
        };
        let answered = async {
            let now = Instant::now();
            others.iter().for_each(|other| other.question.notify_one());
            for Asked { mut heard, .. } in others {
                let is_alive = |heard: &Option<Instant>| heard.is_some_and(|since| since >= now);
                let _or_ended = heard.wait_for(is_alive).await;
            }
        };
        let _or_late = tokio::time::timeout(WAIT_MAX, answered).await;
        working
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
    /// Answers those who begin, and resolves with an error once the sender does not prove that it is alive.
    pub(crate) async fn is_in_the_way(&self, kept: &KeptLease) -> ControlError {
        loop {
            self.question.notified().await;
            let since = Instant::now();
            if !kept.is_proved_anew().await {
                return io::Error::from(io::ErrorKind::TimedOut).into();
            }
            self.heard.send_replace(Some(since));
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut all = self.sessions.0.lock();
        all.retain(|asked| !Arc::ptr_eq(&asked.question, &self.question));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(sessions: &TargetSessions, target: &'static [u8]) -> tokio::task::JoinHandle<Working> {
        let sessions = sessions.clone();
        tokio::spawn(async move { sessions.begin("me", target).await })
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_waits_for_those_that_end_at_an_overlapping_target() {
        let sessions = TargetSessions::default();
        let first = sessions.begin("me", b"/a/b").await;
        let started = tokio::time::Instant::now();
        drop(sessions.begin("me", b"/a/bc").await);
        drop(sessions.begin("you", b"/a/b").await);
        assert_eq!(started.elapsed(), Duration::ZERO);
        let mut others = Vec::new();
        for target in [&b"/a"[..], b"/a/b/", b"/a/b/c"] {
            let other = begin(&sessions, target);
            tokio::task::yield_now().await;
            assert!(!other.is_finished());
            others.push(other);
        }
        drop(first);
        others.remove(0).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_whose_sender_is_alive_is_waited_for_each_time_until_it_knows() {
        let sessions = TargetSessions::default();
        let working = sessions.begin("me", b"/a").await;
        let kept = KeptLease::constant();
        for _ in 0..2 {
            let next = begin(&sessions, b"/a");
            tokio::task::yield_now().await;
            assert!(!next.is_finished());
            tokio::select! {
                _lost = working.is_in_the_way(&kept) => panic!("its sender is there"),
                next = next => drop(next.unwrap()),
            }
        }
        drop(working);
        assert!(sessions.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_hangs_is_not_waited_for_for_ever() {
        let sessions = TargetSessions::default();
        let _hangs = sessions.begin("me", b"/a").await;
        let started = tokio::time::Instant::now();
        drop(sessions.begin("me", b"/a").await);
        assert_eq!(started.elapsed(), WAIT_MAX);
    }
}
