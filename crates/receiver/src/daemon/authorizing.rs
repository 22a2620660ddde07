//! Who is let in is judged on threads where it may wait for files, by few of them at a time.
//!
//! tokio's threads for what waits are also those of transfers. **Invariant:** what has begun counts until it has ended, whether
//! or not somebody still waits for it: a peer that leaves takes no other's place.

use std::num::NonZero;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// As many threads as there are cores.
#[derive(Debug)]
pub(crate) struct Judges(Arc<Semaphore>);

impl Default for Judges {
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, NonZero::get))
    }
}

impl Judges {
    fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` when its turn comes.
    pub(crate) async fn judge<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let permit = Arc::clone(&self.0).acquire_owned().await.expect("nobody closes it");
        let judged = tokio::task::spawn_blocking(move || {
            let _until_it_ends = permit;
            work()
        });
        judged.await.expect("judging does not panic")
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
    async fn those_that_have_left_count_until_they_are_judged() {
        let judges = Judges::new(2);
        let (begun_in, begun) = mpsc::channel();
        let mut ends = Vec::new();
        for _ in 0..5 {
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            let begun = begun_in.clone();
            let mut judged = pin!(judges.judge(move || {
                begun.send(()).unwrap();
                assert!(ended.recv().is_err(), "nothing is ever sent");
            }));
            poll_fn(|context| {
                assert!(judged.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        begun.recv().unwrap();
        begun.recv().unwrap();
        assert_eq!(judges.0.available_permits(), 0);
        drop(ends);
        assert_eq!(judges.judge(|| 7).await, 7);
        assert!(begun.try_recv().is_err(), "those that had not begun are gone with their peers");
    }
}
