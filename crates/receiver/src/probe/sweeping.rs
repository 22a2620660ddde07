//! The short sweep of the target's storage that a probe may ask for, once.
//!
//! **Invariant:** the sweep works in a hidden directory of its own below the target, which was opened beneath the key's
//! root, and that directory is removed however the probe ends.
//!
//! The receiver runs the sweep itself, since it must be done by the side that has opened the directory
//! beneath the key's root.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use zmove_disk::Tree;
use zmove_sweep::{Direction, Measured, Sweep, SweepConfig, SweepError, sweep};
use zmove_types::ByteCount;
use zmove_wire::limits::{SWEEP_BYTES_MAX, SWEEP_MILLIS_MAX, SWEEP_SIZES_MAX, within};
use zmove_wire::{FaultCode, Operation, SweepOrder, Swept, SweptSize, WireError};

use crate::config::ReceiverConfig;
use crate::error::SessionError;

/// The directory to sweep, and the configuration of its storage.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) tree: Tree,
    /// The path of the target, for messages.
    pub(super) shown: PathBuf,
    pub(super) config: ReceiverConfig,
}

/// The sweep of one probe.
#[derive(Debug)]
pub(super) struct Sweeping {
    /// `None` where the target does not exist, and once the sweep has begun.
    place: Option<Place>,
    asked: bool,
    stop: Arc<AtomicBool>,
    task: JoinSet<Swept>,
}

impl Sweeping {
    pub(super) fn new(place: Option<Place>) -> Self {
        Self {
            place,
            asked: false,
            stop: Arc::default(),
            task: JoinSet::new(),
        }
    }

    /// Begins the sweep.
    pub(super) fn begin(&mut self, order: SweepOrder) -> Result<(), WireError> {
        if std::mem::replace(&mut self.asked, true) {
            return Err(WireError::OutOfOrder {
                what: "a second sweep",
            });
        }
        within("bytes of a sweep", order.bytes, SWEEP_BYTES_MAX)?;
        within("milliseconds of a sweep", order.millis, SWEEP_MILLIS_MAX)?;
        let place = self.place.take();
        let stop = Arc::clone(&self.stop);
        self.task.spawn_blocking(move || match place {
            Some(place) => measure(place, order, &stop),
            None => failed(Operation::List, FaultCode::Os(ENOENT)),
        });
        Ok(())
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.task.is_empty()
    }

    /// Waits for the result of the sweep; for ever where none is under way.
    pub(super) async fn done(&mut self) -> Result<Swept, SessionError> {
        match self.task.join_next().await {
            Some(swept) => swept.map_err(|_panic| SessionError::Panicked),
            None => std::future::pending().await,
        }
    }

    /// Has the sweep stop, and remove what it has written.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until the sweep has ended.
    pub(super) async fn end(mut self) {
        while self.task.join_next().await.is_some() {}
    }
}

fn measure(place: Place, order: SweepOrder, stop: &AtomicBool) -> Swept {
    let Place {
        tree,
        shown,
        config:
            ReceiverConfig {
                writers,
                file_io,
                direct,
                ..
            },
    } = place;
    let config = SweepConfig {
        opened: Some(tree),
        budget: ByteCount(order.bytes),
        time: Duration::from_millis(order.millis),
        threads: writers,
        file_io,
        direct,
        ..SweepConfig::at(shown)
    };
    match sweep(&config, stop, &mut |_event| {}) {
        Ok(Sweep {
            sizes, complete, ..
        }) => {
            let sizes = sizes.iter().take(SWEEP_SIZES_MAX).map(size).collect();
            Swept {
                sizes,
                complete,
                fault: None,
            }
        }
        Err(error) => fault_of(&error),
    }
}

fn size(measured: &Measured) -> SweptSize {
    let rate = |direction| {
        measured
            .moved(direction)
            .map(|moved| rounded(moved.bytes_per_second))
    };
    SweptSize {
        file_bytes: measured.file_bytes,
        write: rate(Direction::Write),
        read: rate(Direction::Read),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate above zero"
)]
fn rounded(bytes_per_second: f64) -> u64 {
    bytes_per_second.round() as u64
}

fn fault_of(error: &SweepError) -> Swept {
    match error {
        SweepError::Io { source, .. } => failed(Operation::Write, FaultCode::os(source)),
        SweepError::Left { source, .. } => failed(Operation::Delete, FaultCode::os(source)),
        SweepError::Running { .. } => failed(Operation::Write, FaultCode::Locked),
        SweepError::NoRoom { .. } | SweepError::NothingFits { .. } => {
            failed(Operation::Write, FaultCode::Os(ENOSPC))
        }
        _ => failed(Operation::Write, FaultCode::Os(EINTR)),
    }
}

fn failed(operation: Operation, code: FaultCode) -> Swept {
    Swept {
        sizes: Vec::new(),
        complete: false,
        fault: Some((operation, code)),
    }
}

/// Error numbers as Linux has them.
const ENOENT: i32 = 2;
const EINTR: i32 = 4;
const ENOSPC: i32 = 28;

#[cfg(test)]
mod tests {
    use super::*;

    fn sweeping(home: &tempfile::TempDir) -> Sweeping {
        let (shown, config) = (home.path().to_owned(), ReceiverConfig::default());
        Sweeping::new(Some(Place {
            tree: Tree::open(home.path()).unwrap(),
            shown,
            config,
        }))
    }

    fn entries(home: &tempfile::TempDir) -> usize {
        std::fs::read_dir(home.path()).unwrap().count()
    }

    #[tokio::test]
    async fn a_sweep_has_sizes_and_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let mut sweeping = sweeping(&home);
        // The sweep ends when all is measured; the long time limit is for a busy host.
        sweeping
            .begin(SweepOrder {
                bytes: 1 << 20,
                millis: SWEEP_MILLIS_MAX,
            })
            .unwrap();
        let swept = sweeping.done().await.unwrap();
        let written = |size: &SweptSize| size.write.is_some_and(|rate| rate > 0);
        assert!(
            swept.fault.is_none() && swept.sizes.iter().any(written),
            "{swept:?}"
        );
        assert_eq!(entries(&home), 0);
        let again = sweeping.begin(SweepOrder {
            bytes: 1 << 20,
            millis: 1_000,
        });
        assert_eq!(
            again,
            Err(WireError::OutOfOrder {
                what: "a second sweep"
            })
        );
    }

    #[tokio::test]
    async fn what_is_stopped_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let mut sweeping = sweeping(&home);
        sweeping
            .begin(SweepOrder {
                bytes: 64 << 20,
                millis: SWEEP_MILLIS_MAX,
            })
            .unwrap();
        while entries(&home) == 0 {
            assert!(!sweeping.task.is_empty());
            tokio::task::yield_now().await;
        }
        sweeping.stop();
        sweeping.end().await;
        assert_eq!(entries(&home), 0);
    }

    #[tokio::test]
    async fn limits_and_a_target_that_is_not_there_are_told() {
        let mut sweeping = Sweeping::new(None);
        let order = SweepOrder {
            bytes: SWEEP_BYTES_MAX + 1,
            millis: 1,
        };
        assert!(matches!(
            sweeping.begin(order),
            Err(WireError::OverLimit { .. })
        ));
        let mut sweeping = Sweeping::new(None);
        assert!(!sweeping.is_under_way());
        sweeping
            .begin(SweepOrder {
                bytes: SWEEP_BYTES_MAX,
                millis: SWEEP_MILLIS_MAX,
            })
            .unwrap();
        assert!(sweeping.is_under_way());
        let swept = sweeping.done().await.unwrap();
        assert_eq!(swept, failed(Operation::List, FaultCode::Os(ENOENT)));
    }
}
