//! A bounded number of threads that authorize. Authorizing reads files and may block, and tokio's blocking threads, on
//! which it runs, serve transfers too.
//!
//! **Invariant:** work counts until it ends, also when nobody waits for it any more: peers that leave and come back
//! cannot have more of it run.

use std::sync::Arc;

use tokio::sync::Semaphore;
use zmove_disk::cores;
use zmove_transport::blocking;

/// The bound on authorizing threads: as many as there are cores.
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

    /// Runs `work` on a blocking thread, once fewer than the bound are busy.
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
