//! Leases of targets that broken or finished sessions still write to: a new session to the same target waits for them.
//!
//! A broken session still stores what it has received and verified, and a finished one sets the times of directories.
//! When a sender over QUIC is killed nobody says so, and its session would do that much later. So a new one has those
//! that run ask their peers whether they are still there, and one whose peer says nothing ends as if it had been cut
//! off.
//!
//! The wait holds among the sessions of one process, and among all receivers that ssh starts for one user on one host
//! (`lease_files`).
//!
//! **Invariant:** a session writes nothing more once another to the same target has begun after this side has noticed
//! the break, so that the older one never has the last word.

mod lease_files;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use zmove_transport::{ChannelHandle, ControlError};
use zmove_wire::{Refusal, RefusalCode};

use lease_files::{LeaseFile, LeaseFiles};

use zmove_types::Lock;

/// The targets that sessions of one daemon, or of several receivers of one user, still write to; clones share them.
#[derive(Clone, Debug, Default)]
pub struct TargetLeases(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The number of leases, by owner and by target as it was asked for.
    targets: Lock<HashMap<Place, usize>>,
    /// The sessions that run.
    running: Lock<HashMap<Place, Vec<Asked>>>,
    changed: Notify,
    /// The leases of all processes of the user, as locked files.
    files: Option<Arc<LeaseFiles>>,
}

/// The owner of a session, and its target.
type Place = (String, Vec<u8>);

/// How a session that runs is asked whether its peer is still there, and when it last began to find out that it was;
/// the channel is closed when the session has ended.
#[derive(Clone, Debug)]
struct Asked {
    question: Arc<Notify>,
    heard: watch::Receiver<Option<Instant>>,
}

/// A session that works at a target until this is dropped.
#[derive(Debug)]
pub(crate) struct Working {
    leases: TargetLeases,
    place: Place,
    question: Arc<Notify>,
    heard: watch::Sender<Option<Instant>>,
}

/// The lease of a target by a session that is ending; it has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct TargetLease {
    leases: TargetLeases,
    place: Place,
    file: Option<LeaseFile>,
}

/// The longest wait for another session, whose threads wait for storage alone, perhaps for a long flush. Less than a
/// sender waits for `Opened`, so that it receives the refusal.
const WAIT_MAX: Duration = Duration::from_secs(100);

/// How often to check whether sessions of other processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The longest wait for the directory of lease files, which may be on storage that does not answer, while the peer
/// waits.
const FILES_WAIT_MAX: Duration = Duration::from_secs(2);

impl TargetLeases {
    /// The leases of all processes of this host that name this directory, which are all one owner's. The directory is
    /// made when it is needed; where it cannot be written, only sessions of this process wait for each other.
    #[must_use]
    pub fn shared_in(directory: PathBuf) -> Self {
        Self(Arc::new(Shared {
            files: Some(Arc::new(LeaseFiles::new(directory))),
            ..Shared::default()
        }))
    }

    pub(crate) async fn acquire(&self, owner: &str, target: &[u8]) -> TargetLease {
        let place = (owner.to_owned(), target.to_vec());
        *self.0.targets.lock().entry(place.clone()).or_default() += 1;
        let mut lease = TargetLease {
            leases: self.clone(),
            place,
            file: None,
        };
        if let Some(files) = &self.0.files {
            let files = Arc::clone(files);
            let target = target.to_vec();
            let created = tokio::task::spawn_blocking(move || files.create(&target));
            lease.file = tokio::time::timeout(FILES_WAIT_MAX, created)
                .await
                .ok()
                .and_then(Result::ok)
                .flatten();
        }
        lease
    }

    /// Notes that a session begins to work at a target.
    pub(crate) fn work_at(&self, owner: &str, target: &[u8]) -> Working {
        let place = (owner.to_owned(), target.to_vec());
        let question = Arc::<Notify>::default();
        let (heard, hears) = watch::channel(None);
        let asked = Asked {
            question: Arc::clone(&question),
            heard: hears,
        };
        self.0
            .running
            .lock()
            .entry(place.clone())
            .or_default()
            .push(asked);
        Working {
            leases: self.clone(),
            place,
            question,
            heard,
        }
    }

    /// Waits until each session that works at a target has heard of its peer, or has ended.
    async fn ask_working(&self, place: &Place) {
        let running = self
            .0
            .running
            .lock()
            .get(place)
            .cloned()
            .unwrap_or_default();
        let now = Instant::now();
        running.iter().for_each(|asked| asked.question.notify_one());
        for Asked { mut heard, .. } in running {
            let _or_ended = heard
                .wait_for(|heard| heard.is_some_and(|since| since >= now))
                .await;
        }
    }

    /// Waits until no session of `owner` to `target` is ending, nor one of another process, and none that works there
    /// has lost its peer without knowing it.
    ///
    /// # Errors
    /// The refusal for the peer, when that takes too long.
    pub(crate) async fn wait_until_free(&self, owner: &str, target: &[u8]) -> Result<(), Refusal> {
        let place = (owner.to_owned(), target.to_vec());
        let ended = async {
            self.ask_working(&place).await;
            loop {
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if !self.0.targets.lock().contains_key(&place) {
                    break;
                }
                changed.await;
            }
            while self.other_process_has(target).await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(WAIT_MAX, ended).await.map_err(|_| {
            Refusal::new(
                RefusalCode::Busy,
                "an earlier transfer to this target is still ending: its storage does not answer",
            )
        })
    }

    async fn other_process_has(&self, target: &[u8]) -> bool {
        let Some(files) = self.0.files.clone() else {
            return false;
        };
        let target = target.to_vec();
        tokio::task::spawn_blocking(move || files.contain(&target))
            .await
            .unwrap_or(false)
    }
}

impl Working {
    /// Resolves when another session asks for the target and the peer is not there any more, with that as an error.
    pub(crate) async fn is_in_the_way_of_others(&self, peer: ChannelHandle) -> ControlError {
        loop {
            self.question.notified().await;
            let since = Instant::now();
            if !peer.beats().await {
                return io::Error::from(io::ErrorKind::TimedOut).into();
            }
            self.heard.send_replace(Some(since));
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut running = self.leases.0.running.lock();
        if let Some(at_place) = running.get_mut(&self.place) {
            at_place.retain(|asked| !Arc::ptr_eq(&asked.question, &self.question));
            if at_place.is_empty() {
                running.remove(&self.place);
            }
        }
    }
}

impl Drop for TargetLease {
    fn drop(&mut self) {
        drop(self.file.take());
        let mut targets = self.leases.0.targets.lock();
        if let Some(count) = targets.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                targets.remove(&self.place);
            }
        }
        drop(targets);
        self.leases.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_waits_for_all_that_end_at_its_target_and_for_no_other() {
        let leases = TargetLeases::default();
        let (first, second) = (
            leases.acquire("me", b"/a").await,
            leases.acquire("me", b"/a").await,
        );
        assert_eq!(leases.wait_until_free("me", b"/b").await, Ok(()));
        assert_eq!(leases.wait_until_free("other", b"/a").await, Ok(()));
        let waiting = tokio::spawn({
            let leases = leases.clone();
            async move { leases.wait_until_free("me", b"/a").await }
        });
        tokio::task::yield_now().await;
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_works_is_asked_each_time_and_waited_for_until_it_has_heard_of_its_peer_or_ended()
     {
        let leases = TargetLeases::default();
        let working = leases.work_at("me", b"/a");
        assert_eq!(leases.wait_until_free("me", b"/b").await, Ok(()));
        let ask = || {
            let leases = leases.clone();
            tokio::spawn(async move { leases.wait_until_free("me", b"/a").await })
        };
        for _ in 0..2 {
            let asking = ask();
            tokio::task::yield_now().await;
            assert!(!asking.is_finished());
            tokio::select! {
                _lost = working.is_in_the_way_of_others(ChannelHandle::default()) => panic!("its peer is there"),
                asked = asking => assert_eq!(asked.unwrap(), Ok(())),
            }
        }
        let asking = ask();
        tokio::task::yield_now().await;
        drop(working);
        assert_eq!(asking.await.unwrap(), Ok(()));
        assert!(leases.0.running.lock().is_empty());
    }

    /// Two values that share a directory stand for two processes: a file's lock belongs to whoever has opened it.
    #[tokio::test(start_paused = true)]
    async fn a_session_waits_for_other_processes_and_takes_down_what_dead_ones_have_left() {
        let directory = tempfile::tempdir().unwrap();
        let directory_of_leases = directory.path().join("ending");
        let [one, other] = [(); 2].map(|()| TargetLeases::shared_in(directory_of_leases.clone()));
        assert_eq!(other.wait_until_free("me", b"/a").await, Ok(()));
        let lease = one.acquire("me", b"/a").await;
        assert_eq!(other.wait_until_free("me", b"/b").await, Ok(()));
        let left_behind = std::fs::read_dir(&directory_of_leases)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let waiting = tokio::spawn(async move { other.wait_until_free("you", b"/a").await });
        tokio::time::sleep(2 * POLL_INTERVAL).await;
        assert!(!waiting.is_finished());
        drop(lease);
        assert_eq!(waiting.await.unwrap(), Ok(()));
        std::fs::write(&left_behind, "").unwrap();
        assert_eq!(one.wait_until_free("me", b"/a").await, Ok(()));
        assert!(!left_behind.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_end_is_told() {
        let leases = TargetLeases::default();
        let _lease = leases.acquire("me", b"/a").await;
        let refusal = leases.wait_until_free("me", b"/a").await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Busy);
    }
}
