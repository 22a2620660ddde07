//! A lock for shared state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex that is locked also after a thread has panicked while it held it. A panic ends its session, and no change
/// that is made under a lock here has steps between which a thread could panic and leave a wrong state.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// A mutex with this value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks the value, and waits for whoever has it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value; nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, out of the mutex.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
