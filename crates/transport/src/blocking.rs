//! Runs blocking work from asynchronous code.

use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// Runs `work` on a blocking thread and waits for its result. If `work` panics, the panic continues in the caller.
///
/// A runtime that shuts down drops work that has not begun. It may then poll the waiting future once more. In this
/// case, there is neither a result nor an error to return, so the future stays pending.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
        Err(_cancelled) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn work_that_an_ending_runtime_drops_is_no_fault() {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        let _within = handle.enter();
        let mut waiting = pin!(blocking(|| ()));
        for _ in 0..2 {
            assert!(
                waiting
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
    }

    #[test]
    fn a_panic_goes_on_in_whoever_waits() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let waiting = runtime.spawn(blocking(|| panic!("seven")));
        let panic = runtime.block_on(waiting).unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"seven"));
    }
}
