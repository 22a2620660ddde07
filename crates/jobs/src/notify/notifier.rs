//! The notifier of the runner. It has one thread for each method, which sends the notifications one after the other.
//!
//! **Invariant:** a notification is sent again until its result is recorded, so each event arrives at least once.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::config::NotifyConfig;
use super::event::EventDocument;
use crate::error::StoreError;
use crate::moment::Moment;
use crate::place::JobsDirectory;
use crate::store::{Notification, NotifyMethod, Store};

/// The runner's handle of the notifier threads.
#[derive(Debug)]
pub(crate) struct Notifier {
    file: PathBuf,
    wakes: Vec<SyncSender<()>>,
    /// The time without progress after which a job's stall is reported by a notification.
    pub(crate) stalled_after: Duration,
    /// The last error of the configuration file. It is kept so that each error is reported once.
    error: Option<String>,
}

impl Notifier {
    /// Starts the threads, which send the notifications in the store of `place` as `file` configures.
    ///
    /// # Errors
    /// The store cannot be opened, or a thread cannot be started.
    pub(crate) fn begin(place: &JobsDirectory, file: PathBuf) -> Result<Self, StoreError> {
        let mut wakes = Vec::new();
        for method in NotifyMethod::ALL {
            let (wake, wakeups) = sync_channel(1);
            let store = Store::open(place)?;
            let worker = Worker {
                method,
                store_id: store.id()?,
                store,
                file: file.clone(),
                unrecorded: None,
            };
            Builder::new()
                .name(method.to_string())
                .spawn(move || worker.run(&wakeups))
                .map_err(StoreError::io("start a thread for", place.path()))?;
            wakes.push(wake);
        }
        Ok(Self {
            file,
            wakes,
            stalled_after: Duration::MAX,
            error: None,
        })
    }

    /// Reads the configuration file, drops notifications for methods that are not configured, and wakes the threads. If
    /// the file has an error, no notification is sent until the file is valid again. The first call that finds the
    /// error returns its message.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub(crate) fn reload_config(
        &mut self,
        store: &mut Store,
    ) -> Result<Option<String>, StoreError> {
        let config = match NotifyConfig::read(&self.file) {
            Ok(config) => config,
            Err(error) => {
                let error = error.to_string();
                let is_new = self.error.as_ref() != Some(&error);
                self.error = Some(error.clone());
                return Ok(is_new.then(|| format!("{error}: no notifications are sent")));
            }
        };
        self.error = None;
        self.stalled_after = config.stalled_after();
        let mut absent = NotifyMethod::ALL.to_vec();
        absent.retain(|method| !config.has(*method));
        store.drop_notifications(&absent)?;
        for wake in &self.wakes {
            // If the channel is full, the thread will wake up anyway.
            let _wakes_anyway = wake.try_send(());
        }
        Ok(None)
    }
}

/// The worker of one method, which runs in its own thread.
struct Worker {
    method: NotifyMethod,
    store_id: String,
    store: Store,
    file: PathBuf,
    /// The result of an attempt that could not be recorded yet, because the store failed.
    unrecorded: Option<(Notification, Result<(), String>)>,
}

impl Worker {
    /// Sends notifications until the runner ends.
    fn run(mut self, wakeups: &Receiver<()>) {
        loop {
            // An error of the store is not reported here, because the runner encounters and reports it too.
            let pause = self.work(Moment::now()).unwrap_or(TURN);
            if wakeups.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Sends the next notification, if one is due. Returns how long to wait before the next call.
    fn work(&mut self, now: Moment) -> Result<Duration, StoreError> {
        if let Some((notification, result)) = &self.unrecorded {
            self.store.record_attempt(notification, result, now)?;
            self.unrecorded = None;
        }
        let Some(notification) = self.store.next_notification(self.method, now)? else {
            let next = self.store.next_attempt(self.method, now)?;
            return Ok(next.map_or(PAUSE_MAX, |next| next.since(now).clamp(TURN, PAUSE_MAX)));
        };
        // Errors of the file are ignored here. The runner also reads it, reports its errors and drops notifications for
        // methods that are not configured.
        let config = NotifyConfig::read(&self.file).unwrap_or_default();
        if !config.has(self.method) {
            return Ok(PAUSE_MAX);
        }
        let job = self.store.job(notification.event.job)?;
        let event = EventDocument::new(&notification.event, &job, &self.store_id);
        self.unrecorded = Some((notification, config.send(self.method, &event)));
        Ok(Duration::ZERO)
    }
}

/// The wait after an error of the store.
const TURN: Duration = Duration::from_millis(100);
/// The maximum wait if nothing is due. The clock may be set during the wait.
const PAUSE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::super::webhook::tests::Authority;
    use super::*;
    use crate::store::NotificationState;
    use crate::store::tests::{START, job, site};

    #[test]
    fn an_event_goes_to_the_hook_and_to_the_webhook() {
        let mut site = site();
        let id = site.submit(&job("x"));
        site.store.cancel(id, START).unwrap();
        let authority = Authority::new();
        let (address, server) = authority.answer("HTTP/1.1 204 No Content\r\n\r\n");
        let file = authority.directory.path().join("notify.toml");
        let read = authority.directory.path().join("read");
        let text = format!(
            "[hook]\ncommand = ['/bin/cp', '/dev/stdin', '{}']\n
             [webhook]\nurl = 'https://localhost:{}/'\nca_file = 'ca.pem'",
            read.display(),
            address.port()
        );
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let mut notifier = Notifier::begin(&site.place, file).unwrap();
        assert_eq!(notifier.reload_config(&mut site.store).unwrap(), None);
        let request = server.join().unwrap();
        let (_, posted) = request.split_once("\r\n\r\n").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let sent = || site.store.notifications(id).unwrap();
        while sent()
            .iter()
            .any(|sent| sent.state != NotificationState::Delivered)
        {
            assert!(Instant::now() < until, "{:?}", sent());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(
            std::fs::read_to_string(read).unwrap(),
            format!("{posted}\n")
        );
        assert!(posted.contains(r#""event":"cancelled""#), "{posted}");
    }
}
