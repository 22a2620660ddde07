//! Tests of threads that take turns, on slow and on fast storage.

use super::*;
use crate::publishing::lease::{Lease, SUSPENSION_NANOS};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::channel;

/// Creates threads that take turns and never lose their places, even if they get no core for a long time.
fn without_end_of_leases() -> StorageThreads {
    StorageThreads::with_places(cores(), Duration::MAX)
}

#[test]
fn no_more_work_at_a_time_than_there_are_cores_and_each_gets_on() {
    let (threads, stopping) = (without_end_of_leases(), AtomicBool::new(false));
    let most = threads.places;
    let (at_work, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 * most {
            scope.spawn(|| {
                let turn = threads.turn(Task::Read, &stopping);
                for _ in 0..50 {
                    assert!(!turn.is_over());
                    assert!(at_work.fetch_add(1, Ordering::SeqCst) < most);
                    thread::yield_now();
                    at_work.fetch_sub(1, Ordering::SeqCst);
                }
                drop(turn);
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    assert_eq!(
        (done.into_inner(), threads.state.lock().at_work.len()),
        (4 * most, 0)
    );
}

#[test]
fn who_waits_leaves_when_its_session_ends() {
    let threads = without_end_of_leases();
    let (running, ending) = (AtomicBool::new(false), AtomicBool::new(false));
    let all: Vec<_> = (0..threads.places)
        .map(|_| threads.turn(Task::Read, &running))
        .collect();
    assert!(all.iter().all(|turn| !turn.is_over()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| threads.turn(Task::Read, &ending).is_over());
        while threads.state.lock().waiting.is_empty() {
            thread::yield_now();
        }
        ending.store(true, Ordering::Relaxed);
        assert!(waiting.join().unwrap());
    });
    drop(all);
    assert!(threads.state.lock().waiting.is_empty());
}

#[test]
fn who_waits_first_works_first() {
    let (threads, stopping) = (without_end_of_leases(), AtomicBool::new(false));
    let mut all: Vec<_> = (0..threads.places)
        .map(|_| threads.turn(Task::Read, &stopping))
        .collect();
    assert!(all.iter().all(|turn| !turn.is_over()));
    let order = Lock::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..4 {
            let (threads, stopping, order) = (&threads, &stopping, &order);
            scope.spawn(move || {
                let turn = threads.turn(Task::Read, stopping);
                assert!(!turn.is_over());
                order.lock().push(number);
            });
            while threads.state.lock().waiting.len() <= number {
                thread::yield_now();
            }
        }
        // There is only one place, which each thread passes to the next one.
        all.pop();
    });
    assert_eq!(order.into_inner(), [0, 1, 2, 3]);
}

#[test]
fn nobody_passes_who_waits_although_there_is_room() {
    let (threads, stopping) = (without_end_of_leases(), AtomicBool::new(false));
    let other = WaitingThread {
        number: u64::MAX,
        task: Task::Read,
        thread: thread::current(),
    };
    threads.state.lock().waiting.push_back(other);
    thread::scope(|scope| {
        let (threads, stopping) = (&threads, &stopping);
        let last = scope.spawn(move || threads.turn(Task::Read, stopping).is_over());
        // A thread joins the queue before it checks for a free place.
        while threads.state.lock().next == 0 {
            thread::yield_now();
        }
        let has_passed = threads
            .state
            .lock()
            .waiting
            .front()
            .is_none_or(|first| first.number != u64::MAX);
        threads
            .state
            .lock()
            .waiting
            .retain(|waiting| waiting.number != u64::MAX);
        threads.state.lock().wake_first();
        assert!(!last.join().unwrap() && !has_passed);
    });
}

#[test]
fn a_thread_that_does_not_come_back_leaves_its_place_to_others() {
    let lease = Duration::from_secs(60);
    let threads = StorageThreads::with_places(cores(), lease);
    let stopping = AtomicBool::new(false);
    let all: Vec<_> = (0..threads.places)
        .map(|_| threads.turn(Task::Read, &stopping))
        .collect();
    assert!(all.iter().all(|turn| !turn.is_over()));
    assert!(!threads.state.lock().has_room(Task::Read, &threads));
    if let Some((_, asked)) = threads.state.lock().at_work.values_mut().next() {
        *asked -= lease;
    }
    assert!(threads.state.lock().has_room(Task::Read, &threads));
}

#[test]
fn a_task_does_not_wait_behind_the_other_for_what_it_is_worth() {
    let (threads, stopping, ending) = (
        without_end_of_leases(),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    let all: Vec<_> = (0..threads.places)
        .map(|_| threads.turn(Task::Read, &stopping))
        .collect();
    assert!(all.iter().all(|turn| !turn.is_over()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| threads.turn(Task::Read, &ending).is_over());
        while threads.state.lock().waiting.is_empty() {
            thread::yield_now();
        }
        let writes = threads.turn(Task::Write, &stopping);
        assert!(!writes.is_over());
        assert_eq!(threads.state.lock().waiting.len(), 1, "who looks waits on");
        ending.store(true, Ordering::Relaxed);
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn a_thread_that_waits_for_a_core_is_awake() {
    assert_eq!(parse_awake_time("5 7 3\n"), Some(Duration::from_nanos(12)));
}

/// Simulates the clock of a thread that sleeps nearly all the time.
fn hardly_awake() -> Option<Duration> {
    thread_local! {
        static NANOS: Cell<u64> = const { Cell::new(0) };
    }
    NANOS.set(NANOS.get() + 1);
    Some(Duration::from_nanos(NANOS.get()))
}

/// Simulates a slow response of storage, which uses no core.
fn answer_late() {
    thread::sleep(Duration::from_millis(5));
}

#[test]
fn work_that_waits_for_storage_is_done_by_many_side_by_side() {
    // A thread that waits for a core counts as awake. In this test no thread waits for a core, even on a busy host.
    let threads = StorageThreads {
        awake: hardly_awake,
        ..without_end_of_leases()
    };
    let stopping = AtomicBool::new(false);
    let left = AtomicUsize::new(2_000);
    let take = || {
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
    };
    let helpers = AtomicUsize::new(0);
    let admit = || (helpers.fetch_add(1, Ordering::SeqCst) < 20).then_some(());
    let done = threads.run_parallel(Task::Write, "help", &stopping, admit, |turn| {
        let mut done = 0;
        while !turn.is_over() && take() {
            turn.note_write(1024);
            answer_late();
            done += 1;
            turn.start_helper();
        }
        done
    });
    assert_eq!(done.iter().sum::<usize>(), 2_000);
    assert!((8..=21).contains(&done.len()), "{} threads", done.len());
    let state = threads.state.lock();
    assert_eq!((state.tasks[1].starting, state.at_work.len()), (0, 0));
}

/// A slow disk takes 8 ms for a group.
#[test]
fn contents_that_storage_takes_promptly_are_written_by_one() {
    let (threads, stopping) = (StorageThreads::limited_to_cores(), AtomicBool::new(false));
    let left = AtomicUsize::new(100);
    let take = || {
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
    };
    let done = threads.run_parallel(
        Task::Write,
        "help",
        &stopping,
        || Some(()),
        |turn| {
            while !turn.is_over() && take() {
                turn.note_write(4 << 20);
                answer_late();
                turn.start_helper();
            }
        },
    );
    assert_eq!(done.len(), 1);
}

#[test]
fn work_that_needs_a_core_is_done_by_one() {
    let (threads, stopping) = (StorageThreads::limited_to_cores(), AtomicBool::new(false));
    let until = Instant::now() + Duration::from_millis(300);
    let done = threads.run_parallel(
        Task::Write,
        "help",
        &stopping,
        || Some(()),
        |turn| {
            while !turn.is_over() && Instant::now() < until {
                turn.start_helper();
            }
        },
    );
    assert_eq!(done.len(), 1);
}

/// The sender causes the delay, not the storage.
#[test]
fn time_in_which_a_thread_waits_for_permits_brings_no_other_thread() {
    let threads = StorageThreads {
        awake: hardly_awake,
        ..StorageThreads::limited_to_cores()
    };
    let stopping = AtomicBool::new(false);
    let now = Arc::new(AtomicU64::new(SUSPENSION_NANOS));
    let clock = Arc::clone(&now);
    let (pings, asked) = channel();
    let end = pings.clone();
    let lease = Lease::timed(
        Arc::new(move || clock.load(Ordering::SeqCst)),
        move |ping| pings.send(ping).unwrap(),
        None,
    );
    let left = AtomicUsize::new(100);
    let take = || {
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
    };
    let lease = &lease;
    let done = thread::scope(|scope| {
        scope.spawn(move || {
            for ping in asked.iter().take_while(|ping| *ping > 0) {
                answer_late();
                lease.note_echo(ping);
            }
        });
        let done = threads.run_parallel(
            Task::Write,
            "help",
            &stopping,
            || Some(()),
            |turn| {
                while !turn.is_over() && take() {
                    turn.note_write(1024);
                    // After such a gap, the next permit requires a new echo.
                    now.fetch_add(2 * SUSPENSION_NANOS, Ordering::SeqCst);
                    drop(lease.permit().unwrap());
                    turn.start_helper();
                }
            },
        );
        end.send(0).unwrap();
        done
    });
    assert_eq!(done.len(), 1);
}

#[test]
fn what_one_task_was_worth_on_late_storage_gives_the_other_no_places() {
    let threads = without_end_of_leases();
    let stopping = AtomicBool::new(false);
    threads.start_with(Task::Write, THREADS_MAX);
    assert!(threads.is_slow(Task::Write));
    let all: Vec<_> = (0..threads.places)
        .map(|_| threads.turn(Task::Read, &stopping))
        .collect();
    assert!(all.iter().all(|turn| !turn.is_over()));
    let state = threads.state.lock();
    assert!(!state.has_room(Task::Read, &threads) && state.has_room(Task::Write, &threads));
}
