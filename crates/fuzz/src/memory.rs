//! A memory limit for runs of targets. Allocations beyond the limit fail.

use std::alloc::System;
use std::panic;
use std::sync::Once;

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Runs a function that may allocate up to `bytes` bytes. The process is aborted if the function needs more.
pub(crate) fn within(bytes: usize, run: impl FnOnce()) {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(lift_when_panicking);
    let _limited = Limit::set(ALLOCATOR.allocated().saturating_add(bytes));
    run();
}

/// The report of a panic allocates memory itself, and would deadlock if the limit made the allocation fail.
fn lift_when_panicking() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        drop(Limit);
        report(info);
    }));
}

/// Lifts the memory limit when dropped, even if the run panics.
struct Limit;

impl Limit {
    fn set(bytes: usize) -> Self {
        ALLOCATOR
            .set_limit(bytes)
            .expect("it is above what is in use");
        Self
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        ALLOCATOR
            .set_limit(usize::MAX)
            .expect("it is above what is in use");
    }
}
