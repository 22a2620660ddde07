//! Tracks the sessions of this process by target, so that a new session does not conflict with an earlier session whose
//! sender is dead.
//!
//! The kernel reports the loss of a sender over TCP or ssh, but not over QUIC. So when a session begins, QUIC sessions
//! at overlapping targets publish nothing until their senders have echoed a new ping ([`SenderLiveness`]). Targets are
//! compared by their positions in file systems ([`Region`]) and not by their paths, because links and bind mounts give
//! a directory several paths.
//!
//! If the sender of an earlier session of the same owner does not echo in time, that session ends as if its connection
//! was lost. The new session waits for its end, because it may take over parts and journals. This wait is limited: a
//! session that hangs in its storage cannot publish without a lease.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use zmove_disk::{Region, mounts};
use zmove_types::Lock;

use crate::session::leases::keeping::{Echo, KeptLease, SenderLiveness};

/// The sessions of one process. Clones share the same registry.
#[derive(Clone, Debug, Default)]
pub struct TargetSessions(Arc<Lock<Vec<TargetSession>>>);

/// The data about one session that later sessions need.
#[derive(Clone, Debug)]
struct TargetSession {
    owner: String,
    /// The regions of the target and of the file systems mounted below it. Empty if the target will be refused, and
    /// `None` if the regions are unknown.
    target: Option<Vec<Region>>,
    sender: SenderLiveness,
    /// Ends the session when `true` is sent. The channel has no receivers after the session has ended.
    lost: Arc<watch::Sender<bool>>,
}

/// Registers a session at its target until this value is dropped.
#[derive(Debug)]
pub(crate) struct ActiveSession {
    sessions: TargetSessions,
    own: Arc<watch::Sender<bool>>,
    lost: watch::Receiver<bool>,
}

/// Maximum wait of a new session for ending sessions. It is about the time that most storage takes to flush.
const WAIT_MAX: Duration = Duration::from_secs(5);

impl TargetSessions {
    /// Registers a new session at its target. Waits, for a limited time, until each session of the same owner at an
    /// overlapping target has ended or has proved that its sender is alive.
    pub(crate) async fn begin(
        &self,
        owner: &str,
        target: Option<PathBuf>,
        kept: &KeptLease,
    ) -> ActiveSession {
        let (own, lost) = watch::channel(false);
        let own = Arc::new(own);
        let new = TargetSession {
            owner: owner.to_owned(),
            target: regions_of_target(target).await,
            sender: kept.sender.clone(),
            lost: Arc::clone(&own),
        };
        let mut unproven: Vec<_> = {
            let mut all = self.0.lock();
            let needs_echo =
                |other: &&TargetSession| other.overlaps(&new) && other.sender.needs_echo();
            let unproven: Vec<_> = all.iter().filter(needs_echo).cloned().collect();
            unproven
                .iter()
                .for_each(|other| other.sender.require_new_echo());
            all.push(new);
            unproven
        };
        unproven.retain(|other| other.owner == owner);
        let working = ActiveSession {
            sessions: self.clone(),
            own,
            lost,
        };
        let settled: JoinSet<_> = unproven
            .into_iter()
            .map(TargetSession::confirm_or_end)
            .collect();
        let _or_late = timeout(WAIT_MAX, settled.join_all()).await;
        working
    }
}

impl TargetSession {
    /// Returns whether one of the two targets equals or contains the other. Unknown targets count as overlapping.
    fn overlaps(&self, other: &Self) -> bool {
        let Some((own, others)) = self.target.as_ref().zip(other.target.as_ref()) else {
            return true;
        };
        let meets = |own: &Region| others.iter().any(|other| own.overlap(other).is_some());
        own.iter().any(meets)
    }

    /// Ends a session whose sender does not echo a ping, and waits for its end. If its connection has already ended,
    /// only waits, because the session may be completing normally.
    async fn confirm_or_end(self) {
        let echo = self.sender.echo().await;
        if echo == Echo::Late {
            self.lost.send_replace(true);
        }
        if echo != Echo::Received {
            self.lost.closed().await;
        }
    }
}

/// Returns the regions of a target, or `None` if they cannot be determined in time. In that case, opening the target
/// reports the unresponsive storage later.
async fn regions_of_target(target: Option<PathBuf>) -> Option<Vec<Region>> {
    let Some(path) = target else {
        return Some(Vec::new());
    };
    let found = timeout(WAIT_MAX, spawn_blocking(move || regions_of(&path)));
    found.await.ok()?.ok()?
}

/// Returns the regions of a path, whose last components need not exist.
fn regions_of(path: &Path) -> Option<Vec<Region>> {
    let mut above = path.ancestors();
    let (top, real) = above.find_map(|top| Some((top, top.canonicalize().ok()?)))?;
    let mut regions = Region::find_all(&real, &mounts());
    let rest = path.strip_prefix(top).ok()?;
    if !rest.as_os_str().is_empty() {
        regions.truncate(1);
        regions[0].root.push(rest);
    }
    Some(regions)
}

impl ActiveSession {
    /// Waits until another session has found that the sender of this session is lost.
    pub(crate) async fn wait_until_lost(&self) {
        let mut lost = self.lost.clone();
        // This value holds the sending half of the channel, so the wait ends only when the flag is set.
        let _lost = lost.wait_for(|lost| *lost).await;
    }
}

impl Drop for ActiveSession {
    fn drop(&mut self) {
        let mut all = self.sessions.0.lock();
        all.retain(|other| !Arc::ptr_eq(&other.lost, &self.own));
    }
}

#[cfg(test)]
mod tests {
    use zmove_transport::{ControlReader, PathProbe, control_pair};

    use super::*;
    use crate::session::leases::keeping::SenderLocation;

    /// Returns a lease whose sender never echoes a ping, and the connection to that sender. The kernel reports nothing,
    /// as with QUIC.
    fn without_echo() -> (KeptLease, ControlReader) {
        let (near, _far) = tokio::io::duplex(1024);
        let (reader, writer) = control_pair(near);
        let connection = PathProbe::default();
        let kept = KeptLease::begin(SenderLocation::OtherProcess, writer.pinger(), connection);
        (kept, reader)
    }

    async fn begin(
        sessions: &TargetSessions,
        owner: &str,
        target: impl Into<PathBuf>,
        kept: &KeptLease,
    ) -> ActiveSession {
        sessions.begin(owner, Some(target.into()), kept).await
    }

    /// Returns the time that a session waits before it begins.
    async fn waited(
        sessions: &TargetSessions,
        owner: &str,
        target: impl Into<PathBuf>,
    ) -> Duration {
        let started = tokio::time::Instant::now();
        drop(begin(sessions, owner, target, &KeptLease::constant()).await);
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_waits_for_those_that_end_at_an_overlapping_target() {
        let sessions = TargetSessions::default();
        let (kept, _reader) = without_echo();
        let first = begin(&sessions, "me", "/nowhere/b", &kept).await;
        let [beside, of_another] = [("me", "/nowhere/bc"), ("you", "/nowhere/b")];
        for (owner, target) in [beside, of_another] {
            assert_eq!(waited(&sessions, owner, target).await, Duration::ZERO);
        }
        for target in ["/nowhere", "/nowhere/b/", "/nowhere/b/c"] {
            assert_eq!(waited(&sessions, "me", target).await, WAIT_MAX, "it hangs");
        }
        let next = async {
            drop(begin(&sessions, "me", "/nowhere", &KeptLease::constant()).await);
        };
        tokio::pin!(next);
        tokio::select! {
            () = &mut next => panic!("the first one has not ended"),
            () = first.wait_until_lost() => {}
        }
        drop(first);
        next.await;
        assert!(sessions.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn targets_overlap_where_links_lead() {
        let directory = tempfile::tempdir().unwrap();
        let [real, link] = ["real", "link"].map(|name| directory.path().join(name));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let sessions = TargetSessions::default();
        let (kept, _reader) = without_echo();
        let _first = begin(&sessions, "me", real, &kept).await;
        let target = link.join("new/er");
        assert_eq!(waited(&sessions, "me", target).await, WAIT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_whose_place_is_not_known_overlaps_with_all() {
        let session = |target| TargetSession {
            owner: String::new(),
            target,
            sender: KeptLease::constant().sender.clone(),
            lost: Arc::new(watch::Sender::new(false)),
        };
        let known = session(regions_of_target(Some("/".into())).await);
        let refused = session(regions_of_target(None).await);
        assert!(known.overlaps(&known) && !known.overlaps(&refused));
        assert!(session(None).overlaps(&known) && known.overlaps(&session(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_session_whose_sender_is_alive() {
        let sessions = TargetSessions::default();
        let working = begin(&sessions, "me", "/nowhere", &KeptLease::constant()).await;
        assert_eq!(waited(&sessions, "me", "/nowhere").await, Duration::ZERO);
        assert!(!*working.lost.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_whose_end_nobody_reports_has_to_echo_a_new_ping_whoever_comes_next() {
        let sessions = TargetSessions::default();
        let (kept, _reader) = without_echo();
        let _first = begin(&sessions, "me", "/nowhere", &kept).await;
        let echo = || kept.sender.lease.note_echo(kept.sender.lease.send_ping());
        echo();
        assert!(kept.sender.lease.holds());
        drop(begin(&sessions, "you", "/elsewhere", &KeptLease::constant()).await);
        assert!(kept.sender.lease.holds(), "of another target");
        drop(begin(&sessions, "you", "/nowhere/b", &KeptLease::constant()).await);
        assert!(!kept.sender.lease.holds());
        echo();
        assert!(kept.sender.lease.holds());
    }
}
