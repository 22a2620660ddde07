//! A lock for shared state, and work that several threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// A mutex that is locked also after a thread has panicked while it held it. A panic ends its session, and no change
/// that is made under a lock here has steps between which a thread could panic and leave a wrong state.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has several threads run `work`, each until none is left, and returns all results: this thread, and one more for each
/// of `helpers` as long as threads can be started. A helper is kept until its thread ends.
pub(crate) fn run_on_several<T: Send, Helper: Send>(
    name: &str,
    helpers: impl Iterator<Item = Helper>,
    work: impl Fn() -> Vec<T> + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let start = |helper: Helper| {
            let work = move || {
                let _until_it_ends = helper;
                work()
            };
            thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).ok()
        };
        let helpers: Vec<_> = helpers.map_while(start).collect();
        let mut done = work();
        helpers.into_iter().for_each(|helper| done.extend(helper.join().expect("the work does not panic")));
        done
    })
}
