//! A lock for cases that need a quiet machine.
//!
//! Cases run concurrently on a machine with few cores. A case that measures time, processor time, a rate or progress
//! calls [`quiet_machine`] and then runs alone. So does a case that starts hundreds of processes or connections. Every
//! other case shares the machine: the helpers with which a case starts its work call [`share_machine`].
//!
//! Cases that need a quiet machine do not hold back the others: they wait, each in a test thread, until no other case
//! is left or all test threads wait. `RUST_TEST_THREADS` in `.cargo/config.toml` allows for that.
//!
//! **Invariant:** a case waits for the lock only while it holds no part of it, so that no two cases wait for
//! each other.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

static MACHINE: Machine = Machine::new();

/// Number of cases that share the machine. Most of them wait for timers and processes most of the time.
const SHARING_MAX: usize = 12;

thread_local! {
    static HOLD: HoldOfThread = const { HoldOfThread(Cell::new(Hold::Nothing)) };
}

struct Machine {
    users: Mutex<Users>,
    changed: Condvar,
}

struct Users {
    /// Number of cases that share the machine.
    sharing: usize,
    /// Whether a case has the machine to itself.
    is_quiet: bool,
    /// Number of cases that wait for a quiet machine.
    waiting: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Nothing,
    Shared,
    Quiet,
}

/// The part of the lock that a test thread holds. It ends with the thread, which is the end of the case.
struct HoldOfThread(Cell<Hold>);

/// The machine belongs to the case that holds this. Other cases wait.
#[must_use = "the machine is quiet only while this exists"]
pub(crate) struct QuietMachine {
    /// A case that asks twice still has one hold, which ends with the first guard.
    is_outermost: bool,
}

/// Waits until the case may run beside others. Further calls of the same case return at once.
///
/// Only the thread of a case holds a part of the lock. The threads that a case starts belong to it.
pub(crate) fn share_machine() {
    if is_thread_of_a_case() {
        HOLD.with(|hold| {
            if hold.0.get() == Hold::Nothing {
                MACHINE.share();
                hold.0.set(Hold::Shared);
            }
        });
    }
}

/// Waits until no other case runs, and keeps others waiting.
pub(crate) fn quiet_machine() -> QuietMachine {
    assert!(
        is_thread_of_a_case() || is_main_thread(),
        "only the thread of a case may wait for a quiet machine"
    );
    HOLD.with(|hold| {
        let held = hold.0.get();
        if held == Hold::Shared {
            MACHINE.end_sharing();
        }
        if held != Hold::Quiet {
            hold.0.set(Hold::Nothing);
            MACHINE.make_quiet();
            hold.0.set(Hold::Quiet);
        }
        QuietMachine {
            is_outermost: held != Hold::Quiet,
        }
    })
}

/// Whether the test harness started this thread: it names the thread after the case, which is in a module.
fn is_thread_of_a_case() -> bool {
    std::thread::current()
        .name()
        .is_some_and(|name| name.contains("::"))
}

/// Whether this is the main thread, in which cases run one after another with `--test-threads 1`.
fn is_main_thread() -> bool {
    std::thread::current().name() == Some("main")
}

impl Machine {
    const fn new() -> Self {
        Self {
            users: Mutex::new(Users {
                sharing: 0,
                is_quiet: false,
                waiting: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn share(&self) {
        let mut users = self.users();
        while users.is_quiet || users.sharing == SHARING_MAX {
            users = self.wait(users);
        }
        users.sharing += 1;
    }

    fn end_sharing(&self) {
        self.users().sharing -= 1;
        self.changed.notify_all();
    }

    fn make_quiet(&self) {
        let mut users = self.users();
        users.waiting += 1;
        while users.is_quiet || users.sharing > 0 {
            users = self.wait(users);
        }
        users.waiting -= 1;
        users.is_quiet = true;
    }

    fn end_quiet(&self) {
        self.users().is_quiet = false;
        self.changed.notify_all();
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, users: MutexGuard<'a, Users>) -> MutexGuard<'a, Users> {
        self.changed
            .wait(users)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuietMachine {
    fn drop(&mut self) {
        if self.is_outermost {
            HOLD.with(|hold| hold.0.set(Hold::Nothing));
            MACHINE.end_quiet();
        }
    }
}

impl Drop for HoldOfThread {
    fn drop(&mut self) {
        if self.0.get() == Hold::Shared {
            MACHINE.end_sharing();
        }
    }
}

/// Runs a part of a case in a thread that is named as the test harness names the thread of a case.
fn as_case(run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let thread = std::thread::Builder::new().name("quiet_machine::case".to_owned());
    thread.spawn(run).unwrap()
}

#[test]
fn a_quiet_case_runs_beside_no_other_case() {
    const CASES: usize = 12;
    const ROUNDS: usize = 200;
    let machine = Arc::new(Machine::new());
    let running = Arc::new(AtomicUsize::new(0));
    let cases: Vec<_> = (0..CASES)
        .map(|case| {
            let machine = Arc::clone(&machine);
            let running = Arc::clone(&running);
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    if case % 3 == 0 {
                        machine.make_quiet();
                        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        assert_eq!(running.fetch_sub(1, Ordering::SeqCst), 1);
                        machine.end_quiet();
                    } else {
                        machine.share();
                        running.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        machine.end_sharing();
                    }
                }
            })
        })
        .collect();
    for case in cases {
        case.join().unwrap();
    }
}

#[test]
fn a_case_shares_the_machine_until_its_thread_ends_and_is_not_held_back_again() {
    let (is_waiting, wait) = mpsc::channel();
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = as_case({
        let order = Arc::clone(&order);
        move || {
            share_machine();
            let second = as_case({
                let order = Arc::clone(&order);
                move || {
                    let _quiet = quiet_machine();
                    order.lock().unwrap().push("quiet");
                    // the case that is quiet does not wait for itself
                    share_machine();
                    drop(quiet_machine());
                    let other = std::thread::spawn(share_machine);
                    other.join().unwrap();
                }
            });
            while MACHINE.users().waiting == 0 {
                std::thread::yield_now();
            }
            share_machine();
            std::thread::spawn(share_machine).join().unwrap();
            order.lock().unwrap().push("shared");
            is_waiting.send(second).unwrap();
        }
    });
    first.join().unwrap();
    wait.recv().unwrap().join().unwrap();
    assert_eq!(*order.lock().unwrap(), ["shared", "quiet"]);
}

#[test]
fn cases_that_share_the_machine_and_then_want_it_quiet_do_not_wait_for_each_other() {
    let both_share = Arc::new(Barrier::new(2));
    let cases = [0, 1].map(|_| {
        let both_share = Arc::clone(&both_share);
        as_case(move || {
            share_machine();
            both_share.wait();
            drop(quiet_machine());
            share_machine();
        })
    });
    for case in cases {
        case.join().unwrap();
    }
}
