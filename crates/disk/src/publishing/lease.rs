//! The right of a receiver to publish, which depends on a live sender.
//!
//! To *publish* is to create or remove a final name, to write into a file that has one, or to change attributes at the
//! target. A receiver that was suspended, or whose storage did not respond, may resume hours after its sender has
//! disconnected. Another transfer may have stored newer data in the interval. So each call that publishes takes a
//! [`Permit`]. A [`Lease`] issues a permit only if the sender has echoed a ping that this receiver sent in the last ten
//! seconds.
//!
//! An echo may have waited in a buffer while this process was suspended. Its age counts from the time when the ping was
//! *sent*, so an old echo proves nothing. Two rules cover suspensions of less than ten seconds:
//!
//! - After half a second in which no thread of this process ran, a permit requires the echo of a ping that is sent
//!   afterwards.
//! - The same holds for a thread whose last call under a permit, or last flush, took longer than half a second.
//!
//! **Invariant:** a permit cannot be stored or cloned, and one call uses it up. So after the sender has disconnected,
//! each thread can make at most one more call, which was permitted just before.

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
/// A process or thread that has not run for longer than this may have been suspended, and needs a new echo.
pub const GAP_MAX: Duration = Duration::from_millis(500);

/// The right to publish, shared by all threads of a session.
#[derive(Clone, Debug)]
pub struct Lease(Option<Arc<Timed>>);

/// The right to make one call that publishes.
#[must_use = "a permit is for one call"]
#[derive(Debug)]
pub struct Permit<'a> {
    _issued: Option<Issued<'a>>,
}

/// A clock that returns the time since the host booted, in nanoseconds, including the time during which the host was
/// suspended.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The state of a lease that depends on pings.
struct Timed {
    clock: Clock,
    /// Sends a ping with this value to the sender.
    ping: Box<dyn Fn(u64) + Send + Sync>,
    /// A copy of the control connection's descriptor, if the kernel reports the end of that connection. The copy keeps
    /// the connection open, so it is dropped when the lease ends.
    connection: RwLock<Option<OwnedFd>>,
    /// Time at which the newest ping was sent.
    asked: AtomicU64,
    /// Time at which the newest echoed ping was sent.
    proved: AtomicU64,
    /// Round-trip time of the last echo, in nanoseconds.
    echo_took: AtomicU64,
    /// Echoes of pings that were sent before this time prove nothing.
    since: AtomicU64,
    /// Time at which any thread last recorded that it runs.
    ran: AtomicU64,
    ended: AtomicBool,
    waiting: Lock<()>,
    changed: Condvar,
}

#[derive(Debug)]
struct Issued<'a> {
    lease: &'a Timed,
    at: u64,
}

/// The reason why no permit was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Ended,
    /// A permit requires the echo of a ping that was sent at this time or later.
    NeedsProofSince(u64),
}

impl Permit<'_> {
    /// Returns a permit for an entry that has no final name yet. This requires no lease.
    pub const fn for_hidden() -> Self {
        Self { _issued: None }
    }
}

thread_local! {
    /// Echoes of pings that were sent before this time prove nothing to this thread.
    static SINCE: Cell<u64> = const { Cell::new(0) };
    /// Total time for which this thread has waited for echoes, over all leases.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the total time for which the calling thread has waited for permits. This is time spent on the sender, not on
/// storage.
pub(crate) fn waited_for_permits() -> Duration {
    WAITED.get()
}

/// Interval at which a thread that waits for an echo checks whether the connection has ended.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LEASE_NANOS: u64 = 10_000_000_000;
pub(crate) const GAP_NANOS: u64 = 500_000_000;
const _: () =
    assert!(LEASE_NANOS as u128 == LEASE_MAX.as_nanos() && GAP_NANOS as u128 == GAP_MAX.as_nanos());

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
    /// control connection's descriptor, if the kernel reports the end of that connection.
    #[must_use]
    pub fn timed(
        clock: Clock,
        ping: impl Fn(u64) + Send + Sync + 'static,
        connection: Option<OwnedFd>,
    ) -> Self {
        let now = clock();
        Self(Some(Arc::new(Timed {
            clock,
            ping: Box::new(ping),
            connection: RwLock::new(connection),
            asked: AtomicU64::new(0),
            proved: AtomicU64::new(0),
            echo_took: AtomicU64::new(0),
            since: AtomicU64::new(now),
            ran: AtomicU64::new(now),
            ended: AtomicBool::new(false),
            waiting: Lock::new(()),
            changed: Condvar::new(),
        })))
    }

    /// Issues the right to publish once. Waits for an echo if there is no recent one.
    ///
    /// # Errors
    /// Returns `ECONNABORTED` if the session has ended or its connection has hung up.
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

    /// Returns the age of the newest echoed ping, counted from when it was sent. Returns `None` if the lease has ended,
    /// or if the age exceeds [`LEASE_MAX`] or the sum of `within` and the round-trip time of the last echo.
    #[must_use]
    pub fn proof_age(&self, within: Duration) -> Option<Duration> {
        let Some(timed) = &self.0 else {
            return Some(Duration::ZERO);
        };
        let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let echo = timed.echo_took.load(Ordering::Acquire);
        let within = within.saturating_add(echo).min(LEASE_NANOS);
        let proved = timed.proved.load(Ordering::Acquire);
        let age = (timed.clock)().saturating_sub(proved);
        (!timed.is_over() && proved > 0 && age <= within).then(|| Duration::from_nanos(age))
    }

    /// Sends a ping and returns its value. Also records that this process runs. Must be called once per second.
    pub fn ask(&self) -> u64 {
        self.0.as_ref().map_or(0, |timed| timed.ask())
    }

    /// Records that this process runs. Must be called at intervals shorter than [`GAP_MAX`].
    pub fn tick(&self) {
        if let Some(timed) = &self.0 {
            timed.note_running();
        }
    }

    /// Records that the sender has echoed the ping with this value.
    pub fn echoed(&self, value: u64) {
        if let Some(timed) = &self.0 {
            timed.echoed(value);
        }
    }

    /// Invalidates all pings that were sent so far: their echoes no longer prove anything.
    pub fn doubt(&self) {
        if let Some(timed) = &self.0 {
            timed.since.fetch_max((timed.clock)(), Ordering::AcqRel);
        }
    }

    /// Returns whether the lease has ended. No more permits are issued then.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|timed| timed.is_over())
    }

    /// Runs a slow call that publishes nothing. If it takes longer than [`GAP_MAX`], this thread needs the echo of a
    /// later ping.
    pub fn during<R>(&self, call: impl FnOnce() -> R) -> R {
        let _watched = self.0.as_ref().map(|timed| Issued {
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

impl Timed {
    fn issue(&self) -> rustix::io::Result<Issued<'_>> {
        loop {
            match self.try_issue() {
                Ok(issued) => return Ok(issued),
                Err(Refused::Ended) => return Err(Errno::CONNABORTED),
                Err(Refused::NeedsProofSince(oldest)) => {
                    self.ask();
                    self.wait_for_proof_since(oldest);
                }
            }
        }
    }

    fn try_issue(&self) -> Result<Issued<'_>, Refused> {
        let at = self.note_running();
        if self.is_over() {
            return Err(Refused::Ended);
        }
        let oldest = self
            .since
            .load(Ordering::Acquire)
            .max(SINCE.get())
            .max(at.saturating_sub(LEASE_NANOS));
        if self.proved.load(Ordering::Acquire) < oldest {
            return Err(Refused::NeedsProofSince(oldest));
        }
        Ok(Issued { lease: self, at })
    }

    /// Records that this thread runs, and returns the time. After a gap, earlier pings prove nothing.
    fn note_running(&self) -> u64 {
        let now = (self.clock)();
        // The gap is recorded before the run time, so that no other thread misses the gap.
        if now.saturating_sub(self.ran.load(Ordering::Acquire)) > GAP_NANOS {
            self.since.fetch_max(now, Ordering::AcqRel);
        }
        self.ran.fetch_max(now, Ordering::AcqRel);
        now
    }

    fn ask(&self) -> u64 {
        let sent = self.note_running();
        self.asked.fetch_max(sent, Ordering::AcqRel);
        (self.ping)(sent);
        sent
    }

    fn echoed(&self, value: u64) {
        // A peer may send any value. A value that was never sent proves nothing.
        if value <= self.asked.load(Ordering::Acquire) {
            let took = (self.clock)().saturating_sub(value);
            self.echo_took.store(took, Ordering::Release);
            self.proved.fetch_max(value, Ordering::AcqRel);
        }
        self.wake();
    }

    /// Waits until an echo is received, the lease ends, or a second has passed. The caller then checks the connection
    /// again.
    fn wait_for_proof_since(&self, oldest: u64) {
        let began = Instant::now();
        let waiting = self.waiting.lock();
        let waited = self.changed.wait_timeout_while(waiting, LOOK_AGAIN, |()| {
            self.proved.load(Ordering::Acquire) < oldest && !self.ended.load(Ordering::Acquire)
        });
        drop(waited);
        WAITED.set(WAITED.get() + began.elapsed());
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.has_hung_up()
    }

    /// Returns whether the kernel has noticed the end of the connection. This only helps to stop earlier, because the
    /// kernel does not notice every end.
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

impl Drop for Issued<'_> {
    fn drop(&mut self) {
        let now = (self.lease.clock)();
        if now.saturating_sub(self.at) > GAP_NANOS {
            SINCE.set(now);
        }
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed")
            .field("asked", &self.asked)
            .field("proved", &self.proved)
            .field("since", &self.since)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
