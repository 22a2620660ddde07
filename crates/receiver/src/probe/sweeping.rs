//! The short measurement ("sweep") of the target's storage, which a probe may request once.
//!
//! **Invariant:** the sweep works in its own hidden directory below the target, which was opened beneath the key's
//! root. That directory is removed regardless of how the probe ends.
//!
//! The receiver runs the sweep, because only it can open the directory beneath the key's root. The configuration
//! supplies the function that measures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;
use zmove_wire::limits::{SWEEP_BYTES_MAX, SWEEP_MILLIS_MAX, SWEEP_SIZES_MAX, within};
use zmove_wire::{FaultCode, Operation, SweepOrder, Swept, WireError};

use crate::config::{MeasureStorage, SweepTarget};
use crate::error::SessionError;

/// The sweep of one probe.
#[derive(Debug)]
pub(super) struct Sweeping {
    /// The target to measure. `None` if the target does not exist or the sweep has started.
    place: Option<SweepTarget>,
    measure: Option<MeasureStorage>,
    asked: bool,
    stop: Arc<AtomicBool>,
    task: JoinSet<Swept>,
}

impl Sweeping {
    pub(super) fn new(place: Option<SweepTarget>, measure: Option<MeasureStorage>) -> Self {
        Self {
            place,
            measure,
            asked: false,
            stop: Arc::default(),
            task: JoinSet::new(),
        }
    }

    /// Starts the sweep.
    pub(super) fn begin(&mut self, order: SweepOrder) -> Result<(), WireError> {
        if std::mem::replace(&mut self.asked, true) {
            return Err(WireError::OutOfOrder {
                what: "a second sweep",
            });
        }
        within("bytes of a sweep", order.bytes, SWEEP_BYTES_MAX)?;
        within("milliseconds of a sweep", order.millis, SWEEP_MILLIS_MAX)?;
        let place = self.place.take();
        let measure = self.measure;
        let stop = Arc::clone(&self.stop);
        self.task.spawn_blocking(move || {
            let Some(place) = place else {
                return failed(Operation::List, ENOENT);
            };
            let Some(measure) = measure else {
                return failed(Operation::Write, EOPNOTSUPP);
            };
            let mut swept = measure(place, order, &stop);
            swept.sizes.truncate(SWEEP_SIZES_MAX);
            swept
        });
        Ok(())
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.task.is_empty()
    }

    /// Waits for the result of the sweep. Waits forever if no sweep is running.
    pub(super) async fn done(&mut self) -> Result<Swept, SessionError> {
        match self.task.join_next().await {
            Some(swept) => swept.map_err(|_panic| SessionError::Panicked),
            None => std::future::pending().await,
        }
    }

    /// Requests the sweep to stop and to remove its files.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until the sweep has ended.
    pub(super) async fn end(mut self) {
        while self.task.join_next().await.is_some() {}
    }
}

fn failed(operation: Operation, number: i32) -> Swept {
    Swept {
        sizes: Vec::new(),
        complete: false,
        fault: Some((operation, FaultCode::Os(number))),
    }
}

/// Linux error numbers.
const ENOENT: i32 = 2;
const EOPNOTSUPP: i32 = 95;

#[cfg(test)]
mod tests {
    use zmove_disk::Tree;
    use zmove_wire::SweptSize;

    use super::*;
    use crate::config::ReceiverConfig;

    const ORDER: SweepOrder = SweepOrder {
        bytes: SWEEP_BYTES_MAX,
        millis: SWEEP_MILLIS_MAX,
    };

    fn sweeping(home: &tempfile::TempDir, measure: Option<MeasureStorage>) -> Sweeping {
        let tree = Tree::open(home.path()).unwrap();
        let target = ReceiverConfig::default().sweep_target(tree, home.path().to_owned());
        Sweeping::new(Some(target), measure)
    }

    fn swept(sizes: usize) -> Swept {
        let size = SweptSize {
            file_bytes: 1 << 10,
            write: Some(1),
            read: None,
        };
        Swept {
            sizes: vec![size; sizes],
            complete: true,
            fault: None,
        }
    }

    #[tokio::test]
    async fn the_result_of_the_function_is_sent_and_only_one_sweep_is_allowed() {
        let home = tempfile::tempdir().unwrap();
        let mut sweeping = sweeping(&home, Some(|_, _, _| swept(SWEEP_SIZES_MAX + 1)));
        sweeping.begin(ORDER).unwrap();
        assert_eq!(sweeping.done().await.unwrap(), swept(SWEEP_SIZES_MAX));
        let what = "a second sweep";
        assert_eq!(sweeping.begin(ORDER), Err(WireError::OutOfOrder { what }));
    }

    #[tokio::test]
    async fn a_sweep_that_is_stopped_ends() {
        fn until_stopped(_: SweepTarget, _: SweepOrder, stop: &AtomicBool) -> Swept {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            swept(0)
        }
        let home = tempfile::tempdir().unwrap();
        let mut sweeping = sweeping(&home, Some(until_stopped));
        sweeping.begin(ORDER).unwrap();
        assert!(sweeping.is_under_way());
        sweeping.stop();
        sweeping.end().await;
    }

    #[tokio::test]
    async fn limits_a_missing_target_and_a_missing_function_are_reported() {
        let mut sweeping_nothing = Sweeping::new(None, None);
        let order = SweepOrder {
            bytes: SWEEP_BYTES_MAX + 1,
            ..ORDER
        };
        assert!(matches!(
            sweeping_nothing.begin(order),
            Err(WireError::OverLimit { .. })
        ));
        let home = tempfile::tempdir().unwrap();
        for (mut sweeping, expected) in [
            (Sweeping::new(None, None), failed(Operation::List, ENOENT)),
            (sweeping(&home, None), failed(Operation::Write, EOPNOTSUPP)),
        ] {
            assert!(!sweeping.is_under_way());
            sweeping.begin(ORDER).unwrap();
            assert!(sweeping.is_under_way());
            assert_eq!(sweeping.done().await.unwrap(), expected);
        }
    }
}
