//! The sweep of a receiver's target, which a probe requests.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use zmove_receiver::SweepTarget;
use zmove_types::ByteCount;
use zmove_wire::{FaultCode, Operation, SweepOrder, Swept, SweptSize};

use crate::figures::rounded;
use crate::sweep::result::{Measured, Throughput};
use crate::sweep::{Sweep, SweepConfig, SweepError, sweep};

/// Measures the storage of a receiver's target. A receiver calls this function when a probe requests it. Files are
/// written and read as in a transfer.
pub fn measure_target(target: SweepTarget, order: SweepOrder, stop: &AtomicBool) -> Swept {
    let config = SweepConfig {
        opened: Some(target.tree),
        budget: ByteCount(order.bytes),
        time: Duration::from_millis(order.millis),
        threads: target.threads,
        file_io: target.file_io,
        direct: target.direct,
        ..SweepConfig::at(target.shown)
    };
    match sweep(&config, stop, &mut |_event| {}) {
        Ok(sweep) => swept(&sweep),
        Err(error) => Swept {
            sizes: Vec::new(),
            complete: false,
            fault: Some(fault_of(&error)),
        },
    }
}

/// Converts a sweep to the form in which a receiver reports it.
pub(crate) fn swept(sweep: &Sweep) -> Swept {
    let size = |size: &Measured| {
        let rate = |moved: &Option<Throughput>| Some(rounded(moved.as_ref()?.bytes_per_second));
        SweptSize {
            file_bytes: size.file_bytes,
            write: rate(&size.write),
            read: rate(&size.read),
        }
    };
    Swept {
        sizes: sweep.sizes.iter().map(size).collect(),
        complete: sweep.complete,
        fault: None,
    }
}

fn fault_of(error: &SweepError) -> (Operation, FaultCode) {
    match error {
        SweepError::Io { source, .. } => (Operation::Write, FaultCode::os(source)),
        SweepError::NotRemoved { source, .. } => (Operation::Delete, FaultCode::os(source)),
        SweepError::Running { .. } => (Operation::Write, FaultCode::Locked),
        SweepError::NoRoom { .. } | SweepError::NothingFits { .. } => {
            (Operation::Write, FaultCode::Os(ENOSPC))
        }
        _ => (Operation::Write, FaultCode::Os(EINTR)),
    }
}

/// Error numbers of Linux.
const EINTR: i32 = 4;
const ENOSPC: i32 = 28;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use zmove_disk::{Direct, StorageEngine, Tree};
    use zmove_wire::limits::SWEEP_MILLIS_MAX;

    use super::*;

    fn measured(home: &Path, bytes: u64, stop: &AtomicBool) -> Swept {
        let target = SweepTarget {
            tree: Tree::open(home).unwrap(),
            shown: home.to_owned(),
            threads: 2,
            file_io: Arc::new(StorageEngine::Threads),
            direct: Direct::default(),
        };
        // The sweep ends when everything is measured. The long time limit is for a busy host.
        let millis = SWEEP_MILLIS_MAX;
        measure_target(target, SweepOrder { bytes, millis }, stop)
    }

    fn entries(home: &Path) -> usize {
        std::fs::read_dir(home).unwrap().count()
    }

    #[test]
    fn a_sweep_has_sizes_and_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let swept = measured(home.path(), 1 << 20, &AtomicBool::new(false));
        let written = |size: &SweptSize| size.write.is_some_and(|rate| rate > 0);
        assert!(
            swept.fault.is_none() && swept.sizes.iter().any(written),
            "{swept:?}"
        );
        assert_eq!(entries(home.path()), 0);
    }

    #[test]
    fn a_stopped_sweep_removes_what_it_has_written() {
        let home = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let swept = std::thread::scope(|scope| {
            let sweeping = scope.spawn(|| measured(home.path(), 1 << 30, &stop));
            while entries(home.path()) == 0 {
                assert!(!sweeping.is_finished());
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            sweeping.join().unwrap()
        });
        assert_eq!(swept.fault, Some((Operation::Write, FaultCode::Os(EINTR))));
        assert_eq!(entries(home.path()), 0);
    }
}
