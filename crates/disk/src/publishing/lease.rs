//! The right of a receiver to publish, which depends on a live sender.
//!
//! To *publish* is to create or remove a final name, to write into a file that has a final name, or to change
//! attributes at the target. A receiver may be suspended, or its storage may stop responding, and it may resume hours
//! after its sender has disconnected. By then, another transfer may have stored newer data. So each call that publishes
//! takes a [`Permit`]. A [`Lease`] issues a permit only if the sender has echoed a ping that this receiver sent during
//! the last ten seconds.
//!
//! An echo may have waited in a buffer while this process was suspended. So the age of an echo is measured from the
//! time when the ping was *sent*. Two rules cover suspensions of less than ten seconds:
//!
//! - If no thread of this process has run for half a second, a permit requires the echo of a ping that is sent
//!   afterwards.
//! - If a thread's last call under a permit, or its last flush, took longer than half a second, the same requirement
//!   applies to that thread.
//!
//! **Invariant:** a permit cannot be stored or cloned, and a single call consumes it. So after the sender has
//! disconnected, each thread can make at most one more call, for which the permit was issued just before.

use std::cell::Cell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use zmove_types::Lock;

/// Maximum age of an echoed ping that still proves that the sender is alive, counted from when the ping was sent.
pub const LEASE_MAX: Duration = Duration::from_secs(10);
/// Maximum time without activity of a process or thread. After a longer time, it may have been suspended, and a permit
/// requires a new echo.
pub const SUSPENSION_MAX: Duration = Duration::from_millis(500);

/// The right to publish, shared by all threads of a session.
#[derive(Clone, Debug)]
pub struct Lease(Option<Arc<LeaseState>>);

/// The right to make one call that publishes.
#[must_use = "a permit is for one call"]
#[derive(Debug)]
pub struct Permit<'a> {
    _issued: Option<IssuedPermit<'a>>,
}

/// A clock that returns the time since the host booted, in nanoseconds, including the time during which the host was
/// suspended.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The state of a lease that depends on pings.
struct LeaseState {
    clock: Clock,
    /// Sends a ping with this value to the sender.
    ping: Box<dyn Fn(u64) + Send + Sync>,
    /// A copy of the control connection's descriptor, or `None` if the kernel does not report the end of that
    /// connection. The copy keeps the connection open, so it is dropped when the lease ends.
    connection: RwLock<Option<OwnedFd>>,
    /// Time at which the newest ping was sent.
    newest_sent: AtomicU64,
    /// Time at which the newest echoed ping was sent.
    newest_echoed: AtomicU64,
    /// Round-trip time of the last echo, in nanoseconds.
    round_trip: AtomicU64,
    /// Echoes of pings that were sent before this time do not count.
    since: AtomicU64,
    /// Time at which a thread last recorded that the process is running.
    last_run: AtomicU64,
    ended: AtomicBool,
    waiting: Lock<()>,
    changed: Condvar,
}

#[derive(Debug)]
struct IssuedPermit<'a> {
    lease: &'a LeaseState,
    at: u64,
}

/// The reason why no permit was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitRefusal {
    Ended,
    /// A permit requires the echo of a ping that was sent at or after this time.
    NeedsEchoSince(u64),
}

impl Permit<'_> {
    /// Returns a permit for an entry that has no final name yet. No lease is needed for such a permit.
    pub const fn for_hidden() -> Self {
        Self { _issued: None }
    }
}

thread_local! {
    /// Echoes of pings that were sent before this time do not count for this thread.
    static THREAD_VALID_SINCE: Cell<u64> = const { Cell::new(0) };
    /// Total time for which this thread has waited for echoes, over all leases.
    static PERMIT_WAIT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the total time for which the calling thread has waited for permits. This wait is caused by the sender, not
/// by the storage.
pub(crate) fn waited_for_permits() -> Duration {
    PERMIT_WAIT.get()
}

/// Interval at which a thread that waits for an echo checks whether the connection has been closed.
const HANGUP_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const LEASE_NANOS: u64 = 10_000_000_000;
pub(crate) const SUSPENSION_NANOS: u64 = 500_000_000;
const _: () = assert!(
    LEASE_NANOS as u128 == LEASE_MAX.as_nanos()
        && SUSPENSION_NANOS as u128 == SUSPENSION_MAX.as_nanos()
);

/// Returns the clock of this host.
#[must_use]
pub fn boot_clock() -> Clock {
    Arc::new(|| {
        let now = clock_gettime(ClockId::Boottime);
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(now.tv_nsec).unwrap_or(0)
    })
}

impl Lease {
    /// Returns a lease that never ends, for a source and target in the same process.
    #[must_use]
    pub const fn constant() -> Self {
        Self(None)
    }

    /// Returns a lease that holds while the sender echoes the values that `ping` sends. `connection` is a copy of the
    /// control connection's descriptor, or `None` if the kernel does not report the end of that connection.
    #[must_use]
    pub fn timed(
        clock: Clock,
        ping: impl Fn(u64) + Send + Sync + 'static,
        connection: Option<OwnedFd>,
    ) -> Self {
        let now = clock();
        Self(Some(Arc::new(LeaseState {
            clock,
            ping: Box::new(ping),
            connection: RwLock::new(connection),
            newest_sent: AtomicU64::new(0),
            newest_echoed: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
            since: AtomicU64::new(now),
            last_run: AtomicU64::new(now),
            ended: AtomicBool::new(false),
            waiting: Lock::new(()),
            changed: Condvar::new(),
        })))
    }

    /// Issues the right to make one call that publishes. Waits for a new echo if the last one is too old.
    ///
    /// # Errors
    /// Returns `ECONNABORTED` if the session has ended or its connection was closed.
    pub fn permit(&self) -> rustix::io::Result<Permit<'_>> {
        let issued = self.0.as_ref().map(|timed| timed.issue()).transpose()?;
        Ok(Permit { _issued: issued })
    }

    /// Returns whether a permit would be issued now. Does not wait for an echo.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|timed| timed.try_issue().is_ok())
    }

    /// Returns the age of the newest echoed ping, counted from the time when the ping was sent. Returns `None` in these
    /// cases:
    ///
    /// - The lease has ended.
    /// - The age exceeds [`LEASE_MAX`].
    /// - The age exceeds `within` plus the round-trip time of the last echo.
    #[must_use]
    pub fn echo_age(&self, within: Duration) -> Option<Duration> {
        let Some(timed) = &self.0 else {
            return Some(Duration::ZERO);
        };
        let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let echo = timed.round_trip.load(Ordering::Acquire);
        let within = within.saturating_add(echo).min(LEASE_NANOS);
        let newest_echoed = timed.newest_echoed.load(Ordering::Acquire);
        let age = (timed.clock)().saturating_sub(newest_echoed);
        (!timed.is_over() && newest_echoed > 0 && age <= within).then(|| Duration::from_nanos(age))
    }

    /// Sends a ping and returns its value. Also records that this process is running. The caller must call this
    /// function once per second.
    pub fn send_ping(&self) -> u64 {
        self.0.as_ref().map_or(0, |timed| timed.send_ping())
    }

    /// Records that this process is running. The caller must call this function at intervals shorter than
    /// [`SUSPENSION_MAX`].
    pub fn note_running(&self) {
        if let Some(timed) = &self.0 {
            timed.note_running();
        }
    }

    /// Records that the sender has echoed the ping with this value.
    pub fn note_echo(&self, value: u64) {
        if let Some(timed) = &self.0 {
            timed.note_echo(value);
        }
    }

    /// Invalidates all pings that were sent so far: their echoes no longer count.
    pub fn invalidate_pings(&self) {
        if let Some(timed) = &self.0 {
            timed.since.fetch_max((timed.clock)(), Ordering::AcqRel);
        }
    }

    /// Returns whether the lease has ended. An ended lease issues no permits.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|timed| timed.is_over())
    }

    /// Runs a slow call that publishes nothing. If the call takes longer than [`SUSPENSION_MAX`], the next permit of
    /// this thread requires the echo of a later ping.
    pub fn watch_slow_call<R>(&self, call: impl FnOnce() -> R) -> R {
        let _watched = self.0.as_ref().map(|timed| IssuedPermit {
            lease: timed,
            at: (timed.clock)(),
        });
        call()
    }

    /// Ends the lease. Nothing is published after this, and threads that wait for an echo get an error.
    pub fn end(&self) {
        if let Some(timed) = &self.0 {
            timed.end();
        }
    }
}

impl LeaseState {
    fn issue(&self) -> rustix::io::Result<IssuedPermit<'_>> {
        loop {
            match self.try_issue() {
                Ok(issued) => return Ok(issued),
                Err(PermitRefusal::Ended) => return Err(Errno::CONNABORTED),
                Err(PermitRefusal::NeedsEchoSince(oldest)) => {
                    self.send_ping();
                    self.wait_for_echo_since(oldest);
                }
            }
        }
    }

    fn try_issue(&self) -> Result<IssuedPermit<'_>, PermitRefusal> {
        let at = self.note_running();
        if self.is_over() {
            return Err(PermitRefusal::Ended);
        }
        let oldest = self
            .since
            .load(Ordering::Acquire)
            .max(THREAD_VALID_SINCE.get())
            .max(at.saturating_sub(LEASE_NANOS));
        if self.newest_echoed.load(Ordering::Acquire) < oldest {
            return Err(PermitRefusal::NeedsEchoSince(oldest));
        }
        Ok(IssuedPermit { lease: self, at })
    }

    /// Records that this process is running, and returns the current time. If the last record is older than
    /// [`SUSPENSION_MAX`], invalidates all earlier pings.
    fn note_running(&self) -> u64 {
        let now = (self.clock)();
        // The pings are invalidated before the run time is updated, so that no other thread misses the gap.
        if now.saturating_sub(self.last_run.load(Ordering::Acquire)) > SUSPENSION_NANOS {
            self.since.fetch_max(now, Ordering::AcqRel);
        }
        self.last_run.fetch_max(now, Ordering::AcqRel);
        now
    }

    fn send_ping(&self) -> u64 {
        let sent = self.note_running();
        self.newest_sent.fetch_max(sent, Ordering::AcqRel);
        (self.ping)(sent);
        sent
    }

    fn note_echo(&self, value: u64) {
        // A peer may send any value. An echo of a value that was never sent is ignored.
        if value <= self.newest_sent.load(Ordering::Acquire) {
            let took = (self.clock)().saturating_sub(value);
            self.round_trip.store(took, Ordering::Release);
            self.newest_echoed.fetch_max(value, Ordering::AcqRel);
        }
        self.wake();
    }

    /// Waits until an echo is received, the lease ends, or one second has passed. The caller then checks the connection
    /// again.
    fn wait_for_echo_since(&self, oldest: u64) {
        let began = Instant::now();
        let waiting = self.waiting.lock();
        let waited = self
            .changed
            .wait_timeout_while(waiting, HANGUP_CHECK_INTERVAL, |()| {
                self.newest_echoed.load(Ordering::Acquire) < oldest
                    && !self.ended.load(Ordering::Acquire)
            });
        drop(waited);
        PERMIT_WAIT.set(PERMIT_WAIT.get() + began.elapsed());
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.has_hung_up()
    }

    /// Returns whether the kernel reports that the connection was closed. The kernel does not detect every loss of a
    /// connection, so this check only lets the receiver stop sooner.
    fn has_hung_up(&self) -> bool {
        let connection = self
            .connection
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = &*connection else {
            return false;
        };
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut polled = [PollFd::new(connection, PollFlags::RDHUP)];
        let over = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        poll(&mut polled, Some(&at_once)).is_ok_and(|_| polled[0].revents().intersects(over))
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        *self
            .connection
            .write()
            .unwrap_or_else(PoisonError::into_inner) = None;
        self.wake();
    }

    fn wake(&self) {
        let _whoever_begins_to_wait = self.waiting.lock();
        self.changed.notify_all();
    }
}

impl Drop for IssuedPermit<'_> {
    fn drop(&mut self) {
        let now = (self.lease.clock)();
        if now.saturating_sub(self.at) > SUSPENSION_NANOS {
            THREAD_VALID_SINCE.set(now);
        }
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed")
            .field("asked", &self.newest_sent)
            .field("proved", &self.newest_echoed)
            .field("since", &self.since)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
