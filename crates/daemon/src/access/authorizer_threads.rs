//! Limits the number of threads that authorize peers. Authorization reads files and may block, and it runs on tokio's
//! blocking threads, which transfers need too.
//!
//! **Invariant:** an authorization occupies a thread until it ends, even if its peer has disconnected. Peers that
//! reconnect repeatedly therefore cannot exceed the limit.

use std::sync::Arc;

use tokio::sync::Semaphore;
use zmove_disk::cores;
use zmove_transport::blocking;

/// Limits concurrent authorizations to the number of cores.
#[derive(Debug)]
pub(crate) struct AuthorizerThreads(Arc<Semaphore>);

impl Default for AuthorizerThreads {
    fn default() -> Self {
        Self::new(cores())
    }
}

impl AuthorizerThreads {
    fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` on a blocking thread after waiting for a free permit.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let permit = Arc::clone(&self.0)
            .acquire_owned()
            .await
            .expect("nobody closes it");
        let authorizing = move || {
            let _until_it_ends = permit;
            work()
        };
        blocking(authorizing).await
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn abandoned_checks_keep_their_places_until_they_finish() {
        let threads = AuthorizerThreads::new(2);
        let (begun_in, begun) = mpsc::channel();
        let mut ends = Vec::new();
        for _ in 0..5 {
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            let begun = begun_in.clone();
            let mut done = pin!(threads.run(move || {
                begun.send(()).unwrap();
                assert!(ended.recv().is_err(), "nothing is ever sent");
            }));
            poll_fn(|context| {
                assert!(done.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        begun.recv().unwrap();
        begun.recv().unwrap();
        assert_eq!(threads.0.available_permits(), 0);
        drop(ends);
        assert_eq!(threads.run(|| 7).await, 7);
        assert!(
            begun.try_recv().is_err(),
            "those that had not begun are gone with their peers"
        );
    }
}
