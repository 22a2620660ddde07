//! How much memory a run takes: beyond the limit there is none.

use std::alloc::System;
use std::panic;
use std::sync::Once;

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Runs something that may take so many bytes at once and no more: the process is aborted when it asks for more.
pub(crate) fn within(bytes: usize, run: impl FnOnce()) {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(lift_when_panicking);
    let _limited = Limit::set(ALLOCATOR.allocated().saturating_add(bytes));
    run();
}

/// A panic's report takes memory of its own, and would wait for itself when it is refused some.
fn lift_when_panicking() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        drop(Limit);
        report(info);
    }));
}

/// Ends the limit also when the run panics.
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
