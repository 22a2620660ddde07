//! The right of a receiver to publish, which it has only while its sender is alive.
//!
//! To *publish* is to give or remove a final name, to write into a file that has one, or to change attributes at the
//! target. A receiver that was stopped, or whose storage did not answer, may wake up hours after its sender has gone.
//! Another transfer may have stored newer data meanwhile. So each call that publishes takes a [`Permit`], and a
//! [`Lease`] issues one only if the sender has echoed a ping that this receiver sent within the last ten seconds.
//!
//! An echo may have waited in a buffer while this process slept. It counts from the time when the ping was *sent*, so
//! an old echo proves nothing. Two rules cover sleeps that are shorter than ten seconds:
//!
//! - A process that has not run for half a second needs the echo of a ping that it sends after that.
//! - So does a thread whose last call under a permit, or last flush, took longer than half a second.
//!
//! **Invariant:** a permit cannot be stored or cloned, and is used up by one call. What remains possible after the
//! sender has gone is therefore one call for each thread: the one that was permitted just before.

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

/// The longest time after which a ping still proves that the sender is alive, from when it was sent.
pub const LEASE_MAX: Duration = Duration::from_secs(10);
/// Whoever has not run for longer may have slept, and asks again.
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

/// The time since the host was started, in nanoseconds. It counts while the host sleeps.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A lease that depends on pings.
struct Timed {
    clock: Clock,
    /// Sends a ping with this value to the sender.
    ping: Box<dyn Fn(u64) + Send + Sync>,
    /// The control connection, if the kernel reports its end. A copy of the descriptor keeps a connection open, so it
    /// goes with the lease.
    connection: RwLock<Option<OwnedFd>>,
    /// When the newest ping was sent.
    asked: AtomicU64,
    /// When the newest ping that has been echoed was sent.
    proved: AtomicU64,
    /// How long the last echo has taken.
    echo_took: AtomicU64,
    /// Pings that were sent before this prove nothing.
    since: AtomicU64,
    /// When some thread last ran.
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

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Ended,
    /// There is none until a ping is echoed that was sent at this time or later.
    NeedsProofSince(u64),
}

impl Permit<'_> {
    /// For an entry that has no final name yet, which needs no lease.
    pub const fn for_hidden() -> Self {
        Self { _issued: None }
    }
}

thread_local! {
    /// Pings that were sent before this prove nothing to this thread.
    static SINCE: Cell<u64> = const { Cell::new(0) };
    /// How long this thread has waited for echoes, of all leases.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long the calling thread has waited for permits. It waited for a sender, and not for storage.
pub(crate) fn waited_for_permits() -> Duration {
    WAITED.get()
}

/// How long whoever waits for an echo relies on being told that the connection has ended.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LEASE_NANOS: u64 = 10_000_000_000;
pub(crate) const GAP_NANOS: u64 = 500_000_000;
const _: () =
    assert!(LEASE_NANOS as u128 == LEASE_MAX.as_nanos() && GAP_NANOS as u128 == GAP_MAX.as_nanos());

/// The clock of this host.
#[must_use]
pub fn boot_clock() -> Clock {
    Arc::new(|| {
        let now = clock_gettime(ClockId::Boottime);
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(now.tv_nsec).unwrap_or(0)
    })
}

impl Lease {
    /// A lease that holds for as long as this process lives: source and target are in one process.
    #[must_use]
    pub const fn constant() -> Self {
        Self(None)
    }

    /// A lease that holds while the sender echoes what `ping` sends. `connection` is a copy of the control connection
    /// if the kernel reports its end.
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

    /// The right to publish once. Waits for an echo if there is no recent one.
    ///
    /// # Errors
    /// `ECONNABORTED` once the session has ended or its connection has hung up.
    pub fn permit(&self) -> rustix::io::Result<Permit<'_>> {
        let issued = self.0.as_ref().map(|timed| timed.issue()).transpose()?;
        Ok(Permit { _issued: issued })
    }

    /// Whether a permit would be issued now. This does not wait for an echo.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|timed| timed.try_issue().is_ok())
    }

    /// How long ago the newest ping was sent that the sender has echoed, if that is no longer than `within` and the
    /// time that the last echo took, and in no case longer ago than a permit allows.
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

    /// Notes that this process runs, and sends a ping, whose value it returns. To be called each second.
    pub fn ask(&self) -> u64 {
        self.0.as_ref().map_or(0, |timed| timed.ask())
    }

    /// Notes that this process runs. To be called more often than each [`GAP_MAX`].
    pub fn tick(&self) {
        if let Some(timed) = &self.0 {
            timed.note_running();
        }
    }

    /// Notes that the sender has echoed the ping that was sent with this value.
    pub fn echoed(&self, value: u64) {
        if let Some(timed) = &self.0 {
            timed.echoed(value);
        }
    }

    /// From now on, pings that were sent before prove nothing.
    pub fn doubt(&self) {
        if let Some(timed) = &self.0 {
            timed.since.fetch_max((timed.clock)(), Ordering::AcqRel);
        }
    }

    /// Whether the lease has ended: there is no permit any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|timed| timed.is_over())
    }

    /// Makes a long call that publishes nothing. If it took long, this thread needs the echo of a later ping.
    pub fn during<R>(&self, call: impl FnOnce() -> R) -> R {
        let _watched = self.0.as_ref().map(|timed| Issued {
            lease: timed,
            at: (timed.clock)(),
        });
        call()
    }

    /// Ends the lease: nothing is published any more, and whoever waits for an echo is told so.
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

    /// Returns the time. After a gap, pings that were sent before it prove nothing.
    fn note_running(&self) -> u64 {
        let now = (self.clock)();
        // First the gap is noted and then that this thread ran, so that no other thread overlooks the gap between.
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
        // A peer may send anything. What was never sent proves nothing.
        if value <= self.asked.load(Ordering::Acquire) {
            let took = (self.clock)().saturating_sub(value);
            self.echo_took.store(took, Ordering::Release);
            self.proved.fetch_max(value, Ordering::AcqRel);
        }
        self.wake();
    }

    /// Waits for an echo, the end, or a second, after which the connection is looked at again.
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

    /// Whether the kernel has heard of the end of the connection. This is an aid: some ends are never heard of.
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
