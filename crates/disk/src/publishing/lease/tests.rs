//! Tests of leases with a simulated clock, so that no test sleeps.

use super::*;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

/// A lease with a simulated clock, and the pings that it has sent.
struct Lab {
    lease: Lease,
    now: Arc<AtomicU64>,
    pings: mpsc::Receiver<u64>,
}

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLI;

impl Lab {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(connection: Option<OwnedFd>) -> Self {
        let now = Arc::new(AtomicU64::new(SECOND));
        let (sent, pings) = mpsc::channel();
        let clock = Arc::clone(&now);
        let lease = Lease::timed(
            Arc::new(move || clock.load(Ordering::Relaxed)),
            move |value| sent.send(value).unwrap(),
            connection,
        );
        // Another test may have run on this thread before.
        THREAD_VALID_SINCE.set(0);
        Self { lease, now, pings }
    }

    fn ask_and_echo(&self) {
        self.lease.send_ping();
        let newest = self.pings.try_iter().last().unwrap();
        self.lease.note_echo(newest);
    }

    /// Advances the clock while the process runs.
    fn run_for(&self, nanos: u64) {
        for _step in 0..nanos / (100 * MILLI) {
            self.now.fetch_add(100 * MILLI, Ordering::Relaxed);
            self.lease.note_running();
        }
    }

    /// Advances the clock while the process is suspended.
    fn sleep_for(&self, nanos: u64) {
        self.now.fetch_add(nanos, Ordering::Relaxed);
    }

    fn holds(&self) -> bool {
        self.lease.0.as_ref().unwrap().try_issue().is_ok()
    }
}

#[test]
fn a_lease_holds_for_ten_seconds_from_when_the_echoed_ping_was_sent() {
    let lab = Lab::new();
    lab.lease.send_ping();
    let ping = lab.pings.recv().unwrap();
    lab.run_for(9 * SECOND);
    lab.lease.note_echo(ping);
    lab.run_for(SECOND);
    assert!(lab.holds());
    lab.run_for(100 * MILLI);
    assert!(!lab.holds());
}

#[test]
fn a_new_lease_needs_an_echo() {
    assert!(!Lab::new().holds());
}

#[test]
fn after_an_hour_of_sleep_an_echo_from_before_it_proves_nothing() {
    let lab = Lab::new();
    lab.ask_and_echo();
    lab.lease.send_ping();
    let before = lab.pings.recv().unwrap();
    lab.sleep_for(3600 * SECOND);
    lab.lease.note_echo(before);
    assert!(!lab.holds());
}

#[test]
fn after_a_gap_only_a_ping_that_is_sent_later_proves_anything() {
    let lab = Lab::new();
    lab.ask_and_echo();
    lab.sleep_for(500 * MILLI);
    assert!(lab.holds(), "half a second is no gap");
    lab.sleep_for(501 * MILLI);
    lab.lease.note_running();
    lab.run_for(SECOND);
    assert!(!lab.holds());
    let lab = Lab::new();
    lab.sleep_for(501 * MILLI);
    lab.ask_and_echo();
    assert!(lab.holds());
}

#[test]
fn after_a_long_call_a_thread_needs_an_echo_and_others_do_not() {
    let lab = Lab::new();
    lab.ask_and_echo();
    let lease = &lab.lease;
    let permit = lease.permit().unwrap();
    lab.run_for(600 * MILLI);
    drop(permit);
    assert!(!lab.holds());
    let others = std::thread::scope(|scope| scope.spawn(|| lease.permit().is_ok()).join());
    assert!(others.unwrap());
    lab.ask_and_echo();
    assert!(lab.holds());
}

#[test]
fn whoever_waits_gets_a_permit_with_the_echo() {
    let lab = Lab::new();
    let lease = &lab.lease;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lease.permit().map(drop));
        lab.lease.note_echo(lab.pings.recv().unwrap());
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
}

#[test]
fn the_end_is_told_to_whoever_waits_and_to_whoever_comes() {
    let lab = Lab::new();
    let lease = &lab.lease;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lease.permit().map(drop));
        lab.pings.recv().unwrap();
        lab.lease.end();
        assert_eq!(waits.join().unwrap(), Err(Errno::CONNABORTED));
    });
    assert_eq!(lab.lease.permit().map(drop), Err(Errno::CONNABORTED));
}

#[test]
fn a_thread_needs_an_echo_after_a_long_call_that_publishes_nothing() {
    let lab = Lab::new();
    lab.ask_and_echo();
    lab.lease.watch_slow_call(|| lab.run_for(600 * MILLI));
    assert!(!lab.holds());
    lab.ask_and_echo();
    assert!(lab.holds());
}

#[test]
fn an_echo_of_a_ping_that_was_never_sent_proves_nothing() {
    let lab = Lab::new();
    lab.lease.send_ping();
    lab.pings.recv().unwrap();
    lab.lease.note_echo(u64::MAX);
    assert!(!lab.holds());
}

#[test]
fn a_connection_that_hangs_up_ends_the_lease_at_once() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let lab = Lab::with(Some(ours.try_clone().unwrap().into()));
    lab.ask_and_echo();
    assert!(lab.lease.permit().is_ok());
    // Closing the socket is not enough, because a child process may hold a copy of the descriptor.
    theirs.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(lab.lease.permit().map(drop), Err(Errno::CONNABORTED));
}

#[test]
fn the_copy_of_the_connection_goes_with_the_lease() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let lab = Lab::with(Some(ours.into()));
    lab.lease.end();
    let read = io::Read::read(&mut &theirs, &mut [0]);
    assert_eq!(read.unwrap(), 0, "nobody holds the connection open");
}

#[test]
fn a_constant_lease_never_waits() {
    let lease = Lease::constant();
    let permits = [lease.permit(), lease.permit()];
    assert!(permits.iter().all(Result::is_ok));
}
