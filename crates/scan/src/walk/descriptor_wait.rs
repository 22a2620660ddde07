//! Waits for free descriptors when the process or the machine has run out of them.
//!
//! Consumers release descriptors when they drop batches, so a shortage usually ends soon. **Invariant:** the wait is
//! bounded, and the bound is halved after each unsuccessful wait. So if a consumer keeps every batch, the walk fails
//! with errors instead of hanging.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::{Errno, Result};

/// The maximum time to wait for a descriptor.
#[derive(Debug)]
pub(crate) struct DescriptorWait {
    wait_ms: AtomicU64,
}

impl DescriptorWait {
    pub(crate) fn new() -> Self {
        Self {
            wait_ms: AtomicU64::new(WAIT_MS_MAX),
        }
    }

    /// Calls `open` repeatedly while it fails because descriptors are exhausted, until the maximum wait has passed.
    pub(crate) fn open<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        let mut end = None;
        loop {
            let result = open();
            if !matches!(result, Err(Errno::MFILE | Errno::NFILE)) {
                if end.is_some() {
                    self.wait_ms.store(WAIT_MS_MAX, Ordering::Relaxed);
                }
                return result;
            }
            let wait_ms = self.wait_ms.load(Ordering::Relaxed);
            let end = *end.get_or_insert_with(|| Instant::now() + Duration::from_millis(wait_ms));
            if Instant::now() >= end {
                self.wait_ms.store(wait_ms / 2, Ordering::Relaxed);
                return result;
            }
            sleep(PAUSE);
        }
    }
}

const WAIT_MS_MAX: u64 = 1000;
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_short_shortage_is_waited_out() {
        let tries = Cell::new(0);
        let open = || {
            tries.set(tries.get() + 1);
            if tries.get() < 4 {
                Err(Errno::MFILE)
            } else {
                Ok(7)
            }
        };
        assert_eq!(DescriptorWait::new().open(open), Ok(7));
        assert_eq!(tries.get(), 4);
    }

    #[test]
    fn a_lasting_shortage_ends_in_its_error_ever_sooner() {
        let descriptor_wait = DescriptorWait {
            wait_ms: AtomicU64::new(4),
        };
        for left_ms in [2, 1, 0, 0] {
            assert_eq!(
                descriptor_wait.open(|| Err::<(), _>(Errno::MFILE)),
                Err(Errno::MFILE)
            );
            assert_eq!(descriptor_wait.wait_ms.load(Ordering::Relaxed), left_ms);
        }
    }

    #[test]
    fn other_errors_are_not_repeated() {
        let tries = Cell::new(0);
        let open = || {
            tries.set(tries.get() + 1);
            Err::<(), _>(Errno::ACCESS)
        };
        assert_eq!(DescriptorWait::new().open(open), Err(Errno::ACCESS));
        assert_eq!(tries.get(), 1);
    }
}
