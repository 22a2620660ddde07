//! A lock for cases that need a quiet machine.
//!
//! Cases run concurrently on a machine with few cores. A case that measures time, processor time or a rate, or that
//! starts hundreds of processes or connections, calls [`quiet_machine`] and runs alone. A case that has deadlines but
//! waits most of the time calls [`calm_machine`] and runs concurrently with a few cases of the same kind. Every other
//! case shares the machine: the helpers with which a case starts its work call [`share_machine`].
//!
//! A case that needs the machine exclusively does not hold back other cases. It waits in its test thread until no other
//! case runs or all test threads wait. `RUST_TEST_THREADS` in `.cargo/config.toml` provides enough threads.
//!
//! **Invariant:** a case waits for the lock only while it holds no part of the lock, so that no two cases wait for each
//! other.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

static MACHINE: Machine = Machine::new();

thread_local! {
    static HOLD: HoldOfThread = const { HoldOfThread(Cell::new(None)) };
}

/// The mode in which a case uses the machine. Cases of different kinds never run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared,
    Calm,
    Quiet,
}

impl Kind {
    /// Maximum number of concurrent cases of this kind. Most cases wait for timers and processes most of the time.
    const fn cases_max(self) -> usize {
        match self {
            Self::Shared => 12,
            Self::Calm => 4,
            Self::Quiet => 1,
        }
    }
}

struct Machine {
    users: Mutex<Users>,
    changed: Condvar,
}

struct Users {
    /// The kind of the running cases.
    kind: Kind,
    /// Number of running cases.
    running: usize,
    /// Number of cases that wait for a calm or quiet machine.
    waiting: usize,
}

/// The part of the lock that a test thread holds. It is released when the thread ends, which is the end of the case.
struct HoldOfThread(Cell<Option<Kind>>);

/// A guard that keeps the machine quiet or calm. Other cases wait.
#[must_use = "the machine is quiet only while this exists"]
pub(crate) struct QuietMachine {
    /// Whether this is the first guard of its case. Only the first guard of nested calls releases the lock.
    is_outermost: bool,
}

/// Waits until the case may run concurrently with others. Further calls by the same case return immediately.
///
/// Only the thread of a case holds a part of the lock. Threads that a case starts belong to the case.
pub(crate) fn share_machine() {
    if is_thread_of_a_case() {
        HOLD.with(|hold| {
            if hold.0.get().is_none() {
                MACHINE.enter(Kind::Shared);
                hold.0.set(Some(Kind::Shared));
            }
        });
    }
}

/// Waits until no other case runs, and makes other cases wait.
pub(crate) fn quiet_machine() -> QuietMachine {
    hold_alone(Kind::Quiet)
}

/// Waits until no sharing or measuring case runs, and makes such cases wait.
pub(crate) fn calm_machine() -> QuietMachine {
    hold_alone(Kind::Calm)
}

fn hold_alone(kind: Kind) -> QuietMachine {
    assert!(
        is_thread_of_a_case() || is_main_thread(),
        "only the thread of a case may wait for a quiet machine"
    );
    HOLD.with(|hold| {
        let held = hold.0.get();
        if held == Some(Kind::Shared) {
            MACHINE.leave();
        }
        let is_outermost = matches!(held, None | Some(Kind::Shared));
        if is_outermost {
            hold.0.set(None);
            MACHINE.enter(kind);
            hold.0.set(Some(kind));
        }
        QuietMachine { is_outermost }
    })
}

/// Whether the test harness started this thread. The harness names a thread after its case, whose path contains a
/// module.
fn is_thread_of_a_case() -> bool {
    std::thread::current()
        .name()
        .is_some_and(|name| name.contains("::"))
}

/// Whether this is the main thread, which runs all cases sequentially with `--test-threads 1`.
fn is_main_thread() -> bool {
    std::thread::current().name() == Some("main")
}

impl Machine {
    const fn new() -> Self {
        Self {
            users: Mutex::new(Users {
                kind: Kind::Shared,
                running: 0,
                waiting: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn enter(&self, kind: Kind) {
        let mut users = self.users();
        let waits = usize::from(kind != Kind::Shared);
        users.waiting += waits;
        while users.running > 0 && (users.kind != kind || users.running == kind.cases_max()) {
            users = self
                .changed
                .wait(users)
                .unwrap_or_else(PoisonError::into_inner);
        }
        users.waiting -= waits;
        users.kind = kind;
        users.running += 1;
    }

    fn leave(&self) {
        self.users().running -= 1;
        self.changed.notify_all();
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuietMachine {
    fn drop(&mut self) {
        if self.is_outermost {
            HOLD.with(|hold| hold.0.set(None));
            MACHINE.leave();
        }
    }
}

impl Drop for HoldOfThread {
    fn drop(&mut self) {
        if self.0.get() == Some(Kind::Shared) {
            MACHINE.leave();
        }
    }
}

/// Runs a part of a case in a thread with the name that the test harness would give it.
fn as_case(run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let thread = std::thread::Builder::new().name("quiet_machine::case".to_owned());
    thread.spawn(run).unwrap()
}

#[test]
fn only_cases_of_one_kind_run_at_a_time_and_no_more_than_may() {
    const CASES: usize = 18;
    const ROUNDS: usize = 200;
    let machine = Arc::new(Machine::new());
    let running = Arc::new([const { AtomicUsize::new(0) }; 3]);
    let cases: Vec<_> = (0..CASES)
        .map(|case| {
            let machine = Arc::clone(&machine);
            let running = Arc::clone(&running);
            let kind = [Kind::Shared, Kind::Calm, Kind::Quiet][case % 3];
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    machine.enter(kind);
                    let before = running[kind as usize].fetch_add(1, Ordering::SeqCst);
                    assert!(before < kind.cases_max(), "{kind:?}");
                    for other in [Kind::Shared, Kind::Calm, Kind::Quiet] {
                        let count = running[other as usize].load(Ordering::SeqCst);
                        assert!(other == kind || count == 0, "{kind:?} beside {other:?}");
                    }
                    std::thread::yield_now();
                    running[kind as usize].fetch_sub(1, Ordering::SeqCst);
                    machine.leave();
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
                    // A quiet case does not wait for itself.
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
